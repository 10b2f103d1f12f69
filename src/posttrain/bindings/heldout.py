"""Held-out evaluation during training: metrics, best checkpoint, stopping."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from posttrain.bindings import cluster_options, judges
from posttrain.bindings.cluster_options import engine_may_differ
from posttrain.bindings.sampling import Setup
from posttrain.data.digests import digests, rows_digest
from posttrain.data.order import seed_for
from posttrain.environments.scored import GOLD
from posttrain.episodes.episodes import OnTokens, none_left, sample_groups
from posttrain.episodes.metrics import episode_metrics, lost_metrics
from posttrain.errors import EpisodeError
from posttrain.evaluation.accuracy import summarize
from posttrain.options.online import RL, OnlineOptions
from posttrain.runs.training import Evaluations, Together, Training, patience
from posttrain.training import checkpoint
from posttrain.training.schedule import LearningRate
from posttrain.types import Group, Sampling, Score

PREFIX = "evaluation/"
KL = "kl"  # nats per answer from where the policy began
BY = (GOLD, "accuracy", "reward")  # what tells a good checkpoint from a bad one: the first that there is


class HeldOut(NamedTuple):
    """Held-out accuracy, and its interval."""

    accuracy: float
    ci95: tuple[float, float]


class HeldOutReward(NamedTuple):
    """Held-out reward if no reward indicates correctness; also gold and KL if measured."""

    reward: float
    reward_se: float | None  # standard error, over tasks; None of a single one
    gold: float | None
    kl: float | None


def examined(
    setup: Setup, options: OnlineOptions, on_tokens: OnTokens | None = None
) -> tuple[list[Group], dict[str, float]]:
    """Sample the current policy on held-out tasks, always with the same seeds; returns the groups and their metrics."""
    failed: Counter[str] = Counter()
    groups = sample_groups(
        setup.heldout_environment,
        setup.heldout,
        replace(
            setup.players,
            sampling=Sampling(options.max_new_tokens),
            on_tokens=on_tokens,
            on_lost=lambda error: failed.update([type(error).__name__]),
        ),
        completions_per_prompt=options.eval_samples,
        seed=seed_for(options.seed, "evaluation"),
    )
    if not groups:
        raise EpisodeError(none_left(failed))
    return groups, heldout_metrics(setup, groups) | {PREFIX + name: n for name, n in lost_metrics(failed).items()}


def heldout_metrics(setup: Setup, groups: Sequence[Group]) -> dict[str, float]:
    """Held-out metrics: accuracy if a reward indicates correctness; rewards and gold, with standard errors.

    The task is the unit of intervals and errors: samples of one task are not independent of each other. `lost` is the
    share of tasks with an answer to which no optimised reward applies, where there are any; they are left out.
    """
    found: dict[str, float] = {}
    if outcome := setup.heldout_environment.outcome_of(groups):
        solved = summarize(groups, outcome, greedy=False)
        low, high = solved.ci95
        found |= {"accuracy": solved.accuracy, "accuracy_low": low, "accuracy_high": high}
    found |= _mean("reward", [group.rewards for group in groups])
    if lost := sum(group.lost for group in groups):
        found["lost"] = lost / len(groups)
    if setup.gold:
        found |= _mean(GOLD, [[weighed(row.scores, setup.gold) for row in group.rows] for group in groups])
    found["length"] = fmean(len(row.trajectory.logprobs) for group in groups for row in group.rows)
    found |= episode_metrics(groups)
    return {PREFIX + name: value for name, value in found.items()}


def weighed(scores: Mapping[str, Score], weights: Mapping[str, float]) -> float:
    """The weighted sum of the applicable scores of an answer, by name; NaN if none applies."""
    found = [weight * scores[name].total for name, weight in weights.items() if scores[name].applicable]
    return sum(found) if found else math.nan


def _mean(name: str, values: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean over tasks, excluding those with an answer to which no reward applies."""
    by_task = [fmean(each) for each in values if not any(map(math.isnan, each))]
    if not by_task:
        return {}
    error = {f"{name}_se": stdev(by_task) / math.sqrt(len(by_task))} if len(by_task) > 1 else {}
    return {name: fmean(by_task)} | error


def chosen_by(setup: Setup) -> tuple[str, ...]:
    """Metrics for checkpoint selection: gold only, if it is read; accuracy, if every evaluation has one."""
    if setup.gold:
        return (GOLD,)
    return BY if setup.heldout_environment.reward.certain else tuple(name for name in BY if name != "accuracy")


def goodness(metrics: Mapping[str, Any], kl_budget: float = 0.0, by: Sequence[str] = BY) -> float | None:
    """Score of a step for checkpoint selection: the first available metric of `by`.

    None if there is none, such as without held-out tasks, and if the policy exceeded the KL budget.
    """
    if past_budget(metrics, kl_budget):
        return None
    return next((metrics[PREFIX + name] for name in by if PREFIX + name in metrics), None)


def past_budget(metrics: Mapping[str, Any], kl_budget: float) -> bool:
    """Whether the held-out KL to the initial policy exceeds the budget, in nats; never for a budget of 0."""
    return 0 < kl_budget < metrics.get(PREFIX + KL, -math.inf)


def held_out(metrics: Iterable[Mapping[str, Any]]) -> tuple[HeldOut | HeldOutReward | None, ...]:
    """The first and the last held-out result in a run's metrics, both of one kind; None without held-out tasks."""
    rows = [row for row in metrics if PREFIX + "reward" in row or PREFIX + "accuracy_low" in row]
    solved = all(PREFIX + "accuracy_low" in row for row in rows)
    found: list[HeldOut | HeldOutReward] = []
    for row in rows:
        value = {name.removeprefix(PREFIX): value for name, value in row.items()}
        if solved:
            found.append(HeldOut(value["accuracy"], (value["accuracy_low"], value["accuracy_high"])))
        elif "reward" in value:
            found.append(HeldOutReward(value["reward"], value.get("reward_se"), value.get(GOLD), value.get(KL)))
    return (found[0], found[-1]) if found else (None, None)


def online_training(
    options: OnlineOptions,
    setup: Setup,
    *,
    steps: int,
    model: str,
    settings: Mapping[str, Any],
    may_differ: Sequence[str],
    notes: Sequence[str],
    kl_budget: float = 0.0,
    delay: int = 0,
    counted: str = "steps",
) -> Training:
    """For `open_session`, of the policy in the folder `model`; held-out tasks select checkpoints and stop early."""

    def score(row: Mapping[str, Any]) -> float | None:
        return goodness(row, kl_budget, chosen_by(setup))

    def finished(rows: Sequence[Mapping[str, Any]]) -> str:
        if rows and past_budget(rows[-1], kl_budget):  # reward overoptimisation
            return f"KL to the initial policy is {rows[-1][PREFIX + KL]:.1f} nats (`kl_budget={kl_budget:g}`)"
        return patience(options.stop_after, partial(goodness, by=chosen_by(setup)))(rows)

    backend, past, held = setup.backend, setup.judging.past.values(), bool(options.eval_every)
    about = {"model": model, "steps": steps, "judges": setup.model_folders, "data": digests(settings)}
    about["rows"] = rows_digest(task.prompt for task in setup.tasks)
    verified = setup.environment.reward.verified  # a verifier says what is solved
    return Training(
        steps=steps,
        trained=Together((backend.learner, *past)) if past else backend.learner,
        rate=LearningRate(options.lr, options.warmup_steps, options.decay, steps, delay=delay),
        evaluations=Evaluations(options.eval_every, held, held, score, finished),
        environment={**backend.compute, **about},
        save_every=options.save_every,
        keep_last=options.keep_last,
        headline={"reward": "reward/mean", **({"accuracy": "accuracy"} if verified else {})},
        may_differ=(*may_differ, *engine_may_differ(options.engine), *judges.MAY_DIFFER, *cluster_options.MAY_DIFFER),
        counted=counted,
        notes=notes,
        overlapped=backend.staleness > 0,
        spans=backend.spans,
    )


def none_is_best(config: RL, checkpoints: Path) -> str:
    """Why a run with a KL budget that has ended has no best checkpoint; "" where it has one."""
    if not config.kl_budget or checkpoint.best(checkpoints) is not None:
        return ""
    return (
        "no evaluation after a step was within `kl_budget`, so there is no best checkpoint; use a smaller `eval_every` "
        "or `lr`"
    )
