"""Common result of training recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunResult:
    """Where a finished or interrupted run is."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did


@dataclass(frozen=True)
class FeedbackResult(RunResult):
    """A run on human feedback."""

    pairs: int  # or what else the data has: judged rows, rated responses
    dropped: int  # those that were too long
    before: dict[str, float] | None  # held-out metrics, if there are any
    after: dict[str, float] | None


def heldout_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """The first and last held-out value that a run logged; None if it has none."""
    prefix = "evaluation/"
    found = [
        {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)} for row in rows
    ]
    before = found[0] if rows and rows[0].get("step") == 0 else None
    return before or None, next(filter(None, reversed(found)), None)
