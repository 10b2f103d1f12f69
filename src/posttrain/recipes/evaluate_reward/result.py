"""Results of evaluating one or two reward models on held-out pairs: as data, in words, and as a report."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.errors import as_typed
from posttrain.evaluation import pairs
from posttrain.evaluation.accuracy import percent
from posttrain.evaluation.pairs import PairAccuracy, ScoredPair, Ties, ties_of
from posttrain.evaluation.process_bench import ProcessBench
from posttrain.options.evaluation import EvaluateReward
from posttrain.report import Estimate, Finding, Severity, Table, write_report
from posttrain.report.chart import Chart, Series
from posttrain.runs import RunDirectory, read_run
from posttrain.statistics import Interval, paired_difference_interval

SHOWN = 4  # pairs
MISCALIBRATED = 0.1  # of calibration error: being wrong one time in ten more than it says
LENGTH_RULES = 0.4  # of correlation with length: a sixth of the variance of the margins


@dataclass(frozen=True)
class ModelResult:
    """What one model made of the pairs."""

    model: str
    pairs: tuple[ScoredPair, ...]
    equal: tuple[ScoredPair, ...] = ()  # those that people found equally good
    # of a process reward model, whose pairs are steps, each with its label and the other one
    first_wrong: ProcessBench | None = None

    @property
    def ties(self) -> Ties | None:
        """What it makes of ties, where there are any."""
        return ties_of(self.pairs, self.equal) if self.equal else None

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        tells, length = pairs.disagreement_tells(self.pairs), pairs.length_correlation(self.pairs)
        return {
            "model": self.model,
            **_numbers(pairs.accuracy(self.pairs)),
            "categories": {name: _numbers(found) for name, found in pairs.by_category(self.pairs).items()},
            "prompts": len(pairs.by_prompt(self.pairs)),
            "ties": sum(pair.margin == 0 for pair in self.pairs),
            "log_loss": pairs.log_loss(self.pairs),
            "calibration_error": pairs.calibration_error(self.pairs),
            "calibration": [bin._asdict() for bin in pairs.calibration(self.pairs)],
            "temperature": pairs.fit_temperature(self.pairs),
            "calibration_error_at_temperature": pairs.crossfitted_error(self.pairs),
            "length_correlation": length,
            "by_length": {name: _numbers(found) for name, found in pairs.by_length(self.pairs).items()},
            "members": len(self.pairs[0].chosen),
            "disagreement_tells": tells,
            "ties_said": None if self.ties is None else self.ties._asdict(),
            **({"first_wrong": self.first_wrong._asdict()} if self.first_wrong else {}),
        }


@dataclass(frozen=True)
class EvaluateRewardResult:
    """What was found, and where all of it is."""

    run: Path
    report: Path
    seconds: float
    dataset: str
    model: ModelResult
    baseline: ModelResult | None
    notes: tuple[str, ...]

    @property
    def _models(self) -> list[ModelResult]:
        return [one for one in (self.model, self.baseline) if one is not None]

    @property
    def difference(self) -> tuple[float, Interval] | None:
        """How much more often the model is right than the baseline on the same pairs, with its interval."""
        if self.baseline is None:
            return None
        before, after = (list(pairs.by_prompt(one.pairs).values()) for one in (self.baseline, self.model))
        return fmean(after) - fmean(before), paired_difference_interval(before, after)

    def summary(self) -> dict[str, Any]:
        """The numbers for a machine to read."""
        found = self.model.summary()
        if self.baseline is not None and self.difference is not None:
            found["baseline"] = self.baseline.summary()
            found["difference"] = {"value": self.difference[0], "ci95": list(self.difference[1])}
        about = {"dataset": self.dataset, "notes": [as_typed(note) for note in self.notes]}
        return found | about | {"seconds": self.seconds, "run": str(self.run), "report": str(self.report)}

    def lines(self) -> list[str]:
        """The same in words."""
        found = [line for table in _tables(self) for line in table.lines()]
        if self.difference is not None:
            value, (low, high) = self.difference
            found.append(
                f"difference to the baseline {100 * value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
            )
        return [*found, *(f"note: {as_typed(note)}" for note in self.notes), f"report: {self.report}"]


def _numbers(found: PairAccuracy) -> dict[str, Any]:
    return {"accuracy": found.value, "ci95": list(found.ci95), "n": found.pairs}


def reported(
    config: EvaluateReward, directory: RunDirectory, began: float, found: Sequence[ModelResult], notes: Sequence[str]
) -> EvaluateRewardResult:
    """The result, and its page: the table, the curve of calibration, and the pairs that are judged most wrongly."""
    seconds, baseline = time.monotonic() - began, found[1] if config.baseline else None
    about = (directory.path, directory.report, seconds, str(config.dataset))
    result = EvaluateRewardResult(*about, found[0], baseline, tuple(notes))
    read = read_run(result.run)
    ours = [row for row in read.samples if row["model"] == result.model.model]
    wrong = sorted((row for row in ours if row["reward"] < 0), key=lambda row: row["reward"])
    page = replace(
        read, metrics=[], samples=[row | {"answer": row.get("chosen") or row["answer"]} for row in wrong[:SHOWN]]
    )
    write_report(page, tables=_tables(result), findings=_findings(result), charts=[("Calibration", [_curve(result)])])
    return result


def _tables(result: EvaluateRewardResult) -> list[Table]:
    rows: list[tuple[str | Estimate | None, ...]] = []
    for judged in result._models:
        sides, length = pairs.by_length(judged.pairs), pairs.length_correlation(judged.pairs)
        tells = pairs.disagreement_tells(judged.pairs)
        rows.append(
            (
                judged.model,
                _estimate(pairs.accuracy(judged.pairs)),
                f"{pairs.calibration_error(judged.pairs):.3f}",
                f"{pairs.crossfitted_error(judged.pairs):.3f} (/ {pairs.fit_temperature(judged.pairs):.2f})",
                "-" if length is None else f"{length:+.2f}",
                _estimate(sides["longer"]) if "longer" in sides else None,
                _estimate(sides["shorter"]) if "shorter" in sides else None,
                "-" if tells is None else f"{tells:.2f}",
            )
        )
    columns = (
        *("model", "agrees with people", "calibration error", "with scores divided", "correlation with length"),
        *("chosen is longer", "chosen is shorter", "AUC of disagreement"),
    )
    note = (
        f"{len(result.model.pairs)} pairs; ranges are 95% intervals over pairs; equal scores are half right. The "
        "correlation is of how much more a response scores with how many more tokens it has. The last is the chance "
        "that an ensemble's members disagree more over a pair that is judged wrongly. Scores are divided by what is in "
        "brackets, as it is fitted on other pairs."
    )
    tables = [Table(f"Held-out pairs: {result.dataset}", columns, rows, note)]
    if said := [(judged.model, ties) for judged in result._models if (ties := judged.ties) is not None]:
        lines = [
            (model, f"{ties.told:.2f}", Estimate(ties.accuracy, *ties.ci95), percent(ties.never), f"{ties.epsilon:.3f}")
            for model, ties in said
        ]
        columns = ("model", "AUC of ties against others", "accuracy with ties", "accuracy without", "margin of a tie")
        note = (
            f"{said[0][1].ties} pairs that people found equal beside {said[0][1].pairs} that they decided. The margin "
            "up to which a pair is called a tie is found on one half of the pairs and used on the other."
        )
        tables.append(Table("Ties", columns, lines, note))
    if said := [(judged.model, judged.first_wrong) for judged in result._models if judged.first_wrong is not None]:
        lines = [(model, Estimate(one.f1, *one.ci95), percent(one.wrong), percent(one.right)) for model, one in said]
        columns = ("model", "F1", "wrong: the first wrong step found", "right: none said")
        note = (
            f"{said[0][1].n_wrong} reasonings with a wrong step and {said[0][1].n_right} without; the threshold is "
            "found on one half of the prompts and used on the other. Saying that all are right has an F1 of 0."
        )
        tables.append(Table("First wrong step (ProcessBench)", columns, lines, note))
    if categories := pairs.by_category(result.model.pairs):
        each = [pairs.by_category(judged.pairs) for judged in result._models]
        lines = [
            (name or "none", str(one.pairs), *(_estimate(found[name]) for found in each))
            for name, one in categories.items()
        ]
        columns = ("category", "pairs", *(judged.model for judged in result._models))
        tables.append(Table("By category", columns, lines))
    return tables


def _curve(result: EvaluateRewardResult) -> Chart:
    """How often the model is right, by how sure it is."""
    series = [
        Series(judged.model, [(100 * one.confidence, one.right) for one in pairs.calibration(judged.pairs)])
        for judged in result._models
    ]
    perfect = Series("calibrated", [(50.0, 0.5), (100.0, 1.0)])
    return Chart("Reliability (%)", [*series, perfect], percent=True, zero=False)


def _findings(result: EvaluateRewardResult) -> list[Finding]:
    """What to know before a policy is trained on these scores."""
    found: list[Finding] = []
    numbers = result.model.summary()
    (value, (low, high), _), length = pairs.accuracy(result.model.pairs), numbers["length_correlation"]
    evidence = f"{100 * value:.1f} % of the pairs are judged as by people ({100 * low:.1f} to {100 * high:.1f})"
    if low <= 0.5:
        found.append(Finding(Severity.PROBLEM, "Not distinguishable from chance", evidence, "Train on more pairs."))
    else:
        found.append(Finding(Severity.GOOD, "It predicts human choices better than chance", evidence))
    if result.difference is not None:
        value, (low, high) = result.difference
        severity, word = (
            (Severity.GOOD, "Better than") if low > 0 else (Severity.WARNING, "Worse than") if high < 0 else (None, "")
        )
        evidence = f"{100 * value:+.1f} points on the same pairs ({100 * low:+.1f} to {100 * high:+.1f})"
        title = f"{word or 'Not distinguishable from'} the baseline"
        found.append(Finding(severity or Severity.NOTE, title, evidence))
    if numbers["calibration_error"] >= MISCALIBRATED:
        evidence = f"calibration error {numbers['calibration_error']:.3f}"
        advice = (
            f"Divide its scores by {numbers['temperature']:.2f}, or train it with held-out pairs (posttrain "
            "reward-model --eval-share)."
        )
        found.append(Finding(Severity.WARNING, "It is not calibrated", evidence, advice))
    if length is not None and abs(length) >= LENGTH_RULES:
        evidence = f"the correlation of margins with differences in length is {length:+.2f}"
        advice = (
            "A policy will learn length: train with posttrain reward-model --length-debias 1, or monitor the length."
        )
        found.append(Finding(Severity.WARNING, "It scores length", evidence, advice))
    return [*found, *(Finding(Severity.NOTE, "About these pairs", note) for note in result.notes)]


def _estimate(found: PairAccuracy) -> Estimate:
    return Estimate(found.value, *found.ci95)
