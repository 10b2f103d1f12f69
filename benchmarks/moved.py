"""Does it pay to ask people where the policy has moved? A second round of labels, on planted preferences.

    python benchmarks/moved.py --output runs/moved
    python benchmarks/moved.py --output runs/moved --seeds 0 1 --ask 50

A gold reward stands for people, as in overoptimization.py. An ensemble of five reward models learns from 400 pairs of
the first policy's answers, and PPO optimises a policy on it. Then `posttrain annotate import` samples two answers of
that policy to each of 500 other prompts, and adds --ask of them: by chance, or where the policy has moved furthest from
the first one (`--choose moved`). Gold's odds draw the choices, and a new ensemble learns from the pairs of both rounds.
It is judged by how often it prefers what gold prefers, of the new policy's answers to other prompts, and by what gold
gains when the best of 512 of them is taken by it. Each has its difference from choosing by chance, paired by seed, with
a 95% interval. Whatever has been done is not done again: give the same --output to go on.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from asking import Pair, accuracy, learn, pairs_of
from overoptimization import ENSEMBLE, OTHERS, PROMPTS, TOKENS, Proxy, choose, interval, scorer, train_policy, world
from sqlalchemy import select

from posttrain.annotation.store.database import open_store
from posttrain.annotation.store.tables import Item
from posttrain.options.services import Import
from posttrain.recipes.annotate import importing
from posttrain.recipes.annotate.importing import MOVED, RANDOM
from posttrain.training import checkpoint
from posttrain.types import Message

WAYS = (RANDOM, MOVED)
FIRST = 4  # pairs of each of the hundred prompts in the first round
HELD = 4  # pairs of each prompt that judges
LATER = [str(number) for number in range(500, 1000)]


def asked(folder: Path, way: str, ask: int, policy: str, first: Path, gold: Path, seed: int) -> list[Pair]:
    """The pairs that a second round asks, with the choices that gold makes; the same of a pair whoever asks for it."""
    prompts, store = folder / "later.jsonl", folder / f"{way}-{ask}.db"
    prompts.write_text("".join(json.dumps({"prompt": word, "id": word}) + "\n" for word in LATER), encoding="utf-8")
    opened = open_store(str(store))
    with opened.read() as connection:
        missing = not connection.scalars(select(Item.id)).first()
    if missing:
        config = Import(
            store=str(store),
            project="later",
            dataset=str(prompts),
            kind="compare",
            models=policy,
            max_new_tokens=TOKENS,
            precision="float32",
            ask=ask,
            choose=way,
            kl_from=str(first) if way == MOVED else "",
            seed=seed,
        )
        importing.run(config, quiet=True)
    with opened.read() as connection:
        items = {item.name: [c.text for c in item.completions] for item in connection.scalars(select(Item))}
    opened.close()
    assert len(items) == ask, "too few prompts have two different answers"
    ask_gold, found = scorer(gold), list[Pair]()
    for name, (one, other) in items.items():
        told = ask_gold([[Message("user", name), Message("assistant", text)] for text in (one, other)])
        a, b = (score for (score,) in told)
        odds = 1 / (1 + math.exp(b - a))
        if one.strip() and other.strip():
            found.append(Pair(name, (one, other), (a, b), random.Random(f"{seed} {name}").random() < odds))
    return found


def run_seed(output: Path, ask: int, steps: int, seed: int) -> None:
    """All of one seed: the first round, the policy that learns from it, and the second round in both ways."""
    folder, policy, gold = world(output, seed)
    before = pairs_of(PROMPTS, FIRST, policy, gold, seed)
    learn(folder / "first", before, policy, seed)
    proxy = Proxy("first", len(before), ENSEMBLE)
    moved = train_policy(proxy, folder, policy, gold, folder / "first", steps, seed)
    last = checkpoint.latest(folder / f"rl-{proxy.name}" / "checkpoints")  # the best would be gold's choice
    assert last is not None
    now = str(last.path)
    heldout = pairs_of(OTHERS, HELD, Path(now), gold, seed + 7919)
    models, sizes = {"none": folder / "first"}, {"none": len(before)}
    for way in WAYS:
        pairs = asked(folder, way, ask, now, policy, gold, seed)
        models[way], sizes[way] = folder / f"{way}-{ask}", len(before) + len(pairs)
        learn(models[way], [*before, *pairs], policy, seed)
    best = choose(folder, Path(now), gold, {way: (proxy, model) for way, model in models.items()}, seed)
    found = {way: {"accuracy": accuracy(model, heldout), "gold": best[way][-1].gold} for way, model in models.items()}
    told = {"d": moved[-1].distance, "pairs": sizes, "ways": found}
    (folder / f"found-{ask}.json").write_text(json.dumps(told), encoding="utf-8")
    print(f"seed {seed}: {told}", flush=True)


def table(seeds: Sequence[int], output: Path, ask: int) -> list[str]:
    """In Markdown: one row for each way."""
    read: list[Any] = [json.loads((output / f"seed-{s}" / f"found-{ask}.json").read_text("utf-8")) for s in seeds]
    lines = [
        "| asked | pairs | accuracy | more than by chance | gold gained by the best of 512 | more than by chance |",
        "|---" * 6 + "|",
    ]
    for way in ("none", *WAYS):
        cells = [way, f"{fmean(row['pairs'][way] for row in read):.0f}"]
        for key, digits in (("accuracy", 3), ("gold", 2)):
            mine, theirs = ([row["ways"][name][key] for row in read] for name in (way, RANDOM))
            mean, half = interval([a - b for a, b in zip(mine, theirs, strict=True)])
            apart = f"{mean:+.{digits}f} ({mean - half:+.{digits}f} to {mean + half:+.{digits}f})"
            cells += [f"{fmean(mine):.{digits}f}", "" if way == RANDOM else apart]
        lines.append("| " + " | ".join(cells) + " |")
    far = ", ".join(f"{row['d']:.1f}" for row in read)
    return [*lines, "", f"The policies had moved by d = {far}."]


def main() -> None:
    """Run what has not been run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/moved"))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--ask", type=int, default=100, help="pairs of the second round")
    parser.add_argument("--steps", type=int, default=100, help="updates of the policy between the rounds")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time")
    options = parser.parse_args()
    work = partial(run_seed, options.output, options.ask, options.steps)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        list(pool.map(work, options.seeds))
    print("\n".join(table(options.seeds, options.output, options.ask)))


if __name__ == "__main__":
    main()
