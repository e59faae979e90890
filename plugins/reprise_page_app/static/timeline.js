// The time line: batches as bars, savepoints and what went wrong below them, attempts as stretches.
// Everything in it can be reached with the arrow keys; what a stretch holds is said in words beside it.

import { get } from "./api.js";
import { badge, el, note, number, svg, table, tell, when } from "./dom.js";

const BARS = 84, SAVES = 14, MARKS = 22, LANE = 15, LANES = 8, AXIS = 20, LEFT = 8;
const WORDS = {
  kill: ["✕", "killed"], fault: ["ϟ", "fault"], fence: ["⊘", "fenced"], replay: ["↻", "replay"], repair: ["+", "repaired"],
  heal: ["+", "healed"], gap: ["▫", "gap"], error: ["!", "error"], leader: ["♛", "leader"], suspicion: ["…", "missed"],
  damaged: ["!", "damaged record"],
};
// In a stretch with several, the one that matters most is drawn.
const ORDER = ["kill", "error", "fault", "fence", "damaged", "suspicion", "gap", "repair", "heal", "leader", "replay"];

export function timeline(target, path) {
  const state = { since: null, until: null, count: 0, cursor: null, seen: null };
  const chart = el("div", { class: "chart", tabindex: "0", role: "group", "aria-roledescription": "time line",
    "aria-label": "Time line. Left and right arrows move, plus and minus zoom, 0 shows everything." });
  const said = el("p", { class: "said" });
  const buttons = el("div", { class: "buttons" },
    button("Zoom in", () => zoom(0.5)), button("Zoom out", () => zoom(2)),
    button("Earlier", () => move(-0.5)), button("Later", () => move(0.5)), button("Everything", () => again(null, null)));
  const below = el("div");
  target.replaceChildren(el("div", { class: "line-head" }, legend(), buttons), chart, said, below);

  async function look(since, until) {
    const count = buckets();
    const seen = await get(path, { since: iso(since), until: iso(until), buckets: count });
    Object.assign(state, { since, until, seen, count, cursor: null });
    draw();
  }

  // What was asked for last counts, and an error takes the place of the list.
  async function again(since = state.since, until = state.until) {
    try {
      await look(since, until);
    } catch (error) {
      below.replaceChildren(note(error.message, "bad"));
    }
  }

  function buckets() {
    return Math.max(30, Math.min(240, Math.floor(chart.clientWidth / 7)));
  }

  function span() {
    return [Date.parse(state.seen.range.from), Date.parse(state.seen.range.to)];
  }

  function zoom(factor, around) {
    if (!state.seen?.range) return;
    const [low, high] = span();
    const middle = around ?? (state.cursor === null ? (low + high) / 2 : low + (high - low) * ((state.cursor + 0.5) / state.count));
    const half = Math.max(((high - low) * factor) / 2, 10);
    const whole = [Date.parse(state.seen.whole.from), Date.parse(state.seen.whole.to)];
    const wanted = [Math.max(middle - half, whole[0]), Math.min(middle + half, whole[1])];
    if (wanted[0] <= whole[0] && wanted[1] >= whole[1]) again(null, null);
    else again(...wanted);
  }

  function move(share) {
    if (state.since === null) return;
    const [low, high] = span(), by = (high - low) * share;
    again(low + by, high + by);
  }

  function draw() {
    const seen = state.seen;
    chart.classList.toggle("nothing", !seen.whole);
    if (!seen.whole) {
      chart.replaceChildren();
      buttons.hidden = true;
      below.replaceChildren(note(seen.note));
      return;
    }
    buttons.hidden = false;
    chart.replaceChildren(drawing(seen, state.count, chart.clientWidth));
    said.textContent = summary(seen);
    const open = [...below.querySelectorAll("details")].map((one) => one.open);
    below.replaceChildren(events(seen));
    below.querySelectorAll("details").forEach((one, place) => (one.open = open[place] ?? one.open));
  }

  function point(place) {
    state.cursor = place;
    const bucket = state.seen.buckets.find((one) => one.bucket === place);
    const x = LEFT + ((place + 0.5) / state.count) * (chart.clientWidth - 2 * LEFT);
    const cursor = chart.querySelector(".cursor");
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.removeAttribute("visibility");
    said.textContent = bucket ? inWords(bucket) : "nothing happened here";
  }

  chart.addEventListener("keydown", (event) => {
    const act = {
      ArrowRight: () => step(1), ArrowLeft: () => step(-1), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      0: () => again(null, null), Enter: () => zoom(0.25), Home: () => point(0), End: () => point(state.count - 1),
    }[event.key];
    if (!act || !state.seen?.whole) return;
    event.preventDefault();
    act();
  });

  function step(by) {
    // From one stretch in which something happened to the next.
    const full = state.seen.buckets.map((bucket) => bucket.bucket);
    if (!full.length) return;
    const next = by > 0 ? full.find((place) => place > (state.cursor ?? -1)) : full.findLast((place) => place < (state.cursor ?? Infinity));
    if (next === undefined) return;
    point(next);
    tell(said.textContent);
  }

  let pressed = null;
  const at = (event) => {
    const box = chart.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left - LEFT) / (box.width - 2 * LEFT)));
  };
  chart.addEventListener("pointermove", (event) => {
    if (!state.seen?.whole) return;
    point(Math.min(state.count - 1, Math.floor(at(event) * state.count)));
    const area = chart.querySelector(".area");
    if (pressed !== null) {
      const [from, to] = [pressed, at(event)].sort((a, b) => a - b), width = chart.clientWidth - 2 * LEFT;
      area.setAttribute("x", LEFT + from * width);
      area.setAttribute("width", (to - from) * width);
    }
  });
  chart.addEventListener("pointerdown", (event) => (pressed = at(event)));
  chart.addEventListener("pointerup", (event) => {
    const [from, to] = [pressed ?? 0, at(event)].sort((a, b) => a - b);
    const dragged = pressed !== null && to - from > 0.01;
    pressed = null;
    if (!dragged || !state.seen?.whole) return;
    const [low, high] = span();
    again(low + (high - low) * from, low + (high - low) * to);
  });

  // Drawn as soon as it has a width, and anew when that changes.
  let width = 0;
  const watch = new ResizeObserver(() => {
    if (chart.clientWidth && Math.abs(chart.clientWidth - width) > 4) again();
    width = chart.clientWidth;
  });
  watch.observe(chart);
  const ending = () => watch.disconnect();
  // Who looks closely is left alone.
  ending.again = () => state.since === null && state.cursor === null && !below.contains(document.activeElement) && width && again();
  return ending;
}

function button(text, onclick) {
  return el("button", { type: "button", onclick }, text);
}

function iso(milliseconds) {
  return milliseconds === null ? null : new Date(milliseconds).toISOString();
}

function legend() {
  const one = (kind, text) => el("li", {}, el("span", { class: `key ${kind}`, "aria-hidden": "true" }), text);
  const sign = (kind) => el("li", {}, el("span", { class: `sign ${kind}`, "aria-hidden": "true" }, WORDS[kind][0]), WORDS[kind][1]);
  return el("ul", { class: "legend" }, one("batch", "batches"), one("save", "savepoints"), ["kill", "fault", "fence", "replay"].map(sign));
}

function drawing(seen, count, width) {
  const inner = width - 2 * LEFT, scale = (place) => LEFT + (place / count) * inner;
  const [low, high] = [Date.parse(seen.range.from), Date.parse(seen.range.to)];
  const x = (moment) => LEFT + Math.max(0, Math.min(1, (Date.parse(moment) - low) / Math.max(high - low, 1))) * inner;
  // Hundreds of attempts are a list; drawn, the oldest would be missing.
  const lanes = packed((seen.attempts_left_off ? [] : seen.attempts).map((one) => ({ ...one, x1: x(one.from), x2: Math.max(x(one.to), x(one.from) + 3) })));
  const top = { saves: BARS + 4, marks: BARS + SAVES + 4, lanes: BARS + SAVES + MARKS + 8 };
  const height = top.lanes + lanes.rows * LANE + AXIS;
  const most = Math.max(1, ...seen.buckets.map((bucket) => bucket.batches));
  const bar = Math.max(1, inner / count - 1);
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("text", { class: "most", x: LEFT, y: 10 }, `${number(most)} ${most === 1 ? "batch" : "batches"}`),
    svg("line", { class: "ground", x1: LEFT, x2: width - LEFT, y1: BARS, y2: BARS }),
    seen.buckets.filter((one) => one.batches).map((one) => {
      const size = Math.max(3, (one.batches / most) * (BARS - 16));
      return svg("rect", { class: "batch", x: scale(one.bucket), y: BARS - size, width: bar, height: size });
    }),
    seen.buckets.filter((one) => one.savepoints).map((one) =>
      svg("circle", { class: "save", cx: scale(one.bucket) + bar / 2, cy: top.saves + 5, r: 2.2 })),
    seen.buckets.filter((one) => ORDER.some((kind) => one.marks[kind])).map((one) => {
      const kind = ORDER.find((name) => one.marks[name]);
      return svg("text", { class: `mark ${kind}`, x: scale(one.bucket) + bar / 2, y: top.marks + 14, "text-anchor": "middle" }, WORDS[kind][0]);
    }),
    lanes.all.map((one) => svg("g", { class: `life ${one.ended}` },
      svg("rect", { x: one.x1, y: top.lanes + one.row * LANE, width: one.x2 - one.x1, height: LANE - 4, rx: 2 }),
      one.x2 - one.x1 > 46 ? svg("text", { x: one.x1 + 4, y: top.lanes + one.row * LANE + LANE - 7 }, `${one.job} ${one.attempt}`) : null)),
    (seen.batches ?? []).map((one) => {
      const life = lanes.all.find((attempt) => attempt.attempt === one.attempt);
      return life && svg("rect", { class: `piece ${one.came}`, x: x(one.from), y: top.lanes + life.row * LANE + LANE - 6,
        width: Math.max(1, x(one.to) - x(one.from) - 0.5), height: 3 });
    }),
    ticks(low, high, Math.max(2, Math.floor(width / 150))).map(([moment, text]) => {
      const place = LEFT + ((moment - low) / Math.max(high - low, 1)) * inner;
      return svg("g", { class: "tick" }, svg("line", { x1: place, x2: place, y1: 14, y2: height - AXIS }),
        svg("text", { x: place, y: height - 6, "text-anchor": "middle" }, text));
    }),
    svg("rect", { class: "area", x: 0, y: 0, width: 0, height: height - AXIS }),
    svg("line", { class: "cursor", x1: 0, x2: 0, y1: 0, y2: height - AXIS, visibility: "hidden" }));
}

// Attempts that overlap stand below each other; those for which there is no room are in the list.
function packed(attempts) {
  const ends = [], all = [];
  for (const one of attempts) {
    let row = ends.findIndex((end) => end + 2 < one.x1);
    if (row < 0 && ends.length < LANES) row = ends.push(0) - 1;
    if (row < 0) continue;
    ends[row] = one.x2;
    all.push({ ...one, row });
  }
  return { all, rows: ends.length };
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 18e5, 36e5, 108e5, 216e5, 432e5, 864e5, 6048e5, 2592e6, 31536e6];

function ticks(low, high, most) {
  const step = STEPS.find((size) => (high - low) / size <= most) ?? STEPS.at(-1);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high && found.length < 50; at += step) {
    const text = new Date(at).toISOString();
    found.push([at, step >= 864e5 ? text.slice(0, 10) : step >= 6e4 ? text.slice(5, 16).replace("T", " ") : step >= 1e3 ? text.slice(11, 19) : text.slice(14, 23)]);
  }
  // A label at the very edge would be cut off.
  return found.filter(([at]) => (at - low) / Math.max(high - low, 1) > 0.04 && (at - low) / Math.max(high - low, 1) < 0.96);
}

function inWords(bucket) {
  const marks = ORDER.filter((kind) => bucket.marks[kind]).map((kind) => `${number(bucket.marks[kind])} ${WORDS[kind][1]}`);
  const work = [
    bucket.batches && `${number(bucket.batches)} ${bucket.batches === 1 ? "batch" : "batches"} with ${number(bucket.events)} events and ${number(bucket.matches)} matches`,
    bucket.savepoints && `${number(bucket.savepoints)} ${bucket.savepoints === 1 ? "savepoint" : "savepoints"}`,
    bucket.ingested && `${number(bucket.ingested)} events ingested`,
    ...marks,
  ].filter(Boolean);
  return `${bucket.from.slice(0, 23).replace("T", " ")}: ${work.join(", ")}`;
}

function summary(seen) {
  const sum = (name) => seen.buckets.reduce((all, bucket) => all + bucket[name], 0);
  const kinds = {};
  for (const bucket of seen.buckets) for (const [kind, count] of Object.entries(bucket.marks)) kinds[kind] = (kinds[kind] ?? 0) + count;
  const marks = ORDER.filter((kind) => kinds[kind]).map((kind) => `${number(kinds[kind])} ${WORDS[kind][1]}`);
  return [`${number(sum("batches"))} batches`, `${number(sum("savepoints"))} savepoints written`, `${number(sum("matches"))} matches`, ...marks].join(", ");
}

function events(seen) {
  const marks = [...seen.marks].reverse();
  const rows = marks.slice(0, 50).map((mark) => [
    when(mark.at),
    el("span", { class: "what" }, el("span", { class: `sign ${mark.kind}`, "aria-hidden": "true" }, WORDS[mark.kind]?.[0] ?? "•"), ` ${WORDS[mark.kind]?.[1] ?? mark.kind}`),
    mark.operator ?? mark.job,
    mark.batch ?? "–",
    number(mark.attempt),
    mark.text,
  ]);
  const attempts = [...seen.attempts].reverse().slice(0, 50).map((one) => [
    number(one.attempt), one.replica === null ? one.job : `${one.job}, replica ${one.replica}`, badge(one.ended), when(one.from), when(one.to), number(one.batches),
  ]);
  return el("div", {},
    el("details", { open: marks.length > 0 && marks.length <= 12 }, el("summary", {}, `What happened (${number(marks.length + seen.marks_left_off)})`),
      table("What happened", ["when", "what", "who", "batch", "attempt", "in words"], rows, { numeric: ["batch", "attempt"], empty: "Nothing went wrong here." })),
    el("details", {}, el("summary", {}, `Attempts (${number(seen.attempts.length + seen.attempts_left_off)})`),
      table("Attempts", ["attempt", "job", "ended", "from", "to", "batches"], attempts, { numeric: ["attempt", "batches"] })));
}
