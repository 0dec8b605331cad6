// Renews the numbers of a page when the server says that they have changed, and shows times in the reader's zone.
"use strict";

function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = time.dateTime + " (UTC)";
    time.textContent = at.toLocaleString();
  }
}

async function renew() {
  const main = document.getElementById("content");
  // What the reader is just filling in or has selected must not go away.
  const touched = main.contains(document.activeElement) && document.activeElement !== main;
  if (touched || main.querySelector("input:checked")) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok && answer.status !== 503) return;
  const read = new DOMParser().parseFromString(await answer.text(), "text/html");
  const renewed = read.getElementById("content");
  if (renewed === null) return;
  showTimes(renewed);
  main.replaceChildren(...renewed.childNodes);
}

showTimes(document);
const live = document.getElementById("live");
if (document.querySelector("form[data-once]") === null) {
  const events = new EventSource(document.body.dataset.events);
  events.addEventListener("open", () => { live.textContent = "numbers are live"; });
  events.addEventListener("error", () => { live.textContent = "no connection; trying again"; });
  events.addEventListener("changed", () => { renew().catch(() => {}); });
}
