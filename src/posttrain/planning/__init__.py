"""What a run takes before it starts: batches, memory, time and disk, as `--dry-run` says it."""

from posttrain.planning.plan import plan_of
from posttrain.planning.result import Plan
from posttrain.planning.unloaded import unloaded
from posttrain.planning.work import Work

__all__ = ["Plan", "Work", "plan_of", "unloaded"]
