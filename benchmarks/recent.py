"""The algorithms of the last eighteen months beside GRPO, where they can differ from it: one table in Markdown.

    python benchmarks/recent.py --output runs/recent

The model of learn.py with rewards of 0 and 1 (counting.py: right), in three parts, each with GRPO in it:

updates   four updates on each batch, so that ratios leave 1
rewards   two rewards, of which one (brief) is learned sooner: their sum by GRPO, each by itself by GDPO
old       samples of the weights of four steps ago (staleness.py), with each kind of importance weights
sft       demonstrations of which some are wrong (learn.py sft): maximum likelihood and DFT
process   four updates; rewards of tokens by a second model that is trained beside the policy (PRIME; its control, where
          that model learns nothing), and by a prover's continuations: the policy itself (VinePPO), the model that has
          imitated the demonstrations of sft, and the policy before training (PAV)

A row is an algorithm with its options; the runs of all rows with one seed come before those with the next. One process
on one thread; a run that is finished is not run again: give the same --output to go on. A line is printed after each
run, and the table, of what there is, is written to recent.md after each.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from learn import HERE, IN_A_ROW, TARGET, imitated, online_jobs, reached, sft_row
from staleness import Lagging

from posttrain import algorithms
from posttrain.bindings.backend import Backend, online_backend
from posttrain.recipes import rl
from posttrain.runs import read_run

AGE = 4
IMITATED, START = "imitated", "start"  # provers
COUNTING = HERE / "counting.py"
BOTH = f"{COUNTING}:right=1.0 {COUNTING}:brief=1.0"


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    part: str
    name: str
    algorithm: str = "grpo"
    knobs: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def rows() -> list[Row]:
    knobs: dict[str, dict[str, Any]] = {
        "grpo": {"kl_coefficient": 0.0},
        "pass-at-k": {"k": 4},
        # the published shares are of batches a hundred times as large; covariances here are about 1
        "clip-cov": {"chosen_share": 0.02, "cov_low": 0.5},
        "kl-cov": {"penalised_share": 0.02},
    }
    four = ("grpo", "maxrl", "pass-at-k", "cispo", "sapo", "gmpo", "dppo", "clip-cov", "kl-cov")
    plain, four_updates = knobs["grpo"], {"updates_per_step": 4}
    by_token = {"kl_coefficient": 0.0, "step_tokens": 1, "continuations": 3}
    weights: dict[str, dict[str, Any]] = {
        "grpo, no weights": {},
        "grpo, token, to 2 (TIS)": {"tis_cap": 2.0},
        "grpo, token, masked 0.5 to 5 (IcePop)": {"tis_cap": 5.0, "importance": "masked", "importance_floor": 0.5},
        "grpo, product, to 2": {"tis_cap": 2.0, "importance_level": "product"},
        "grpo, product, masked above 2": {"tis_cap": 2.0, "importance": "masked", "importance_level": "product"},
        "grpo, mean, to 2": {"tis_cap": 2.0, "importance_level": "mean"},
    }
    return [
        *(Row("updates", name, name, knobs.get(name, {}), {"updates_per_step": 4}) for name in four),
        Row("rewards", "grpo", "grpo", plain, {"reward": BOTH, "updates_per_step": 4}),
        Row("rewards", "gdpo", "gdpo", {}, {"reward": BOTH, "updates_per_step": 4}),
        *(Row("old", name, "grpo", plain, options | {"steps": 120}) for name, options in weights.items()),
        Row("old", "dppo", "dppo", {}, {"steps": 120}),
        Row("sft", "sft"),
        Row("sft", "dft"),
        Row("process", "grpo", "grpo", plain, four_updates),
        Row("process", "prime", "prime", {"prm_lr": 4e-3}, four_updates),
        Row("process", "prime, rate 2e-4", "prime", {"prm_lr": 2e-4}, four_updates),
        Row("process", "prime, second model held", "prime", {"prm_lr": 1e-12}, four_updates),
        Row("process", "vineppo", "vineppo", by_token, four_updates),
        Row("process", "pav", "pav", by_token, four_updates | {"prover": IMITATED}),
        Row("process", "pav, prover as at the start", "pav", by_token, four_updates | {"prover": START}),
    ]


def lagging(config: rl.RL, where: str, *more: Any) -> Backend:
    backend = online_backend(config, where, *more)
    return replace(backend, sampled=Lagging(backend, where, AGE))


def train(row: Row, options: rl.RL, folder: Path) -> dict[str, float]:
    """Run it; what the table says of it."""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
    rl.online_backend = lagging if row.part == "old" else online_backend
    provers = {IMITATED: lambda: str(imitated(options.seed, folder.parent)[0]), START: lambda: options.model}
    if prover := row.options.get("prover"):
        row = replace(row, options=row.options | {"prover": provers[prover]()})
    algorithm = algorithms.online(row.algorithm)(**row.knobs)
    ended = rl.run(replace(options, algorithm=row.algorithm, **row.options), algorithm, output=folder, quiet=True)
    if ended.interrupted:
        raise SystemExit(f"{row.part} {row.name}: stopped by a signal at step {ended.steps}; it is no row")
    metrics = read_run(folder).metrics
    metric = "reward/right" if row.part == "rewards" else "reward/mean"
    rewards = [one[metric] for one in metrics]
    last = metrics[-IN_A_ROW:]
    found = {"steps": reached(rewards) or 0, "reward": fmean(rewards[-IN_A_ROW:])}
    told = ("entropy", "clip_fraction", "importance_capped", "log_importance/short", "log_importance/long")
    for name in ("reward/brief", *told):
        if values := [one[name] for one in last if name in one]:  # a step without an advantage has no update
            found[name] = fmean(values)
    return found


def table(found: dict[tuple[str, str], list[dict[str, float]]]) -> list[str]:
    head = (
        "part",
        "row",
        f"steps to {TARGET}",
        f"reward of the last {IN_A_ROW}",
        "entropy",
        "clipped or left out",
        "brief",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]

    def said(results: list[dict[str, float]], name: str, form: str = ".3f") -> str:
        return ", ".join(format(one[name], form) for one in results if name in one)

    for (part, name), results in found.items():
        if part == "sft":
            continue
        steps = ", ".join(f"{one['steps']:.0f}" if one["steps"] else "not" for one in results)
        out = said(results, "importance_capped" if "importance_capped" in results[0] else "clip_fraction")
        cells = [part, name, steps, said(results, "reward"), said(results, "entropy", ".2f"), out]
        lines.append("| " + " | ".join([*cells, said(results, "reward/brief")]) + " |")
    head = ("sft", "accuracy, sampled", "accuracy, greedy")
    lines += ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for (part, name), results in found.items():
        if part == "sft":
            cells = [name, *(said(results, one) for one in ("sampled", "greedy"))]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/recent"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="twice as many with old samples")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--parts", nargs="+", default=["updates", "rewards", "old", "sft", "process"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for seed in given.seeds:
        (job,) = online_jobs(["grpo"], [seed], given.output.resolve())
        options = replace(job.options, reward=f"{COUNTING}:right", steps=given.steps, lr=given.lr, save_every=10**6)
        for row in rows():
            if row.part not in given.parts:
                continue
            folder = given.output.resolve() / f"{row.part}-{row.name}-{seed}".replace(" ", "_").replace(",", "")
            result, began = folder.with_name(f"{folder.name}.json"), time.monotonic()
            run: Callable[[], dict[str, float]] = partial(train, row, options, folder)
            if row.part == "sft":
                run = partial(sft_row, row.name, seed, given.output.resolve(), folder)
            if not result.exists():
                result.write_text(json.dumps(run()))
            one = json.loads(result.read_text())
            found.setdefault((row.part, row.name), []).append(one)
            (given.output / "recent.md").write_text("\n".join(table(found)) + "\n")
            print(f"{row.part} {row.name} {seed}: {one} ({time.monotonic() - began:.0f} s)", flush=True)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
