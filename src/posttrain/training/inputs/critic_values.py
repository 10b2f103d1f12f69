"""What a critic expects before each token."""

from collections.abc import Sequence

from posttrain.algorithms.inputs import CriticValues
from posttrain.training.inputs.context import Columns, Context, by_example, examples_in, flat, given
from posttrain.training.plan import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: CriticValues, groups: Sequence[Group], context: Context) -> Columns:
    """`values_N`, [N]."""
    critic = given(context.critic, "a critic")
    return {"values_N": flat(by_example(examples_in(groups), context.microbatch_tokens, critic.values))}


def sampled(need: CriticValues, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
