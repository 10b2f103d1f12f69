"""Gradients of several clients in one pass over packed rows, each from its own tokens by its own adapter.

    L = sum_a L_a(theta_a)

Adapters have no weight in common, so that the gradient of the sum for theta_a is that of L_a: one backward pass gives
each client its own. They agree with those that each gets alone to rounding, by which products differ with their number
of rows.

Shape letters: N targets of a packed row, flat.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import LowRank
from posttrain.serving.datum import Datum
from posttrain.serving.losses import Loss
from posttrain.serving.trainer import Output, Trainer, loss_of_row, place_targets, sharing_prefixes
from posttrain.training.learner import Share
from posttrain.training.microbatch import accumulate_gradients


@dataclass(frozen=True)
class Member:
    """A client's part of a joint pass.

    Attributes:
        trainer: its adapter.
        scale: of its adapter.
        data: its batch.
        loss: of it.
        backward: whether its gradient is added to what the trainer has.
    """

    trainer: Trainer
    scale: float
    data: Sequence[Datum]
    loss: Loss
    backward: bool = True


@contextlib.contextmanager
def all_or_none(members: Sequence[Member]) -> Iterator[None]:
    """Put the gradient of every member back if the block fails."""
    with contextlib.ExitStack() as stack:
        for member in members:
            if member.backward:
                stack.enter_context(member.trainer.all_or_nothing())
        yield


def forward_backward_together(
    model: LanguageModel, members: Sequence[Member], *, microbatch_tokens: int
) -> list[Output]:
    """What `Trainer.forward_backward` gives each member, of one pass; `model` has mixed adapters.

    Members without a backward pass have a pass of their own, which keeps nothing for one. If it raises, every
    gradient is what it was.

    Raises:
        TrainingError: a loss or a gradient is not finite.
    """
    found: dict[int, Output] = {}
    with all_or_none(members):
        for backward in (True, False):
            numbers = [number for number, member in enumerate(members) if member.backward == backward]
            some = [members[number] for number in numbers]
            if len(some) == 1:  # which is alone then, and gets the bits that it gets alone
                outputs = [some[0].trainer.forward_backward(some[0].data, some[0].loss, backward=backward)]
            else:
                outputs = _passed(model, some, microbatch_tokens, backward=backward) if some else []
            found |= zip(numbers, outputs, strict=True)
        _refuse_infinite(members, list(found.values()))
    return [found[number] for number in range(len(members))]


def _refuse_infinite(members: Sequence[Member], outputs: Sequence[Output]) -> None:
    norms = [member.trainer.optimizer.grad_norm() for member in members if member.backward]
    # also logprobs that a loss does not read: on a GPU attention to others' tokens has weight 0, and 0 times NaN is NaN
    read = all(np.isfinite(logprobs).all() for output in outputs for logprobs in output.logprobs)
    if not read or not all(map(math.isfinite, (*norms, *(output.loss for output in outputs)))):
        raise TrainingError("a loss or a gradient of the joint pass is not finite")


@dataclass
class _Joined:
    """The data of all members, one after another."""

    members: Sequence[Member]
    data: list[Datum] = field(default_factory=list[Datum])
    examples: list[Example] = field(default_factory=list[Example])
    owners: list[int] = field(default_factory=list[int])  # the member of each datum
    first: list[int] = field(default_factory=list[int])  # the number of each member's first datum

    def __post_init__(self) -> None:
        self.adapters = [LowRank.trained(dict(each.trainer.model.trainable()), each.scale) for each in self.members]
        self.outputs = [[np.empty(0)] * len(each.data) for each in self.members]
        self.losses = [0.0] * len(self.members)
        for owner, member in enumerate(self.members):
            self.first.append(len(self.data))
            self.data += member.data
            self.examples += sharing_prefixes(member.data)
            self.owners += [owner] * len(member.data)

    def adapters_of(self, row: PackedRow) -> tuple[list[LowRank], list[int]]:
        """The adapter of each family of a row, and its tokens."""
        first = accumulate((len(lengths) for _, lengths in row.families[:-1]), initial=0)
        adapters = [self.adapters[self.owners[row.examples[number]]] for number in first]
        return adapters, [prefix + sum(lengths) for prefix, lengths in row.families]

    def loss_of(self, logprobs_N: Tensor, row: PackedRow) -> Tensor:
        """The sum of the members' losses of a row, whose targets are placed."""
        shares: list[Tensor] = []
        at = 0
        for owner, numbers in groupby(row.examples, key=self.owners.__getitem__):
            first, member = self.first[owner], self.members[owner]
            part = PackedRow(examples=[number - first for number in numbers])
            size = sum(member.data[number].targets.size for number in part.examples)
            part.rows = [number - first for number in row.rows[at : at + size]]
            share = loss_of_row(logprobs_N[at : at + size], part, member.data, member.loss, self.outputs[owner])
            self.losses[owner] += share.item()
            shares.append(share)
            at += size
        return torch.stack(shares).sum()


def _passed(model: LanguageModel, members: Sequence[Member], microbatch_tokens: int, *, backward: bool) -> list[Output]:
    joined = _Joined(members)
    most = max(microbatch_tokens, *(len(datum.tokens) for datum in joined.data))
    with contextlib.ExitStack() as placement:

        def of_row(row: PackedRow) -> Share:
            placement.close()  # the row before: its backward pass, which may compute layers again, has ended
            place_targets(row, joined.data)
            placement.enter_context(model.placed(*joined.adapters_of(row)))
            return Share(joined.loss_of(model.logprobs(row).logprobs, row), {})

        if backward:
            first, *others = (member.trainer.optimizer for member in members)
            settings = {"microbatch_tokens": most, "owners": joined.owners, "beside": others}
            accumulate_gradients(first, joined.examples, of_row, **settings)
        else:
            with torch.no_grad():
                for row in pack(joined.examples, most, owners=joined.owners):
                    of_row(row)
    return [Output(loss, outputs) for loss, outputs in zip(joined.losses, joined.outputs, strict=True)]
