"""Reports: verdicts, charts, and the HTML page of a run."""

from posttrain.report.checks import Finding as Finding
from posttrain.report.checks import Severity as Severity
from posttrain.report.checks import verdict as verdict
from posttrain.report.curves import Thresholds as Thresholds
from posttrain.report.run_report import Estimate as Estimate
from posttrain.report.run_report import Table as Table
from posttrain.report.run_report import compare_report as compare_report
from posttrain.report.run_report import write_report as write_report
