"""Shared parts of runs on human feedback: steps, evaluations, checkpoints."""

from collections.abc import Callable, Mapping
from typing import Any

from posttrain.data.digests import digests, rows_digest
from posttrain.session.early_stopping import patience
from posttrain.session.training import Evaluations, Trained, Training
from posttrain.setup.cluster_options import MAY_DIFFER
from posttrain.setup.feedback import Units
from posttrain.setup.pair_options import PairOptions
from posttrain.training.schedule import LearningRate


def feedback_training(
    options: PairOptions,
    units: Units[Any],
    trained: Trained,
    *,
    settings: Mapping[str, Any],
    environment: Mapping[str, Any],
    notes: tuple[str, ...],
    evaluated: tuple[bool, bool] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> Training:
    """For `open_session`; checkpoint selection and early stopping use the accuracy on held-out pairs.

    Of ratings alone they use the correlation. `evaluated` says whether there is an evaluation before the first step and
    after the last one; by default if units are held out.
    """

    def score(row: Mapping[str, float]) -> float | None:
        return row.get("evaluation/accuracy", row.get("evaluation/correlation"))

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
        headline={"loss": "loss", "accuracy": "accuracy"},
        prepare=prepare,
    )
