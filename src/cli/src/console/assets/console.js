// Replaces the rows whenever they have changed. Without this script each page still works.
"use strict";
const state = document.getElementById("live");
let events = null, busy = false, again = false;
const key = (one) => one.getAttribute("href") ?? one.getAttribute("aria-label");
const alike = (rows, one) => Array.from(rows.querySelectorAll("a, .table")).filter((other) => key(other) === key(one));
async function refresh() {
  if (document.querySelector("#rows[data-kept]")) { return; }
  if (busy) { again = true; return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    // The session has ended, and the answer is the page of the login.
    if (answer.redirected) { location.assign(answer.url); return; }
    if (answer.ok) {
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      const rows = document.getElementById("rows"), fresh = next.getElementById("rows");
      if (rows && fresh && rows.innerHTML !== fresh.innerHTML) {
        // The focus stays, and so does what is read of a wide table. Rows may have the same link, so it is counted which it is.
        const focused = rows.contains(document.activeElement) ? document.activeElement : null;
        const which = focused ? alike(rows, focused).indexOf(focused) : 0;
        const across = Array.from(rows.querySelectorAll(".table"), (table) => table.scrollLeft);
        rows.replaceChildren(...fresh.childNodes);
        if (focused) {
          const now = alike(rows, focused);
          (now[which] ?? now.at(-1))?.focus({ preventScroll: true });
        }
        rows.querySelectorAll(".table").forEach((table, i) => { table.scrollLeft = across[i] ?? 0; });
      }
    }
  } catch { /* The stream's own error says that the console can't be reached. */ }
  busy = false;
  if (again) { again = false; refresh(); }
}
// A page that nobody sees has no stream: browsers allow six connections for all pages together.
function follow() {
  if (document.hidden) {
    if (events) { events.close(); events = null; }
    state.textContent = "○ not live";
  } else if (!events) {
    events = new EventSource(document.querySelector("#rows[data-slow]") ? "/events?slow" : "/events");
    events.addEventListener("open", () => { state.textContent = "● live"; });
    events.addEventListener("error", () => {
      state.textContent = "○ not connected";
      if (events && events.readyState === EventSource.CLOSED) { refresh(); }
    });
    events.addEventListener("reading", refresh);
  }
}
document.addEventListener("visibilitychange", () => { follow(); if (!document.hidden) { refresh(); } });
follow();
