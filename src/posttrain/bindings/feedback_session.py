"""Shared parts of runs on given data: steps, evaluations, checkpoints."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from posttrain.bindings.cluster_options import MAY_DIFFER
from posttrain.bindings.feedback import DataOptions, Units
from posttrain.data.digests import digests, rows_digest
from posttrain.runs.training import Evaluations, MetricsRow, Trained, Training, patience
from posttrain.training.schedule import LearningRate


def _score(row: MetricsRow) -> float | None:
    """The accuracy on held-out pairs, of ratings alone their correlation."""
    return row.get("evaluation/accuracy", row.get("evaluation/correlation"))


def feedback_training(
    options: DataOptions,
    units: Units[Any],
    trained: Trained,
    *,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    notes: tuple[str, ...],
    score: Callable[[MetricsRow], float | None] = _score,
    headline: Mapping[str, str] = MappingProxyType({"loss": "loss", "accuracy": "accuracy"}),
    evaluated: tuple[bool, bool] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Training:
    """For `open_session`; checkpoint selection and early stopping use `score`, by default that of held-out feedback.

    `evaluated` says whether there is an evaluation before the first step and after the last one; by default if units
    are held out.
    """
    first, last = evaluated or (bool(units.heldout),) * 2
    steps = units.steps
    return Training(
        steps=steps,
        trained=trained,
        rate=LearningRate(options.lr, options.warmup_steps, options.decay, steps),
        evaluations=Evaluations(options.eval_every, first, last, score, patience(options.stop_after, score)),
        environment={**environment, "steps": steps, "data": digests(settings), "rows": rows_digest(units.learned)},
        save_every=options.save_every,
        keep_last=options.keep_last,
        may_differ=("steps", "epochs", "stop_after", *MAY_DIFFER),
        notes=notes,
        headline=headline,
        prepare=prepare,
    )
