"""The reference policy's logprobs of what was sampled."""

from collections.abc import Sequence

from posttrain.algorithms.inputs import ReferenceLogprobs
from posttrain.training.inputs.context import Columns, Context, examples_in, flat, given
from posttrain.training.learner import REFERENCE
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: ReferenceLogprobs, groups: Sequence[Group], context: Context) -> Columns:
    """`reference_N`, [N]."""
    learner = given(context.learner, "a reference")
    return {"reference_N": flat(learner.logprobs(examples_in(groups), REFERENCE, temperature=context.temperature))}


def sampled(need: ReferenceLogprobs, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
