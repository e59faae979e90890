// Drills: the list, the form to start one, and one that is watched while it runs.

import { Problem, address, get, post } from "./api.js";
import { ago, badge, duration, el, facts, link, note, number, section, table, tell, when } from "./dom.js";
import { timeline } from "./timeline.js";

const AGAIN = 1000;

export async function drills(page) {
  const list = el("div");
  page.append(
    el("div", { class: "head" }, el("h1", {}, "Drills"), el("a", { class: "button primary", href: "#/drills/new" }, "Start a drill")),
    el("p", { class: "dim" }, "A drill breaks a pipeline on purpose, on data of its own, and proves that nothing was lost or doubled."),
    list);

  async function fill(offset = 0) {
    const seen = await get("drills", { offset });
    const rows = seen.drills.map((one) => [
      link(one.drill, "drills", one.drill), state(one), one.pipeline ?? "–", one.faults.join(", ") || "–",
      one.replayed === undefined ? "–" : `${number(one.replayed)} of ${number(one.processed)}`, ago(one.changed), one.run?.by ?? "–",
    ]);
    if (!offset) list.replaceChildren();
    list.querySelector(".more")?.remove();
    list.append(rows.length ? table("Drills", ["drill", "verdict", "pipeline", "faults", "events replayed", "changed", "by"], rows) : note(seen.note));
    if (seen.next !== null) list.append(el("button", { type: "button", class: "more", onclick: () => fill(seen.next) }, "Show older ones"));
  }

  await fill();
}

function state(one) {
  if (one.finished) return badge(one.verdict);
  if (one.run && ["queued", "running"].includes(one.run.state)) return badge(one.run.state);
  return badge(one.run?.state === "failed" ? "failed" : "other", one.run?.state === "failed" ? "ended without a report" : "unfinished");
}

export async function drill(page, query, name) {
  const head = el("div", { class: "head" }), body = el("div"), report = el("div"), line = el("div");
  page.append(head, body, section("Time line", line), report);
  let timer = null, ending = null, told = "", reported = false, stopped = false;

  async function look() {
    const one = await get(`drills/${name}`);
    head.replaceChildren(el("h1", {}, name), state(one));
    body.replaceChildren(...shown(one));
    const words = inWords(one);
    if (words !== told) tell((told = words));
    if (one.has_report && one.finished && !reported) {
      reported = true;
      report.replaceChildren(reportOf(name));
    }
    if (ending) ending.again();
    else ending = timeline(line, `drills/${name}/timeline`);
    return !one.finished && (!one.run || ["queued", "running"].includes(one.run.state));
  }

  async function watch() {
    let goes = true;
    try {
      goes = await look();
    } catch (error) {
      if (!(error instanceof Problem) || error.status === 401) throw error;
      tell(error.message);
    }
    if (goes && !stopped) timer = setTimeout(watch, AGAIN);
  }

  if (await look()) timer = setTimeout(watch, AGAIN);
  return () => {
    stopped = true;
    clearTimeout(timer);
    ending?.();
  };
}

function shown(one) {
  const batches = one.run?.events && one.run?.batch_events ? Math.ceil(one.run.events / one.run.batch_events) : null;
  return [
    one.finished ? verdict(one) : el("p", { class: "now" }, inWords(one)),
    el("ol", { class: "steps", "aria-label": "Steps" }, one.steps.map((step) => el("li", { class: step.state },
      badge(step.state, step.step), step.tries > 1 ? el("span", { class: "dim" }, ` try ${step.tries}`) : null))),
    facts([
      ["pipeline", one.pipeline],
      ...one.operators.map((operator) => [
        operator.operator,
        el("span", {}, progressBar(operator.batches, batches, operator.operator), `${batches ? `batch ${number(operator.batches)} of about ${number(batches)}` : `${number(operator.batches)} batches`}, ${number(operator.matches)} matches`),
      ]),
      ["faults", one.armed.length ? `${one.struck.length} of ${one.armed.length} struck` : "not armed yet"],
      one.run ? ["started by", one.run.by] : null,
      one.now ? ["last word", el("span", {}, `${one.now.name} `, ago(one.now.at))] : null,
    ]),
    one.armed.length ? el("ul", { class: "faults" }, one.armed.map((fault, place) => {
      const times = one.armed.slice(0, place).filter((other) => other === fault).length;
      const strike = one.struck.filter((other) => other.fault === fault)[times];
      return el("li", {}, badge(strike ? "done" : "waiting", strike ? "struck" : "armed"), " ", el("code", {}, fault), strike ? el("span", { class: "dim" }, ` in attempt ${strike.attempt}, `, when(strike.at)) : null);
    })) : "",
  ];
}

function progressBar(done, all, name) {
  return all ? el("progress", { value: Math.min(done, all), max: all, "aria-label": `batches of ${name}` }) : null;
}

function verdict(one) {
  const words = { valid: "Every complex event came out exactly once.", invalid: "The output is wrong, or damage went unnoticed.", unknown: "Not everything could be checked: this is no pass." };
  const saved = one.processed ? ` ${number(one.replayed)} of ${number(one.processed)} processed events were replayed.` : "";
  return el("div", { class: `verdict ${one.verdict}` }, el("p", {}, `${words[one.verdict] ?? ""}${saved}`),
    one.missed?.length ? el("p", {}, `Did not strike: ${one.missed.join(", ")}`) : null,
    el("ul", {}, (one.next ?? []).map((step) => el("li", {}, step))));
}

function inWords(one) {
  if (one.finished) return `The drill is over: ${one.verdict}.`;
  if (one.run?.state === "queued") return "Waiting for Airflow to start it.";
  if (one.run?.state === "failed") return "The run ended without a report. Airflow's log of the failed task says why.";
  const running = one.steps.find((step) => step.state === "running") ?? one.steps.findLast((step) => step.state !== "waiting");
  const struck = one.struck.length ? ` ${one.struck.length} of ${one.armed.length} faults have struck.` : "";
  if (!running) return "It is about to begin.";
  const again = running.state === "broken" ? `${running.step} was broken and is tried again` : `${running.step} is running`;
  return `${again}${running.tries > 1 ? `, try ${running.tries}` : ""}.${struck}`;
}

function reportOf(name) {
  const url = address(`drills/${name}/report`);
  // No scripts, no origin: whatever is in the report stays in it.
  return section("Report", el("p", {}, el("a", { href: url, download: `${name}.html` }, "Download the report")),
    el("iframe", { class: "report", sandbox: "", src: url, title: `Report of ${name}`, loading: "lazy" }));
}

export async function drillForm(page) {
  const form = await get("drills/form");
  page.append(el("div", { class: "head" }, el("h1", {}, "Start a drill")));
  if (!form.may_start) return page.append(note("You may not trigger the DAG recovery_drill, so you cannot start a drill. Ask an admin of this Airflow for it.", "bad"));
  if (!form.pipelines.length) return page.append(note("There is no pipeline that you may read. Put a pipeline file into the pipelines folder first.", "bad"));
  page.append(fields(form));
}

function fields(form) {
  const chosen = [];
  const kinds = Object.fromEntries(form.kinds.map((kind) => [kind.kind, kind]));
  const groups = [...new Set(form.kinds.map((kind) => kind.group))];
  const kind = el("select", { id: "kind" }, groups.map((group) => el("optgroup", { label: group },
    form.kinds.filter((one) => one.group === group).map((one) => el("option", { value: one.kind, selected: one.kind === "kill_driver" }, one.kind)))));
  const phase = el("select", { id: "phase" }), batch = el("input", { id: "batch", type: "number", min: "1", max: "1000", value: "3" });
  const explained = el("p", { class: "dim", "aria-live": "polite" }), list = el("ul", { class: "faults" });
  const problem = el("div"), start = el("button", { type: "submit", class: "primary" }, "Start the drill");
  const master = el("select", { name: "master" }, [...form.masters].reverse().map((one) => el("option", { value: one }, one === "inline" ? "inline (without Spark, quick)" : `Spark on ${one}`)));
  const pipeline = el("select", { name: "pipeline" }, form.pipelines.map((one) => el("option", { value: one.name }, one.name)));
  const events = el("input", { name: "events", type: "number", min: "1", max: "5000000", value: "100000", required: true });
  const size = el("input", { name: "batch_events", type: "number", min: "1", value: "20000", required: true });
  const many = el("output", { class: "dim" });
  const own = el("input", { name: "data", type: "radio", value: "own" });

  function explain() {
    const one = kinds[kind.value];
    phase.replaceChildren(...one.phases.map((name) => el("option", { value: name, selected: name === "detect.saved" }, name)));
    phase.closest("label").hidden = !one.phases.length;
    explained.textContent = `${one.breaks}. Healed: ${one.heals}.${one.needs_spark ? " Needs Spark." : ""}`;
  }

  function offered() {
    own.disabled = !form.pipelines.find((one) => one.name === pipeline.value)?.has_files;
    if (own.disabled) form_.querySelector("[value=generated]").checked = true;
    counted();
  }

  function counted() {
    const batches = Math.ceil(Number(events.value) / Math.max(1, Number(size.value)));
    events.disabled = own.checked;
    many.textContent = own.checked ? "as many batches as the files give" : `${number(batches)} ${batches === 1 ? "batch" : "batches"}`;
  }

  function listed() {
    list.replaceChildren(...chosen.map((fault, place) => el("li", {}, el("code", {}, fault), " ",
      el("button", { type: "button", "aria-label": `Remove ${fault}`, onclick: () => { chosen.splice(place, 1); listed(); } }, "Remove"))));
  }

  const form_ = el("form", { class: "drill", novalidate: false },
    el("label", {}, "Pipeline", pipeline),
    el("label", {}, "Runs on", master),
    el("fieldset", {}, el("legend", {}, "Data"),
      el("label", { class: "inline" }, el("input", { name: "data", type: "radio", value: "generated", checked: true }), "a generated log (columns time, kind, card, seq, seen, amount, as in the examples)"),
      el("label", { class: "inline" }, own, "a copy of the pipeline's own landing files")),
    el("div", { class: "row" }, el("label", {}, "Events to generate", events), el("label", {}, "Events per batch", size), many),
    el("fieldset", {}, el("legend", {}, "Faults"),
      el("div", { class: "row" }, el("label", {}, "What breaks", kind), el("label", {}, "Where", phase), el("label", {}, "Batch or partition", batch),
        el("button", { type: "button", onclick: () => { chosen.push(written()); listed(); } }, "Add this fault")),
      explained, list,
      el("label", {}, "Or draw one from a seed", el("input", { name: "seed", type: "number", min: "0", max: "2147483647", placeholder: "a whole number" }))),
    problem, start);

  function written() {
    return kinds[kind.value].phases.length ? `${kind.value}:${phase.value}@${batch.value}` : `${kind.value}:${batch.value}`;
  }

  form_.addEventListener("input", counted);
  kind.addEventListener("change", explain);
  pipeline.addEventListener("change", offered);
  explain();
  offered();

  form_.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = new FormData(form_), seed = given.get("seed");
    const faults = chosen.length || seed ? chosen : [written()]; // what is chosen and not added is meant too
    start.disabled = true;
    problem.replaceChildren();
    try {
      const begun = await post("drills", {
        pipeline: given.get("pipeline"), master: given.get("master"), own_data: own.checked, faults: faults.join(", "),
        events: Number(given.get("events") ?? 100000), batch_events: Number(given.get("batch_events")), seed: seed ? Number(seed) : null,
      });
      location.hash = `#/drills/${encodeURIComponent(begun.drill)}`;
    } catch (error) {
      problem.replaceChildren(note(error.message, "bad"));
      start.disabled = false;
      start.focus();
    }
  });
  return form_;
}
