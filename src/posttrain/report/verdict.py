"""Verdicts: findings from a run's metrics.

A run can run smoothly and learn nothing, or earn more reward and get worse. Each check covers one known failure mode;
`Thresholds` has the bounds, with reasons.
"""

from posttrain.report.checks import CHECKS, judge
from posttrain.report.curves import Curves, Rows
from posttrain.report.finding import Finding, Severity, Thresholds


def verdict(rows: Rows, thresholds: Thresholds | None = None) -> list[Finding]:
    """The findings of a run, the worst first; never empty.

    Args:
        rows: one mapping of metrics a step, in order, as in `metrics.jsonl`. Metrics that are absent are not judged.
        thresholds: other bounds than the defaults.

    Example:
        >>> rows = [{"step": n, "groups/zero_advantage": 0.95, "accuracy": 0.0} for n in range(1, 21)]
        >>> print(verdict(rows)[0].title)
        Almost no group has a training signal
    """
    limits = thresholds or Thresholds()
    run = Curves(rows, limits)
    steps = sum(row.get("step") != 0 for row in rows)  # the row of step 0 is of the policy before training
    found = [finding for name in CHECKS if (finding := judge(name, run, limits)) is not None]
    if steps < limits.min_steps:
        found.append(
            Finding(Severity.NOTE, "Too short to judge", f"{_steps(steps)}; at least {limits.min_steps} are needed")
        )
    elif all(finding.severity in (Severity.NOTE, Severity.GOOD) for finding in found):
        found.append(Finding(Severity.GOOD, "No problems found", f"{_steps(steps)}; every check passed"))
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _steps(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"
