"""Results of runs that train: what a run directory holds, as objects, and how a notebook shows it."""

import base64
import html
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from posttrain.report import Finding, verdict
from posttrain.report.chart import picture
from posttrain.report.panels import charts
from posttrain.runs import read_run
from posttrain.runs.callback import Callback
from posttrain.runs.run import CHECKPOINTS, REPORT
from posttrain.training import checkpoint

if TYPE_CHECKING:
    from posttrain.runs.session import Session

SHOWN = 3
"""Charts that a notebook shows of a run."""
EVERY_S = 2.0
"""Seconds between two pictures in a notebook."""


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

    @property
    def best_step(self) -> int | None:
        """The step whose checkpoint the run's name loads: of the highest held-out score, the earlier of equal ones.

        None without scores; then its name loads the last one.
        """
        return checkpoint.best_step(self.run / CHECKPOINTS)

    def _repr_html_(self) -> str:
        return page_of(self.run.name, f"{self.steps} steps", self.metrics.rows, self.findings)


def page_of(title: str, about: str, rows: Sequence[Mapping[str, Any]], findings: Sequence[Finding] = ()) -> str:
    """A run as a notebook shows it: progress, the first curves, and the verdict. All text is escaped."""
    drawn = [chart for _, section in charts(rows) for chart in section if any(s.points for s in chart.series)]
    images = ""
    for chart in drawn[:SHOWN]:
        encoded = base64.b64encode(picture(chart).encode()).decode()
        images += f'<img width="320" alt="{html.escape(chart.title)}" src="data:image/svg+xml;base64,{encoded}">'
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


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; some, as Colab's, have a shell derived from Jupyter's."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class LiveView(Callback):
    """Shows a run in the notebook while it trains."""

    def __init__(self) -> None:
        """Nothing is shown before the run starts."""
        self._began = self._shown = 0.0
        self._first = 0
        self._display: Any = None

    def on_run_start(self, session: "Session") -> None:
        """Show that it starts."""
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        self._began, self._first = time.monotonic(), session.step
        self._html = HTML
        self._display = display(HTML(page_of(session.directory.path.name, "starts", [])), display_id=True)

    def on_step(self, session: "Session", step: int, metrics: Mapping[str, float]) -> None:
        """Show the curves so far."""
        if time.monotonic() - self._shown >= EVERY_S:
            self._show(session)

    def on_run_end(self, session: "Session") -> None:
        """Show them all."""
        self._show(session)

    def _show(self, session: "Session") -> None:
        elapsed = time.monotonic() - self._began
        done = session.step - self._first
        left = elapsed / done * (session.total - session.step) if done else 0.0
        about = f"step {session.step} of {session.total}, {elapsed:.0f} s"
        rows, ended = session.rows, session.step == session.total or bool(session.stopped)
        about += "" if ended or not done else f", about {left:.0f} s left"
        page = page_of(session.directory.path.name, about, rows, verdict(rows) if ended else ())
        self._display.update(self._html(page))
        self._shown = time.monotonic()
