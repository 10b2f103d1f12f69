"""Moving averages of what each seat earns."""

from collections.abc import Sequence

import torch

from posttrain.algorithms.inputs import SeatBaselines
from posttrain.objectives.advantages import moving_baselines
from posttrain.training.inputs.context import Columns, Context
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = False
STATE = "seat_baselines"  # by "GAME SEAT": the average of the return


def columns(need: SeatBaselines, groups: Sequence[Group], context: Context) -> Columns:
    """`baselines_R`, [R]; the averages of the context's state are updated."""
    keys = [f"{group.task.metadata.get('kind', '')} {row.seat}" for group in groups for row in group.rows]
    returns_R = torch.tensor([reward for group in groups for reward in group.rewards], dtype=torch.float64)
    found_R, context.state[STATE] = moving_baselines(returns_R, keys, context.state.get(STATE, {}), decay=need.decay)
    return {"baselines_R": found_R}


def sampled(need: SeatBaselines, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
