"""Cost estimates of runs for `--dry-run`: batches, memory, time and disk."""

from posttrain.planning.plan import plan_of
from posttrain.planning.result import Plan
from posttrain.planning.unloaded import unloaded
from posttrain.planning.work import Work

__all__ = ["Plan", "Work", "plan_of", "unloaded"]
