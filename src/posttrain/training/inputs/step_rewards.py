"""What the spans of scores pay at which token."""

from collections.abc import Sequence

import torch

from posttrain.algorithms.inputs import StepRewards
from posttrain.training.inputs.context import Columns, Context
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: StepRewards, groups: Sequence[Group], context: Context) -> Columns:
    """`step_rewards_N` and `step_end_N`, [N] each: what is paid at a token, and whether a step ends there.

    The step of a wrong line may pay 0 and is a step all the same.
    """
    rows = [row for group in groups for row in group.rows]
    found = [
        (token in row.step_rewards, row.step_rewards.get(token, 0.0))
        for row in rows
        for token in range(len(row.trajectory.logprobs))
    ]
    return {
        "step_rewards_N": torch.tensor([value for _, value in found], dtype=torch.float64),
        "step_end_N": torch.tensor([ended for ended, _ in found], dtype=torch.bool),
    }


def sampled(need: StepRewards, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
