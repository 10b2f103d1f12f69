"""User callbacks.

    class Watch(Callback):
        def on_evaluation(self, session, step, metrics):
            if metrics["evaluation/reward"] > 0.9:
                session.stop("the reward is high enough")

    posttrain rl --callback watch.py:Watch ...

Several are called in the order in which they are named.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain import user_code
from posttrain.errors import CallbackError, PosttrainError, UserError, described

if TYPE_CHECKING:
    from posttrain.runs.session import Session

EVENTS = ("on_run_start", "on_step", "on_evaluation", "on_checkpoint", "on_run_end")


class Callback:
    """No-op callback; subclasses override events, and any class that has some of them will do.

    An exception in a callback ends the run with a checkpoint of the last finished step. `session.stop(why)` ends the
    run as finished after the current step.
    """

    def on_run_start(self, session: "Session") -> None:
        """Before the first evaluation and step, also of a resumed run (`session.step` steps are done)."""

    def on_step(self, session: "Session", step: int, metrics: Mapping[str, float]) -> None:
        """After the row of a step was written, with what an evaluation added to it."""

    def on_evaluation(self, session: "Session", step: int, metrics: Mapping[str, float]) -> None:
        """After an evaluation; `metrics` are its results. Step 0: before training."""

    def on_checkpoint(self, session: "Session", step: int, folder: Path) -> None:
        """After a checkpoint was written."""

    def on_run_end(self, session: "Session") -> None:
        """After the last step, a signal, or early stopping; not after a failure."""


def load_callback(spec: str) -> object:
    """An instance of the class `path/to/file.py:Class`, made without arguments; raises `UserError`."""
    kind = user_code.load("callback", spec, "class")
    if not isinstance(kind, type):
        raise UserError(f"the callback '{spec}' is a {type(kind).__name__}; expected a class")
    if not any(hasattr(kind, event) for event in EVENTS):
        raise UserError(f"the callback '{spec}' has none of the methods {', '.join(EVENTS)}")
    try:
        return kind()
    except (Exception, SystemExit) as error:
        raise UserError(f"the callback '{spec}' cannot be created without arguments: {described(error)}") from error


def call(callbacks: Sequence[object], event: str, *arguments: Any) -> None:
    """Call one event of each callback that has it, in order; what is no error of ours becomes a `CallbackError`."""
    for callback in callbacks:
        try:
            getattr(callback, event, lambda *_: None)(*arguments)
        except PosttrainError:
            raise
        except (Exception, SystemExit) as error:
            where = f"{type(callback).__name__}.{event}"
            raise CallbackError(f"the callback {where} raised {described(error)}") from error
