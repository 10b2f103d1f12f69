"""Reading run directories, the samples in them, and who did what when (`timeline.jsonl`)."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from posttrain.errors import DataError, UserError
from posttrain.runs import config_file, jsonl
from posttrain.types import Group

CONFIG, METRICS, SAMPLES, HELDOUT = "config.toml", "metrics.jsonl", "samples.jsonl", "heldout.jsonl"
ENVIRONMENT, REPORT, CHECKPOINTS, TIMELINE = "environment.json", "report.html", "checkpoints", "timeline.jsonl"


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion that a run shows. Its text is the model's own and is not to be trusted."""

    prompt: str  # what was asked, in words
    completion: str
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])  # by name; `reward` is their total
    reward: float | None = None
    answer: str = ""  # what would have been right, where that is known
    stop_reason: str = ""
    model: str = ""  # who said it, in runs that ask several
    seat: str = ""  # whose words they are, where several seats are trained


def samples_of(groups: Sequence[Group], *, per_group: int | None = None, model: str = "") -> Iterator[Sample]:
    """One sample per row: of each group all, or those of its first `per_group` episodes.

    The completion of several turns is all text after the prompt.
    """
    for group in groups:
        prompt = "\n".join(f"{m.role}: {m.text}" for m in group.task.prompt)
        shown = list(dict.fromkeys(row.episode for row in group.rows))[:per_group]
        several = len(group.by_seat) > 1
        for row in (row for row in group.rows if row.episode in shown):
            said = row.conversation[len(group.task.prompt) :]
            turns = "\n".join(f"{message.role}: {message.text}" for message in said)
            in_parts = len(said) == 1 and len(row.trajectory.turns) > 1  # a message with text inserted (`go_on`)
            yield Sample(
                prompt=prompt,
                completion=said[0].text if in_parts else turns if len(said) > 1 else row.trajectory.text,
                rewards={name: score.total for name, score in row.scores.items() if score.applicable},
                reward=None if math.isnan(row.reward) else row.reward,
                answer="" if group.task.answer is None else str(group.task.answer),
                stop_reason=str(row.trajectory.stop_reason),
                model=model,
                seat=row.seat if several else "",
            )


class Span(NamedTuple):
    """A process was busy with something; times are seconds of `time.time`."""

    process: str
    work: str
    began: float
    ended: float


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


@dataclass(frozen=True, slots=True)
class Run:
    """The contents of a run directory."""

    path: Path
    command: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]  # one row a step, in order, each with its `step`
    samples: list[dict[str, Any]]  # with `step` and the fields of `Sample`
    heldout: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # the same of held-out prompts
    timeline: list[Span] = field(default_factory=list[Span])  # who did what when, in a run of several processes

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name


def read_run(path: Path) -> Run:
    """Read a run directory; options that were renamed since have their new names.

    Raises `UserError` where there is none, `DataError` where a file is damaged before its last line.
    """
    if not (path / CONFIG).is_file():
        raise UserError(f"no run at {path}; expected a run directory with a {CONFIG}, such as runs/rl-2026-01-31-1")
    try:
        environment = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        environment = {}
    except ValueError as error:
        raise DataError(f"{path / ENVIRONMENT} is not JSON: {error}") from error
    if not isinstance(environment, dict):
        raise DataError(f"{path / ENVIRONMENT}: expected one JSON object; got {type(environment).__name__}")
    return Run(
        path=path,
        command=str(cast(dict[str, Any], environment).get("command", "")),
        config=config_file.renamed(config_file.read(path / CONFIG)),
        environment=environment,
        metrics=jsonl.read(path / METRICS),
        samples=jsonl.read(path / SAMPLES),
        heldout=jsonl.read(path / HELDOUT),
        timeline=[Span(**row) for row in jsonl.read(path / TIMELINE)],
    )
