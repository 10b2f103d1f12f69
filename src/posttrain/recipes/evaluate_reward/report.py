"""Report of a reward-model evaluation: tables, calibration curve, confident errors."""

from dataclasses import replace

from posttrain.evaluation.accuracy import percent
from posttrain.evaluation.pairs import PairAccuracy, accuracy, by_category, by_length, calibration
from posttrain.recipes.evaluate_reward.result import EvaluateRewardResult, ModelResult
from posttrain.report import Estimate, Finding, Severity, Table, write_report
from posttrain.report.chart import Chart, Series
from posttrain.runs import read_run

SHOWN = 4  # pairs
MISCALIBRATED = 0.1  # of calibration error: being wrong one time in ten more than it says
LENGTH_RULES = 0.4  # of correlation with length: a sixth of the variance of the margins


def write_page(result: EvaluateRewardResult) -> None:
    """The page: the table, the curve of calibration, and the pairs on which the model is surest and wrong."""
    read = read_run(result.run)
    ours = [row for row in read.samples if row["model"] == result.model.model]
    wrong = sorted((row for row in ours if row["reward"] < 0), key=lambda row: row["reward"])
    page = replace(read, metrics=[], samples=[row | {"answer": row["chosen"]} for row in wrong[:SHOWN]])
    write_report(page, tables=_tables(result), findings=_findings(result), charts=[("Calibration", [_curve(result)])])


def _models(result: EvaluateRewardResult) -> list[ModelResult]:
    return [one for one in (result.model, result.baseline) if one is not None]


def _tables(result: EvaluateRewardResult) -> list[Table]:
    rows: list[tuple[str | Estimate | None, ...]] = []
    for judged in _models(result):
        found, sides = judged.summary(), by_length(judged.pairs)
        length, tells = found["length_correlation"], found["disagreement_tells"]
        rows.append(
            (
                judged.model,
                _estimate(accuracy(judged.pairs)),
                f"{found['calibration_error']:.3f}",
                "-" if length is None else f"{length:+.2f}",
                _estimate(sides["longer"]) if "longer" in sides else None,
                _estimate(sides["shorter"]) if "shorter" in sides else None,
                "-" if tells is None else f"{tells:.2f}",
            )
        )
    columns = (
        *("model", "agrees with people", "calibration error", "correlation with length"),
        *("chosen is longer", "chosen is shorter", "AUC of disagreement"),
    )
    note = (
        f"{len(result.model.pairs)} pairs; ranges are 95% intervals over pairs; equal scores are half right. The "
        "correlation is of how much more a response scores with how many more tokens it has. The last is the chance "
        "that an ensemble's members disagree more over a pair that is judged wrongly."
    )
    tables = [Table(f"Held-out pairs: {result.dataset}", columns, rows, note)]
    told = [(judged.model, judged.ties) for judged in _models(result)]
    if said := [(model, ties) for model, ties in told if ties is not None]:
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
    if categories := by_category(result.model.pairs):
        each = [by_category(judged.pairs) for judged in _models(result)]
        lines = [
            (name or "none", str(one.pairs), *(_estimate(found[name]) for found in each))
            for name, one in categories.items()
        ]
        columns = ("category", "pairs", *(judged.model for judged in _models(result)))
        tables.append(Table("By category", columns, lines))
    return tables


def _curve(result: EvaluateRewardResult) -> Chart:
    """How often the model is right, by how sure it is."""
    series = [
        Series(judged.model, [(100 * one.confidence, one.right) for one in calibration(judged.pairs)])
        for judged in _models(result)
    ]
    perfect = Series("calibrated", [(50.0, 0.5), (100.0, 1.0)])
    return Chart("Reliability (%)", [*series, perfect], percent=True, zero=False)


def _findings(result: EvaluateRewardResult) -> list[Finding]:
    """What to know before a policy is trained on these scores."""
    found: list[Finding] = []
    numbers = result.model.summary()
    (value, (low, high), _), length = accuracy(result.model.pairs), numbers["length_correlation"]
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
