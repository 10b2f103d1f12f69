"""A training run apart from its loop, and where it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from posttrain.runs.run import Span
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

    def restore(self, folder: Path) -> None:
        """Restore the state saved in `folder`."""


@dataclass(frozen=True)
class Together:
    """Several parts in one checkpoint. Conforms to `Trained`."""

    parts: Sequence[Trained]

    def save(self, folder: Path) -> None:  # noqa: D102
        for part in self.parts:
            part.save(folder)

    def restore(self, folder: Path) -> None:  # noqa: D102
        for part in self.parts:
            part.restore(folder)


Score = Callable[[MetricsRow], float | None]
Finished = Callable[[Sequence[MetricsRow]], str]


def patience(evaluations: int, score: Score) -> Finished:
    """Ends a run once that many evaluations in a row were no better than the best before them; 0: never."""

    def finished(rows: Sequence[MetricsRow]) -> str:
        found = [value for row in rows if (value := score(row)) is not None]
        past = 0 < evaluations < len(found) and max(found[-evaluations:]) <= max(found[:-evaluations])
        return f"no improvement for {evaluations} evaluations (`stop_after`)" if past else ""

    return finished


@dataclass(frozen=True)
class Evaluations:
    """Evaluation schedule, checkpoint selection and early stopping."""

    every: int = 0  # steps between evaluations; 0: none between the first and the last
    first: bool = False  # whether before the first step
    last: bool = False  # whether after the last step
    score: Score = lambda row: None  # the higher the better, for the best checkpoint; None where a row has none
    finished: Finished = lambda rows: ""  # from all rows so far, why the run is to end early; "" where it is not


@dataclass(frozen=True)
class Training:
    """A training run, apart from its loop."""

    steps: int  # that the run shall have in all
    trained: Trained  # what checkpoints keep
    rate: LearningRate  # of each step
    evaluations: Evaluations
    environment: Mapping[str, Any]  # what only the caller knows of machine and data
    save_every: int  # steps between checkpoints, besides those after an evaluation and the last step
    keep_last: int  # checkpoints to keep, besides the best
    headline: Mapping[str, str]  # metrics to show with the progress: the name there, and in a row
    may_differ: Sequence[str] = ("steps",)  # options that may have changed since the run began
    counted: str = "steps"  # the option that says how many steps there shall be
    notes: Sequence[str] = ()  # what to tell the user first
    # called when the directory is open and no checkpoint has been restored yet: long work on the weights before
    # training, such as the reference's logprobs
    prepare: Callable[[], None] = lambda: None
    overlapped: bool = False  # whether what a step trains on is sampled while earlier steps are trained
    spans: Callable[[], Sequence[Span]] | None = None  # what other processes have done since the last call
