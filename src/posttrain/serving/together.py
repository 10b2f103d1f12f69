"""Gradients of several clients in one pass over packed rows, each from its own tokens by its own adapter.

    L = sum_a L_a(theta_a)

Adapters have no weight in common, so that the gradient of the sum for theta_a is that of L_a: one backward pass gives
each client its own. They agree with those that each gets alone to rounding, by which products differ with their number
of rows. Of each model the next request alone is taken, so that the order of its requests stays as it is.

Shape letters: N targets of a packed row, flat.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import LowRank
from posttrain.serving.losses import Datum, Loss
from posttrain.serving.operations import JOINT, Batch, answer_of, read_batch
from posttrain.serving.run import Entry, Run
from posttrain.serving.trainer import Output, Trainer, loss_of_row, place_targets, sharing_prefixes
from posttrain.training.learner import Share
from posttrain.training.microbatch import accumulate_gradients

if TYPE_CHECKING:
    from posttrain.serving.services import Services


class Asked(NamedTuple):
    """A request for a gradient or a loss, read."""

    run: Run
    seq: int
    request: Entry
    batch: Batch

    @property
    def tokens(self) -> int:
        """Of all inputs."""
        return sum(len(datum.tokens) for datum in self.batch.data)


class JointPass:
    """Computes requests of several models in one pass. Its network is made when it is first needed."""

    def __init__(self, services: "Services") -> None:
        self._services = services

    @cached_property
    def _model(self) -> LanguageModel:
        return self._services.base.mixed()

    def compatible(self, run: Run, others: Sequence[Run], *, load: Callable[[Run], Trainer]) -> list[Asked]:
        """A model's next request, and those of others in memory to compute with it; empty if there are none."""
        room, waiting = self._services.limits.microbatch_tokens, [other for other in others if other.first is not None]
        first = self._next(run) if waiting else None
        if first is None:
            return []
        load(run)  # first, for others may make room for it
        found, room = [first], room - first.tokens
        for other in waiting:
            asked = self._next(other) if room > 0 and other.trainer is not None else None
            if asked is not None and asked.tokens <= room:
                found.append(asked)
                room -= asked.tokens
        return found if len(found) > 1 else []

    def _next(self, run: Run) -> Asked | None:
        """The request that comes next for a model, if it is one that may be computed with others."""
        with run.lock:
            seq = run.first
        if seq is None or run.record.ended or run.apart or run.busy:
            return None
        try:
            if run.kind(seq) not in JOINT:
                return None
            request = run.request(seq)
            return Asked(run, seq, request, read_batch(request.body, self._services))
        except Exception:  # such as a mistake of the client's, which is told in its own turn
            return None

    def answers(self, asked: Sequence[tuple[Trainer, Asked]]) -> list[Entry]:
        """The answer to each. If it raises, also for an answer that cannot be made, every gradient is what it was."""
        members = [
            Member(trainer, each.run.record.adapter.scale, each.batch.data, each.batch.loss, each.batch.backward)
            for trainer, each in asked
        ]
        tokens = self._services.limits.microbatch_tokens
        return forward_backward_together(self._model, members, microbatch_tokens=tokens, told=answer_of)


@dataclass(frozen=True)
class Member:
    """A client's part of a joint pass."""

    trainer: Trainer  # its adapter
    scale: float  # of its adapter
    data: Sequence[Datum]  # its batch
    loss: Loss  # of it
    backward: bool = True  # whether its gradient is added to what the trainer has


def forward_backward_together(
    model: LanguageModel,
    members: Sequence[Member],
    *,
    microbatch_tokens: int,
    told: Callable[[Output], Any] = lambda output: output,
) -> list[Any]:
    """What `Trainer.forward_backward` gives each member, of one pass; `model` has mixed adapters.

    Members without a backward pass have a pass of their own, which keeps nothing for one. If it raises, or `told`,
    which makes of each output what is returned, every gradient is what it was.
    """
    found: dict[int, Output] = {}
    with contextlib.ExitStack() as stack:
        for member in members:
            if member.backward:
                stack.enter_context(member.trainer.all_or_nothing())
        for backward in (True, False):
            numbers = [number for number, member in enumerate(members) if member.backward == backward]
            some = [members[number] for number in numbers]
            if len(some) == 1:  # which is alone then, and gets the bits that it gets alone
                outputs = [some[0].trainer.forward_backward(some[0].data, some[0].loss, backward=backward)]
            else:
                outputs = _passed(model, some, microbatch_tokens, backward=backward) if some else []
            found |= zip(numbers, outputs, strict=True)
        _refuse_infinite(members, list(found.values()))
        return [told(found[number]) for number in range(len(members))]


def _refuse_infinite(members: Sequence[Member], outputs: Sequence[Output]) -> None:
    norms = [member.trainer.optimizer.grad_norm() for member in members if member.backward]
    # also logprobs that a loss does not read: on a GPU attention to others' tokens has weight 0, and 0 times NaN is NaN
    read = all(np.isfinite(logprobs).all() for output in outputs for logprobs in output.logprobs)
    if not read or not all(map(math.isfinite, (*norms, *(output.loss for output in outputs)))):
        raise TrainingError("a loss or a gradient of the joint pass is not finite")


class _Joined:
    """The data of all members, one after another."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.adapters = [LowRank.trained(dict(each.trainer.model.trainable()), each.scale) for each in members]
        self.outputs = [[np.empty(0)] * len(each.data) for each in members]
        self.losses = [0.0] * len(members)
        self.data: list[Datum] = []
        self.examples: list[Example] = []
        self.owners: list[int] = []  # the member of each datum
        self.first: list[int] = []  # the number of each member's first datum
        for owner, member in enumerate(members):
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
