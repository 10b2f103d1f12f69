"""The table of a pipeline: what each stage made, and what it gained over the one before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from posttrain.episodes.metrics import SOLVED
from posttrain.report import Estimate, Table
from posttrain.runs import jsonl
from posttrain.runs.run import METRICS, REPORT, SAMPLES
from posttrain.statistics import Interval, normal_interval, paired_difference_interval


class Gain(NamedTuple):
    """A paired difference to the stage before, with its 95% interval."""

    value: float
    ci95: Interval
    n: int  # tasks


@dataclass(frozen=True)
class Row:
    """A stage that is done, with the evaluation of its policy where there is one."""

    name: str
    command: str
    folder: Path
    result: Mapping[str, Any]  # the command's JSON
    seconds: float
    evaluation: Mapping[str, Any] | None = None  # that of evaluate
    evaluated_in: Path | None = None
    gain: Gain | None = None

    @property
    def said(self) -> str:
        """In a line."""
        over = f", {self.gain.value:+.3f} over the stage before" if self.gain else ""
        return f"{self.seconds / 60:.1f} minutes{f', {self.made}' if self.made else ''}{over}"

    @property
    def measure(self) -> str:
        """What the evaluation measured: accuracy, or the mean reward; "" for suites, and where there is none."""
        return next((name for name in ("accuracy", "reward") if name in (self.evaluation or {})), "")

    @property
    def tokens(self) -> int | None:
        """Tokens of all its steps."""
        counts = [row["tokens"] for row in jsonl.read(self.folder / METRICS) if "tokens" in row]
        return int(sum(counts)) if counts else None

    @property
    def made(self) -> str | Estimate | None:
        """The headline of what it made."""
        found, after = self.evaluation or {}, self.result.get("after")
        if self.measure == "accuracy":
            return Estimate(found["accuracy"], *found["ci95"])
        if self.measure:
            return "mean reward {:.3f} ({:.3f} to {:.3f})".format(found["reward"], *found["ci95"])
        if suites := found.get("suites"):
            return ", ".join(f"{name} {one.get('accuracy', one.get('reward')):.3f}" for name, one in suites.items())
        if isinstance(after, Mapping) and "pair_accuracy" in after:
            return f"{after['pair_accuracy']:.3f} of held-out pairs"
        if counts := [f"{value:,} {key}" for key, value in self.result.items() if type(value) is int and value]:
            return ", ".join(counts[:2])
        return None

    def summary(self) -> dict[str, Any]:
        """Everything for a machine to read."""
        about = {"stage": self.name, "command": self.command, "seconds": self.seconds, "tokens": self.tokens}
        return about | {"gain": self.gain and self.gain._asdict(), "evaluation": self.evaluation, "result": self.result}


def with_stage(rows: Sequence[Row], name: str, row: Mapping[str, Any], root: Path) -> list[Row]:
    """The rows with that of a further stage; an evaluation that belongs to a stage is put into the stage's row."""
    new, folder = Row(name, row["command"], root / name, row["result"], row["seconds"]), root / name
    if row["command"] != "evaluate":
        return [*rows, new]
    if "." in name:
        *rows, new = rows
    new = replace(new, evaluation=row["result"], evaluated_in=folder)
    earlier = next((one for one in reversed(rows) if one.measure), None)
    return [*rows, replace(new, gain=earlier and gain(earlier, new))]


def gain(before: Row, after: Row) -> Gain | None:
    """The difference of accuracies or rewards, paired by task; None where no task has answers of both.

    Example: of two tasks, one solved by half of the samples before and by all after, the other by none, +0.25.
    """
    was, now = _by_task(before), _by_task(after)
    if before.measure != after.measure or not (shared := [task for task in now if task in was]):
        return None
    pairs = [(was[task], now[task]) for task in shared]
    value = fmean(b - a for a, b in pairs)
    if after.measure == "accuracy":
        return Gain(value, paired_difference_interval([a for a, _ in pairs], [b for _, b in pairs]), len(pairs))
    return Gain(value, normal_interval([b - a for a, b in pairs]), len(pairs))


def _by_task(row: Row) -> dict[str, float]:
    """The share of a task's samples that solve it, or their mean reward, without tasks to which the reward is none."""
    found, values = row.evaluation or {}, dict[str, list[float | None]]()
    for sample in jsonl.read(row.evaluated_in / SAMPLES) if row.evaluated_in else []:
        if (sample["decoding"], sample["model"]) == (found["decoding"], found["model"]):
            outcome = found.get("outcome")
            values.setdefault(sample["task"], []).append(
                sample["rewards"].get(outcome) if outcome else sample["reward"]
            )
    known = {task: [one for one in some if one is not None] for task, some in values.items()}
    whole = {task: some for task, some in known.items() if len(some) == len(values[task])}
    if row.measure == "accuracy":
        return {task: fmean(one >= SOLVED for one in some) for task, some in whole.items()}
    return {task: fmean(some) for task, some in whole.items()}


def table_of(title: str, rows: Sequence[Row], *, links: bool = False) -> Table:
    """A row for each stage; with links to the reports of stages, for a page."""
    from markupsafe import Markup

    def linked(row: Row) -> str:
        pages = {"report": row.folder / REPORT, "evaluation": (row.evaluated_in or row.folder) / REPORT}
        there = {path: name for name, path in reversed(pages.items()) if path.is_file()}
        return Markup(", ").join(
            Markup('<a href="{}">{}</a>').format(f"{path.parent.name}/{path.name}", name)
            for path, name in reversed(there.items())
        )

    cells: list[tuple[str | Estimate | None, ...]] = []
    for row in rows:
        over = None
        if row.gain:
            over = "{:+.3f} ({:+.3f} to {:+.3f})".format(row.gain.value, *row.gain.ci95)
        tokens = None if row.tokens is None else f"{row.tokens:,}"
        cell = (row.name, row.command, row.made, over, tokens, f"{row.seconds / 60:.1f}")
        cells.append((*cell, linked(row)) if links else cell)
    columns = ("stage", "command", "made", "over the stage before", "tokens", "minutes")
    note = (
        "Accuracy with its 95% interval over tasks; the gain is paired by task, over the last stage with an evaluation."
    )
    return Table(title, (*columns, "pages") if links else columns, cells, note)
