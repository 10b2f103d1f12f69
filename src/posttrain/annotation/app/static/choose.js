// Questions that are answered by choosing, or by writing: comparisons, thumbs, scores, steps, demonstrations, and talk.
"use strict";
const chosen = (name) => form.querySelector(`input[name="${CSS.escape(name)}"]:checked`)?.value;
const completions = [...form.querySelectorAll(".completion")];
const choose = (name, value) => {
  const input = form.querySelector(`input[name="${CSS.escape(name)}"][value="${CSS.escape(String(value))}"]`);
  if (input) input.checked = true;
};

const compare = {
  missing: "Say which of the two is better, or that neither is.",
  answer() {
    const value = chosen("choice");
    if (value === undefined) return null;
    const [better, strength] = value.split(":");
    return { better: better === "" ? null : Number(better), strength: Number(strength) };
  },
  show(said) { choose("choice", `${said.better ?? ""}:${said.strength}`); },
  key(key) {
    if (!/^[1-7]$/.test(key)) return false;
    form.querySelectorAll('input[name="choice"]')[Number(key) - 1].checked = true;
    return true;
  },
};
const write = {
  missing: "Write something first.",
  answer() {
    const text = form.elements.text.value.trim();
    return text ? { text } : null;
  },
  show(said) { form.elements.text.value = said.text; },
  key() { return false; },
};
const nothing = { missing: "There is nothing to send.", answer: () => null, show() {}, key: () => false };

const ways = {
  compare,
  demonstrate: write,
  say: write,
  wait: nothing,
  ended: nothing,
  choose: {
    ...compare,
    answer() {
      const said = compare.answer();
      if (said === null) return null;
      const broken = {};
      for (const card of completions)
        broken[card.dataset.number] = [...card.querySelectorAll("input:checked")].map((one) => Number(one.value));
      return { ...said, turn: Number(form.elements.turn.value), broken };
    },
    show(said) {
      if (said.turn !== undefined && said.turn !== Number(form.elements.turn.value)) return;  // a draft of another turn
      compare.show(said);
      for (const [number, rules] of Object.entries(said.broken))
        for (const rule of rules) choose(`broken-${number}-${rule}`, rule);
    },
  },
  thumbs: {
    missing: "Say of every answer whether it is good or bad.",
    answer() {
      const said = { good: [], bad: [] };
      for (const { dataset } of completions) {
        const value = chosen(`thumb-${dataset.number}`);
        if (!value) return null;
        said[value].push(Number(dataset.number));
      }
      return said;
    },
    show(said) {
      for (const value of ["good", "bad"]) for (const number of said[value]) choose(`thumb-${number}`, value);
    },
    key(key, card) {
      const value = { g: "good", b: "bad" }[key.toLowerCase()];
      const place = completions.indexOf(card);
      if (value && card) choose(`thumb-${card.dataset.number}`, value);
      else if (key === "ArrowDown") completions[Math.min(place + 1, completions.length - 1)].focus();
      else if (key === "ArrowUp") completions[Math.max(place - 1, 0)].focus();
      else return false;
      return true;
    },
  },
  score: {
    missing: "Give every answer a score for each attribute.",
    answer() {
      const scores = {};
      for (const { dataset } of completions) {
        scores[dataset.number] = {};
        for (const set of form.querySelectorAll(`.completion[data-number="${dataset.number}"] fieldset`)) {
          const value = chosen(`score-${dataset.number}-${set.dataset.attribute}`);
          if (!value) return null;
          scores[dataset.number][set.dataset.attribute] = Number(value);
        }
      }
      return { scores };
    },
    show(said) {
      for (const [number, scores] of Object.entries(said.scores))
        for (const [attribute, score] of Object.entries(scores)) choose(`score-${number}-${attribute}`, score);
    },
    key(key, card, target) {
      const set = target.closest("fieldset");
      if (!set || !/^[1-7]$/.test(key)) return false;
      const input = set.querySelectorAll("input")[Number(key) - 1];
      input.checked = true;
      input.focus();  // so that Tab leaves this attribute
      return true;
    },
  },
  steps: {
    missing: "Mark the first wrong step, or say that all are right.",
    answer() {
      const value = chosen("wrong");
      return value === undefined ? null : { wrong: value === "none" ? null : Number(value) };
    },
    show(said) { choose("wrong", said.wrong ?? "none"); },
    key(key) {
      const all = [...form.querySelectorAll('input[name="wrong"]')];
      const place = all.findIndex((one) => one.checked);
      let next = null;
      if (key === "ArrowDown") next = all[Math.min(place + 1, all.length - 1)];
      else if (key === "ArrowUp") next = all[Math.max(place - 1, 0)];
      else if (key.toLowerCase() === "r") next = all[all.length - 1];
      if (!next) return false;
      next.checked = true;
      next.focus();
      return true;
    },
  },
};

const way = ways[form.dataset.kind];
Object.assign(page, { missing: way.missing, answer: way.answer, show: way.show });
form.addEventListener("input", draft);
document.getElementById("take")?.addEventListener("click", () => {
  form.elements.text.value = form.elements.text.dataset.draft;
  draft();
});
document.addEventListener("keydown", (event) => {
  if (event.target.name === "text" && event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  if (event.target.name === "text" && event.key === "Escape") event.target.blur();  // the keys are the page's again
  if (event.target.closest('input:not([type="radio"], [type="checkbox"]), textarea, select, dialog')) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (way.key(event.key, event.target.closest(".completion"), event.target)) {
    event.preventDefault();
    draft();
  }
});
