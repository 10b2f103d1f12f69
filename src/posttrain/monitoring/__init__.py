"""Monitoring: run directories, progress, verdicts, reports."""

from posttrain.monitoring.environment import machine_line
from posttrain.monitoring.finding import Finding, Severity, Thresholds
from posttrain.monitoring.progress import Progress, announce
from posttrain.monitoring.report import Estimate, Table, compare_report, write_report
from posttrain.monitoring.run import Run, Sample, read_run
from posttrain.monitoring.run_directory import RunDirectory
from posttrain.monitoring.verdict import verdict

__all__ = [
    "Estimate",
    "Finding",
    "Progress",
    "Run",
    "RunDirectory",
    "Sample",
    "Severity",
    "Table",
    "Thresholds",
    "announce",
    "compare_report",
    "machine_line",
    "read_run",
    "verdict",
    "write_report",
]
