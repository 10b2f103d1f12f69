"""Results of an evaluation: as data, in words, and as a report."""

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.episodes.metrics import SOLVED
from posttrain.errors import as_typed
from posttrain.evaluation.accuracy import Difference, Examination, numbers, pass_at_interval, percent
from posttrain.options.evaluation import Evaluate
from posttrain.report import Estimate, Finding, Severity, Table, Thresholds, write_report
from posttrain.report.chart import Chart
from posttrain.runs import Sample, read_run
from posttrain.runs.result import listed
from posttrain.runs.run import samples_of
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

    @property
    def gain(self) -> Difference | None:
        """The paired difference to the baseline, if there is one: `value`, its interval `ci95`, and tasks `n`."""
        return next(iter(self.model.over(self.baseline).values())) if self.baseline is not None else None

    def _repr_html_(self) -> str:
        table = _table(self)
        cells = [[html.escape(str(cell or "-")) for cell in row] for row in table.rows]
        rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
        head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
        notes = [table.note, *self.notes]
        return (
            f"<div><b>{html.escape(table.title)}</b></div><table><tr>{head}</tr>{rows}</table>"
            f"{listed(_differences(self))}{''.join(f'<div>{html.escape(note)}</div>' for note in notes)}"
        )

    def summary(self) -> dict[str, Any]:
        """The results as JSON. The headline numbers are at the top level: sampled, if there are samples."""
        found = numbers(self.model.headline) | {"decoding": next(iter(self.model.answers))} | self.model.summary()
        if self.baseline is not None:
            over = self.model.over(self.baseline)
            found["baseline"] = self.baseline.summary()
            found["difference"] = {k: {"value": d.value, "ci95": list(d.ci95), "n": d.n} for k, d in over.items()}
        about = {"dataset": self.config.dataset, "notes": [as_typed(note) for note in self.notes]}
        return found | about | {"seconds": self.seconds, "run": str(self.run), "report": str(self.report)}

    def lines(self) -> list[str]:
        """The same in words."""
        found = [*_table(self).lines(), *(f"{finding.title}: {finding.evidence}" for finding in _differences(self))]
        return list(map(as_typed, [*found, *(f"note: {note}" for note in self.notes), f"report: {self.report}"]))


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
    findings = [*_differences(result), *_findings(result)]
    write_report(page, tables=[*tables, _table(result)], findings=findings, charts=charts)


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


def _findings(result: EvaluateResult) -> list[Finding]:
    headline, limits = result.model.headline, Thresholds()
    found: list[Finding] = []
    if headline.unparsed >= limits.unparsed:
        evidence = f"unparsed: {percent(headline.unparsed)} of the completions"
        advice = "Read the samples: specify the answer format in the prompt, or use another verifier."
        found.append(Finding(Severity.WARNING, "Many completions have no answer that can be parsed", evidence, advice))
    if headline.truncated >= limits.truncated:
        evidence = f"{percent(headline.truncated)} of the completions were truncated"
        found.append(Finding(Severity.WARNING, "Many completions are truncated", evidence, "Raise --max-new-tokens."))
    found += [Finding(Severity.NOTE, "About these tasks", note) for note in result.notes]
    return found
