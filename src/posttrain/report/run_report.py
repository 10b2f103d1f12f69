"""The HTML report of a run: verdict, numbers, curves, samples. One file, no network."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.errors import UserError, as_typed
from posttrain.report import chart, overoptimization, panels, timeline
from posttrain.report.finding import Finding, Severity
from posttrain.report.markup import escape, page
from posttrain.report.reward_gains import risen
from posttrain.report.verdict import verdict
from posttrain.runs import config_file
from posttrain.runs.run import REPORT, Run

MAX_CHARACTERS = 6_000  # of a text on the page; `samples.jsonl` has all of it
SAMPLES_PER_STEP = 4
LAST_ROWS = 5  # that a run's final numbers are the mean of

_MARKS = {Severity.PROBLEM: "✕", Severity.WARNING: "!", Severity.NOTE: "i", Severity.GOOD: "✓"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share between 0 and 1 and its 95% interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Headline numbers: each row begins with its name, then has one cell for each further column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Estimate | None]]
    note: str = ""


def write_report(
    run: Run,
    *,
    tables: Sequence[Table] = (),
    findings: Sequence[Finding] | None = None,
    charts: Sequence[tuple[str, Sequence[chart.Chart]]] = (),
    parts: Sequence[Run] = (),
    path: Path | None = None,
) -> Path:
    """Write a run's report and return its path.

    Args:
        run: what to report on; `RunDirectory.read()` gives it.
        tables: the headline numbers.
        findings: the verdict; worked out from the metrics where None.
        charts: additional curves, in sections with a title.
        parts: runs that this one was made of, such as a cold start and the RL after it; each gets its own curves.
        path: where to write; `report.html` in the run's directory where None.
    """
    for table in tables:
        if any(len(row) != len(table.columns) for row in table.rows):
            raise ValueError(f"table '{table.title}': each row needs {len(table.columns)} cells, as many as columns")
    shown = [part for part in (run, *parts) if part.metrics or part.samples]
    if findings is None:
        findings = [
            f for part in shown if part.metrics for f in _named(part.name, verdict(part.metrics), len(shown) > 1)
        ]
        findings.sort(key=_rank)
    body = [
        _header(run.name, f"posttrain {run.command}".strip(), _started(run)),
        _verdict(findings),
        *map(_table, tables),
        *_curves(charts),
        *(html for part in shown for html in _part(part, named=len(shown) > 1)),
        _details("Configuration", [_pairs(config_file.flatten(run.config))]),
        _details("Environment", [_pairs(_environment(run))]),
        _footer(),
    ]
    return _write(path or run.path / REPORT, page(f"{run.name} · posttrain", _style(), "\n".join(body)))


def compare_report(runs: Sequence[Run], path: Path) -> Path:
    """Write one page that shows runs side by side: verdicts, final numbers, what was configured differently, curves.

    Raises:
        UserError: fewer than two runs.
    """
    if len(runs) < 2:
        raise UserError(f"a comparison needs two runs or more; got {len(runs)}; type posttrain report RUN1 RUN2")
    names = _distinct(runs)
    rows = {name: run.metrics for name, run in zip(names, runs, strict=True)}
    findings = [f for name in names for f in _named(name, verdict(rows[name]), True)]
    changed = _changed([config_file.flatten(run.config) for run in runs])
    body = [
        _header(f"{len(runs)} runs side by side", ", ".join(names), ""),
        _verdict(sorted(findings, key=_rank)),
        _differing("What was configured differently", names, changed),
        *_curves(panels.comparison(rows)),
        _differing(
            "Final numbers", names, [_final(run.metrics) for run in runs], f"Means of the last {LAST_ROWS} values."
        ),
        _footer(),
    ]
    return _write(path, page("Comparison · posttrain", _style(), "\n".join(body)))


def _header(title: str, command: str, when: str) -> str:
    about = " · ".join(f"<span>{escape(part)}</span>" for part in (command, when) if part)
    return f'<header><h1>{escape(title)}</h1><p class="about">{about}</p></header>'


def _verdict(findings: Sequence[Finding]) -> str:
    items = []
    for finding in findings:
        advice = f'<p class="advice">{escape(as_typed(finding.advice))}</p>' if finding.advice else ""
        tone, mark = finding.severity, _MARKS[finding.severity]
        items.append(
            f'<li class="{tone}"><span class="mark" role="img" aria-label="{tone}">{mark}</span>'
            f"<div><h3>{escape(finding.title)}</h3><p>{escape(as_typed(finding.evidence))}</p>{advice}</div></li>"
        )
    return f'<section><h2>Verdict</h2><ul class="verdict">{"".join(items)}</ul></section>' if items else ""


def _rank(finding: Finding) -> int:
    return list(Severity).index(finding.severity)


def _named(name: str, findings: Iterable[Finding], naming: bool) -> list[Finding]:
    """The same findings, with the run's name in front where there are several runs."""
    if not naming:
        return list(findings)
    return [Finding(f.severity, f"{name}: {f.title}", f.evidence, f.advice) for f in findings]


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(_cell(cell, i) for i, cell in enumerate(row))}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="scroll"><table class="headline">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}</section>"
    )


def _cell(cell: str | Estimate | None, column: int) -> str:
    if column == 0:
        return f'<th scope="row">{escape(cell or "")}</th>'
    if cell is None:
        return '<td class="none">–</td>'
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    shown = f"<b>{100 * cell.value:.1f} %</b>"
    if cell.low is None or cell.high is None:
        return f"<td>{shown}</td>"
    place = f"--low:{100 * cell.low:.2f}%;--high:{100 * cell.high:.2f}%;--at:{100 * cell.value:.2f}%"
    return (
        f'<td>{shown} <span class="range">{100 * cell.low:.1f} to {100 * cell.high:.1f}</span>'
        f'<span class="interval" style="{place}"></span></td>'
    )


def _part(run: Run, *, named: bool) -> list[str]:
    title = [f'<h2 class="part">{escape(run.name)}</h2>'] if named else []
    return [
        *title,
        *_curves(_gamed(run.metrics)),
        *_curves(panels.charts(run.metrics)),
        *_processes(run),
        *_rise(run),
        _samples(run.samples),
    ]


def _processes(run: Run) -> list[str]:
    """The timeline of a run of several processes."""
    drawn = timeline.render(run.timeline)
    return [f"<section><h2>Who works when</h2>{drawn}</section>"] if drawn else []


def _gamed(rows: panels.Rows) -> list[tuple[str, list[chart.Chart]]]:
    """Overoptimisation: gold over the distance from the initial policy, if gold was logged."""
    series = [chart.Series(*curve) for curve in overoptimization.curves(overoptimization.points_of(rows))]
    drawn = chart.Chart("Reward gained by how far the policy has gone", series, "over the square root of its KL")
    return [("Is the reward being gamed?", [drawn])]


def _curves(sections: Sequence[tuple[str, Sequence[chart.Chart]]]) -> list[str]:
    out = []
    for title, charts in sections:
        drawn = "".join(map(chart.render, charts))
        if drawn:
            out.append(f'<section><h2>{escape(title)}</h2><div class="charts">{drawn}</div></section>')
    if out:
        out.append(
            '<p class="note">Thin: each step. Thick: smoothed. Touch a curve or point at it to read its values.</p>'
        )
    return out


def _rise(run: Run) -> list[str]:
    """Held-out completions with the largest reward gain, before and after."""
    found = risen(run.heldout)
    if not found:
        return []
    steps = f"from step {found[0].before['step']} to step {found[0].after['step']}"
    shown = "".join(
        f"<h3>{chart.number(one.before['reward'])} to {chart.number(one.after['reward'])}</h3>"
        + "".join(map(_sample, one))
        for one in found
    )
    note = f"Held-out prompts, {steps}. Read them: did the answers get better, or only dearer?"
    return [f'<section><h2>Whose reward rose most</h2><p class="note">{note}</p>{shown}</section>']


def _samples(samples: Sequence[Mapping[str, Any]]) -> str:
    """Completions of the first, the middle and the last step, or model, that kept some."""
    named = groupby(samples, key=lambda row: row.get("model") or f"Step {row.get('step')}")
    steps = [(name, list(rows)) for name, rows in named]
    if not steps:
        return ""
    chosen = [steps[i] for i in sorted({0, (len(steps) - 1) // 2, len(steps) - 1})]
    out = []
    for name, rows in chosen:
        out.append(f"<h3>{escape(name, 200)}</h3>{''.join(map(_sample, rows[:SAMPLES_PER_STEP]))}")
    return f"<section><h2>What the model said</h2>{''.join(out)}</section>"


def _sample(row: Mapping[str, Any]) -> str:
    """One completion, folded. Whatever is in the row, it is shown as text."""
    rewards = row.get("rewards")
    named = rewards if isinstance(rewards, Mapping) else {}
    chips = "".join(f"<span>{escape(name)} <b>{_value(value)}</b></span>" for name, value in named.items())
    total = row.get("reward")
    badge = f'<span class="reward">{_value(total)}</span>' if total is not None else ""
    about = [f"expected: {escape(row['answer'], 200)}"] if row.get("answer") else []
    if row.get("stop_reason"):
        about.append(f"ended by: {escape(row['stop_reason'], 40)}")
    prompt, completion = str(row.get("prompt", "")), str(row.get("completion", ""))
    return (
        f'<details class="sample"><summary>{badge}<span class="line">{escape(_line(completion))}</span></summary>'
        f'<h4>Prompt</h4><pre dir="auto">{escape(prompt, MAX_CHARACTERS)}</pre>'
        f'<h4>Completion</h4><pre dir="auto">{escape(completion, MAX_CHARACTERS)}</pre>'
        f'<p class="chips">{chips}</p><p class="note">{" · ".join(about)}</p></details>'
    )


def _line(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[:400].split())
    return line if len(line) <= 160 else f"{line[:160]}…"


def _value(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return chart.number(value)
    return escape(value, 40)


def _details(title: str, content: Iterable[str]) -> str:
    return f"<details><summary><h2>{escape(title)}</h2></summary>{''.join(content)}</details>"


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(value, 500)}</td></tr>' for key, value in values.items()
    )
    return f'<div class="scroll"><table class="pairs"><tbody>{rows}</tbody></table></div>'


def _environment(run: Run) -> dict[str, Any]:
    """What environment.json says; some of it names options."""
    values = config_file.flatten({key: value for key, value in run.environment.items() if key != "options"})
    return {key: as_typed(value) if isinstance(value, str) else value for key, value in values.items()}


def _differing(title: str, names: Sequence[str], columns: Sequence[Mapping[str, Any]], note: str = "") -> str:
    """One row a key, one column a run."""
    keys = list(dict.fromkeys(key for column in columns for key in column))
    if not keys:
        return ""
    head = "<th></th>" + "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = ""
    for key in keys:
        cells = "".join(f"<td>{_value(column[key]) if key in column else '–'}</td>" for column in columns)
        rows += f'<tr><th scope="row">{escape(key)}</th>{cells}</tr>'
    shown = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<section><h2>{escape(title)}</h2><div class="scroll"><table class="dense"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{shown}</section>"
    )


def _final(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The step reached, and the mean of each metric's last values."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                values.setdefault(name, []).append(float(value))
    return {"step": rows[-1]["step"] if rows else 0} | {
        name: fmean(found[-LAST_ROWS:]) for name, found in values.items()
    }


def _changed(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Only the keys that differ."""
    keys = {key for config in configs for key in config if any(other.get(key) != config[key] for other in configs)}
    return [
        {key: value if isinstance(value, int | float) else str(value) for key, value in c.items() if key in keys}
        for c in configs
    ]


def _distinct(runs: Sequence[Run]) -> list[str]:
    """The runs' names, by their whole paths where two folders have one name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [f"{i}: {run.path}" for i, run in enumerate(runs, start=1)]


def _started(run: Run) -> str:
    """When a run started, as readable text; the raw value if it is no time."""
    time = str(run.environment.get("time", ""))
    try:
        return f"{datetime.fromisoformat(time):%d %B %Y, %H:%M} UTC"
    except ValueError:
        return time


def _footer() -> str:
    return "<footer>Written by posttrain. This page holds all that it shows: no script, no network.</footer>"


def _style() -> str:
    return Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def _write(path: Path, html: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path
