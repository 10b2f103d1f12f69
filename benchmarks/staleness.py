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

A run that is finished is not run again: give the same --output to go on.

    for S in 0 1 2; do posttrain quickstart --seed $S --rl-steps 1 --output runs/cold/$S; done
    python benchmarks/staleness.py --packaged runs/cold --rates 1.5e-5 --steps 24

`--packaged` is the same for ages 0, 2 and 8 on the packaged model, which learns from the cold starts of
`posttrain quickstart` to solve sums. Reached: the mean accuracy of five steps in a row is 0.35 or more. Collapsed: the
last five solve less than 0.8 of the best five. Accuracy: of the last weights on 200 held-out problems, 4 samples each.
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
from posttrain.bindings.backend import Backend, online_backend
from posttrain.engine.engine import finish_all
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.load import load_model
from posttrain.planning.cluster.coefficients import Costs, Updating, Workload
from posttrain.planning.cluster.coefficients import Decoding as CostOfDecoding
from posttrain.planning.cluster.simulation import simulate
from posttrain.recipes import evaluate, rl
from posttrain.runs import read_run
from posttrain.types import Completion, Decoding, Message, Request, Sampling

CAPS = (2.0, 0.0)
FRESH = 100  # completions of each prompt by the last weights
SUMS = "gym:chain_sum?min_terms=3&max_terms=4&min_digits=1&max_digits=1"
SYSTEM, MAX_NEW_TOKENS = "Solve the problem.", 48
WORK = Workload(10, 16, prompt_tokens=100, mean_tokens=40.0, spread=1.0, max_tokens=256, microbatch_tokens=1024)
# the 135M model, a thread for each process, AMD EPYC (AVX-512 with bf16): from lines of benchmarks/cluster.py
COSTS = Costs(2, CostOfDecoding(0.023, 0.0025, prompt=0.0012, begin=0.28), Updating(1, 0.0029, begin=0.7), sync=0.45)


@dataclass(frozen=True)
class Study:
    """For which ages a task is learnt, what is reached, and in how many steps in a row."""

    ages: tuple[int, ...]
    metric: str
    target: float
    in_a_row: int

    def mean_of_last(self, values: list[float]) -> float:
        return fmean(values[-self.in_a_row :])

    def reached(self, values: list[float]) -> int | None:
        return reached(values, self.target, self.in_a_row)

    def collapsed(self, values: list[float]) -> bool:
        ends = range(self.in_a_row, len(values) + 1)
        return self.mean_of_last(values) < 0.8 * max(self.mean_of_last(values[:end]) for end in ends)


COUNTING = Study((0, 1, 2, 4, 8), "reward/mean", TARGET, IN_A_ROW)
PACKAGED = Study((0, 2, 8), "accuracy", 0.35, 5)


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


def packaged(cold: Path, seed: int) -> rl.RL:
    """The sums of `posttrain quickstart`, from its cold start: 12 prompts x 8 answers of at most 48 tokens a step."""
    return rl.RL(
        model=str(cold / str(seed) / "cold-start" / "model"),
        system=SYSTEM,
        dataset=SUMS,
        reward="gym_bare=1.0 tags=0.1",
        prompts_per_step=12,
        completions_per_prompt=8,
        max_new_tokens=MAX_NEW_TOKENS,
        microbatch_tokens=768,
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
    measured = held_out(job.folder) if job.options.dataset == SUMS else {"value": accuracy(backends[0])}
    (job.folder / "accuracy.json").write_text(json.dumps(measured))
    (job.folder / "done").touch()


def held_out(model: Path) -> dict[str, object]:
    """The accuracy on problems that were not trained on, and its interval."""
    asked = evaluate.Evaluate(
        dataset=SUMS,
        model=str(model),
        system=SYSTEM,
        reward="gym_bare tags=0",
        samples=4,
        max_new_tokens=MAX_NEW_TOKENS,
        limit=200,
    )
    found = evaluate.run(asked, output=model / "evaluation", quiet=True).summary()["sampled"]
    return {"value": found["accuracy"], "ci95": found["ci95"]}


def accuracy(backend: Backend) -> float:
    """The share of fresh completions by the weights as they are now that are the best answer."""
    engine = TransformersEngine(backend.learner.body, backend.chat.stop_ids)
    prompts = [(task["answer"], backend.chat.prompt_ids([Message("user", task["prompt"])])) for task in tasks()]
    asked = [(answer, tuple(ids), 10**6 + seed) for answer, ids in prompts for seed in range(FRESH)]
    found = engine.generate([Request(ids, Sampling(4), seed) for _, ids, seed in asked])
    said = [backend.chat.decode(each.token_ids) for each in found]
    return fmean(text == answer for text, (answer, *_) in zip(said, asked, strict=True))


def curve(job: Job, metric: str) -> list[float]:
    return [row[metric] for row in read_run(job.folder).metrics if metric in row]


def final(job: Job) -> str:
    """The accuracy of the last weights, and its interval if the problems are a sample."""
    found = json.loads((job.folder / "accuracy.json").read_text())
    return f"{found['value']:.3f}" + (" ({:.3f}-{:.3f})".format(*found["ci95"]) if "ci95" in found else "")


def report(jobs: list[Job], rates: list[float], study: Study, picture: Path) -> list[str]:
    """A table, and a picture of the curves."""
    name = study.metric.removesuffix("/mean")
    reach, last = f"steps to {study.target}", f"{name} of the last {study.in_a_row} steps"
    head = ("learning rate", "age", "importance weights", reach, last, "accuracy of the last weights", "collapsed")
    lines = ["| " + " | ".join((*head, "KL of the sampler, nats per token")) + " |", "|" + "---|" * 8]
    figure, axes = plt.subplots(len(rates), len(CAPS), figsize=(10, 4 * len(rates)), squeeze=False, sharey=True)
    for (row, rate), (column, cap), age in product(enumerate(rates), enumerate(CAPS), study.ages):
        mine = [job for job in jobs if (job.options.lr, job.cap, job.age) == (rate, cap, age)]
        if not mine:
            continue
        curves = [curve(job, study.metric) for job in mine]
        steps = ", ".join(str(study.reached(values) or "not") for values in curves)
        last = ", ".join(f"{study.mean_of_last(values):.3f}" for values in curves)
        right = ", ".join(final(job) for job in mine)
        collapsed = sum(study.collapsed(values) for values in curves)
        told = [[r["sampler_kl"] for r in read_run(job.folder).metrics if "sampler_kl" in r] for job in mine]
        far = f"{fmean(map(fmean, told)):.4f}" if all(told) else ""
        weights = f"to {cap:g}" if cap else "none"
        lines.append(
            f"| {rate:g} | {age} | {weights} | {steps} | {last} | {right} | {collapsed} of {len(curves)} | {far} |"
        )
        mean = [fmean(values) for values in zip(*curves, strict=True)]
        axes[row][column].plot(
            range(1, len(mean) + 1), mean, f"C{study.ages.index(age)}", label=f"{age} steps old", linewidth=1
        )
        axes[row][column].set(title=f"learning rate {rate:g}, importance weights {weights}", ylim=(0, 1.02))
    for axis in axes.flat:
        axis.axhline(study.target, color="grey", linestyle=":", linewidth=1)
        axis.set(xlabel="step", ylabel=f"{name}, mean over seeds")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})
    return lines


def clocked(jobs: list[Job], rates: list[float]) -> list[str]:
    """A table with times of the simulated cluster."""
    head = ("learning rate", "K", "importance weights", "seconds a step", "minutes to 0.9")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for rate, cap, age in product(rates, CAPS, COUNTING.ages):
        mine = [job for job in jobs if (job.options.lr, job.cap, job.age) == (rate, cap, age)]
        updates = simulate(COSTS, WORK, steps=mine[0].options.steps, max_staleness=age).updates
        assert all({*update.ages} == {min(age, step)} for step, update in enumerate(updates)), (
            "other ages than the runs'"
        )
        ends = [COUNTING.reached(curve(job, COUNTING.metric)) for job in mine]
        minutes = ", ".join(f"{updates[end - 1].synced / 60:.0f}" if end else "not" for end in ends)
        seconds = updates[-1].synced / len(updates)
        lines.append(f"| {rate:g} | {age} | {f'to {cap:g}' if cap else 'none'} | {seconds:.1f} | {minutes} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 3e-3], help="learning rates")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--packaged", type=Path, metavar="COLD", help="train the cold starts that lie there, by seed")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each on one thread")
    options = parser.parse_args()
    study = PACKAGED if options.packaged else COUNTING
    if options.packaged:
        common = {seed: packaged(options.packaged, seed) for seed in options.seeds}
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
        for rate, cap, age, seed in product(options.rates, CAPS, study.ages, options.seeds)
        if cap or age or not options.packaged  # without an age the weights are 1, but for rounding
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done, _ in enumerate(pool.map(train, jobs), 1):
            print(f"{done} of {len(jobs)} runs", flush=True)
    lines = report(jobs, options.rates, study, options.output / "staleness.svg")
    lines += [] if options.packaged else ["", *clocked(jobs, options.rates)]
    (options.output / "staleness.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.output / "staleness.json").write_text(
        json.dumps({job.folder.name: curve(job, study.metric) for job in jobs})
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
