// What was set aside: rows that ingest could not use, events that came too late.

import { get } from "./api.js";
import { el, note, number, section, table, value, when } from "./dom.js";
import { tabs } from "./pipelines.js";

export async function aside(page, query, name) {
  const quarantine = el("div"), late = el("div");
  page.append(
    el("div", { class: "head" }, el("h1", {}, name)),
    tabs(name, "Quarantine and late"),
    section("Quarantine", quarantine),
    section("Late events", late));
  await Promise.all([
    fill(quarantine, `pipelines/${name}/quarantine`, (seen) => [
      el("ul", { class: "reasons" }, seen.reasons.map((one) => el("li", {}, el("strong", {}, number(one.rows)), ` ${one.reason}`))),
      table("Quarantine", ["file", "row", "reason", "content", "when"], seen.rows.map((row) => [
        row.file, row.row === null ? "whole file" : number(row.row), row.reason, el("code", {}, value(row.content)), when(row.at),
      ]), { numeric: ["row"] }),
    ]),
    fill(late, `pipelines/${name}/late`, (seen) => [
      table("Late events", ["event", "type", "key", "happened", "the log had reached", "reason"], seen.rows.map((row) => [
        number(row.sn), row.type, row.key, when(row.ts), when(row.stream_ts), row.reason,
      ]), { numeric: ["event"] }),
    ]),
  ]);
}

async function fill(target, path, drawn, offset = 0) {
  const seen = await get(path, { offset });
  if (!seen.total) return target.replaceChildren(note(seen.note));
  const last = offset + seen.rows.length;
  const turned = (to) => async () => {
    await fill(target, path, drawn, to);
    target.querySelector(".pager button:not([disabled])")?.focus();
  };
  target.replaceChildren(...drawn(seen), el("div", { class: "pager" },
    el("button", { type: "button", disabled: offset === 0, onclick: turned(Math.max(0, offset - 50)) }, "Newer"),
    el("span", {}, `${number(offset + 1)} to ${number(last)} of ${number(seen.total)}`),
    el("button", { type: "button", disabled: last >= seen.total, onclick: turned(last) }, "Older")));
}
