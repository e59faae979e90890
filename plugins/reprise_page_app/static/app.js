// The page: an address after '#' is a view; a view is a function that fills <main> and may return how to stop it.

import { Problem } from "./api.js";
import { el, note } from "./dom.js";
import { aside } from "./aside.js";
import { drill, drills, drillForm } from "./drills.js";
import { match, matches } from "./matches.js";
import { pipeline, pipelines } from "./pipelines.js";

const main = document.getElementById("main");
let stop = () => {};
let turn = 0;

const ROUTES = [
  [/^$/, pipelines],
  [/^p\/([^/]+)$/, pipeline],
  [/^p\/([^/]+)\/matches(?:\/([^/]+))?$/, matches],
  [/^p\/([^/]+)\/matches\/([^/]+)\/(\d+)\/(\d+)$/, match],
  [/^p\/([^/]+)\/aside$/, aside],
  [/^drills$/, drills],
  [/^drills\/new$/, drillForm],
  [/^drills\/([^/]+)$/, drill],
];

async function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [pattern, view] = ROUTES.find(([route]) => route.test(path)) ?? [];
  const mine = ++turn;
  stop();
  stop = () => {};
  mark(path);
  if (!view) return fill(note("There is no such view. The tabs above lead to all of them.", "bad"));
  const page = el("div", { class: "view" });
  main.setAttribute("aria-busy", "true");
  try {
    const words = pattern.exec(path).slice(1).map((word) => word && decodeURIComponent(word));
    const ending = await view(page, new URLSearchParams(query), ...words);
    if (mine !== turn) return ending?.();
    stop = ending ?? stop;
    fill(page);
    document.title = `${page.querySelector("h1")?.textContent ?? "Reprise"} · Reprise`;
  } catch (error) {
    if (mine !== turn) return;
    if (!(error instanceof Problem)) console.error(error);
    fill(note(error instanceof Problem ? error.message : "The page has met an error of its own. Reload it; the console says more.", "bad"));
  } finally {
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

function fill(content) {
  const moved = main.childElementCount > 0;
  main.replaceChildren(content);
  if (moved && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function mark(path) {
  for (const tab of document.querySelectorAll("[data-tab]")) {
    const here = tab.dataset.tab === (path.startsWith("drills") ? "drills" : "pipelines");
    if (here) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
}

// Every view of a pipeline leads to its matches, which can be searched.
async function search() {
  const [pipeline] = /^#\/p\/[^/?]+/.exec(location.hash) ?? [];
  if (!document.querySelector("[data-search]") && pipeline) {
    history.pushState(null, "", `${pipeline}/matches`);
    await show();
  }
  document.querySelector("[data-search]")?.focus();
}

let waiting = "";

addEventListener("keydown", (event) => {
  if (event.target.matches?.("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    search();
  } else if (waiting === "g" && event.key === "d") location.hash = "#/drills";
  else if (waiting === "g" && event.key === "p") location.hash = "#/";
  waiting = event.key === "g" ? "g" : "";
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after '#' is a view
  main.focus();
});

addEventListener("hashchange", show);
show();
