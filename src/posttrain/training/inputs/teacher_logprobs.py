"""A teacher's logprobs of what the policy sampled."""

from collections.abc import Sequence

from posttrain.algorithms.inputs import TeacherLogprobs
from posttrain.training.inputs.context import Columns, Context, examples_in, flat, given
from posttrain.training.learner import TEACHER
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: TeacherLogprobs, groups: Sequence[Group], context: Context) -> Columns:
    """`teacher_N`, [N]."""
    learner = given(context.learner, "a teacher")
    return {"teacher_N": flat(learner.logprobs(examples_in(groups), TEACHER, temperature=context.temperature))}


def sampled(need: TeacherLogprobs, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
