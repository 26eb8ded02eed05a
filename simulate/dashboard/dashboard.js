// Puts into the page what the server sends; what it sends is escaped there. Counts durations on in between.
"use strict";

const connection = document.getElementById("connection");
let ahead = 0; // Seconds that this browser's clock is ahead of the server's.
let heard = null;

function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

function count() {
  const now = Date.now() / 1000 - ahead;
  for (const element of document.querySelectorAll("[data-since]")) {
    element.textContent = span(now - Number(element.dataset.since));
  }
}

function say(state, text) {
  connection.className = state;
  connection.textContent = text;
}

const events = new EventSource("events");
events.onmessage = message => {
  const news = JSON.parse(message.data);
  ahead = Date.now() / 1000 - news.now;
  for (const [name, html] of Object.entries(news.sections)) document.getElementById(name).innerHTML = html;
  heard = new Date();
  say("live", "live");
  count();
};
events.onerror = () => {
  if (document.querySelector("#now h2").textContent.startsWith("Ended")) return say("", "the run is over");
  say("lost", `no connection: the run is over, or out of reach; as of ${heard ? heard.toLocaleTimeString() : "never"}`);
};
setInterval(count, 1000);
count();
