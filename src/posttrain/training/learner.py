"""The learner interface: computes gradients, in-process or distributed.

A recipe hands over a batch, which is data, and a loss, which is a frozen dataclass, and gets numbers back. A verb
returns when it is done. What samples meanwhile does so elsewhere, so that a recipe is read from top to bottom.

Shape letters: N learned tokens of a packed row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts
from posttrain.data.packing import Example, PackedRow
from posttrain.models.critic import Critic
from posttrain.models.reference import Predictions

POLICY, CRITIC, REFERENCE, TEACHER = "policy", "critic", "reference", "teacher"
"""The parts of a learner. `policy` is whatever is trained first, a reward model too."""

Column = Sequence[Sequence[float]]
"""Of each example one number for each of its learned tokens."""

M = TypeVar("M")  # what is trained: a LanguageModel, a RewardModel, an AttributeModel


@dataclass(frozen=True)
class Batch:
    """Sequences to learn from, and what is known of them.

    Attributes:
        examples: the sequences.
        counts: of the whole batch, for denominators; what was left out of `examples` may count.
        together: how many examples that follow each other are a unit, whose examples are computed together, or of each
            unit how many.
        tokens: columns of numbers of learned tokens, by name.
        units: columns with one entry for each unit, by name.
        scalars: numbers of the whole batch, by name.
        seed: decides what an adapter's dropout drops; None: nothing is dropped.
        key: batches with the same one are the same batch, to be learned from several times: what the policy said before
            the first time is kept. Empty: it is learned from once.
    """

    examples: Sequence[Example]
    counts: Counts
    together: int | Sequence[int] = 1
    tokens: Mapping[str, Column] = field(default_factory=dict[str, Column])
    units: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    seed: int | None = None
    key: str = ""

    def column(self, name: str, row: PackedRow, like: Tensor) -> Tensor | None:
        """The numbers of a row's learned tokens, in order, [N]; None where the batch has no such column."""
        numbers = self.tokens.get(name)
        return None if numbers is None else of_row(numbers, row, like)

    def chosen(self, examples: Sequence[int]) -> "Batch":
        """The batch with these examples alone, each a unit of its own, in this order; `counts` stays."""
        tokens = {name: [numbers[i] for i in examples] for name, numbers in self.tokens.items()}
        units = {name: [entries[i] for i in examples] for name, entries in self.units.items()}
        return replace(self, examples=[self.examples[i] for i in examples], tokens=tokens, units=units)


def of_row(numbers: Column, row: PackedRow, like: Tensor) -> Tensor:
    """The numbers of a row's learned tokens, in order, [N]."""
    values = [value for number in row.examples for value in numbers[number]]
    return torch.tensor(values, dtype=torch.float64).to(like)


class Whole(Protocol):
    """A model that stays as it is."""

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens, [N], without gradient."""
        ...

    def predictions(self, row: PackedRow) -> Predictions:
        """What it predicts there over the whole vocabulary, without gradient."""
        ...


@dataclass(frozen=True)
class Parts(Generic[M]):
    """What a loss may ask of a learner, wherever that runs.

    Attributes:
        model: what is trained.
        critic: the critic, where there is one.
        reference: the reference, where there is one.
        keep: `keep(name, row, compute)` is what `compute()` was when the batch was learned from for the first time.
    """

    model: M
    critic: Critic | None
    reference: Whole | None
    keep: Callable[[str, PackedRow, Callable[[], Tensor]], Tensor]


class Share(NamedTuple):
    """A row's share of the loss of a batch, with the numbers worth logging (detached), whose means are metrics."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Loss(Protocol[M]):
    """What a batch costs: a frozen dataclass, so that it can be handed to another process."""

    reaches: ClassVar[tuple[str, ...]]
    """The parts that its gradient reaches, as far as a learner has them."""

    extremes: ClassVar[tuple[str, ...]]
    """The metrics of which the largest number is logged, too."""

    def of_row(self, row: PackedRow, batch: Batch, parts: Parts[M]) -> Share:
        """A row's share."""
        ...


class Learner(Protocol):
    """The verbs. Whoever implements them passes the tests of `tests/training/learner_kit.py`."""

    def forward(self, batch: Batch, loss: Loss[Any]) -> dict[str, float]:
        """The loss and its metrics, without gradients."""
        ...

    def logprobs(
        self, examples: Sequence[Example], model: str = POLICY, *, temperature: float = 1.0, together: int = 1
    ) -> list[tuple[float, ...]]:
        """Logprobs of each example's learned tokens, in nats, by a part that predicts tokens; nothing is dropped."""
        ...

    def values(self, examples: Sequence[Example]) -> list[tuple[float, ...]]:
        """What the critic expects before each learned token."""
        ...

    def scores(self, examples: Sequence[Example], *, seed: int | None = None) -> list[tuple[float, ...]]:
        """The numbers that each head of a reward model gives each example; `seed` as in `Batch`."""
        ...

    def forward_backward(self, batch: Batch, loss: Loss[Any]) -> dict[str, float]:
        """Add the gradient of a batch's loss to what was collected since the last step; the loss and its metrics.

        Raises:
            TrainingError: the loss is not finite. What was collected is discarded, and no weight has changed.
        """
        ...

    def optim_step(self, rates: Mapping[str, float]) -> dict[str, float]:
        """Update each part at its learning rate; the norms of the gradients before clipping.

        They are `grad_norm` of the policy and `critic_grad_norm` of the critic.

        Raises:
            TrainingError: one of the gradients is not finite. All are discarded, and no weight of any part has changed.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Make the weights of one part those of another: `copy("policy", "reference")` renews the reference."""
        ...

    def save(self, folder: Path) -> None:
        """Write all state into a folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Put all state back as it was when `folder` was written."""
        ...
