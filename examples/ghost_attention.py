"""Ghost Attention: a rule said in the first turn that still holds in the fifth (Llama 2, arXiv 2307.09288, 3.3).

    python examples/ghost_attention.py --model smollm2-135m-instruct --output ghost
    posttrain sft --dataset ghost/train.jsonl --train-on last --output ghost/sft
    posttrain evaluate --model ghost/sft --baseline smollm2-135m-instruct --dataset ghost/heldout.jsonl \
        --reward examples/ghost_attention.py:obeys --max-new-tokens 24

The rule is put behind every message of the user while conversations are sampled; in what is written it stands in the
first one only. Kept are conversations whose last answer obeys, and the loss is on that answer alone, as in the paper:
earlier answers were given to messages that repeated the rule. The rows are prompts, too: on-policy, without the sampled
answers, the same is

    posttrain rl --algorithm gkd --dataset ghost/train.jsonl --teacher policy --teacher-prompt "{prompt} {rule}" \
        --reward examples/ghost_attention.py:obeys --max-new-tokens 24
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

import posttrain as pt

RULE = "Always end your answer with the word over."
THINGS = (
    "grass",
    "snow",
    "coal",
    "milk",
    "gold",
    "the sky",
    "a lemon",
    "a carrot",
    "honey",
    "the sea",
    "rice",
    "a rose",
)
FRAMES = ("What colour is {}?", "Is {} hot or cold?", "Write one sentence about {}.", "Where do people find {}?")
TURNS = 5


def obeys(completion: str) -> float:
    """1 if the answer ends with the word that the rule asks for, else 0."""
    words = completion.casefold().rstrip(" .!\"'\n").split()
    return float(bool(words) and words[-1].strip(".,!\"'") == "over")


def conversations(model: pt.Loaded, seed: int, count: int) -> list[dict[str, object]]:
    """Sampled with the rule in every turn, and written with it in the first: `prompt`, `completion` and `rule`."""
    rng, asked = random.Random(seed), [frame.format(thing) for frame in FRAMES for thing in THINGS]
    questions = [rng.sample(asked, TURNS) for _ in range(count)]
    rows: list[list[dict[str, str]]] = [[] for _ in questions]
    for turn in range(TURNS):
        for row, several in zip(rows, questions, strict=True):
            row.append({"role": "user", "content": f"{several[turn]} {RULE}"})
        answers = model.generate(rows, max_new_tokens=24, seed=seed + turn)
        for row, (answer,) in zip(rows, answers, strict=True):
            row.append({"role": "assistant", "content": answer})
    return [written(row) for row in rows]


def written(row: Sequence[dict[str, str]]) -> dict[str, object]:
    """A conversation with the rule in its first message alone."""
    plain = [m | {"content": m["content"].removesuffix(f" {RULE}")} if i else m for i, m in enumerate(row)]
    return {"prompt": plain[:-1], "completion": plain[-1]["content"], "rule": RULE}


def main() -> None:
    """Write train.jsonl, whose answers obey, and heldout.jsonl."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--output", type=Path, default=Path("ghost"))
    parser.add_argument("--count", type=int, default=400)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    model = pt.load(given.model)
    for name, seed, count in (("train", 0, given.count), ("heldout", 1000, 100)):
        rows = conversations(model, seed, count)
        kept = [row for row in rows if name == "heldout" or obeys(str(row["completion"]))]
        (given.output / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        print(f"{name}: {len(kept)} of {len(rows)} conversations")


if __name__ == "__main__":
    main()
