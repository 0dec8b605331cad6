// Renews the numbers of a page when the server says that they have changed; fits times and tables to the reader's place.
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

// A narrow display shows the cells of a row one after the other, each with the name of its column.
function nameCells(root) {
  for (const table of root.querySelectorAll("table")) {
    const names = [...table.tHead.rows[0].cells].map((head) => head.textContent);
    for (const cell of table.querySelectorAll("td")) cell.dataset.name = names[cell.cellIndex];
    table.classList.add("named");
  }
}

const main = document.getElementById("content");
const live = document.getElementById("live");
let state = "";
let renewing = false;
let missed = false;
let waiting = 0;

function isChanged(field) {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
  const chosen = [...field.options].findIndex((option) => option.defaultSelected);
  return field.selectedIndex !== Math.max(chosen, 0);
}

// What the reader is just filling in or has selected must not go away.
function isHeld() {
  const touched = main.contains(document.activeElement) && document.activeElement !== main;
  return touched || [...main.querySelectorAll("input, textarea, select")].some(isChanged);
}

function showState() {
  const still = "numbers stand still while you choose or write here";
  if (state === "numbers are live" && isHeld()) live.textContent = missed ? `${still}; there are newer ones` : still;
  else live.textContent = state;
}

async function renew() {
  missed = true;
  // A page in the background costs nothing, and a slow answer is waited for.
  if (renewing || document.hidden || isHeld()) return showState();
  renewing = true;
  missed = false;
  try {
    await load();
  } finally {
    renewing = false;
    catchUp();
  }
}

function catchUp() {
  if (missed && !document.hidden && !isHeld()) renew().catch(() => {});
  else showState();
}

async function load() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html", "X-Mongoq-Renewal": "yes" } });
  // Readers of one page share it: this one may have been made before the change.
  const again = Number(answer.headers.get("X-Mongoq-Again"));
  clearTimeout(waiting);
  if (again > 0) waiting = setTimeout(() => { renew().catch(() => {}); }, 1000 * again);
  if (!answer.ok && answer.status !== 503) return;
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  const renewed = read.getElementById("content");
  if (renewed === null) return;
  // The reader may have begun meanwhile.
  missed = isHeld();
  if (missed) return;
  fit(renewed);
  main.replaceChildren(...renewed.childNodes);
}

function fit(root) {
  showTimes(root);
  nameCells(root);
}

fit(document);
if (document.body.dataset.events) listen();

function listen() {
  const events = new EventSource(document.body.dataset.events);
  let closed = 0;
  const tell = (text) => { state = text; showState(); };
  events.addEventListener("open", () => {
    clearTimeout(closed);
    tell("numbers are live");
  });
  events.addEventListener("error", () => {
    // Each stream ends after some seconds, and the next one follows.
    clearTimeout(closed);
    closed = setTimeout(() => { tell("no connection; trying again"); }, 3000);
  });
  events.addEventListener("changed", () => { renew().catch(() => {}); });
  // Between two fields the focus is on neither for a moment.
  for (const name of ["input", "focusin", "focusout"]) main.addEventListener(name, () => { setTimeout(catchUp); });
  document.addEventListener("visibilitychange", catchUp);
}
