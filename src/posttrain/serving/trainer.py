"""One client's adapter: gradients, optimiser, state.

Shape letters: N targets of a packed row, flat; K targets of a token.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel
from posttrain.serving.datum import Datum
from posttrain.serving.losses import Columns, Loss
from posttrain.training.checkpoint import load_tensors, save_tensors
from posttrain.training.learner import Share
from posttrain.training.microbatch import accumulate_gradients
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.optimizer_state import optimizer_state, restore_optimizer

SHARED = 16  # tokens that neighbours must have in common to be computed once
WEIGHTS, MOMENTS, ABOUT = "masters.safetensors", "optimizer.safetensors", "optimizer.json"


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
        numbers = vars(self)
        if not all(math.isfinite(value) and value >= 0 for value in numbers.values()):
            raise UserError(f"adam_params must be finite and not negative; got {numbers}")
        if self.beta1 >= 1 or self.beta2 >= 1:
            raise UserError(f"beta1 and beta2 must be below 1; got {self.beta1} and {self.beta2}")


@dataclass(frozen=True)
class Output:
    """What a forward pass gives a client: the sum of the losses, and the logprobs of each datum's targets."""

    loss: float
    logprobs: list[np.ndarray]


class Trainer:
    """An adapter with its gradient and its optimiser. One thread at a time."""

    def __init__(self, model: LanguageModel, *, microbatch_tokens: int) -> None:
        self.model, self._microbatch_tokens = model, microbatch_tokens
        self.optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)

    def forward_backward(self, data: Sequence[Datum], loss: Loss, *, backward: bool = True) -> Output:
        """The loss of a batch; unless `backward` is off its gradient is added to what is there.

        If it raises, the gradient is what it was.

        Raises:
            TrainingError: the loss is not finite.
        """
        outputs: list[np.ndarray] = [np.empty(0)] * len(data)

        def of_row(row: PackedRow) -> Share:
            place_targets(row, data)
            return Share(loss_of_row(self.model.logprobs(row).logprobs, row, data, loss, outputs), {})

        examples = sharing_prefixes(data)
        most = max(self._microbatch_tokens, *(len(datum.tokens) for datum in data))
        if backward:
            with self.all_or_nothing():
                total, _ = accumulate_gradients(self.optimizer, examples, of_row, microbatch_tokens=most)
        else:
            with torch.no_grad():
                total = sum(of_row(row).loss.item() for row in pack(examples, most))
        return Output(total, outputs)

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

        Raises:
            TrainingError: the gradient is not finite. It is discarded, and no weight has changed.
        """
        for group in self.optimizer.adam.param_groups:
            group |= {"betas": (adam.beta1, adam.beta2), "eps": adam.eps, "weight_decay": adam.weight_decay}
        norm = self.optimizer.step(adam.learning_rate, max_grad_norm=adam.grad_clip_norm or math.inf)
        return {"grad_norm:mean": norm}

    def weights(self) -> dict[str, Tensor]:
        """The adapter's weights by name."""
        return dict(self.optimizer.named_masters())

    def save(self, folder: Path) -> None:
        """Write weights and moments."""
        save_tensors(folder / WEIGHTS, self.weights())
        tensors, about = optimizer_state(self.optimizer.adam, self.optimizer.named_masters())
        save_tensors(folder / MOMENTS, tensors)
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")

    def restore(self, folder: Path, *, optimizer: bool = True) -> None:
        """Take weights, and moments unless `optimizer` is off, which are else forgotten; as is the gradient.

        Raises:
            CheckpointError: they belong to another adapter, or cannot be read. Nothing has changed then.
        """
        about, moments = None, {}
        if optimizer:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            moments = load_tensors(folder / MOMENTS)
        self.optimizer.load_masters(load_tensors(folder / WEIGHTS))
        self.optimizer.discard()
        self.optimizer.adam.state.clear()
        if about is not None:
            restore_optimizer(self.optimizer.adam, self.optimizer.named_masters(), moments, about)


def sharing_prefixes(data: Sequence[Datum]) -> list[Example]:
    """Each sequence as an example; neighbours that begin alike, such as completions of one prompt, share a prefix.

    A prefix is at most all but the last token of a sequence. What is learned is decided by `place_targets`.
    """
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
    """Let every token of each datum predict its targets; those of a shared prefix do so once for each datum.

    Targets need not be the tokens that follow, and a token may have several.
    """
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
    return loss.of_row(logprobs_N, _columns(row, data, logprobs_N), row_N)


def _columns(row: PackedRow, data: Sequence[Datum], like: Tensor) -> Columns:
    """The columns of a row's targets, flat, in order."""
    names: Mapping[str, np.ndarray] = data[row.examples[0]].columns
    return {
        name: torch.from_numpy(np.concatenate([data[number].columns[name].ravel() for number in row.examples])).to(like)
        for name in names
    }
