"""Results of runs that train: what a run directory holds, as objects."""

import base64
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posttrain.report import Finding, verdict
from posttrain.report.chart import picture
from posttrain.report.panels import charts
from posttrain.runs import read_run
from posttrain.runs.run import REPORT

SHOWN = 3
"""Charts that a notebook shows of a run."""


class Metrics(Mapping[str, NDArray[np.float64]]):
    """The metrics of a run by name: an array of values, one for each step that has them.

    Example:
        >>> found = Metrics([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
        >>> float(found["loss"][-1]), found.steps("loss")
        (1.0, array([1, 2]))
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows as in `metrics.jsonl`, each with its `step`."""
        self.rows = rows

    def _of(self, name: str) -> list[tuple[int, float]]:
        found = [(row["step"], float(row[name])) for row in self.rows if isinstance(row.get(name), int | float)]
        if not found:
            raise KeyError(f"the run has no metric {name!r}; it has {', '.join(self)}")
        return found

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return np.array([value for _, value in self._of(name)])

    def steps(self, name: str) -> NDArray[np.int64]:
        """The steps that have the metric."""
        return np.array([step for step, _ in self._of(name)])

    def __iter__(self) -> Iterator[str]:
        names = (name for row in self.rows for name, value in row.items() if isinstance(value, int | float))
        return iter(dict.fromkeys(name for name in names if name != "step"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each step; pandas must be installed."""
        import pandas

        return pandas.DataFrame(list(self.rows)).set_index("step")


@dataclass(frozen=True)
class RunResult:
    """Where a finished or interrupted run is, and what is in it. It stands wherever a model is named."""

    run: Path
    steps: int
    interrupted: str  # the signal that stopped it early, such as SIGINT; empty if none did

    @property
    def metrics(self) -> Metrics:
        """The curves by name, such as `metrics["reward/mean"]`."""
        return Metrics(read_run(self.run).metrics)

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Completions with their rewards, as in `samples.jsonl`. Their text is the model's own."""
        return read_run(self.run).samples

    @property
    def findings(self) -> list[Finding]:
        """What the report finds, the worst first."""
        return verdict(read_run(self.run).metrics)

    @property
    def verdict(self) -> str:
        """The first finding in a sentence."""
        first = self.findings[0]
        return f"{first.title}: {first.evidence}"

    @property
    def report(self) -> Path:
        """The report, a page of HTML."""
        return self.run / REPORT

    def _repr_html_(self) -> str:
        return page_of(self.run.name, f"{self.steps} steps", self.metrics.rows, self.findings)


def page_of(title: str, about: str, rows: Sequence[Mapping[str, Any]], findings: Sequence[Finding] = ()) -> str:
    """A run as a notebook shows it: progress, the first curves, and the verdict. All text is escaped."""
    drawn = [chart for _, section in charts(rows) for chart in section if any(s.points for s in chart.series)]
    images = "".join(
        f'<img width="320" alt="{html.escape(chart.title)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(picture(chart).encode()).decode()}">'
        for chart in drawn[:SHOWN]
    )
    return f"<div><b>{html.escape(title)}</b> {html.escape(about)}</div><div>{images}</div>{listed(findings)}"


def listed(findings: Sequence[Finding]) -> str:
    """Findings as a list of HTML; empty if there are none. All text is escaped."""
    said = "".join(f"<li><b>{html.escape(found.title)}</b>: {html.escape(found.evidence)}</li>" for found in findings)
    return f"<ul>{said}</ul>" if said else ""


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
