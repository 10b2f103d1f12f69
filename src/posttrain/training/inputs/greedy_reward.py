"""What the greedy episode of each task earned."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from posttrain.algorithms.inputs import GreedyReward
from posttrain.training.inputs.context import Columns, Context, given
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = True


def columns(need: GreedyReward, groups: Sequence[Group], context: Context) -> Columns:
    """`greedy_R`, [R]: of each row what its seat earned."""
    earned = given(context.greedy_rewards, "greedy completions")(groups)
    rows = [by_seat[row.seat] for group, by_seat in zip(groups, earned, strict=True) for row in group.rows]
    return {"greedy_R": torch.tensor(rows, dtype=torch.float64)}


def sampled(need: GreedyReward, load: Load) -> tuple[Load, ...]:
    """One more completion of each prompt."""
    return (replace(load, group=1),)
