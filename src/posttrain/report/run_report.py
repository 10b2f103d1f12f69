"""The HTML report of a run: verdict, numbers, curves, samples. One file, no network. Its HTML is in templates/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from posttrain.errors import UserError, as_typed
from posttrain.report import chart, overoptimization, panels, timeline
from posttrain.report.checks import Finding, Severity, verdict, worst_first
from posttrain.report.markup import escape
from posttrain.runs import config_file
from posttrain.runs.run import REPORT, Run

if TYPE_CHECKING:
    from markupsafe import Markup

MAX_CHARACTERS = 6_000  # of a text on the page; `samples.jsonl` has it whole
SAMPLES_PER_STEP = 4
LAST_ROWS = 5  # a run's final metrics are means of these

MARKS = {Severity.PROBLEM: "✕", Severity.WARNING: "!", Severity.NOTE: "i", Severity.GOOD: "✓"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share between 0 and 1 and its 95% interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.value:.3f}{interval}"


@dataclass(frozen=True, slots=True)
class Table:
    """Headline numbers: each row begins with its name, then has one cell for each further column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Estimate | None]]
    note: str = ""

    def lines(self) -> list[str]:
        """The table as text, with its note behind an empty line."""
        rows = [
            tuple(self.columns),
            *(tuple("-" if cell in (None, "") else str(cell) for cell in row) for row in self.rows),
        ]
        return [*filter(None, [self.title]), *aligned(rows), *(["", self.note] if self.note else [])]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def write_report(
    run: Run,
    *,
    tables: Sequence[Table] = (),
    findings: Sequence[Finding] | None = None,
    charts: Sequence[tuple[str, Sequence[chart.Chart]]] = (),
    parts: Sequence[Run] = (),
    path: Path | None = None,
) -> Path:
    """Write a run's report and return its path: `report.html` in its directory, if None is given.

    `tables` are the headline numbers, `findings` the verdict, which is of the metrics if None, and `charts` additional
    curves, in sections with a title. `parts` are runs that this one was made of, such as a cold start and the RL after
    it; each gets its own curves.
    """
    for table in tables:
        if any(len(row) != len(table.columns) for row in table.rows):
            raise ValueError(f"table '{table.title}': each row needs {len(table.columns)} cells, as many as columns")
    shown = [part for part in (run, *parts) if part.metrics or part.samples]
    if findings is None:
        measured = [part for part in shown if part.metrics]
        findings = _verdicts([part.name if len(shown) > 1 else "" for part in measured], measured)
    environment = config_file.flatten({key: value for key, value in run.environment.items() if key != "options"})
    return _write(
        path or run.path / REPORT,
        "run.html",
        title=run.name + _controlled(run),
        about=(f"posttrain {run.command}".strip(), _started(run)),
        findings=findings,
        tables=tables,
        charts=_drawn(charts),
        shown=[_part(part) for part in shown],
        configuration=config_file.flatten(run.config),
        environment={key: as_typed(x) if isinstance(x, str) else x for key, x in environment.items()},
    )


def _controlled(run: Run) -> str:
    """What is said behind its name if nothing could be learned in it."""
    return " (control: shuffled labels)" if run.config.get("reward_control") else ""


def compare_report(runs: Sequence[Run], path: Path) -> Path:
    """Write one page that compares two or more runs: verdicts, final metrics, differences in configuration, curves."""
    if len(runs) < 2:
        raise UserError(f"a comparison needs two runs or more; got {len(runs)}; type posttrain report RUN1 RUN2")
    names = [run.name + _controlled(run) for run in runs]
    if len(set(names)) < len(names):  # two folders have one name
        names = [f"{i}: {run.path}{_controlled(run)}" for i, run in enumerate(runs, start=1)]
    return _write(
        path,
        "comparison.html",
        title=f"Comparison of {len(runs)} runs",
        about=(", ".join(names),),
        names=names,
        findings=worst_first([*_verdicts(names, runs), *_beside_controls(names, runs)]),
        changed=_by_key(_changed([config_file.flatten(run.config) for run in runs])),
        charts=_drawn(panels.comparison({name: run.metrics for name, run in zip(names, runs, strict=True)})),
        final=_by_key([_final(run.metrics) for run in runs]),
        last=LAST_ROWS,
    )


def _verdicts(names: Sequence[str], runs: Sequence[Run]) -> list[Finding]:
    """The findings of all runs, the worst first, each with the name of its run in front unless that is empty."""
    found = [(name, finding) for name, run in zip(names, runs, strict=True) for finding in verdict(run.metrics)]
    return worst_first(replace(one, title=f"{name}: {one.title}" if name else one.title) for name, one in found)


def _beside_controls(names: Sequence[str], runs: Sequence[Run]) -> list[Finding]:
    """Whether held-out accuracy, or else reward, rose more than in a control on the same data among the runs."""
    found: list[Finding] = []
    for measure in ("evaluation/accuracy", "evaluation/reward"):
        values = [[row[measure] for row in run.metrics if row.get(measure) is not None] for run in runs]
        controlled = [bool(run.config.get("reward_control")) for run in runs]
        rose = [of[-1] - of[0] if len(of) > 1 else None for of in values]
        data = [(run.command, *(repr(run.config.get(key)) for key in ("dataset", "eval_dataset"))) for run in runs]
        controls = [(key, gain) for key, gain, one in zip(data, rose, controlled, strict=True) if one]
        for name, key, gain, one in zip(names, data, rose, controlled, strict=True):
            control = max((other for its, other in controls if its == key and other is not None), default=None)
            if one or gain is None or control is None:
                continue
            evidence = f"held-out {measure.rpartition('/')[2]}: {gain:+.3g}, in the control {control:+.3g}"
            if gain > control:
                found.append(Finding(Severity.NOTE, f"{name}: more than its control", evidence))
            else:
                title = f"{name}: no more than its control"
                found.append(Finding(Severity.WARNING, title, evidence, "Nothing shows that the reward taught this."))
        if found:
            break
    return found


class Risen(NamedTuple):
    """The same held-out prompt, answered at the first evaluation and at the last."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    by: float  # reward of the later answer minus that of the earlier one


def risen(rows: Sequence[Mapping[str, Any]], most: int = 10) -> list[Risen]:
    """At most so many held-out completions by reward gain, the largest first; empty if there was only one evaluation.

    Every evaluation, by its `step`, has samples of the same prompts in the same order.
    """
    first, last = ([row for row in rows if row["step"] == rows[end]["step"]] for end in (0, -1))
    both = [(a, b) for a, b in zip(first, last, strict=False) if a["prompt"] == b["prompt"]]
    known = [(a, b) for a, b in both if a["reward"] is not None and b["reward"] is not None]
    found = [Risen(a, b, b["reward"] - a["reward"]) for a, b in known]
    return sorted((one for one in found if one.by > 0), key=lambda one: -one.by)[:most]


def _part(run: Run) -> dict[str, Any]:
    from markupsafe import Markup

    gold = [chart.Series(*curve) for curve in overoptimization.curves(overoptimization.points_of(run.metrics))]
    away = chart.Chart("Reward gain by distance from the initial policy", gold, "over the square root of its KL")
    return {
        "name": run.name,
        "charts": _drawn([("Reward overoptimisation", [away]), *panels.charts(run.metrics)]),
        "timeline": Markup(timeline.render(run.timeline)),
        "gains": risen(run.heldout),
        "samples": _samples(run.samples),
    }


def _drawn(sections: Sequence[tuple[str, Sequence[chart.Chart]]]) -> list[tuple[str, list["Markup"]]]:
    """The charts that have points, in the sections that have charts."""
    from markupsafe import Markup

    drawn = [(title, [Markup(html) for html in map(chart.render, charts) if html]) for title, charts in sections]
    return [(title, charts) for title, charts in drawn if charts]


def _samples(samples: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Completions of the first, the middle and the last step, or model, that kept some."""
    named = groupby(samples, key=lambda row: row.get("model") or f"Step {row.get('step')}")
    steps = [(name, list(rows)[:SAMPLES_PER_STEP]) for name, rows in named]
    return [steps[i] for i in sorted({0, (len(steps) - 1) // 2, len(steps) - 1})] if steps else []


def _by_key(columns: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """A row for each key: the key, and what each column has."""
    keys = dict.fromkeys(key for column in columns for key in column)
    return [[key, *(_value(column[key]) if key in column else None for column in columns)] for key in keys]


def _final(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                values.setdefault(name, []).append(float(value))
    means = {name: fmean(found[-LAST_ROWS:]) for name, found in values.items()}
    return {"step": rows[-1]["step"] if rows else 0} | means


def _changed(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Only the keys that differ."""
    keys = {key for config in configs for key in config if any(other.get(key) != config[key] for other in configs)}
    return [{key: value for key, value in config.items() if key in keys} for config in configs]


def _started(run: Run) -> str:
    """When a run started, as readable text; the raw value if it is no time."""
    time = str(run.environment.get("time", ""))
    try:
        return f"{datetime.fromisoformat(time):%d %B %Y, %H:%M} UTC"
    except ValueError:
        return time


def _value(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return chart.number(value)
    return _beginning(str(value), 40)


def _beginning(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _write(path: Path, template: str, **shown: Any) -> Path:
    """Fill in a template; what is not markup yet is escaped by `markup.escape`, which does more than Jinja's."""
    import jinja2  # here: --help needs none of it
    from markupsafe import Markup

    def safe(value: object, limit: int | None = None) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(value, limit))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        finalize=safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "as_typed": as_typed,
        "cut": lambda text, limit=MAX_CHARACTERS: safe(text, limit),
        "line": lambda text: _beginning(" ".join(str(text)[:400].split())),
        "number": _value,
        "points": lambda share, digits=1: f"{100 * share:.{digits}f}",
    }
    style = Markup(Path(__file__).with_name("report.css").read_text(encoding="utf-8"))
    html = environment.get_template(template).render(**shown, style=style, marks=MARKS)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path
