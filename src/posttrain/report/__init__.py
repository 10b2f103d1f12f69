"""Reports: verdicts, charts, and the HTML page of a run."""

from posttrain.report.checks import Finding, Severity, verdict
from posttrain.report.curves import Thresholds
from posttrain.report.run_report import Estimate, Table, compare_report, write_report

__all__ = [
    "Estimate",
    "Finding",
    "Severity",
    "Table",
    "Thresholds",
    "compare_report",
    "verdict",
    "write_report",
]
