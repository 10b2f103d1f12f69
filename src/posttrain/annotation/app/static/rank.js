// Ranks cards by drag, by keys and by buttons: an order from the top, some tied with the one above, the failed ones last.
"use strict";
const list = document.getElementById("cards");
const cards = () => [...list.children];
const failed = (card) => card.classList.contains("failed");
const tied = (card) => card.classList.contains("tied");
let touched = false;  // an order that nobody has looked at is nobody's answer

function groups() {
  const found = [];
  for (const card of cards().filter((one) => !failed(one))) {
    const number = Number(card.dataset.number);
    if (tied(card) && found.length) found[found.length - 1].push(number);
    else found.push([number]);
  }
  return found;
}

function refresh(by = true) {
  if (by) touched = true;
  for (const card of cards().filter(failed)) list.append(card);
  let place = 0, before = 0;
  for (const [index, card] of cards().entries()) {
    if (index === 0 || failed(card)) card.classList.remove("tied");
    if (!failed(card)) { before += 1; if (!tied(card)) place = before; }
    const words = failed(card) ? "failed" : `${place}.${tied(card) ? " (tied)" : ""}`;
    card.querySelector(".place").textContent = touched ? words : "";
  }
  document.getElementById("keep").hidden = touched;
  if (by) draft();
}

function move(card, to) {
  const open = cards().filter((one) => !failed(one) && one !== card);
  const place = Math.max(0, Math.min(to, open.length));
  const next = card.nextElementSibling;
  if (next && !tied(card)) next.classList.remove("tied");  // who was tied with it stays where it is
  card.classList.remove("failed", "tied");
  if (open[place]) open[place].before(card);
  else if (open.length) open[open.length - 1].after(card);
  if (open[place]) open[place].classList.remove("tied");
  refresh();
  card.focus();
}

function index(card) { return cards().filter((one) => !failed(one) || one === card).indexOf(card); }

const deeds = {
  up: (card) => move(card, index(card) - 1),
  down: (card) => move(card, index(card) + 1),
  tie: (card) => { if (!failed(card) && card !== list.firstElementChild) { card.classList.toggle("tied"); refresh(); } },
  fail: (card) => {
    if (failed(card)) { move(card, cards().length); return; }
    const next = card.nextElementSibling;
    if (next && !tied(card)) next.classList.remove("tied");
    card.classList.add("failed");
    refresh();
    card.focus();
  },
};

list.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-do]");
  if (button) deeds[button.dataset.do](button.closest(".completion"));
});

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = cards();
  const card = event.target.closest(".completion");
  const key = event.key;
  if (key === "ArrowDown" || key === "ArrowUp") {
    const step = key === "ArrowDown" ? 1 : -1;
    if (card && event.shiftKey) deeds[step > 0 ? "down" : "up"](card);
    else all[Math.max(0, Math.min(all.length - 1, card ? all.indexOf(card) + step : 0))].focus();
  } else if (key === "o" || key === "O") document.getElementById("keep").click();
  else if (!card) return;
  else if (/^[1-9]$/.test(key)) move(card, Number(key) - 1);
  else if (key === "=") deeds.tie(card);
  else if (key === "f" || key === "F") deeds.fail(card);
  else return;
  event.preventDefault();
});

// Drag by the handle, with a mouse or a finger.
list.addEventListener("pointerdown", (event) => {
  const handle = event.target.closest(".handle");
  if (!handle || event.button !== 0) return;
  event.preventDefault();
  const card = handle.closest(".completion");
  handle.setPointerCapture(event.pointerId);
  card.classList.add("dragged");
  let to = index(card), far = false;
  const over = (moved) => {
    far ||= Math.abs(moved.clientY - event.clientY) > 4;
    const others = cards().filter((one) => !failed(one) && one !== card);
    to = others.filter((one) => {
      const box = one.getBoundingClientRect();
      return moved.clientY > box.top + box.height / 2;
    }).length;
    if (moved.clientY < 60) scrollBy(0, -12);
    else if (moved.clientY > innerHeight - 60) scrollBy(0, 12);
  };
  const end = (ended) => {
    handle.removeEventListener("pointermove", over);
    handle.removeEventListener("pointerup", end);
    handle.removeEventListener("pointercancel", end);
    card.classList.remove("dragged");
    if (ended.type === "pointerup" && far) move(card, to);
  };
  handle.addEventListener("pointermove", over);
  handle.addEventListener("pointerup", end);
  handle.addEventListener("pointercancel", end);
});

document.getElementById("keep").addEventListener("click", () => refresh());

page.missing = "Put the answers in order first; if it is right as it stands, say so (O).";
page.answer = () => (touched
  ? { ranking: groups(), failed: cards().filter(failed).map((card) => Number(card.dataset.number)) } : null);
page.show = (answer) => {
  const by = Object.fromEntries(cards().map((card) => [card.dataset.number, card]));
  for (const group of answer.ranking) {
    for (const [place, number] of group.entries()) { by[number].classList.toggle("tied", place > 0); list.append(by[number]); }
  }
  for (const number of answer.failed) { by[number].classList.add("failed"); list.append(by[number]); }
  touched = true;
  refresh(false);
};

for (const card of cards()) card.querySelector(".tools").hidden = false;
document.getElementById("keep").hidden = false;
