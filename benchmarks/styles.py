"""Reward models of pairs whose style says which answer is right, or does not: `judges.py --stage pairs`."""

import argparse
import random
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

from checked import TRAIN, gain, head, line, once, ran, share

import posttrain as pt
from posttrain.evaluation.judging import STYLES
from posttrain.runs import jsonl

FANCY = ("long", "markdown", "tone")
RLHF = Path(__file__).resolve().parent.parent / "examples" / "rlhf"
Rows = list[dict[str, Any]]


def troubles() -> Rows:
    """Pairs about everyday trouble: what helps, by the practical labeller of examples/rlhf, and each other answer."""
    rankings = {row["item"]: row["ranking"] for row in jsonl.read(RLHF / "rankings.jsonl") if row["annotator"] == "ada"}
    prompts = jsonl.read(RLHF / "prompts.jsonl")
    rows = Rows()
    for row in random.Random(0).sample(prompts, len(prompts)):
        (best,), *others = rankings[row["item"]]
        both = [(row["responses"][best], row["responses"][place]) for some in others for place in some]
        rows += [{"prompt": row["prompt"], "chosen": chosen, "rejected": rejected} for chosen, rejected in both]
    return rows


def pairs(given: argparse.Namespace) -> None:
    """Reward models of pairs in which style says what is right, or nothing; held-out pairs in tempting styles."""
    out, sizes, chance = given.output, given.sizes, random.Random(0)
    rows = troubles()
    plain, heldout = rows[: sizes["pairs"]], rows[-sizes["heldout"] :]
    sides, styles = ("chosen", "rejected"), tuple(STYLES)
    once(out / "biased.jsonl", [row | {"chosen": STYLES[chance.choice(FANCY)](row["chosen"])} for row in plain])
    mixed = [row | {side: STYLES[chance.choice(styles)](row[side]) for side in sides} for row in plain]
    once(out / "random-style.jsonl", mixed)
    combined = out / "combined.jsonl"  # nine of each, in all combinations of styles
    if not combined.exists():
        pt.run(pt.AuditJudge(dataset=str(out / "biased.jsonl"), reward="repetition", pairs=str(combined)))
    styled = jsonl.read(combined)
    once(out / "styled.jsonl", [chance.choice(styled[place : place + 9]) for place in range(0, len(styled), 9)])
    texts = [(row, text) for row in heldout for text in (row["chosen"], row["rejected"])]
    texts += [(row, STYLES[chance.choice(FANCY)](row[side])) for row in heldout for side in sides]
    texts += [(row, STYLES["long"](row["chosen"])) for row in heldout]
    file = once(out / "texts.jsonl", ({"prompt": row["prompt"], "completion": text} for row, text in texts))
    found: dict[str, tuple[list[list[float]], float]] = {}
    for name, data, control in (
        *((name, name, "") for name in ("biased", "styled", "random-style")),
        ("shuffled", "random-style", "--reward-control shuffled"),
    ):
        run, scored = out / f"pairs-{name}", out / f"scored-pairs-{name}.jsonl"
        options = f"{TRAIN} --lr 3e-5 --epochs 2 --pairs-per-step 8 --dataset {out / data}.jsonl {control}"
        took = ran(f"reward-model {options} --output {run}", run)
        ran(f"score --dataset {file} --reward-model {run} --output {scored}", scored)
        earned = [row["reward"] for row in jsonl.read(scored)]
        n = len(heldout)
        right, wrong, fancy_right, fancy_wrong = (earned[at : at + 2 * n : 2] for at in (0, 1, 2 * n, 2 * n + 1))
        compared = ((right, wrong), (right, fancy_wrong), (fancy_right, wrong), (earned[4 * n :], right))
        wins = [[float(a > b) for a, b in zip(*both, strict=True)] for both in compared]
        wins = [[fmean(some[at : at + 2]) for at in range(0, n, 2)] for some in wins]  # of a prompt
        found[name] = (wins, took)
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
    names = ("pairs", "plain both", "wrong one fancier", "over biased", "right one fancier", "long beats plain")
    head(*names, "minutes")
    for name, ((neutral, hard, easy, itself), took) in found.items():
        cells = (share(neutral), share(hard), gain(found["biased"][0][1], hard), share(easy), share(itself))
        line(name, *cells, f"{took / 60:.1f}")
