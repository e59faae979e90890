// Elements and words. Data becomes text nodes and attributes of a fixed set, never markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function link(text, ...path) {
  return el("a", { href: "#/" + path.map(encodeURIComponent).join("/") }, text);
}

const NUMBER = new Intl.NumberFormat("en");

export function number(value) {
  return typeof value === "number" ? NUMBER.format(value) : value ?? "–";
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds === 0 ? "0 s" : `${Math.round(seconds * 1000)} ms`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[first];
  const rest = units[first + 1];
  const whole = Math.floor(seconds / size);
  const left = rest ? Math.floor((seconds % size) / rest[1]) : 0;
  return left ? `${whole} ${name} ${left} ${rest[0]}` : `${whole} ${name}`;
}

// The same moment for everybody: UTC, to the second, with how long ago it was.
export function when(iso) {
  if (!iso) return "–";
  const text = iso.replace("T", " ").slice(0, 19);
  return el("time", { datetime: iso, title: `${iso} (UTC)` }, text);
}

export function ago(iso) {
  if (!iso) return "–";
  const seconds = (Date.now() - Date.parse(iso)) / 1000;
  return el("time", { datetime: iso, title: `${iso} (UTC)` }, seconds < 5 ? "just now" : `${duration(Math.floor(seconds))} ago`);
}

const SIGNS = {
  valid: "✓", invalid: "✕", unknown: "?", done: "✓", running: "▸", waiting: "·", broken: "↻", failed: "✕", skipped: "–",
  killed: "✕", fenced: "⊘", error: "!", queued: "·", success: "✓",
};

// A state in a word and a sign; colour only repeats it.
export function badge(state, words = state) {
  if (!state) return el("span", { class: "badge none" }, "not verified");
  const sign = el("span", { "aria-hidden": "true" }, SIGNS[state] ?? "•");
  return el("span", { class: `badge ${/^[a-z]+$/.test(state) ? state : "other"}` }, sign, " ", words);
}

export function note(text, kind = "info") {
  return text ? el("p", { class: `note ${kind}`, role: kind === "bad" ? "alert" : "note" }, text) : null;
}

// A table that becomes a list of cards where the screen is narrow: every cell knows the name of its column.
export function table(caption, columns, rows, { numeric = [], empty = "Nothing here." } = {}) {
  if (!rows.length) return note(empty);
  const cell = (content, place) =>
    el("td", { "data-label": columns[place], class: numeric.includes(columns[place]) ? "numeric" : null }, content ?? "–");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, columns.map((name) =>
        el("th", { scope: "col", class: numeric.includes(name) ? "numeric" : null }, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

export function section(title, ...content) {
  return el("section", {}, el("h2", {}, title), ...content);
}

export function tell(text) {
  const live = document.getElementById("live");
  if (live.textContent !== text) live.textContent = text;
}

export function value(data) {
  if (data === null || data === undefined) return el("span", { class: "dim" }, "none");
  if (typeof data === "number") return number(data);
  return String(data);
}
