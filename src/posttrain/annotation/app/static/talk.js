// Waits for the model's replies, and shows them as soon as they are there.
"use strict";
const waiting = document.getElementById("waiting");

async function look() {
  let found;
  try {
    const response = await fetch(`${location.pathname}/replies`, { headers: { accept: "application/json" }, redirect: "error" });
    found = await response.json();
    if (response.status === 401) say(found.error);  // and look again: they may log in in another tab
    else if (!response.ok && response.status < 500) found.trouble = found.error;
  } catch {
    found = {};
    say("There is no connection. What you said is kept; this page goes on when it is back.");
  }
  if (found.ready) { location.assign(location.pathname); return; }
  if (found.trouble) {
    say(found.trouble);
    waiting.hidden = true;
    document.getElementById("again").hidden = false;
    return;
  }
  setTimeout(look, 1000);
}

if (waiting) look();
