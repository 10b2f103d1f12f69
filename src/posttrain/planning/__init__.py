"""Cost estimates of runs for `--dry-run`: batches, memory, time and disk."""

from posttrain.planning.plan import plan_of
from posttrain.planning.result import Plan
from posttrain.planning.work import unloaded

__all__ = ["Plan", "plan_of", "unloaded"]
