"""Held-out accuracy along a run that learns from samples: what is logged, and what its result says."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from posttrain.data.order import seed_for
from posttrain.evaluation.accuracy import evaluate
from posttrain.rollouts.drive import OnTokens
from posttrain.rollouts.options import OnlineOptions
from posttrain.rollouts.setup import Setup


class HeldOut(NamedTuple):
    """Held-out accuracy, and its interval."""

    accuracy: float
    ci95: tuple[float, float]


def heldout_metrics(setup: Setup, options: OnlineOptions, on_tokens: OnTokens | None = None) -> dict[str, float]:
    """Sampled accuracy of the policy as it is now, on the held-out tasks, always by the same draws."""
    found = evaluate(
        setup.environment,
        setup.heldout,
        setup.policy.engine,
        setup.policy.chat,
        max_new_tokens=options.max_new_tokens,
        samples_per_task=options.eval_samples,
        seed=seed_for(options.seed, "evaluation"),
        on_tokens=on_tokens,
    )
    low, high = found.ci95
    return {"evaluation/accuracy": found.accuracy, "evaluation/accuracy_low": low, "evaluation/accuracy_high": high}


def held_out(metrics: Iterable[Mapping[str, Any]]) -> tuple[HeldOut | None, HeldOut | None]:
    """The first and the last accuracy in a run's metrics; None where nothing was held out."""
    found = [
        HeldOut(row["evaluation/accuracy"], (row["evaluation/accuracy_low"], row["evaluation/accuracy_high"]))
        for row in metrics
        if "evaluation/accuracy_low" in row
    ]
    return (found[0], found[-1]) if found else (None, None)
