"""Results of an evaluation: as data, in words, and as a report."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, log2
from pathlib import Path
from typing import Any

from posttrain.episodes.metrics import SOLVED
from posttrain.errors import as_typed
from posttrain.evaluation.accuracy import (
    Accuracy,
    Difference,
    Examination,
    difference,
    numbers,
    pass_at_interval,
    percent,
)
from posttrain.options.evaluation import Evaluate
from posttrain.report import Estimate, Finding, Severity, Table, Thresholds, write_report
from posttrain.report.chart import Chart, Series
from posttrain.runs import Sample, read_run
from posttrain.runs.result import listed
from posttrain.runs.run import samples_of
from posttrain.statistics import Interval
from posttrain.types import Group

SHOWN = 4  # completions in the report


@dataclass(frozen=True, slots=True)
class Answer(Sample):
    """A row of `samples.jsonl`: a `Sample`, its decoding mode, and its task."""

    decoding: str = ""
    task: str = ""
    tokens: int = 0
    unparsed: bool = False


@dataclass(frozen=True)
class EvaluateResult:
    """The results, and the folder with all outputs."""

    run: Path
    report: Path
    seconds: float
    config: Evaluate
    model: Examination
    baseline: Examination | None
    notes: tuple[str, ...]  # dropped tasks, and caveats of the result
    outcome: str  # the reward that says what is right; empty if none does
    headline: str = ""  # what a suite calls the accuracy
    # Of each suite by its name; the fields above are those of the first one.
    suites: Mapping[str, "EvaluateResult"] = field(default_factory=dict[str, "EvaluateResult"])

    @property
    def gain(self) -> Difference | None:
        """The paired difference to the baseline, if there is one: `value`, its interval `ci95`, and tasks `n`."""
        return next(iter(self.model.over(self.baseline).values())) if self.baseline is not None else None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        table = self.table
        cells = [[html.escape(str(cell or "-")) for cell in row] for row in table.rows]
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
        gains = [] if self.suites else _differences(self)
        notes = [table.note, *self.notes]
        return (
            f"<div><b>{html.escape(table.title)}</b></div><table><tr>{head}</tr>{rows}</table>"
            f"{listed(gains)}{''.join(f'<div>{html.escape(note)}</div>' for note in notes)}"
        )

    @property
    def table(self) -> Table:
        """The headline numbers; of suites a row for each measure."""
        return suites_table(self) if self.suites else _table(self)

    def summary(self) -> dict[str, Any]:
        """The results as JSON. The headline numbers are at the top level: sampled, if there are samples.

        Of suites, those of each are below its name in `suites`.
        """
        about = {"notes": [as_typed(note) for note in self.notes]}
        about |= {"seconds": self.seconds, "run": str(self.run), "report": str(self.report)}
        if self.suites:
            return {"suites": {name: one._numbers() for name, one in self.suites.items()}} | about
        return self._numbers() | about

    def _numbers(self) -> dict[str, Any]:
        about = {"decoding": next(iter(self.model.answers)), "outcome": self.outcome}
        found = numbers(self.model.headline) | about | self.model.summary()
        if self.baseline is not None:
            over = self.model.over(self.baseline)
            found["baseline"] = self.baseline.summary()
            found["difference"] = {k: _as_json(d) for k, d in over.items()}
            for decoding, answers in self.model.answers.items():
                gains = measures_over(answers, self.baseline.answers[decoding])
                found["difference"][decoding] |= {name: _as_json(gain) for name, gain in gains.items()}
        return found | {"dataset": self.config.dataset}

    def lines(self) -> list[str]:
        """The same in words."""
        said = [] if self.suites else [f"{finding.title}: {finding.evidence}" for finding in _differences(self)]
        found = [line for table in (self.table, *pass_tables(self)) for line in [*table.lines(), ""]][:-1] + said
        return list(map(as_typed, [*found, *(f"note: {note}" for note in self.notes), f"report: {self.report}"]))


def _as_json(gain: Difference) -> dict[str, Any]:
    return {"value": gain.value, "ci95": list(gain.ci95), "n": gain.n}


def measures_over(found: Accuracy, before: Accuracy) -> dict[str, Difference]:
    """The paired differences of further measures, of those that both have of the same tasks."""
    was = {one.name: one for one in before.measures}
    pairs = [(one, was[one.name]) for one in found.measures if one.name in was]
    return {
        one.name: Difference(*one.over(other), len(one.values))
        for one, other in pairs
        if len(one.values) == len(other.values) > 1
    }


def answers_of(groups: Sequence[Group], model: str, decoding: str, outcome: str) -> list[Answer]:
    """The rows of `samples.jsonl`."""
    return [
        Answer(
            **asdict(sample),
            decoding=decoding,
            task=group.task.id,
            tokens=len(row.trajectory.logprobs),
            unparsed=row.scores[outcome].unparsed if outcome else any(score.unparsed for score in row.scores.values()),
        )
        for group in groups
        for sample, row in zip(samples_of([group], model=model), group.rows, strict=True)
    ]


def write_page(
    result: EvaluateResult, tables: Sequence[Table] = (), charts: Sequence[tuple[str, Sequence[Chart]]] = ()
) -> None:
    """The report: results, these tables and curves, and a few completions of different tasks, right and wrong ones."""
    read = read_run(result.run)
    first = {(row["task"], row["model"] == result.model.model): row for row in reversed(read.samples)}
    ours = [row for (_, is_model), row in reversed(first.items()) if is_model]
    right, wrong = (
        [r for r in ours if r["reward"] is not None and (r["reward"] >= SOLVED) == solved] for solved in (True, False)
    )
    shown = [*right[: SHOWN // 2], *wrong[: SHOWN // 2]]
    page = replace(read, metrics=[], samples=shown)
    parts = result.suites or {"": result}
    findings = [finding for name, one in parts.items() for finding in _findings(one, name)]
    findings = [*([] if result.suites else _differences(result)), *findings]
    findings += [Finding(Severity.NOTE, "About these tasks", note) for note in result.notes]
    passes = [chart for name, one in parts.items() for chart in _pass_charts(one, name)]
    charts = [*charts, *([("pass@k", passes)] if passes else [])]
    write_report(page, tables=[*tables, result.table, *pass_tables(result)], findings=findings, charts=charts)


def suites_table(result: EvaluateResult) -> Table:
    """A row for each measure of each suite and model."""
    rows: list[tuple[str | Estimate | None, ...]] = []
    for name, one in result.suites.items():
        over = one.model.over(one.baseline) if one.baseline else {}
        for exam in filter(None, (one.model, one.baseline)):
            for decoding, found in exam.answers.items():
                gains: dict[str, Difference] = {}
                if one.baseline and exam is one.model:
                    gains = {"": over[decoding]} | measures_over(found, one.baseline.answers[decoding])
                values = {"": _estimate(found.accuracy, found.ci95)}
                values |= {measure.name: _estimate(measure.value, measure.ci95) for measure in found.measures}
                shares = (percent(found.unparsed), percent(found.truncated), f"{found.mean_tokens:.0f}")
                about = (str(found.n), *(shares if isfinite(found.mean_tokens) else ("", "", "")))
                for key, value in values.items():
                    gain = _gain(gains[key]) if key in gains else ""
                    called = key or {"accuracy": one.headline, "reward": "mean reward"}.get(
                        found.measure, found.measure
                    )
                    rows.append((name, called, exam.model, decoding, value, gain, *about))
    columns = ("suite", "measure", "model", "answers", "value", "over the baseline")
    columns = (*columns, "tasks", "unparsed", "truncated", "tokens")
    note = "Ranges are 95% intervals over tasks, of a difference paired by task."
    if result.baseline is None:
        columns, rows = (*columns[:5], *columns[6:]), [(*row[:5], *row[6:]) for row in rows]
    return Table("Suites", columns, rows, note)


def pass_tables(result: EvaluateResult) -> list[Table]:
    """pass@k of each model at the k that were asked for, and the gain over the baseline."""
    rows: list[tuple[str | Estimate | None, ...]] = []
    for name, one in (result.suites or {"": result}).items():
        for exam in filter(None, (one.model, one.baseline)):
            if (found := exam.sampled) is not None:
                values = [
                    Estimate(found.pass_at[k], *pass_at_interval(found, k)) if k in found.pass_at else None
                    for k in result.config.ks
                ]
                rows.append((*([name] if name else []), exam.model, *values))
        if one.baseline and one.baseline.sampled and one.model.sampled:
            before, after = one.baseline.sampled, one.model.sampled
            both = [k if _shared(before, after, k) else 0 for k in result.config.ks]
            gains = [_gain(difference(before, after, k)) if k else None for k in both]
            rows.append((*([name] if name else []), "over the baseline", *gains))
    columns = (*(["suite"] if result.suites else []), "model", *(f"pass@{k}" for k in result.config.ks))
    note = "The chance that one of k samples is right (unbiased, Chen et al. 2021), with 95% intervals over tasks."
    exams = [exam for one in (result.suites or {"": result}).values() for exam in (one.model, one.baseline)]
    sizes = [len(group.rows) for exam in exams if exam and exam.sampled for group in exam.sampled.groups]
    if few := sum(size < max(result.config.ks, default=0) for size in sizes):
        note += f" {few} of {len(sizes)} tasks have fewer than {result.config.ks[-1]} samples: larger k leave them out."
    return [Table("pass@k", columns, rows, note)] if result.config.ks and rows else []


def _shared(before: Accuracy, after: Accuracy, k: int) -> bool:
    """Whether both have pass@k of a task: where samples failed, the tasks of each may be others."""
    ids, others = ({group.task.id for group in one.groups if len(group.rows) >= k} for one in (before, after))
    return k in before.pass_at and k in after.pass_at and bool(ids & others)


def _estimate(value: float, ci95: Interval) -> Estimate:
    """Without an interval where nobody says one."""
    return Estimate(value, *ci95) if ci95[0] < ci95[1] else Estimate(value)


def _gain(found: Difference) -> str:
    """Without an interval where a harness says none for either."""
    low, high = found.ci95
    return f"{found.value:+.3f} ({low:+.3f} to {high:+.3f})" if low < high or found.n == 1 else f"{found.value:+.3f}"


def _pass_charts(result: EvaluateResult, suite: str) -> list[Chart]:
    """pass@k against k, which doubles from point to point."""
    exams = [exam for exam in (result.model, result.baseline) if exam and exam.sampled and exam.sampled.pass_at]
    curves = [Series(e.model, [(log2(k), share) for k, share in e.sampled.pass_at.items()]) for e in exams if e.sampled]
    chart = Chart(f"{suite} pass@k".strip(), curves, unit="by log2 of k", percent=True)
    return [chart] if result.config.ks and curves else []


def _table(result: EvaluateResult) -> Table:
    rows = [
        (
            examination.model,
            decoding,
            Estimate(found.accuracy, *found.ci95),
            Estimate(found.pass_at[most], *pass_at_interval(found, most))
            if (most := max(found.pass_at, default=1)) > 1
            else None,
            percent(found.unparsed),
            percent(found.truncated),
            f"{found.mean_tokens:.0f}",
        )
        for examination in (result.model, result.baseline)
        if examination is not None
        for decoding, found in examination.answers.items()
    ]
    headline = result.model.headline
    rewarded = headline.measure == "reward"
    first = "mean reward" if rewarded else "pass@1"
    columns = ("model", "answers", first, "pass@k", "unparsed", "truncated", "tokens")
    of = "no reward is a verifier" if rewarded else f"k is {max(headline.pass_at)}"
    note = (
        f"{headline.n} tasks. Ranges are 95% intervals over tasks; {of}; samples are "
        f"drawn at temperature {result.config.temperature:g}."
    )
    return Table(f"Held-out tasks: {result.config.dataset or result.config.environment}", columns, rows, note)


def _differences(result: EvaluateResult) -> list[Finding]:
    """Whether the model is better than the baseline, as far as the tasks can tell."""
    found: list[Finding] = []
    for decoding, (value, (low, high), n) in result.model.over(result.baseline).items() if result.baseline else ():
        severity, word = (
            (Severity.GOOD, "better than") if low > 0 else (Severity.WARNING, "worse than") if high < 0 else (None, "")
        )
        title = f"{decoding}: {word or 'not distinguishable from'} the baseline"
        evidence = f"{100 * value:+.1f} points of pass@1 on the same {n} tasks ({100 * low:+.1f} to {100 * high:+.1f})"
        if result.model.headline.measure == "reward":
            evidence = f"{value:+.3f} mean reward on the same {n} tasks ({low:+.3f} to {high:+.3f})"
        found.append(Finding(severity or Severity.NOTE, title, evidence))
    return found


def _findings(result: EvaluateResult, suite: str = "") -> list[Finding]:
    headline, limits = result.model.headline, Thresholds()
    where = f" of {suite}" if suite else ""
    found: list[Finding] = []
    if headline.unparsed >= limits.unparsed:
        evidence = f"unparsed: {percent(headline.unparsed)} of the completions{where}"
        advice = "Read the samples: specify the answer format in the prompt, or use another verifier."
        found.append(Finding(Severity.WARNING, "Many completions have no answer that can be parsed", evidence, advice))
    if headline.truncated >= limits.truncated:
        evidence = f"{percent(headline.truncated)} of the completions{where} were truncated"
        found.append(Finding(Severity.WARNING, "Many completions are truncated", evidence, "Raise --max-new-tokens."))
    return found
