"""What kind of prompt each is, from the data."""

from collections.abc import Sequence

from posttrain.algorithms.inputs import PromptKinds
from posttrain.training.inputs.context import Columns, Context
from posttrain.training.load import Load
from posttrain.types import Group

SAMPLES = False


def columns(need: PromptKinds, groups: Sequence[Group], context: Context) -> Columns:
    """`kinds_R`: of each row the column `kind` of its task; "" where it has none."""
    return {"kinds_R": tuple(str(group.task.metadata.get("kind", "")) for group in groups for _ in group.rows)}


def sampled(need: PromptKinds, load: Load) -> tuple[Load, ...]:
    """Nothing."""
    return ()
