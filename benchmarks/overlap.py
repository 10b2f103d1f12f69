"""Sampling in turn with training, and ahead of it, where lengths have a long tail.

    python benchmarks/overlap.py --rounds 2

The loop of `posttrain rl` (GRPO, the packaged model, a trainer and a sampler on a local Ray cluster) with replies
whose maximum lengths are log-normal by their seeds, so that all ways sample the same lengths. In turn, once with two
threads for whoever works and once with one each; ahead with one thread each. Of each run the seconds a step, the share
of time in which trainer and sampler work, and the age of the weights. The first two steps and the last two do not
count, so that samplers are as many steps ahead when the count begins and when it ends. Runs are in turn, in rounds.
"""

import argparse
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lengths import LONGEST, Varied

from posttrain import algorithms
from posttrain.bindings.cluster_options import AsyncOptions
from posttrain.distributed import samplers
from posttrain.recipes import rl
from posttrain.report.timeline import busy
from posttrain.runs import read_run
from posttrain.threads import SPINCOUNT

PROMPTS, COMPLETIONS = 8, 4  # of a step
SKIPPED = 2  # steps, in which processes warm up
LEFT = 2  # steps at the end, for which samplers of the largest K have nothing more to do

ONE = AsyncOptions(trainers=1, samplers=1, trainer_threads=1, sampler_threads=1)
WAYS = {
    "in turn, two threads each": replace(ONE, trainer_threads=2, sampler_threads=2),
    "in turn, one thread each": ONE,
    "ahead, K = 1": replace(ONE, max_staleness=1),
    "ahead, K = 2": replace(ONE, max_staleness=2),
    "ahead, K = 2, in flight": replace(ONE, max_staleness=2, in_flight_updates=True),
    "as they finish, K = 2": replace(ONE, max_staleness=2, in_flight_updates=True, evict_stale=True),
}


class VariedGroup(samplers.SamplerGroup):
    """Samplers of such decodings."""

    @contextlib.contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Any]:
        with super().open(on_tokens, turns=turns) as decoding:
            yield Varied(decoding)


def measured(way: AsyncOptions, folder: Path, steps: int) -> dict[str, float]:
    """One run."""
    config = rl.RL(
        dataset="gym:gsm_symbolic",
        steps=steps,
        prompts_per_step=PROMPTS,
        completions_per_prompt=COMPLETIONS,
        max_new_tokens=LONGEST,
        microbatch_tokens=1024,
        save_every=10**6,
    )
    run = rl.run(config, algorithms.online("grpo")(), way, output=folder, quiet=True).run
    rows, spans = read_run(run).metrics[SKIPPED:-LEFT], read_run(run).timeline
    trained = [span for span in spans if span.work == "training"]
    began, ended = trained[SKIPPED - 1].ended, trained[-1 - LEFT].ended
    shares = busy([span for span in spans if span.work in ("training", "sampling")], began, ended)
    return {
        "seconds": (ended - began) / len(rows),
        "tokens": fmean(row["tokens"] for row in rows),
        "trainer": shares["trainers"],
        "sampler": shares["sampler 0"],
        "waits": fmean(row["seconds/rollout"] for row in rows),
        "age": fmean(row.get("staleness/mean", 0.0) for row in rows),
        "length": fmean(row["length/mean"] for row in rows),
        "evicted": sum(row.get("groups/evicted", 0.0) for row in rows) / (PROMPTS * len(rows)),
        "sync": fmean(row["cluster/sync_seconds"] for row in rows),
    }


def table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """In Markdown; medians over the rounds."""
    head = ("way", "seconds a step, by round", "tokens/s", "against the first", "trainer works", "sampler works", "age")
    head = (*head, "mean length", "evicted groups")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    base = median(each["seconds"] for each in next(iter(found.values())))
    for name, rounds in found.items():
        seconds = median(each["seconds"] for each in rounds)
        middle = {key: median(each[key] for each in rounds) for key in rounds[0]}
        said = ", ".join(f"{each['seconds']:.1f}" for each in rounds)
        lines.append(
            f"| {name} | {said} | {middle['tokens'] / seconds:.0f} | {base / seconds:.2f} times | "
            f"{middle['trainer']:.0%} | {middle['sampler']:.0%} | {middle['age']:.2f} | "
            f"{middle['length']:.0f} | {middle['evicted']:.0%} of those trained |"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="which; the first is the base")
    options = parser.parse_args(argv)
    os.environ.setdefault("GOMP_SPINCOUNT", SPINCOUNT)  # as `posttrain` does; processes of the cluster inherit it
    samplers.SamplerGroup = VariedGroup
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for name, way in [(name, WAYS[name]) for name in options.ways]:
            folder = Path(tempfile.mkdtemp())
            found.setdefault(name, []).append(measured(way, folder / "run", options.steps))
            shutil.rmtree(folder)
            print(name, json.dumps(found[name][-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found), encoding="utf-8")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
