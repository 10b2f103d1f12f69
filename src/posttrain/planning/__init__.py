"""Cost estimates of runs for `--dry-run`: batches, memory, time and disk."""

from posttrain.planning.placement import placed
from posttrain.planning.plan import plan_of
from posttrain.planning.result import Plan
from posttrain.planning.unloaded import unloaded
from posttrain.planning.work import Work

__all__ = ["Plan", "Work", "placed", "plan_of", "unloaded"]
