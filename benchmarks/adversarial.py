"""Does a reward model that learns from what fooled it lead less far astray? Rounds of adversarial training, in minutes.

    python benchmarks/adversarial.py --output runs/adversarial
    python benchmarks/adversarial.py --output runs/adversarial --seeds 0 --rounds 1

In the world of `overoptimization.py`: gold stands for people, and a first proxy learns from 200 pairs of theirs. In
each round the best of 64 is taken by the proxy on every training prompt, and it is trained anew on what it had and

    gold model   (highest gold, highest proxy reward), where they differ (`best-of-n --adversarial-pairs`): at most one
                 pair per prompt, labelled without noise, as by a larger model
    gold's odds  the completion of highest proxy reward and a random one (`best-of-n --annotation-items`), labelled by
                 sampling from Bradley-Terry probabilities of gold, as people's choices are noisy: one pair per prompt
    at random    as many pairs of two answers by chance, chosen with the same odds: what more data does by itself

Told is how often a proxy judges held-out pairs as gold does, and what gold gains when the best of 512 is taken by it on
other prompts. Whatever has been done is not done again: give the same --output to go on.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from overoptimization import (
    HELD,
    MOST,
    OTHERS,
    PROMPTS,
    TOKENS,
    Proxy,
    choose,
    interval,
    label,
    learn,
    scorer,
    world,
)

from posttrain.recipes import best_of_n
from posttrain.recipes.best_of_n import BestOfN
from posttrain.runs import jsonl, read_run
from posttrain.types import Message

FIRST = 200  # pairs before the first round
N = 64  # answers to each prompt in a round
ARMS = ("gold model", "gold's odds", "at random")


def learned(pairs: Path, heldout: Path, run: Path, policy: Path, seed: int) -> Path:
    """A reward model of the pairs in a file."""
    if not (run / "done").exists():
        learn(run, pairs, heldout, policy, len(jsonl.read(pairs)), seed)
    return run


def search(folder: Path, model: Path, policy: Path, gold: Path, seed: int) -> None:
    """What the proxy likes best of 64 answers to each training prompt, judged."""
    if (folder / "best.jsonl").exists():
        return
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in PROMPTS), encoding="utf-8")
    for name in ("fooled", "asked"):
        (folder / f"{name}.jsonl").unlink(missing_ok=True)
    config = BestOfN(
        dataset=str(prompts),
        model=str(policy),
        reward_model=str(model),
        gold_model=str(gold),
        completions_per_prompt=N,
        max_new_tokens=TOKENS,
        precision="float32",
        output=str(folder / "best.jsonl"),
        adversarial_pairs=str(folder / "fooled.jsonl"),
        annotation_items=str(folder / "asked.jsonl"),
        seed=seed,
    )
    best_of_n.run(config, quiet=True)


def chosen_by_people(items: Sequence[dict[str, Any]], gold: Path, seed: int) -> Iterator[dict[str, Any]]:
    """A choice for each item, with the odds that Bradley and Terry give gold."""
    ask, draw = scorer(gold), random.Random(seed)
    for item in items:
        texts = [completion["text"] for completion in item["completions"]]
        prompt = [Message(message["role"], message["content"]) for message in item["prompt"]]
        first, second = (fmean(score) for score in ask([[*prompt, Message("assistant", text)] for text in texts]))
        if draw.random() >= 1 / (1 + math.exp(second - first)):
            texts.reverse()
        if all(text.strip() for text in texts):
            yield {"prompt": item["prompt"], "chosen": texts[0], "rejected": texts[1]}


def more_pairs(arm: str, folder: Path, model: Path, policy: Path, gold: Path, seed: int) -> list[dict[str, Any]]:
    """What a round adds."""
    if arm == "at random":
        return jsonl.read(label(folder / "random.jsonl", PROMPTS, len(PROMPTS), policy, gold, seed))
    search(folder, model, policy, gold, seed)
    if arm == "gold model":
        return jsonl.read(folder / "fooled.jsonl")
    return list(chosen_by_people(jsonl.read(folder / "asked.jsonl"), gold, seed))


def run_seed(output: Path, rounds: int, seed: int) -> None:
    """All rounds of all arms of one seed."""
    folder, policy, gold = world(output, seed)
    first = label(folder / "pairs.jsonl", PROMPTS, FIRST, policy, gold, seed)
    heldout = label(folder / "heldout.jsonl", OTHERS, HELD, policy, gold, seed + 7919)
    start = learned(first, heldout, folder / "proxy-0", policy, seed)
    models, sizes = {"0": start}, {"0": len(jsonl.read(first))}
    for arm in ARMS:
        model, rows = start, jsonl.read(first)
        for number in range(1, rounds + 1):
            here = folder / f"{arm.replace(' ', '-')}-{number}"
            here.mkdir(exist_ok=True)
            rows = rows + more_pairs(arm, here, model, policy, gold, 1000 * number + seed)
            jsonl.write(here / "pairs.jsonl", iter(rows))
            model = learned(here / "pairs.jsonl", heldout, here / "proxy", policy, seed)
            models[f"{arm} {number}"], sizes[f"{arm} {number}"] = model, len(rows)
        print(f"seed {seed}: {arm} done", flush=True)
    points = choose(folder, policy, gold, {name: (Proxy(name, 0), model) for name, model in models.items()}, seed)
    found = {
        name: {
            "pairs": sizes[name],
            "accuracy": read_run(model).metrics[-1]["evaluation/accuracy"],
            "gold": points[name][-1].gold,
            "most": max(point.gold for point in points[name]),
        }
        for name, model in models.items()
    }
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def table(output: Path, seeds: Sequence[int], rounds: int) -> Iterator[str]:
    """Means over seeds, and how much more gold there is than with pairs at random, paired by seed."""
    each = [json.loads((output / f"seed-{seed}" / "found.json").read_text(encoding="utf-8")) for seed in seeds]
    yield f"| pairs added | round | pairs | judged as gold does | gold at {MOST} | more than at random | highest gold |"
    yield "|---|---|---|---|---|---|---|"
    rows = [("none", "0"), *((arm, f"{arm} {number}") for arm in ARMS for number in range(1, rounds + 1))]
    for arm, name in rows:
        mine = [found[name] for found in each]
        mean = {key: fmean(one[key] for one in mine) for key in ("pairs", "accuracy", "gold", "most")}
        number = name.split()[-1]
        seen = ""
        if arm not in ("none", ARMS[-1]) and len(seeds) > 1:
            gain, half = interval([found[name]["gold"] - found[f"{ARMS[-1]} {number}"]["gold"] for found in each])
            seen = f"{gain:+.2f} ({gain - half:+.2f} to {gain + half:+.2f})"
        yield (
            f"| {arm} | {number} | {mean['pairs']:.0f} | {mean['accuracy']:.3f} | {mean['gold']:+.2f} | {seen} | "
            f"{mean['most']:+.2f} |"
        )


def main() -> None:
    """Run what has not been run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/adversarial"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    options = parser.parse_args()
    work = partial(run_seed, options.output, options.rounds)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        list(pool.map(work, options.seeds))
    print("\n".join(table(options.output, options.seeds, options.rounds)))


if __name__ == "__main__":
    main()
