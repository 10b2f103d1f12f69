"""What a critic expects before each token."""

from collections.abc import Sequence

from posttrain.algorithms.inputs import CriticValues
from posttrain.training.inputs.context import Columns, Context, examples_in, flat, given
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: CriticValues, groups: Sequence[Group], context: Context) -> Columns:
    """`values_N`, [N]."""
    return {"values_N": flat(given(context.learner, "a critic").values(examples_in(groups)))}


def sampled(need: CriticValues, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
