"""Who did what when in a run of several processes: `timeline.jsonl`, to which is only appended."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from posttrain.runs import jsonl

TIMELINE = "timeline.jsonl"


class Span(NamedTuple):
    """A process was busy with something; times are seconds of `time.time`."""

    process: str
    work: str
    began: float
    ended: float


def append(run: Path, spans: Iterable[Span]) -> None:
    """Add spans to a run's timeline."""
    with (run / TIMELINE).open("ab") as file:
        for span in spans:
            jsonl.append(file, span._asdict())


def read(run: Path) -> list[Span]:
    """The timeline of a run; empty if it has none."""
    return [Span(**row) for row in jsonl.read(run / TIMELINE)]


def joined(spans: Iterable[Span], gap_s: float) -> list[Span]:
    """The same with spans of one process and work as one where less than `gap_s` is between them.

    >>> joined([Span("a", "x", 0.0, 1.0), Span("b", "x", 0.0, 1.0), Span("a", "x", 1.01, 2.0)], 0.05)
    [Span(process='a', work='x', began=0.0, ended=2.0), Span(process='b', work='x', began=0.0, ended=1.0)]
    """
    found: list[Span] = []
    last: dict[str, int] = {}  # by process
    for span in spans:
        place = last.get(span.process)
        if place is not None and found[place].work == span.work and span.began - found[place].ended < gap_s:
            found[place] = found[place]._replace(ended=span.ended)
        else:
            last[span.process] = len(found)
            found.append(span)
    return found
