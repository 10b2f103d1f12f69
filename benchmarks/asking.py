"""Does it pay to choose what people are asked? Accuracy over the number of labels, on planted preferences.

    python benchmarks/asking.py --output runs/asking
    python benchmarks/asking.py --output runs/asking --seeds 0 1 --labels 50 100 200

A gold reward stands for people, as in overoptimization.py: a random transformer, whose choice between two of the
policy's completions is drawn with the odds that Bradley and Terry give it. An ensemble of five reward models learns
from the first --labels pairs, drawn at random from a pool; what is asked next is chosen from the rest of the pool at
random, by the ensemble's disagreement, or by expected information, and a new ensemble learns from all labels so far. It
is judged by other pairs, of other prompts: how often its mean prefers what gold prefers. Whoever asks for a pair gets
the same answer. Beside each choice stands its difference from choosing at random, paired by seed, with a 95% interval.
"""

import argparse
import json
import math
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from overoptimization import ENSEMBLE, OTHERS, PROMPTS, interval, sample, scorer, world

from posttrain.annotation.acquisition import WORTH, choose, worth
from posttrain.recipes import reward_model
from posttrain.recipes.annotate.importing import RANDOM
from posttrain.recipes.reward_model import Scoring
from posttrain.training.resolve_model import saved_model
from posttrain.types import Message

WAYS = (RANDOM, *WORTH)
HELD_PAIRS = 2  # of each prompt that judges


class Pair(NamedTuple):
    """Two completions of a prompt, what gold gives them, and what people would say if they were asked."""

    prompt: str
    texts: tuple[str, str]
    gold: tuple[float, float]
    first: bool

    def row(self) -> dict[str, str]:
        """As a data set has it."""
        chosen, rejected = self.texts if self.first else self.texts[::-1]
        return {"prompt": self.prompt, "chosen": chosen, "rejected": rejected}


def pairs_of(prompts: Sequence[str], each: int, policy: Path, gold: Path, seed: int) -> list[Pair]:
    """So many pairs of each prompt, of the policy's own completions, in an order of their own."""
    draw, found = random.Random(seed), list[Pair]()
    for prompt, (texts, scores) in zip(prompts, sample(policy, prompts, 2 * each, gold, seed + 1), strict=True):
        for i in range(0, 2 * each, 2):
            first = draw.random() < 1 / (1 + math.exp(scores[i + 1] - scores[i]))
            if texts[i].strip() and texts[i + 1].strip() and texts[i] != texts[i + 1]:
                found.append(Pair(prompt, (texts[i], texts[i + 1]), (scores[i], scores[i + 1]), first))
    draw.shuffle(found)
    return found


def learn(folder: Path, asked: Sequence[Pair], policy: Path, seed: int) -> None:
    """An ensemble of what was asked so far; a tenth of it calibrates the rest, for that costs labels, too."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    train = folder.with_suffix(".jsonl")
    train.write_text("".join(json.dumps(pair.row()) + "\n" for pair in asked), encoding="utf-8")
    config = Scoring(
        dataset=str(train),
        eval_share=0.1,
        model=str(policy),
        ensemble=ENSEMBLE,
        epochs=max(1.0, 6000 / len(asked)),
        pairs_per_step=32,
        lr=1e-3,
        center_rewards=0.01,
        precision="float32",
        save_every=10**6,
        keep_last=1,
        seed=seed,
    )
    reward_model.run(config, output=folder, quiet=True)
    (folder / "done").touch()


def scores(model: Path, pairs: Sequence[Pair]) -> list[list[tuple[float, ...]]]:
    """Of each pair the two scores, each by every member."""
    ask = scorer(saved_model(str(model)).where)
    told = ask([[Message("user", p.prompt), Message("assistant", text)] for p in pairs for text in p.texts])
    return [told[i : i + 2] for i in range(0, len(told), 2)]


def accuracy(model: Path, pairs: Sequence[Pair]) -> float:
    """How often the mean of the members prefers what gold prefers."""
    found = zip(scores(model, pairs), pairs, strict=True)
    return fmean((fmean(a) > fmean(b)) == (pair.gold[0] > pair.gold[1]) for (a, b), pair in found)


def run_seed(output: Path, labels: Sequence[int], pool: int, seed: int) -> None:
    """All of one seed: gold, a pool, and for each way to choose the accuracy at each number of labels."""
    folder, policy, gold = world(output, seed)
    told = folder / "accuracy.json"
    if told.exists():
        return
    candidates = pairs_of(PROMPTS, math.ceil(pool / len(PROMPTS)), policy, gold, seed)
    heldout = pairs_of(OTHERS, HELD_PAIRS, policy, gold, seed + 7919)
    found: dict[str, list[float]] = {}
    for way in WAYS:
        asked = list(range(labels[0]))
        found[way], model = [], folder
        for number, size in enumerate(labels):
            rest = [i for i in range(len(candidates)) if i not in set(asked)]
            if number:
                told_before = scores(model, [candidates[i] for i in rest])
                worths = [0.0 if way == RANDOM else worth(each, way) for each in told_before]
                asked += [rest[i] for i in choose(worths, size - len(asked), seed=seed)]
            model = folder / f"{way if number else 'first'}-{size}"
            assert len(asked) == size, "the pool is too small"
            learn(model, [candidates[i] for i in asked], policy, seed)
            found[way].append(accuracy(model, heldout))
        print(f"seed {seed}, {way}: {', '.join(f'{x:.3f}' for x in found[way])}", flush=True)
    told.write_text(json.dumps({"labels": list(labels), "accuracy": found}), encoding="utf-8")


def read(folder: Path, seeds: Sequence[int]) -> dict[str, list[list[float]]]:
    """Of each way the accuracies of each seed, by number of labels."""
    rows: list[Any] = [json.loads((folder / f"seed-{seed}" / "accuracy.json").read_text("utf-8")) for seed in seeds]
    return {way: [row["accuracy"][way] for row in rows] for way in WAYS}


def table(found: dict[str, list[list[float]]], labels: Sequence[int]) -> list[str]:
    """In Markdown: one row for each number of labels."""
    lines = ["| labels | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for at, size in enumerate(labels):
        cells = [f"{fmean(row[at] for row in found[RANDOM]):.3f}"]
        for way in WAYS[1:]:
            pairs = zip(found[way], found[RANDOM], strict=True)
            mean, half = interval([ours[at] - theirs[at] for ours, theirs in pairs])
            middle = fmean(row[at] for row in found[way])
            cells.append(f"{middle:.3f}, {mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})")
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return lines


def draw(found: dict[str, list[list[float]]], labels: Sequence[int], path: Path) -> None:
    """Accuracy over labels, each seed thin and the mean thick."""
    figure, axis = plt.subplots(figsize=(6.4, 4))
    for number, (way, rows) in enumerate(found.items()):
        for row in rows:
            axis.plot(labels, row, color=f"C{number}", lw=0.6, alpha=0.35)
        middle = [fmean(row[at] for row in rows) for at in range(len(labels))]
        axis.plot(labels, middle, color=f"C{number}", lw=2, marker="o", ms=4, label=way)
    axis.set_xscale("log")
    axis.set_xticks(labels, [str(size) for size in labels])
    axis.minorticks_off()
    axis.set_xlabel("labels")
    axis.set_ylabel("accuracy against gold, held-out prompts")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Run what has not been run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/asking"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 100, 200, 400, 800], help="after each round")
    parser.add_argument("--pool", type=int, default=3000, help="pairs to choose from")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    options = parser.parse_args()
    folder = options.output / f"pool-{options.pool}-{'-'.join(map(str, options.labels))}"
    work = partial(run_seed, folder, options.labels, options.pool)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        list(pool.map(work, options.seeds))
    found = read(folder, options.seeds)
    print("\n".join(table(found, options.labels)))
    draw(found, options.labels, options.output / "asking.svg")


if __name__ == "__main__":
    main()
