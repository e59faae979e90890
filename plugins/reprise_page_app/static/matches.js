// Matches: searched newest first, one of them opened with the events it has bound.

import { get } from "./api.js";
import { badge, el, facts, link, note, number, section, table, tell, value, when } from "./dom.js";
import { tabs } from "./pipelines.js";

export async function matches(page, query, name, chosen) {
  const about = await get(`pipelines/${name}`);
  const operators = about.operators.map((operator) => operator.operator);
  const operator = chosen ?? operators[0];
  const results = el("div", { class: "results" });
  const form = searchForm(operators, operator, query);
  page.append(el("div", { class: "head" }, el("h1", {}, name)), tabs(name, "Matches"), note(about.note) ?? "");
  if (!operator) return;
  page.append(form, results);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = new FormData(form);
    const words = new URLSearchParams([...wanted].filter(([field, text]) => field !== "operator" && text));
    const target = `#/p/${encodeURIComponent(name)}/matches/${encodeURIComponent(wanted.get("operator"))}?${words}`;
    if (location.hash === target) look();
    else location.hash = target;
  });

  async function look(before) {
    const wanted = Object.fromEntries(query);
    const found = await get(`pipelines/${name}/matches/${operator}`, { ...wanted, since: utc(wanted.since), until: utc(wanted.until), before });
    if (!before) results.replaceChildren();
    results.querySelector(".more")?.remove();
    results.append(...pageOf(name, found, before));
    if (found.next !== null) {
      const more = el("button", { type: "button", class: "more", onclick: () => look(found.next) },
        found.matches.length ? "Show older ones" : `Nothing among ${number(found.looked_at)} rows; look further back`);
      results.append(more);
      if (before) more.focus();
    }
    tell(`${found.matches.length} matches shown`);
  }

  await look();
}

function utc(text) {
  return text ? `${text}${text.length <= 16 ? ":00" : ""}Z` : text;
}

function searchForm(operators, operator, query) {
  const field = (label, name, type, extra = {}) =>
    el("label", {}, label, el("input", { name, type, value: query.get(name) ?? "", maxlength: "200", autocomplete: "off", ...extra }));
  return el("form", { class: "search", role: "search" },
    el("label", {}, "Operator", el("select", { name: "operator" },
      operators.map((one) => el("option", { value: one, selected: one === operator }, one)))),
    field("Text in the key or a measure", "text", "search", { "data-search": true, placeholder: "press / to search" }),
    el("details", { open: innerWidth > 640 || ["key", "since", "until"].some((name) => query.get(name)) },
      el("summary", {}, "Key and time"),
      el("div", { class: "row" }, field("Key, exactly", "key", "text"),
        field("Since (UTC)", "since", "datetime-local", { step: "1" }), field("Until (UTC)", "until", "datetime-local", { step: "1" }))),
    el("button", { type: "submit", class: "primary" }, "Search"));
}

function pageOf(name, found, before) {
  if (!found.matches.length) return before ? [] : [note("No match fits. Take a word away, or widen the time.")];
  const columns = ["number", "key", "time", ...found.measures, "events", "batch"];
  const rows = found.matches.map((row) => [
    el("span", {}, link(row.number, "p", name, "matches", found.operator, String(found.version), String(row.ordinal)), revised(row)),
    value(row.key),
    when(row.ts),
    ...found.measures.map((measure) => value(row.measures[measure])),
    row.symbols.length > 12 ? `${row.symbols.slice(0, 12).join(" ")} … ${row.symbols.length}` : row.symbols.join(" "),
    number(row.batch),
  ]);
  const head = before ? [] : [el("p", { class: "dim" }, `${number(found.total)} published by ${found.operator}, version ${found.version}; the newest first`)];
  return [...head, table("Matches", columns, rows, { numeric: ["batch"] })];
}

function revised(row) {
  if (row.revision === "retract") return el("span", { class: "tag" }, `takes back ${number(row.of)}`);
  return row.speculative ? el("span", { class: "tag" }, "was speculative") : null;
}

export async function match(page, query, name, operator, version, ordinal) {
  const one = await get(`pipelines/${name}/matches/${operator}/${version}/${ordinal}`);
  const names = [...new Set(one.events.flatMap((event) => Object.keys(event.attributes ?? {})))];
  const columns = ["symbol", "event", "type", "time", ...names, "key", "source"];
  page.append(
    el("div", { class: "head" }, el("h1", {}, `${operator} ${one.number}`), el("span", { class: "dim" }, "in ", link(name, "p", name)), one.timed_out ? badge("other", "timed out") : ""),
    tabs(name, "Matches"),
    facts([
      ["key", value(one.key)],
      ["time", when(one.ts)],
      ["decided at", el("span", {}, when(one.decided_ts), one.decided_sn ? ` by event ${number(one.decided_sn)}` : " as time passed")],
      ["ordinal", number(one.ordinal)],
      ["batch", number(one.batch)],
      ["version", one.current ? `${one.version} (current)` : `${one.version} (not current)`],
      one.revision ? ["revision", one.revision === "retract" ? `takes back ordinal ${number(one.of)}` : one.revision] : null,
      ...Object.entries(one.measures).map(([measure, data]) => [measure, value(data)]),
    ]),
    section("Events it has bound", table("Events it has bound", columns, one.events.map((event) => [
      el("strong", {}, event.symbol),
      event.input === "event_log" || event.gone
        ? number(event.number)
        : link(`${event.input} ${number(event.number)}`, "p", name, "matches", event.input, String(event.version), String(event.number)),
      event.gone ? el("span", { class: "dim" }, "trimmed: the log does not have it any more") : event.type,
      when(event.ts),
      ...names.map((attribute) => value(event.attributes?.[attribute])),
      value(event.key),
      event.source ? `${event.source} ${number(event.source_seq)}` : "–",
    ])), one.events_left_off ? note(`${number(one.events_left_off)} more are not shown.`) : ""),
    el("p", {}, el("a", { href: `#/p/${encodeURIComponent(name)}/matches/${encodeURIComponent(operator)}` }, "Back to the matches")));
}
