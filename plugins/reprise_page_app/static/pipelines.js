// Pipelines: all of them at a glance, and one with its operators and its time line.

import { address, get, post } from "./api.js";
import { ago, badge, duration, el, facts, link, note, number, section, table, tell, when } from "./dom.js";
import { timeline } from "./timeline.js";

export async function pipelines(page) {
  const seen = await get("pipelines");
  const cards = seen.pipelines.map((one) => el("li", { "data-name": one.name }, card(one)));
  const find = el("input", { type: "search", "data-search": true, "aria-label": "Find a pipeline", placeholder: "find a pipeline", maxlength: "63" });
  find.addEventListener("input", () => cards.forEach((one) => (one.hidden = !one.dataset.name.includes(find.value.trim().toLowerCase()))));
  page.append(
    el("div", { class: "head" }, el("h1", {}, "Pipelines"), cards.length > 1 ? find : ""),
    note(seen.note) ?? "",
    el("ul", { class: "cards" }, cards),
    seen.misplaced.length
      ? section("Files that are no pipelines", table("Files that are no pipelines", ["file", "problem"],
          seen.misplaced.map((one) => [one.file, one.problem])))
      : "");
}

function card(one) {
  const behind = Math.max(0, ...one.operators.map((operator) => operator.lag_events));
  const late = Math.max(0, ...one.operators.map((operator) => operator.lag_seconds ?? 0));
  return el("article", { class: "card" },
    el("h2", {}, link(one.name, "p", one.name), " ", one.operators.length ? badge(one.verdict) : null),
    note(one.note) ?? facts([
      ["events in the log", number(one.events)],
      ["lag", behind ? `${number(behind)} events, ${duration(late)}` : "none"],
      ["matches", number(one.operators.reduce((sum, operator) => sum + operator.matches, 0))],
      ["quarantined", number(one.quarantined)],
      one.late ? ["too late", number(one.late)] : null,
    ]),
    one.last_attempt
      ? el("p", { class: "dim" }, `${one.last_attempt.job} `, badge(one.last_attempt.ended), " ", ago(one.last_attempt.to))
      : null);
}

export function tabs(name, here) {
  const all = [["Overview", ["p", name]], ["Matches", ["p", name, "matches"]], ["Quarantine and late", ["p", name, "aside"]]];
  return el("nav", { class: "tabs", "aria-label": name }, all.map(([text, path]) => {
    const tab = link(text, ...path);
    if (text === here) tab.setAttribute("aria-current", "page");
    return tab;
  }));
}

export async function pipeline(page, query, name) {
  const one = await get(`pipelines/${name}`);
  const line = el("div");
  page.append(
    el("div", { class: "head" }, el("h1", {}, name), one.operators.length ? badge(one.verdict) : ""),
    tabs(name, "Overview"),
    note(one.note) ?? "",
    facts([
      ["events in the log", number(one.events)],
      ["the log reaches", when(one.stream_ts)],
      one.trimmed ? ["trimmed up to", number(one.trimmed)] : null,
      ["schedule", one.schedule ?? "when somebody says so"],
      ["quarantined", link(number(one.quarantined), "p", name, "aside")],
      ["too late", link(number(one.late), "p", name, "aside")],
      ["landing folder", el("code", {}, one.landing)],
      one.has_report || one.has_docs ? ["pages", pages(one)] : null,
    ]),
    replay(one),
    section("Operators", operators(name, one.operators)),
    section("Time line", line));
  return timeline(line, `pipelines/${name}/timeline`);
}

// Pages of their own that run nothing: they open beside this one, because Airflow's frame is not theirs.
function pages(one) {
  const all = [["Report", one.has_report, "report"], ["Data Docs", one.has_docs, "docs/index.html"]].filter(([, there]) => there);
  return el("span", {}, all.flatMap(([text, , path], place) => [place ? ", " : "",
    el("a", { href: address(`pipelines/${one.name}/${path}`), target: "_blank", rel: "noopener" }, text)]));
}

function replay(one) {
  if (!one.may_replay) return "";
  const said = el("div"), button = el("button", { type: "button", "data-replay": true }, "Replay");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const begun = await post(`pipelines/${one.name}/replay`, {});
      const words = `Started: the run ${begun.run} of ${one.name}.ingest. The time line shows what comes of it.`;
      said.replaceChildren(note(words));
      tell(words);
    } catch (error) {
      said.replaceChildren(note(error.message, "bad"));
      button.disabled = false;
    }
  });
  return el("section", { class: "replay" }, el("p", { class: "dim" }, button,
    ` Takes in what is new in the landing folder, then detects and verifies it. Nothing comes out twice.`), said);
}

function operators(name, rows) {
  const columns = ["operator", "verdict", "matches", "events read", "lag, events", "lag, time", "batch", "resumes from", "reads"];
  return table("Operators", columns, rows.map((row) => [
    link(row.version > 1 ? `${row.operator} (version ${row.version})` : row.operator, "p", name, "matches", row.operator),
    row.verdict ? el("span", {}, badge(row.verdict.verdict), " ", ago(row.verdict.at)) : badge(null),
    number(row.matches),
    number(row.read),
    row.lag_events ? el("strong", {}, number(row.lag_events)) : "0",
    duration(row.lag_seconds),
    number(row.batch),
    row.batch ? `batch ${number(row.savepoint)}` : "the beginning",
    row.reads.join(", "),
  ]), { numeric: ["matches", "events read", "lag, events", "lag, time", "batch"], empty: "No operator has published anything yet." });
}
