"""The learner interface: computes gradients, in-process or distributed. All methods are synchronous.

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
from posttrain.models.reference import Reference

POLICY, CRITIC, REFERENCE, TEACHER = "policy", "critic", "reference", "teacher"
"""The parts of a learner. `policy` is the main trained model, which may be a reward model."""

Column = Sequence[Sequence[float]]  # for each example, one number per learned token

M = TypeVar("M")  # what is trained: a LanguageModel, a RewardModel, an AttributeModel


@dataclass(frozen=True)
class Batch:
    """A batch of training sequences with columns, by name, of learned tokens and of units; and numbers of all of it.

    A unit is a number of consecutive examples, `together` or that of each unit, and never split over micro-batches. A
    batch of several updates has a `key`, under which the policy's logprobs before the first are cached.
    """

    examples: Sequence[Example]
    counts: Counts  # denominators of the whole batch; may include sequences left out of `examples`
    together: int | Sequence[int] = 1
    tokens: Mapping[str, Column] = field(default_factory=dict[str, Column])
    units: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    seed: int | None = None  # of an adapter's dropout; None: no dropout
    key: str = ""

    def column(self, name: str, row: PackedRow, like: Tensor) -> Tensor | None:
        """The numbers of a row's learned tokens, in order, [N]; None where the batch has no such column."""
        if (numbers := self.tokens.get(name)) is None:
            return None
        values = [value for number in row.examples for value in numbers[number]]
        return torch.tensor(values, dtype=torch.float64).to(like)

    def present(self, name: str, row: PackedRow, like: Tensor) -> Tensor:
        """The same of a column that the batch has."""
        numbers_N = self.column(name, row, like)
        assert numbers_N is not None, f"the batch has no {name}"
        return numbers_N

    def chosen(self, examples: Sequence[int]) -> "Batch":
        """A batch of only these examples, in this order, each its own unit; `counts` is unchanged."""
        tokens = {name: [numbers[i] for i in examples] for name, numbers in self.tokens.items()}
        units = {name: [entries[i] for i in examples] for name, entries in self.units.items()}
        return replace(self, examples=[self.examples[i] for i in examples], tokens=tokens, units=units)


def counts_of(examples: Sequence[Example]) -> Counts:
    """The counts of a batch of these examples, of which none is left out."""
    return Counts(len(examples), sum(sum(example.learned) for example in examples))


@dataclass(frozen=True)
class Models(Generic[M]):
    """The models that a loss may use; `keep` returns what `compute` gave in the batch's first update."""

    model: M
    beside: Mapping[str, Any]  # those that are trained beside it, by part: a `Critic` or a `TrainedCopy`
    reference: Reference | None
    keep: Callable[[str, PackedRow, Callable[[], Tensor]], Tensor]
    references: Mapping[str, Reference] = field(default_factory=dict[str, Reference])  # all parts that are not trained


class Share(NamedTuple):
    """A row's share of the loss of a batch, with detached numbers whose means are logged as metrics."""

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Loss(Protocol[M]):
    """The loss of a batch: a frozen dataclass, so that it can be sent to another process."""

    reaches: ClassVar[tuple[str, ...]] = (POLICY,)  # the parts that receive a gradient, if the learner has them
    extremes: ClassVar[tuple[str, ...]] = ()  # the metrics whose maximum is also logged

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[M]) -> Share:
        """A row's share."""
        ...


class Means:
    """Means of per-token or per-pair numbers by name, equally weighted, independent of the micro-batch split."""

    def __init__(self, extremes: Sequence[str] = ()) -> None:
        self._extremes = extremes
        self._values: dict[str, list[Tensor]] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """The numbers of one micro-batch, [N] each; one that has none there is left out."""
        for name, numbers in values.items():
            if numbers.numel():
                self._values.setdefault(name, []).append(numbers.detach())

    def summary(self) -> dict[str, float]:
        """The mean of each by its name; of `extremes`, NAME/mean and NAME/max."""
        found: dict[str, float] = {}
        for name, parts in self._values.items():
            values = torch.cat(parts)
            if name in self._extremes:
                found |= {f"{name}/mean": values.mean().item(), f"{name}/max": values.max().item()}
            else:
                found[name] = values.mean().item()
        return found


class Learner(Protocol):
    """The learner's methods. Implementations must pass `posttrain.testing.check_learner`."""

    def forward(self, batch: Batch, loss: Loss[Any]) -> dict[str, float]:
        """The loss and its metrics, without gradients."""
        ...

    def logprobs(
        self, examples: Sequence[Example], model: str = POLICY, *, temperature: float = 1.0, together: int = 1
    ) -> list[tuple[float, ...]]:
        """Logprobs of each example's learned tokens, in nats, by a language-model part, without dropout."""
        ...

    def values(self, examples: Sequence[Example], model: str = CRITIC) -> list[tuple[float, ...]]:
        """The value before each learned token by a critic, or another head."""
        ...

    def scores(self, examples: Sequence[Example], *, seed: int | None = None) -> list[tuple[float, ...]]:
        """The scores of each example by each head of a reward model; `seed` as in `Batch`."""
        ...

    def forward_backward(self, batch: Batch, loss: Loss[Any]) -> dict[str, float]:
        """Accumulate the gradient of a batch's loss; returns the loss and its metrics.

        Raises `TrainingError` for a loss that is not finite: what was accumulated is discarded, no weight has changed.
        """
        ...

    def optim_step(self, rates: Mapping[str, float]) -> dict[str, float]:
        """Update each part at its learning rate; returns `grad_norm` and `PART_grad_norm`, those before clipping.

        Raises `TrainingError` where one is not finite: all are discarded, and no weight of any part has changed.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy the weights of one part to another: `copy("policy", "reference")` updates the reference."""
        ...

    def save(self, folder: Path) -> None:
        """Write all state into a folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Put all state back as it was when `folder` was written."""
        ...
