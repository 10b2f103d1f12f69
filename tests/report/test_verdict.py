import doctest
import importlib
import random

from posttrain.report import Severity, Thresholds, verdict


def healthy(steps: int = 40) -> list[dict[str, float]]:
    """A run as it should be, with its noise."""
    draw = random.Random(0)
    rows = []
    for n in range(steps):
        done = n / steps
        accuracy = 0.2 + 0.3 * done + draw.gauss(0, 0.02)
        rows.append(
            {
                "step": n + 1,
                "loss": draw.gauss(0, 0.02),
                "reward/mean": accuracy + 0.1,
                "accuracy": accuracy,
                "unparsed": 0.05,
                "groups/zero_advantage": 0.3,
                "length/mean": 30 + 10 * done,
                "length/truncated": 0.02,
                "entropy": 0.6 - 0.3 * done,
                "kl": 0.05 * done,
                "clip_fraction": 0.01,
                "logprob_gap/mean": 0.004,
                "logprob_gap/max": 0.1,
                "repetition": 0.05,
            }
        )
    rows[0]["evaluation/accuracy"], rows[-1]["evaluation/accuracy"] = 0.2, 0.45
    return rows


def test_a_healthy_run_is_called_healthy_and_nothing_else() -> None:
    found = verdict(healthy())
    assert [finding.severity for finding in found] == [Severity.GOOD, Severity.GOOD]
    assert found[0].title == "The reward rises" and found[1].title == "No problems found"


def test_the_worst_comes_first_and_nothing_is_called_fine_then() -> None:
    rows = [row | {"clip_fraction": 0.5, "repetition": 0.02 * row["step"]} for row in healthy()]
    found = verdict(rows)
    assert [finding.severity for finding in found] == [Severity.PROBLEM, Severity.WARNING, Severity.GOOD]
    assert all(finding.title != "No problems found" for finding in found)


def test_a_short_run_is_not_judged_but_for_what_any_step_shows() -> None:
    rows = [row | {"groups/zero_advantage": 1.0} for row in healthy()[:7]]
    assert [finding.title for finding in verdict(rows)] == ["Too short to judge"]
    rows[3] |= {"logprob_gap/max": 5.0, "loss": float("nan")}
    severities = [finding.severity for finding in verdict(rows)]
    assert severities == [Severity.PROBLEM, Severity.PROBLEM, Severity.NOTE]
    assert verdict([])[0].title == "Too short to judge"


def test_the_row_before_training_is_no_step() -> None:
    before = {"step": 0, "evaluation/accuracy": 0.2}
    for steps, said in ((1, "1 step; at least 8 are needed"), (2, "2 steps; at least 8 are needed")):
        assert verdict([before, *healthy()[:steps]])[-1].evidence == said
    assert verdict([before, *healthy(8)])[-1].evidence == "8 steps; every check passed"
    assert verdict([before, *healthy(7)])[-1].title == "Too short to judge"


def test_a_note_alone_is_still_fine() -> None:
    rows = [row | {"accuracy": 0.99, "groups/zero_advantage": 0.95} for row in healthy()]
    found = verdict(rows)
    assert [finding.severity for finding in found] == [Severity.NOTE, Severity.GOOD, Severity.GOOD]


def test_thresholds_can_be_others() -> None:
    assert any("Updates" in finding.title for finding in verdict(healthy(), Thresholds(clip_fraction=0.005)))


def test_every_threshold_has_a_reason() -> None:
    source = importlib.import_module("posttrain.report.curves").__file__
    assert source is not None
    with open(source, encoding="utf-8") as file:
        lines = file.read().split("class Thresholds")[1].split("\n\n\n")[0].splitlines()
    fields = [i for i, line in enumerate(lines) if line.startswith("    ") and ": " in line and " = " in line]
    assert len(fields) == len(Thresholds.__dataclass_fields__)
    assert all(lines[i + 1].startswith('    """') and len(lines[i + 1]) > 40 for i in fields)


def test_docstring_examples_run() -> None:
    results = doctest.testmod(importlib.import_module("posttrain.report.checks"))
    assert results.failed == 0 and results.attempted >= 2
