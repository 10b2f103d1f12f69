"""Run directories: configuration, metrics, samples, and the machine they come from."""

from posttrain.runs.environment import machine_line
from posttrain.runs.run import Run, Sample, read_run
from posttrain.runs.run_directory import RunDirectory

__all__ = ["Run", "RunDirectory", "Sample", "machine_line", "read_run"]
