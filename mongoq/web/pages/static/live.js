// Renews the numbers of a page when the server says that they have changed, and shows times in the reader's zone.
"use strict";

function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const utc = at.toISOString().slice(0, 19).replace("T", " ") + " UTC";
    if (at.getTimezoneOffset() === 0) {
      time.textContent = utc;
      continue;
    }
    // Both are visible: a title would need a pointer, which keyboards and phones do not have.
    const beside = document.createElement("small");
    beside.textContent = utc;
    time.replaceChildren(at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }), " ", beside);
  }
}

let renewing = false;
let missed = false;
let waiting = 0;

async function renew() {
  // A page in the background costs nothing, and a slow answer is waited for.
  if (renewing || document.hidden) {
    missed = true;
    return;
  }
  renewing = true;
  missed = false;
  try {
    await load();
  } finally {
    renewing = false;
  }
}

function isChanged(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
  const chosen = [...field.options].findIndex((option) => option.defaultSelected);
  return field.selectedIndex !== Math.max(chosen, 0);
}

async function load() {
  const main = document.getElementById("content");
  // What the reader is just filling in or has selected must not go away.
  const touched = main.contains(document.activeElement) && document.activeElement !== main;
  if (touched || [...main.querySelectorAll("input, textarea, select")].some(isChanged)) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Mongoq-Renewal": "yes" } });
  // Readers of one page share it: this one may have been made before the change.
  const again = Number(answer.headers.get("X-Mongoq-Again"));
  clearTimeout(waiting);
  if (again > 0) waiting = setTimeout(() => { renew().catch(() => {}); }, 1000 * again);
  if (!answer.ok && answer.status !== 503) return;
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  const renewed = read.getElementById("content");
  if (renewed === null) return;
  showTimes(renewed);
  main.replaceChildren(...renewed.childNodes);
}

showTimes(document);
if (document.body.dataset.events) listen();

function listen() {
  const live = document.getElementById("live");
  const events = new EventSource(document.body.dataset.events);
  let closed = 0;
  events.addEventListener("open", () => {
    clearTimeout(closed);
    live.textContent = "numbers are live";
  });
  events.addEventListener("error", () => {
    // Each stream ends after some seconds, and the next one follows.
    clearTimeout(closed);
    closed = setTimeout(() => { live.textContent = "no connection; trying again"; }, 3000);
  });
  events.addEventListener("changed", () => { renew().catch(() => {}); });
  document.addEventListener("visibilitychange", () => {
    if (missed && !document.hidden) renew().catch(() => {});
  });
}
