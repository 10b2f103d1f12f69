"""What the ranks of one learner tell each other. A learner in one process is `ALONE`.

The ranks see the same batches. Each computes every `size`-th packed row; results are merged by the number of the row,
in one order, so that sums and means are those of one process, and gradients are added up before they are measured. Each
holds all weights, or a shard of them (`shards.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from posttrain.models.language_model import LanguageModel
from posttrain.training.shards import REPLICATED, Shards

R = TypeVar("R")
T = TypeVar("T")


class RowPass(NamedTuple, Generic[R]):
    """The passes of a packed row on one rank."""

    number: int
    row: R
    weight: float = 1.0  # of its gradient: 0 in a dummy pass, of a row of another rank


class Ranks:
    """The ranks of a learner, as one of them sees them. All of them call the same methods in the same order.

    This class is the only rank; a subclass is one of several.

    Attributes:
        rank: the number of this rank, from 0.
        size: the number of ranks.
        loads_on: where models are loaded: `auto`, or `cpu` if it is `shard` that puts them where they compute.
    """

    rank: int = 0
    size: int = 1
    loads_on: str = "auto"

    def passes(self, rows: int) -> Iterator[tuple[int, float]]:
        """The indices of the rows that this rank computes, of `rows` in all, with the weight of each (`RowPass`)."""
        return ((number, 1.0) for number in range(rows))

    def shard(self, bodies: Iterable[LanguageModel], optimizers: Iterable[Any]) -> Shards:
        """Shard the weights of these models and what their optimisers hold, unless these ranks hold replicas."""
        return REPLICATED

    def merged(self, found: Mapping[int, T]) -> dict[int, T]:
        """What all ranks have found, by number, in ascending order of the numbers."""
        return dict(found)

    def agree(self, error: BaseException | None) -> None:
        """Tell the other ranks whether this one has failed; with `error`, the caller raises it afterwards.

        Raises:
            TrainingError: another rank has failed, and this one has not.
        """

    def add_up(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Of each parameter the sum of its gradients over the ranks; None where no rank has one.

        All ranks get the same bits.
        """
        return [parameter.grad for parameter in parameters]


ALONE = Ranks()


def over(
    rows: Sequence[R], compute: Callable[[RowPass[R]], T], ranks: Ranks, shards: Shards = REPLICATED
) -> dict[int, T]:
    """What `compute` finds of each packed row, on whichever rank, by number.

    Raises:
        TrainingError: another rank has failed. What fails here is raised as it is.
    """
    found: dict[int, T] = {}

    def compute_mine() -> None:
        for number, weight in ranks.passes(len(rows)):
            with shards.row_pass():
                value = compute(RowPass(number, rows[number], weight))
            if weight:
                found[number] = value

    together(compute_mine, ranks)
    return ranks.merged(found)


def together(work: Callable[[], None], ranks: Ranks) -> None:
    """Do what this rank has to, and raise on all ranks where it fails on one: none waits for a rank that has failed.

    Raises:
        TrainingError: another rank has failed. What fails here is raised as it is.
    """
    try:
        work()
    except BaseException as failure:
        ranks.agree(failure)
        raise
    ranks.agree(None)
