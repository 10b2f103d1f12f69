"""The reference policy's logprobs of what was sampled."""

from collections.abc import Sequence

from posttrain.algorithms.inputs import ReferenceLogprobs
from posttrain.training.inputs.context import Columns, Context, by_example, examples_in, flat, given
from posttrain.training.plan import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: ReferenceLogprobs, groups: Sequence[Group], context: Context) -> Columns:
    """`reference_N`, [N]."""
    reference = given(context.reference, "a reference")
    found = by_example(
        examples_in(groups), context.microbatch_tokens, lambda row: reference.logprobs(row, context.temperature)
    )
    return {"reference_N": flat(found)}


def sampled(need: ReferenceLogprobs, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
