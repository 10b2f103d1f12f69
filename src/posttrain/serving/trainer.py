"""One client's adapter: a learner (`training/learner.py`) whose gradients are computed in slices.

Shape letters: N targets of a packed row, flat; K targets of a token.
"""

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts
from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError, UserError
from posttrain.models.language_model import LanguageModel
from posttrain.serving.losses import Datum, Loss
from posttrain.training.checkpoint import load_tensors
from posttrain.training.learner import POLICY, Batch, Models, Share
from posttrain.training.local_learner import MASTERS, LocalLearner
from posttrain.training.optimizer import MasterAdamW

SHARED = 16  # tokens that neighbours must have in common to be computed once


class NotFinite(TrainingError):
    """Weights after a step that are not finite."""


@dataclass(frozen=True)
class AdamParams:
    """The settings of one optimiser step: AdamW, Loshchilov & Hutter 2017, arXiv 1711.05101."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in vars(self).values()):
            raise UserError(f"adam_params must be finite and not negative; got {vars(self)}")
        if self.beta1 >= 1 or self.beta2 >= 1:
            raise UserError(f"beta1 and beta2 must be below 1; got {self.beta1} and {self.beta2}")


@dataclass(frozen=True)
class Output:
    """What a forward pass gives a client: the sum of the losses, and the logprobs of each datum's targets."""

    loss: float
    logprobs: list[np.ndarray]


@dataclass(frozen=True)
class OfData:
    """A client's loss of some datums, as a learner takes it; keeps the logprobs of their targets."""

    data: Sequence[Datum]  # the datums, in the order of the batch's examples
    loss: Loss  # of their targets
    numbers: Sequence[int]  # the number of each in the client's request, for errors
    outputs: list[np.ndarray]  # get the logprobs of each
    reaches: ClassVar[tuple[str, ...]] = (POLICY,)
    extremes: ClassVar[tuple[str, ...]] = ()

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[LanguageModel]) -> Share:
        """A row's share."""
        place_targets(row, self.data)
        loss = loss_of_row(parts.model.logprobs(row).logprobs, row, self.data, self.loss, self.outputs)
        if loss.requires_grad and not math.isfinite(value := loss.item()):
            where = [self.numbers[example] for example in row.examples]
            raise TrainingError(f"the loss is {value} for the datums {where} of the batch; the weights are unchanged")
        return Share(loss, {})


class Trainer:
    """The base with an adapter (`model`), its optimiser and its learner. One thread at a time."""

    def __init__(self, model: LanguageModel, *, microbatch_tokens: int) -> None:
        self.model, self._microbatch_tokens = model, microbatch_tokens
        self.optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
        longest = max(microbatch_tokens, model.context)
        self.learner = LocalLearner(model, self.optimizer, microbatch_tokens=longest)

    def slices(self, data: Sequence[Datum], loss: Loss, *, backward: bool = True) -> Generator[None, None, Output]:
        """The loss of a batch; unless `backward` is off its gradient is added to what is there.

        Yields after each packed row but the last, and leaves everything to others until it goes on; the sums are
        those of one pass. If it raises, the gradient is what it was.
        """
        outputs: list[np.ndarray] = [np.empty(0)] * len(data)
        examples, total = sharing_prefixes(data), 0.0
        most = max(self._microbatch_tokens, *(len(datum.tokens) for datum in data))
        rows = [row.examples for row in pack(examples, most)]
        with self.all_or_nothing() if backward else contextlib.nullcontext():
            for place, numbers in enumerate(rows):
                if place:
                    yield
                part = OfData([data[number] for number in numbers], loss, numbers, [np.empty(0)] * len(numbers))
                batch = Batch([examples[number] for number in numbers], Counts(len(numbers), 0))
                learn = self.learner.forward_backward if backward else self.learner.forward
                total += learn(batch, part)["loss"]
                for number, found in zip(numbers, part.outputs, strict=True):
                    outputs[number] = found
        return Output(total, outputs)

    def forward_backward(self, data: Sequence[Datum], loss: Loss, *, backward: bool = True) -> Output:
        """All slices of a batch at once."""
        return finished(self.slices(data, loss, backward=backward))

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Put the gradient back if the block fails, whose first rows may have added theirs."""
        masters = self.optimizer.masters
        before = [None if master.grad is None else master.grad.clone() for master in masters]
        try:
            yield
        except BaseException:
            for master, grad in zip(masters, before, strict=True):
                master.grad = grad
            raise

    def optim_step(self, adam: AdamParams) -> dict[str, float]:
        """One step of AdamW on the gradient so far, which is then gone.

        If the gradient is not finite, no weight has changed; after `NotFinite` this trainer is of no use any more.
        """
        for group in self.optimizer.adam.param_groups:
            group |= {"betas": (adam.beta1, adam.beta2), "eps": adam.eps, "weight_decay": adam.weight_decay}
        self.optimizer.max_grad_norm = adam.grad_clip_norm or math.inf
        norm = self.learner.optim_step({POLICY: adam.learning_rate})["grad_norm"]
        if not all(bool(master.isfinite().all()) for master in self.optimizer.masters):
            raise NotFinite(f"a step with the learning rate {adam.learning_rate:g} gives weights that are not finite")
        return {"grad_norm:mean": norm}

    def weights(self) -> dict[str, Tensor]:
        """The adapter's weights by name."""
        return dict(self.optimizer.named_masters())

    def restore(self, folder: Path, *, optimizer: bool = True) -> None:
        """Take what `learner.save` has written, or nothing if it raises; without `optimizer` moments are forgotten."""
        if optimizer:
            self.learner.restore(folder)
        else:
            self.optimizer.load_masters(load_tensors(folder / MASTERS))
            self.optimizer.discard()
            self.optimizer.adam.state.clear()


T = TypeVar("T")


def finished(work: Generator[None, None, T]) -> T:
    """What work in slices returns, done at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def sharing_prefixes(data: Sequence[Datum]) -> list[Example]:
    """Each sequence as an example; neighbours that begin alike share a prefix, at most all but the last token."""
    shared = [_alike(a.tokens, b.tokens) for a, b in pairwise(data)]
    prefixes: list[int] = []
    while len(prefixes) < len(data):
        first = number = len(prefixes)
        length = 0
        while number < len(shared):
            common = min(length or shared[number], shared[number])
            if common < SHARED or (length and common < length // 2):  # one that shares little would cost the others
                break
            length, number = common, number + 1
        prefixes += [length] * (number - first + 1)
    return [
        Example(datum.tokens[:at], datum.tokens[at:], (False,) * (len(datum.tokens) - at))
        for datum, at in zip(data, prefixes, strict=True)
    ]


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that both begin with, without the last of either."""
    most = min(len(a), len(b)) - 1
    return next((i for i in range(most) if a[i] != b[i]), most)


def place_targets(row: PackedRow, data: Sequence[Datum]) -> None:
    """Let every token predict its targets, which need not be what follows; a shared prefix does so for each datum."""
    row.sources, row.targets, row.rows = [], [], []
    numbers, at = iter(row.examples), 0
    for prefix, lengths in row.families:
        begins = accumulate(lengths[:-1], initial=at + prefix)
        for begin, length in zip(begins, lengths, strict=True):
            number = next(numbers)
            places = np.array([*range(at, at + prefix), *range(begin, begin + length)])
            targets = data[number].targets
            row.sources += np.repeat(places, targets.size // len(places)).tolist()
            row.targets += targets.ravel().tolist()
            row.rows += [number] * targets.size
        at += prefix + sum(lengths)


def loss_of_row(
    logprobs_N: Tensor, row: PackedRow, data: Sequence[Datum], loss: Loss, outputs: list[np.ndarray]
) -> Tensor:
    """The loss of a row's targets; their logprobs are put into the `outputs` of their datums."""
    sizes = [data[example].targets.size for example in row.examples]
    for example, part in zip(row.examples, logprobs_N.detach().cpu().split(sizes), strict=True):
        outputs[example] = part.float().numpy().reshape(data[example].targets.shape)
    row_N = torch.tensor(row.rows, dtype=torch.long, device=logprobs_N.device)
    columns: dict[str, Tensor] = {}
    for name in data[row.examples[0]].columns:
        flat = np.concatenate([data[number].columns[name].ravel() for number in row.examples])
        columns[name] = torch.from_numpy(flat).to(logprobs_N)
    return loss.of_row(logprobs_N, columns, row_N)
