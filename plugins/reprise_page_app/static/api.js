// Asking the server. What it answers that is no success is a Problem with a sentence for people.

const BASE = new URL("../api/", import.meta.url);

export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function address(path, query = {}) {
  const url = new URL(path.split("/").map(encodeURIComponent).join("/"), BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== "" && value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  return url;
}

export function get(path, query, signal) {
  return asked(address(path, query), { signal });
}

export function post(path, body) {
  const headers = { "Content-Type": "application/json", "X-Reprise": "1" };
  return asked(address(path), { method: "POST", headers, body: JSON.stringify(body) });
}

async function asked(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("Airflow cannot be reached. What is shown may be old; it is asked again when you reload.", 0);
  }
  const said = await answer.json().catch(() => ({}));
  if (answer.ok) return said;
  throw new Problem(said.detail || `Airflow answered with ${answer.status}. Nothing was changed. Reload the page.`, answer.status);
}
