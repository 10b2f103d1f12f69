"""A training run apart from its loop, and where it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from posttrain.runs.timeline import Span
from posttrain.runs.trackers import Tracking
from posttrain.training.schedule import LearningRate

MetricsRow = Mapping[str, Any]


class RunOptions(TypedDict):
    """Where a run is, for `run(config, **where)` of every recipe that trains."""

    output: NotRequired[Path | None]  # a new run's directory; None: the next free one below runs/
    resume: NotRequired[Path | None]  # the run to continue
    quiet: NotRequired[bool]  # no progress
    accept_changes: NotRequired[str | Sequence[str]]  # options whose files may have changed since the run began
    tracking: NotRequired[Tracking | None]  # trackers besides TensorBoard; None: those that a resumed run had
    callbacks: NotRequired[Sequence[object]]  # see runs/callback.py
    given: NotRequired[Mapping[str, str]]  # what config.toml says of the options that Python gave an object
    learner: NotRequired[Any]  # what trains, in place of the one that would be made; see `Learner`


class Trained(Protocol):
    """Training state that checkpoints save."""

    def save(self, folder: Path) -> None:
        """Fill a checkpoint's folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Restore the state saved in `folder`."""
        ...


@dataclass(frozen=True)
class Together:
    """Several parts in one checkpoint. Conforms to `Trained`."""

    parts: Sequence[Trained]

    def save(self, folder: Path) -> None:
        """As in `Trained`."""
        for part in self.parts:
            part.save(folder)

    def restore(self, folder: Path) -> None:
        """As in `Trained`."""
        for part in self.parts:
            part.restore(folder)


def _no_score(row: MetricsRow) -> float | None:
    return None


def _not_finished(rows: Sequence[MetricsRow]) -> str:
    return ""


@dataclass(frozen=True)
class Evaluations:
    """Evaluation schedule, checkpoint selection and early stopping.

    Attributes:
        every: steps between evaluations; 0: none between the first and the last.
        first: whether before the first step.
        last: whether after the last step.
        score: of a row of metrics, the higher the better, for the best checkpoint; None where it has none.
        finished: from all rows so far, why the run is to end early; "" where it is not.
    """

    every: int = 0
    first: bool = False
    last: bool = False
    score: Callable[[MetricsRow], float | None] = _no_score
    finished: Callable[[Sequence[MetricsRow]], str] = _not_finished


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Training:
    """A training run, apart from its loop.

    Attributes:
        steps: that the run shall have in all.
        trained: what checkpoints keep.
        rate: the learning rate of each step.
        evaluations: when there are some, and what they decide.
        environment: what only the caller knows of machine and data.
        save_every: steps between checkpoints, besides those after an evaluation and the last step.
        keep_last: checkpoints to keep, besides the best.
        headline: metrics to show with the progress: the name there, and in a row.
        may_differ: options that may have changed since the run began.
        counted: the option that says how many steps there shall be.
        notes: what to tell the user first.
        overlapped: whether what a step trains on is sampled while earlier steps are trained.
        spans: of a run of several processes, what the others have done since the last call.
        prepare: called when the directory is open and no checkpoint has been restored yet: long work on the weights
            before training, such as the reference's logprobs.
    """

    steps: int
    trained: Trained
    rate: LearningRate
    evaluations: Evaluations
    environment: Mapping[str, Any]
    save_every: int
    keep_last: int
    headline: Mapping[str, str]
    may_differ: Sequence[str] = ("steps",)
    counted: str = "steps"
    notes: Sequence[str] = ()
    prepare: Callable[[], None] = _nothing
    overlapped: bool = False
    spans: Callable[[], Sequence[Span]] | None = None
