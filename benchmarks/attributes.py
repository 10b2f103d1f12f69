"""Attribute heads and their gate: is it worth knowing why people choose, and what counts after which prompt?

    python benchmarks/attributes.py --data DATA --output runs/attributes
    python benchmarks/attributes.py --data DATA --output runs/attributes --seeds 0 1 2 --ratings 800 --pairs 300

DATA has hh-rlhf/, whose prompts and responses are real; what people say of them is planted, so that it is known. Three
attributes are rated from 1 to 7, with noise: how long a response is, how much it asks back, and how much it excuses
itself. People choose by length after a first question and by questions in a longer conversation, dislike excuses, and
err as Bradley and Terry have it. The packaged model learns from --pairs pairs, and attribute heads from --ratings rated
responses besides, with a weight of -1 for excuses; all judge the pairs of the development file. No prompt is in two of
the three. Behind the means are standard deviations over seeds, which draw noise, choices and batches. What is finished
is not done again: give the same --output, with the same options.
"""

import argparse
import json
import math
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from posttrain.data import ChatFormat, load_preferences, load_tokenizer, pair_of
from posttrain.data.packing import size_of
from posttrain.models.load import locate
from posttrain.recipes import evaluate_reward, reward_model
from posttrain.recipes.evaluate_reward import EvaluateReward
from posttrain.recipes.reward_model import Scoring
from posttrain.types import Preference

BASE = "smollm2-135m-instruct"
NAMES = ("length", "asking", "excuses")
EXCUSES = ("sorry", "i can't", "i don't", "i'm not", "not sure", "i cannot")
NOISE = 0.7  # of a rating, on a scale of 1 to 7
GATED = "attributes, a gate"
OTHERS: dict[str, dict[str, Any]] = {  # made of the same heads
    "attributes, equal weights": {"dataset": ""},
    "attributes, one set of weights": {"gate_width": 0},
}


def qualities(text: str) -> tuple[float, float, float]:
    """What there is of each attribute, in about the same unit."""
    said = text.lower()
    excuses = sum(said.count(words) for words in EXCUSES)
    return 1.3 * (math.log(1 + len(said.split())) - 3.3), 1.5 * min(said.count("?"), 2) - 1, min(excuses, 3) - 1.0


def counts(pair: Preference) -> tuple[float, float, float]:
    """What counts for people after its prompt."""
    return (2.0, 0.0, -0.5) if len(pair.prompt) == 1 else (0.0, 2.0, -0.5)


def rated(pair: Preference, text: str, noise: random.Random) -> dict[str, Any]:
    """A row of ratings."""
    marks = [min(7, max(1, round(4 + 1.5 * q + noise.gauss(0, NOISE)))) for q in qualities(text)]
    return {"prompt": spoken(pair), "completion": text, "ratings": dict(zip(NAMES, marks, strict=True))}


def chosen(pair: Preference, noise: random.Random) -> dict[str, Any]:
    """A row of pairs, whatever people really chose."""
    texts = pair.chosen, pair.rejected
    worth = [sum(w * q for w, q in zip(counts(pair), qualities(text), strict=True)) for text in texts]
    first = noise.random() < 1 / (1 + math.exp(worth[1] - worth[0]))
    better, worse = texts if first else texts[::-1]
    category = "a first question" if len(pair.prompt) == 1 else "a conversation"
    return {"prompt": spoken(pair), "chosen": better, "rejected": worse, "category": category}


def spoken(pair: Preference) -> list[dict[str, str]]:
    """The prompt as a data set has it."""
    return [{"role": m.role, "content": m.content} for m in pair.prompt]


def fitting(source: Path, most: int) -> list[Preference]:
    """The pairs of which no response has more than so many tokens with its prompt."""
    chat = ChatFormat(load_tokenizer(locate(BASE)))
    return [one for one in load_preferences(str(source)).items if max(map(size_of, pair_of(chat, one))) <= most]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    """As jsonl."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def judge(model: Path, heldout: str, output: Path) -> dict[str, Any]:
    """What `posttrain evaluate-reward-model` says of it."""
    config = EvaluateReward(dataset=heldout, model=str(model), max_tokens=1024)
    return evaluate_reward.run(config, output=output, quiet=True).summary()


def one_seed(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """All forms on one draw of what people say."""
    root: Path = options.output / f"seed-{seed}"
    root.mkdir(parents=True, exist_ok=True)
    kept = root / "found.json"
    if kept.exists():
        return json.loads(kept.read_text(encoding="utf-8"))
    noise = random.Random(seed)
    learned = fitting(options.data / "hh-rlhf" / "harmless-base.train1500.jsonl.gz", options.max_tokens)
    heldout = fitting(options.data / "hh-rlhf" / "harmless-base.dev300.jsonl.gz", options.max_tokens)
    noise.shuffle(learned)
    met = {one.prompt for one in heldout}
    learned = [one for one in learned if one.prompt not in met]
    met = {one.prompt for one in learned[: options.pairs]}
    others = [one for one in learned[options.pairs :] if one.prompt not in met]
    rows = [rated(one, text, noise) for one in others for text in (one.chosen, one.rejected)]
    ratings = write(root / "ratings.jsonl", rows[: options.ratings])
    pairs = write(root / "pairs.jsonl", [chosen(one, noise) for one in learned[: options.pairs]])
    asked = write(root / "heldout.jsonl", [chosen(one, noise) for one in heldout])
    common: dict[str, Any] = {
        "max_tokens": options.max_tokens,
        "lr": options.lr,
        "warmup_steps": 5,
        "decay": "linear",
        "seed": seed,
        "save_every": 10**6,
    }
    found: dict[str, Any] = {}
    reward_model.run(Scoring(dataset=pairs, pairs_per_step=8, **common), output=root / "single", quiet=True)
    found["one score"] = judge(root / "single", asked, root / "single-judged")
    gated = Scoring(
        heads="attributes", dataset=pairs, ratings=ratings, weights="excuses=-1", pairs_per_step=16, **common
    )
    again = replace(gated, model=str(root / GATED), steps=1, lr=0.0, warmup_steps=0)
    for name, config in {GATED: gated, **{name: replace(again, **form) for name, form in OTHERS.items()}}.items():
        reward_model.run(config, output=root / name, quiet=True)
        found[name] = judge(root / name, asked, root / f"{name} judged")
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def main() -> None:
    """Do what has not been done, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/attributes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--ratings", type=int, default=800)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--lr", type=float, default=3e-5)
    options = parser.parse_args()
    every = [one_seed(options, seed) for seed in options.seeds]
    print("| judged by | pairs judged as people did | after a first question | in a conversation | calibration error |")
    print("|---|---|---|---|---|")
    for name in every[0]:
        some = [one[name] for one in every]
        rates = [[one["accuracy"] for one in some]]
        rates += [[one["categories"][c]["accuracy"] for one in some] for c in ("a first question", "a conversation")]
        errors = [one["calibration_error_at_temperature"] for one in some]
        print(f"| {name} | {' | '.join(map(shown, rates))} | {fmean(errors):.3f} |")


def shown(values: Sequence[float]) -> str:
    """The mean, and how far seeds lie apart."""
    apart = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{apart}"


if __name__ == "__main__":
    main()
