"""What old weights cost in learning: the model of learn.py, sampled from weights that are exactly K steps old.

    python benchmarks/staleness.py --output runs/staleness

GRPO by `posttrain rl`'s own loop in one process, with an engine that keeps the weights of the last K steps and samples
from the oldest: the worst that `--max-staleness K` allows, in every step, without a clock. With and without importance
weights (`--tis-cap 2` and 0), over seeds and learning rates. Reached: the mean reward of ten steps in a row is 0.9 or
more. Collapsed: the last ten steps earn less than 0.8 of the best ten. Accuracy: the share of the best answer among
1,000 fresh completions by the last weights; there are ten prompts, so that none is held out.

A second table has the minutes to 0.9 on a simulated cluster (`posttrain plan-cluster`'s simulation): a trainer and two
samplers that work `max_staleness` K steps ahead, with log-normal lengths. There, too, each group of step s is min(K, s)
steps old, which is checked. The lengths are the clock's alone: what the model learns to say has two digits.

A run that is finished is not run again: give the same --output to go on. `--packaged` is the same on the packaged
model, which learns to answer in few words (terse.py), for ages 0, 2 and 8.
"""

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from counting import tasks
from learn import IN_A_ROW, SETTINGS, TARGET, online_jobs, reached

from posttrain import algorithms
from posttrain.models.load import load_model
from posttrain.planning.cluster import Costs, Updating, Workload
from posttrain.planning.cluster import Decoding as CostOfDecoding
from posttrain.planning.cluster.simulation import simulate
from posttrain.recipes import rl
from posttrain.rollouts.engine import finish_all
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.runs import read_run
from posttrain.setup.backend import Backend, online_backend
from posttrain.types import Completion, Decoding, Message, Request, Sampling

AGES, CAPS = (0, 1, 2, 4, 8), (2.0, 0.0)
PACKAGED_AGES = (0, 2, 8)
TERSE = Path(__file__).parent / "terse.py"
FRESH = 100  # completions of each prompt by the last weights
WORK = Workload(10, 16, prompt_tokens=100, mean_tokens=40.0, spread=1.0, max_tokens=256, microbatch_tokens=1024)
# the 135M model, a thread for each process, AMD EPYC (AVX-512 with bf16): from lines of benchmarks/cluster.py
COSTS = Costs(2, CostOfDecoding(0.023, 0.0025, prompt=0.0012, begin=0.28), Updating(1, 0.0029, begin=0.7), sync=0.45)


class Lagging:
    """Samples from the weights of `age` openings ago; each step opens it once. Conforms to `types.Engine`."""

    def __init__(self, backend: Backend, model: str, age: int) -> None:
        self._trained = backend.learner.body
        self._copy = load_model(model, dtype=next(self._trained.network.parameters()).dtype)
        self._engine = TransformersEngine(self._copy, backend.chat.stop_ids)
        self._kept: deque[dict[str, torch.Tensor]] = deque(maxlen=age + 1)

    @contextmanager
    def open(self, on_tokens: Callable[[int], None] | None = None, *, turns: bool = False) -> Iterator[Decoding]:
        self._kept.append({name: weight.detach().clone() for name, weight in self._trained.trainable()})
        with torch.no_grad():
            for name, weight in self._copy.trainable():
                weight.copy_(self._kept[0][name])
        with self._engine.open(on_tokens, turns=turns) as decoding:
            yield decoding

    def generate(self, requests: Sequence[Request], on_tokens: Callable[[int], None] | None = None) -> list[Completion]:
        with self.open(on_tokens) as decoding:
            return finish_all(decoding, requests)


@dataclass(frozen=True)
class Job:
    """One run."""

    age: int
    cap: float
    seed: int
    options: rl.RL
    folder: Path


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
        return replace(backends[0], sampled=Lagging(backends[0], where, job.age))

    rl.online_backend = lagging
    rl.run(job.options, algorithms.online("grpo")(**SETTINGS["grpo"]), output=job.folder, quiet=True)
    if not job.options.dataset.startswith("gym:"):
        (job.folder / "accuracy.json").write_text(json.dumps(accuracy(backends[0])))
    (job.folder / "done").touch()


def accuracy(backend: Backend) -> float:
    """The share of fresh completions by the weights as they are now that are the best answer."""
    engine = TransformersEngine(backend.learner.body, backend.chat.stop_ids)
    prompts = [(task["answer"], backend.chat.prompt_ids([Message("user", task["prompt"])])) for task in tasks()]
    asked = [(answer, tuple(ids), 10**6 + seed) for answer, ids in prompts for seed in range(FRESH)]
    found = engine.generate([Request(ids, Sampling(4), seed) for _, ids, seed in asked])
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


def clocked(jobs: list[Job], rates: list[float]) -> list[str]:
    """A table with times of the simulated cluster."""
    head = ("learning rate", "K", "importance weights", "seconds a step", "minutes to 0.9", "accuracy")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for rate, cap, age in product(rates, CAPS, AGES):
        mine = [job for job in jobs if (job.options.lr, job.cap, job.age) == (rate, cap, age)]
        updates = simulate(COSTS, WORK, steps=mine[0].options.steps, max_staleness=age).updates
        assert all({*update.ages} == {min(age, step)} for step, update in enumerate(updates)), (
            "other ages than the runs'"
        )
        ends = [reached(rewards(job)) for job in mine]
        minutes = ", ".join(f"{updates[end - 1].synced / 60:.0f}" if end else "not" for end in ends)
        right = ", ".join(f"{json.loads((job.folder / 'accuracy.json').read_text()):.3f}" for job in mine)
        seconds = updates[-1].synced / len(updates)
        lines.append(f"| {rate:g} | {age} | {f'to {cap:g}' if cap else 'none'} | {seconds:.1f} | {minutes} | {right} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3], help="learning rates")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--packaged", action="store_true", help="train the packaged model")
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
        )
        for rate, cap, age, seed in product(options.rates, CAPS, ages, options.seeds)
        if cap or age or not options.packaged  # without an age the weights are 1, but for rounding
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done, _ in enumerate(pool.map(train, jobs), 1):
            print(f"{done} of {len(jobs)} runs", flush=True)
    lines = report(jobs, options.rates, ages, options.output / "staleness.svg")
    lines += [] if options.packaged else ["", *clocked(jobs, options.rates)]
    (options.output / "staleness.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.output / "staleness.json").write_text(json.dumps({str(job.folder.name): rewards(job) for job in jobs}))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
