"""Ghost Attention: a rule said in the first turn that still holds in the fifth (Llama 2, arXiv 2307.09288, 3.3).

    python examples/ghost_attention.py demonstrations --output ghost
    posttrain sft --dataset ghost/demonstrations.jsonl --train-on last --output ghost/cold
    python examples/ghost_attention.py sample --model ghost/cold --output ghost
    posttrain sft --model ghost/cold --dataset ghost/train.jsonl --train-on last --output ghost/sft
    python examples/ghost_attention.py measure --model ghost/sft

The first two make a small model that follows a rule in the message that says it, and forgets it in the next one. Then
conversations are sampled with the rule behind every message of the user; in what is written it stands in the first one
alone. Kept are those whose last answer obeys, and the loss is on that answer: earlier ones were given to messages that
repeated the rule. On-policy the same rows are prompts, and a teacher that is the policy sees the rule once more:

    posttrain rl --algorithm gkd --model ghost/cold --dataset ghost/train.jsonl --teacher policy \
        --teacher-prompt "{prompt} {rule}" --reward examples/ghost_attention.py:obeys --max-new-tokens 16

`measure` plays conversations on the model's own answers: how many obey in each turn, with the rule in the first one,
and without it.
"""

import argparse
import json
import random
from pathlib import Path

import posttrain as pt

WORDS = ("over", "please", "indeed", "captain")
COLOURS = {
    **{"grass": "green", "snow": "white", "coal": "black", "gold": "yellow", "the sky": "blue", "milk": "white"},
    **{"a lemon": "yellow", "a carrot": "orange", "a rose": "red", "a frog": "green", "the sea": "blue"},
}
TURNS = 5
Messages = list[dict[str, str]]


def obeys(completion: str, word: str) -> float:
    """1 if the answer ends with the word that the rule asks for, else 0."""
    said = completion.casefold().split()
    return float(bool(said) and said[-1].strip(".,!") == word)


def rule(word: str) -> str:
    """What the user asks for."""
    return f"Always end your answer with the word {word}."


def drawn(rng: random.Random) -> tuple[str, list[str]]:
    """A word, and the things that a conversation asks for."""
    return rng.choice(WORDS), rng.sample(sorted(COLOURS), TURNS)


def ask(thing: str, said: str = "") -> dict[str, str]:
    """A message of the user."""
    return {"role": "user", "content": f"What colour is {thing}?{said and ' '}{said}"}


def demonstration(rng: random.Random) -> Messages:
    """A conversation in which some messages say a rule, which their answers follow, and no later ones."""
    word, things = drawn(rng)
    found: Messages = []
    for thing in things[: rng.randint(1, TURNS)]:
        says = rng.random() < 0.5
        answer = f"It is {COLOURS[thing]}" + (f", {word}." if says else ".")
        found += [ask(thing, rule(word) if says else ""), {"role": "assistant", "content": answer}]
    return found


def played(model: pt.Loaded, seed: int, count: int, says: range) -> list[tuple[str, Messages]]:
    """Conversations on the model's own answers, with the rule in these turns, and the word that it asks for."""
    rng = random.Random(seed)
    plans = [drawn(rng) for _ in range(count)]
    found: list[Messages] = [[] for _ in plans]
    for turn in range(TURNS):
        for messages, (word, things) in zip(found, plans, strict=True):
            messages.append(ask(things[turn], rule(word) if turn in says else ""))
        for messages, (answer,) in zip(found, model.generate(found, max_new_tokens=16, seed=seed + turn), strict=True):
            messages.append({"role": "assistant", "content": answer})
    return [(word, messages) for (word, _), messages in zip(plans, found, strict=True)]


def written(word: str, messages: Messages) -> dict[str, object]:
    """A row whose rule stands in the first message alone."""
    plain = [m | {"content": m["content"].removesuffix(f" {rule(word)}")} if i else m for i, m in enumerate(messages)]
    return {"prompt": plain[:-1], "completion": plain[-1]["content"], "rule": rule(word), "word": word}


def main() -> None:
    """Write demonstrations.jsonl or train.jsonl, or say how many answers obey."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=("demonstrations", "sample", "measure"))
    parser.add_argument("--model", default="ghost/cold")
    parser.add_argument("--output", type=Path, default=Path("ghost"))
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    rng, rows = random.Random(0), list[dict[str, object]]()
    if given.stage == "demonstrations":
        rows = [{"messages": demonstration(rng)} for _ in range(given.count)]
    elif given.stage == "sample":
        said = played(pt.load(given.model), 1, given.count, range(TURNS))
        rows = [written(*each) for each in said if obeys(each[1][-1]["content"], each[0])]
    else:
        model = pt.load(given.model)
        for name, says in (("in the first message", range(1)), ("in no message", range(0))):
            answers = [(word, messages[1::2]) for word, messages in played(model, 2, given.count, says)]
            shares = [
                sum(obeys(said[i]["content"], word) for word, said in answers) / len(answers) for i in range(TURNS)
            ]
            print(f"the rule {name}: of {len(answers)} answers obey by turn", *(f"{share:.2f}" for share in shares))
        return
    name = {"demonstrations": "demonstrations", "sample": "train"}[given.stage]
    (given.output / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} of {given.count} conversations")


if __name__ == "__main__":
    main()
