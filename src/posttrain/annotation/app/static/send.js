// Sends an answer, and does not lose it: it is in this browser until the server says that it is kept.
"use strict";
const form = document.getElementById("work");
const trouble = document.getElementById("trouble");
const state = document.getElementById("state");
const here = form.getAttribute("action");
const pendingKey = `pending:${form.dataset.user}:${here}`;
const draftKey = `draft:${form.dataset.user}:${here}:${form.dataset.version}`;

const kept = {
  read(key) { try { return JSON.parse(localStorage.getItem(key)); } catch { return null; } },
  write(key, value) { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* a full or closed store */ } },
  remove(key) { try { localStorage.removeItem(key); } catch { /* as above */ } },
};

// What the kind of question fills in: answer() gives the answer or null, show(answer) puts one on the page.
const page = { answer: () => null, show: () => {}, missing: "" };

// How long the page has been before somebody's eyes.
let seen = 0, since = document.hidden ? null : performance.now();
const seconds = () => (seen + (since === null ? 0 : performance.now() - since)) / 1000;
document.addEventListener("visibilitychange", () => {
  if (document.hidden && since !== null) { seen += performance.now() - since; since = null; }
  else if (!document.hidden && since === null) since = performance.now();
});

function say(words) { trouble.hidden = !words; trouble.textContent = words; }

function draft() {
  const answer = page.answer();
  if (answer) kept.write(draftKey, answer);
}

let sending = false;
async function send(fields) {
  if (sending) return;
  sending = true;
  kept.write(pendingKey, fields);
  document.getElementById("submit").disabled = true;
  state.textContent = "saving …";
  let response;
  try {
    response = await fetch(here, {
      method: "POST", headers: { accept: "application/json" }, body: new URLSearchParams(fields), redirect: "error",
    });
  } catch {
    sending = false;
    state.textContent = "";
    say("Not saved yet: there is no connection. Your answer is kept in this browser and sent as soon as it is back; leave this page open.");
    setTimeout(() => send(fields), 3000);
    return;
  }
  sending = false;
  document.getElementById("submit").disabled = response.status >= 500 || response.status === 429;
  state.textContent = "";
  const found = await response.json().catch(() => ({}));
  if (response.ok) {
    kept.remove(pendingKey);
    kept.remove(draftKey);
    location.assign(found.next);
  } else if (response.status >= 500 || response.status === 429) {
    say("Not saved yet: the server is busy. Trying again.");
    setTimeout(() => send(fields), 5000);
  } else {
    // who logs in again, or loads the page again, sends it from there
    if (response.status !== 401 && response.status !== 403) kept.remove(pendingKey);
    say(`Not saved: ${found.error || response.status}`);
  }
}

addEventListener("online", () => { const fields = kept.read(pendingKey); if (fields) send(fields); });

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (document.getElementById("submit").disabled) return;  // an answer is on its way
  const answer = page.answer();
  if (!answer) { say(page.missing); return; }
  say("");
  form.elements.answer.value = JSON.stringify(answer);
  form.elements.seconds.value = seconds().toFixed(1);
  const fields = {};
  for (const name of ["csrf", "sending", "version", "seconds", "answer"]) fields[name] = form.elements[name].value;
  send(fields);
});

const why = document.getElementById("why");
function skip() { if (why) why.showModal(); }
document.getElementById("skip")?.addEventListener("click", skip);
document.getElementById("stay")?.addEventListener("click", () => why.close());

const instructions = document.getElementById("instructions");
if (kept.read(instructions.dataset.key)) instructions.open = false;
// after a click with a mouse the keys are the page's again
instructions.firstElementChild.addEventListener("click", (event) => { if (event.detail) event.currentTarget.blur(); });
instructions.addEventListener("toggle", () => kept.write(instructions.dataset.key, !instructions.open));

document.addEventListener("keydown", (event) => {
  if (event.target.closest('input:not([type="radio"], [type="checkbox"]), textarea, select, dialog') || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "s" || event.key === "S") skip();
  else if (event.key === "u" || event.key === "U") document.getElementById("undo")?.click();
  else if (event.key === "Enter" && !event.target.closest("button, a, summary")) form.requestSubmit();
  else return;
  event.preventDefault();
});

addEventListener("DOMContentLoaded", () => {
  document.documentElement.classList.add("js");
  const said = form.dataset.said ? JSON.parse(form.dataset.said) : null;
  const answer = kept.read(draftKey) || said;
  if (answer) page.show(answer);
  const fields = kept.read(pendingKey);  // the page was closed before the answer had arrived
  if (fields) { fields.csrf = form.elements.csrf.value; send(fields); }
});
