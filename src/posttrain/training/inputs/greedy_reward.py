"""What the most likely completion of each prompt earned."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from posttrain.algorithms.inputs import GreedyReward
from posttrain.training.inputs.context import Columns, Context, given
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = True


def columns(need: GreedyReward, groups: Sequence[Group], context: Context) -> Columns:
    """`greedy_P`, [P]."""
    earned = given(context.greedy_rewards, "greedy completions")(groups)
    return {"greedy_P": torch.tensor(earned, dtype=torch.float64)}


def sampled(need: GreedyReward, load: Load) -> tuple[Load, ...]:
    """One more completion of each prompt."""
    return (replace(load, group=1),)
