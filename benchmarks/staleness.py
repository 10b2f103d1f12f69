"""What old weights cost in learning: the model of learn.py, sampled from weights that are exactly K steps old.

    python benchmarks/staleness.py --output runs/staleness

GRPO by `posttrain rl`'s own loop in one process, with an engine that keeps the weights of the last K steps and samples
from the oldest: the worst that `--max-staleness K` allows, in every step, without a clock. With and without importance
weights (`--tis-cap 2` and 0), over seeds and learning rates. Reached: the mean reward of ten steps in a row is 0.9 or
more. Collapsed: the last ten steps earn less than 0.8 of the best ten.

A run that is finished is not run again: give the same --output to go on. `--packaged` is the same on the packaged
model, which learns to answer in few words (terse.py), for ages 0, 2 and 8.

`--clock`: ages are those of a simulated cluster (`posttrain plan-cluster`'s simulation), a trainer and two samplers
with `max_staleness` K and log-normal lengths, whose clock says when an update is done: so each group has an age of its
own, at most K, and a run has a time to 0.9. The lengths are the clock's alone; the model says two digits. Accuracy: the
share of 1,000 fresh completions by the last weights that are the best one. There are ten prompts, so that none is held
out.
"""

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from counting import tasks
from learn import IN_A_ROW, SETTINGS, TARGET, online_jobs, reached

from posttrain import algorithms
from posttrain.models.load import load_model
from posttrain.planning.cluster import Costs, Decoding, Updating, Workload
from posttrain.planning.cluster.simulation import Update, simulate
from posttrain.recipes import rl
from posttrain.rollouts.engine import finish_all
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.runs import read_run
from posttrain.setup.backend import Backend, online_backend
from posttrain.types import Completion, Message, Request, Sampling

AGES, CAPS = (0, 1, 2, 4, 8), (2.0, 0.0)
PACKAGED_AGES = (0, 2, 8)
TERSE = Path(__file__).parent / "terse.py"
FRESH = 100  # completions of each prompt by the last weights
SAMPLERS, WORK = (
    2,
    Workload(10, 16, prompt_tokens=100, mean_tokens=40.0, spread=1.0, max_tokens=256, microbatch_tokens=1024),
)
# the 135M model with a thread for each process, AMD EPYC (AVX-512 with bf16): lines of benchmarks/cluster.py
COSTS = Costs(SAMPLERS, Decoding(0.023, 0.0025, prompt=0.0012, begin=0.28), Updating(1, 0.0029, begin=0.7), sync=0.45)


class Lagging:
    """Samples from earlier weights; each step opens it once. Conforms to `types.Engine`.

    Args:
        backend: of the run.
        model: a folder.
        ages: how many openings ago the weights were of each group of each step; of the first weights if that is more.
    """

    def __init__(self, backend: Backend, model: str, ages: Sequence[Sequence[int]]) -> None:
        self._trained = backend.learner.body
        self._copy = load_model(model, dtype=next(self._trained.network.parameters()).dtype)
        self._engine = TransformersEngine(self._copy, backend.chat.stop_ids)
        self._ages = iter(ages)
        self._kept: deque[dict[str, torch.Tensor]] = deque(maxlen=1 + max(map(max, ages)))

    @contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Any]:
        self._kept.append({name: weight.detach().clone() for name, weight in self._trained.trainable()})
        yield _ByAge(self._sample, next(self._ages))

    def _sample(self, age: int, requests: Sequence[Request]) -> list[Completion]:
        kept = self._kept[max(0, len(self._kept) - 1 - age)]
        with torch.no_grad():
            for name, weight in self._copy.trainable():
                weight.copy_(kept[name])
        return self._engine.generate(requests)

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        with self.open(on_tokens) as decoding:
            return finish_all(decoding, requests)


@dataclass
class _ByAge:
    """What was added is decoded in one step: requests in the order of their groups, each by weights of its age."""

    sample: Callable[[int, Sequence[Request]], list[Completion]]
    ages: Sequence[int]
    waiting: dict[int, Request] = field(default_factory=dict[int, Request])

    def add(self, number: int, request: Request) -> None:
        self.waiting[number] = request

    def cancel(self, number: int) -> None:
        self.waiting.pop(number, None)

    def step(self) -> dict[int, Completion]:
        numbers, found = list(self.waiting), dict[int, Completion]()
        of_group = len(numbers) // len(self.ages)
        for age in sorted(set(self.ages)):
            mine = [number for place, number in enumerate(numbers) if self.ages[place // of_group] == age]
            found |= zip(mine, self.sample(age, [self.waiting[number] for number in mine]), strict=True)
        self.waiting.clear()
        return found


@dataclass(frozen=True)
class Job:
    """One run; `ages` of each group of each step, of which `age` is the bound."""

    age: int
    cap: float
    seed: int
    options: rl.RL
    folder: Path
    ages: Sequence[Sequence[int]]


def simulated(age: int, steps: int) -> Sequence[Update]:
    """The updates of a cluster whose samplers work ahead."""
    return simulate(COSTS, WORK, steps=steps, max_staleness=age).updates


def packaged(seed: int) -> rl.RL:
    """A short task for the packaged model: 4 prompts x 8 answers of at most 32 tokens in a step."""
    return rl.RL(
        dataset="gym:gsm_symbolic",
        reward=f"{TERSE}:terse",
        prompts_per_step=4,
        completions_per_prompt=8,
        max_new_tokens=32,
        microbatch_tokens=1024,
        warmup_steps=1,
        seed=seed,
        save_every=10**6,
    )


def train(job: Job) -> None:
    """Run it, unless it has been run before."""
    torch.set_num_threads(1)
    if (job.folder / "done").exists():
        return

    backends: list[Backend] = []

    def lagging(config: rl.RL, where: str, *more: object) -> Backend:
        backends.append(online_backend(config, where, *more))
        return replace(backends[0], sampled=Lagging(backends[0], where, job.ages))

    rl.online_backend = lagging
    rl.run(job.options, algorithms.online("grpo")(**SETTINGS["grpo"]), output=job.folder, quiet=True)
    if job.options.dataset.endswith(".jsonl"):
        (job.folder / "accuracy.json").write_text(json.dumps(accuracy(backends[0])))
    (job.folder / "done").touch()


def accuracy(backend: Backend) -> float:
    """The share of fresh completions by the weights as they are now that are the best answer."""
    engine = TransformersEngine(backend.learner.body, backend.chat.stop_ids)
    answers = [(task["answer"], backend.chat.prompt_ids([Message("user", task["prompt"])])) for task in tasks()]
    asked = [(answer, tuple(ids), seed) for answer, ids in answers for seed in range(FRESH)]
    found = engine.generate([Request(ids, Sampling(4), 10**6 + seed) for _, ids, seed in asked])
    said = [backend.chat.decode(each.token_ids) for each in found]
    return fmean(text == answer for text, (answer, *_) in zip(said, asked, strict=True))


def rewards(job: Job) -> list[float]:
    return [row["reward/mean"] for row in read_run(job.folder).metrics]


def best(values: list[float]) -> float:
    return max(fmean(values[end - IN_A_ROW : end]) for end in range(IN_A_ROW, len(values) + 1))


def report(jobs: list[Job], rates: list[float], ages: Sequence[int], picture: Path) -> list[str]:
    """A table, and a picture of the curves."""
    head = ("learning rate", "age", "importance weights", "steps to 0.9", "reward of the last ten steps", "collapsed")
    lines = ["| " + " | ".join((*head, "KL of the sampler, nats per token")) + " |", "|" + "---|" * 7]
    figure, axes = plt.subplots(len(rates), len(CAPS), figsize=(10, 4 * len(rates)), squeeze=False, sharey=True)
    for (row, rate), (column, cap), age in product(enumerate(rates), enumerate(CAPS), ages):
        mine = [job for job in jobs if (job.options.lr, job.cap, job.age) == (rate, cap, age)]
        if not mine:
            continue
        curves = [rewards(job) for job in mine]
        steps = ", ".join(str(reached(curve) or "not") for curve in curves)
        last = ", ".join(f"{fmean(curve[-IN_A_ROW:]):.3f}" for curve in curves)
        collapsed = sum(fmean(curve[-IN_A_ROW:]) < 0.8 * best(curve) for curve in curves)
        told = [[r["sampler_kl"] for r in read_run(job.folder).metrics if "sampler_kl" in r] for job in mine]
        far = f"{fmean(map(fmean, told)):.4f}" if all(told) else ""
        weights = f"to {cap:g}" if cap else "none"
        lines.append(f"| {rate:g} | {age} | {weights} | {steps} | {last} | {collapsed} of {len(curves)} | {far} |")
        mean = [fmean(values) for values in zip(*curves, strict=True)]
        axes[row][column].plot(range(1, len(mean) + 1), mean, label=f"{age} steps old", linewidth=1)
        axes[row][column].set(title=f"learning rate {rate:g}, importance weights {weights}", ylim=(0, 1.02))
    for axis in axes.flat:
        axis.axhline(TARGET, color="grey", linestyle=":", linewidth=1)
        axis.set(xlabel="step", ylabel="reward, mean over seeds")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})
    return lines


def clocked(jobs: list[Job]) -> list[str]:
    """A table with times of the simulated clock."""
    head = "| K | importance weights | age | seconds a step | steps to 0.9 | minutes to 0.9 | accuracy | collapsed |"
    lines = [head, "|" + "---|" * 8]
    for cap, age in product(CAPS, AGES):
        mine = [job for job in jobs if (job.cap, job.age) == (cap, age)]
        updates = simulated(age, mine[0].options.steps)
        curves = [rewards(job) for job in mine]
        ends = [reached(curve) for curve in curves]
        minutes = ", ".join(f"{updates[end - 1].synced / 60:.0f}" if end else "not" for end in ends)
        right = ", ".join(f"{json.loads((job.folder / 'accuracy.json').read_text()):.3f}" for job in mine)
        collapsed = sum(fmean(curve[-IN_A_ROW:]) < 0.8 * best(curve) for curve in curves)
        cells = [age, f"to {cap:g}" if cap else "none", f"{fmean(fmean(update.ages) for update in updates):.1f}"]
        cells += [f"{updates[-1].synced / len(updates):.1f}", ", ".join(str(end or "not") for end in ends)]
        lines.append("| " + " | ".join(map(str, [*cells, minutes, right, f"{collapsed} of {len(mine)}"])) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3], help="learning rates")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--packaged", action="store_true", help="train the packaged model")
    parser.add_argument("--clock", action="store_true", help="ages and times of a simulated cluster")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each on one thread")
    options = parser.parse_args()
    ages = PACKAGED_AGES if options.packaged else AGES
    if options.packaged:
        common = {seed: packaged(seed) for seed in options.seeds}
    else:
        common = {job.seed: job.options for job in online_jobs(["grpo"], options.seeds, options.output)}
    jobs = [
        Job(
            age,
            cap,
            seed,
            replace(common[seed], lr=rate, tis_cap=cap, steps=options.steps),
            options.output / f"{rate:g}-{age}-{cap:g}-{seed}",
            [update.ages for update in simulated(age, options.steps)]
            if options.clock
            else [[min(age, step)] * common[seed].prompts_per_step for step in range(options.steps)],
        )
        for rate, cap, age, seed in product(options.rates, CAPS, ages, options.seeds)
        if cap or age or not options.packaged  # without an age the weights are 1, but for rounding
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done, _ in enumerate(pool.map(train, jobs), 1):
            print(f"{done} of {len(jobs)} runs", flush=True)
    lines = report(jobs, options.rates, ages, options.output / "staleness.svg")
    (options.output / "staleness.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.output / "staleness.json").write_text(json.dumps({str(job.folder.name): rewards(job) for job in jobs}))
    print("\n".join([*lines, "", *clocked(jobs)] if options.clock else lines))


if __name__ == "__main__":
    main()
