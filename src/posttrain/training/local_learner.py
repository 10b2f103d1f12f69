"""The in-process learner.

Shape letters: N learned tokens of a packed row, E its sequences.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import TrainingError
from posttrain.models.language_model import LanguageModel
from posttrain.models.reference import Reference
from posttrain.options.groups import TrainingOptions
from posttrain.training.adam import optimizer_state, restore_optimizer
from posttrain.training.learner import CRITIC, POLICY, REFERENCE, Batch, Loss, Means, Models
from posttrain.training.microbatch import accumulate_gradients, by_example
from posttrain.training.optimizer import MasterAdamW, optimizer_for
from posttrain.training.ranks import ALONE, Ranks, Shards, over, together

M = TypeVar("M")
OPTIMIZER, ABOUT, MASTERS = "optimizer.safetensors", "optimizer.json", "masters.safetensors"
RENEWED = "reference.safetensors"


def prefix_of(part: str) -> str:
    """How the names of a part's files in a checkpoint begin."""
    return "" if part == POLICY else f"{part}-"


class _Kept:
    """What a batch's first update computed, by key and tokens: a key used for two batches by mistake collides not.

    It does not know its learner: a cycle would keep a learner's moments in memory until the garbage collector runs.
    """

    def __init__(self) -> None:
        self.begin("")

    def begin(self, key: str) -> None:
        """Forget all, for a batch of this key."""
        self.key, self._found = key, dict[tuple[str, int, tuple[int, ...]], Tensor]()

    def keep(self, name: str, row: PackedRow, compute: Callable[[], Tensor]) -> Tensor:
        """See `Models.keep`."""
        place = (name, row.examples[0], tuple(row.token_ids))
        if place not in self._found:
            self._found[place] = compute()
        return self._found[place]


class LocalLearner(Generic[M]):
    """Conforms to `learner.Learner`; `model` is trained, and `body` is that language model or its trunk."""

    def __init__(
        self,
        model: M,
        optimizer: MasterAdamW,
        *,
        microbatch_tokens: int,
        body: LanguageModel | None = None,
        beside: Mapping[str, tuple[Any, MasterAdamW]] | None = None,
        references: Mapping[str, Reference] | None = None,
        renewed: bool = False,
        save_model: Callable[[Path], None] = lambda folder: None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Create a learner from its parts.

        Models `beside` it are trained, too: each has the optimiser of its own parameters. Losses use these, and the
        frozen model `reference` of `references`; `logprobs` any. One that is `renewed` in training is
        saved with checkpoints, for which `save_model` writes the model folder. Each of the `ranks` has parts of its own
        that are alike; sharded ranks shard them here, and hold them in full until then.
        """
        self.model = model
        self.body: Any = model if body is None else body
        self._beside = {part: made for part, (made, _) in (beside or {}).items()}
        self._optimizers = {POLICY: optimizer, **{part: own for part, (_, own) in (beside or {}).items()}}
        self._save_model = save_model
        self._references = references or {}
        self._microbatch_tokens, self._ranks = microbatch_tokens, ranks
        self._kept = _Kept()
        reference = self._references.get(REFERENCE)
        self._parts = Models(model, self._beside, reference, self._kept.keep, self._references)
        self._parts_once = replace(self._parts, keep=lambda name, row, compute: compute())  # nothing is kept
        read = [*self._beside.values(), *self._references.values()]
        self._renewed = reference if renewed else None
        self._shards: Shards = ranks.shard(chain([self.body], (part.body for part in read)), self._optimizers.values())
        self._read = partial(by_example, microbatch_tokens=microbatch_tokens, ranks=ranks, shards=self._shards)
        for each in self._optimizers.values():
            each.allocate()

    @torch.no_grad()
    def forward(self, batch: Batch, loss: Loss[M]) -> dict[str, float]:
        """As in `Learner`."""
        known = bool(batch.key) and batch.key == self._kept.key
        parts = self._parts if known else self._parts_once

        def share_of(row: PackedRow, weight: float) -> tuple[float, Mapping[str, Tensor]]:
            share = loss.of_row(row, batch, parts)
            return share.loss.item(), share.metrics

        rows = pack(batch.examples, self._microbatch_tokens, together=batch.together)
        seen, total = Means(loss.extremes), 0.0
        for value, metrics in over(rows, share_of, self._ranks, self._shards).values():
            seen.add(metrics)
            total += value
        return {"loss": total, **seen.summary()}

    def logprobs(
        self, examples: Sequence[Example], model: str = POLICY, *, temperature: float = 1.0, together: int = 1
    ) -> list[tuple[float, ...]]:
        """As in `Learner`."""
        other = None if model == POLICY else {**self._references, **self._beside}[model]

        def of_row(row: PackedRow) -> Tensor:
            if other is None:
                return self.body.logprobs(row, temperature).logprobs
            return other.logprobs(row, temperature)

        with self.body.dropping(None):
            return self._read(examples, of_row, together=together)

    def values(self, examples: Sequence[Example], model: str = CRITIC) -> list[tuple[float, ...]]:
        """As in `Learner`."""
        assert model in self._beside, f"this learner has no {model}"
        with self.body.dropping(None):
            return self._read(examples, self._beside[model].values)

    def scores(self, examples: Sequence[Example], *, seed: int | None = None) -> list[tuple[float, ...]]:
        """As in `Learner`."""
        model: Any = self._parts.model
        scores = model.scores if getattr(model, "length_head", None) is None else model.scores_and_length
        with self.body.dropping(seed):
            return self._read(examples, scores)

    def forward_backward(self, batch: Batch, loss: Loss[M]) -> dict[str, float]:
        """As in `Learner`."""
        if batch.key and batch.key != self._kept.key:
            self._kept.begin(batch.key)
        parts = self._parts if batch.key else self._parts_once
        first, *beside = (self._optimizers[part] for part in loss.reaches if part in self._optimizers)
        try:
            with self.body.dropping(batch.seed if POLICY in loss.reaches else None):
                total, of_rows = accumulate_gradients(
                    first,
                    batch.examples,
                    lambda row: loss.of_row(row, batch, parts),
                    microbatch_tokens=self._microbatch_tokens,
                    together=batch.together,
                    beside=beside,
                    ranks=self._ranks,
                    shards=self._shards,
                )
        except BaseException:
            self._discard()
            raise
        seen = Means(loss.extremes)
        for metrics in of_rows:
            seen.add(metrics)
        return {"loss": total, **seen.summary()}

    def optim_step(self, rates: Mapping[str, float]) -> dict[str, float]:
        """As in `Learner`."""
        try:
            for part in rates:
                self._optimizers[part].add_up(self._ranks)
            norms = {part: self._optimizers[part].finite_norm() for part in rates}
        except TrainingError:
            self._discard()
            raise
        for part, rate in rates.items():
            self._optimizers[part].step(rate, norm=norms[part])
        return {"grad_norm" if part == POLICY else f"{part}_grad_norm": norm for part, norm in norms.items()}

    def copy(self, source: str, target: str) -> None:
        """As in `Learner`."""
        assert source == POLICY, "only the policy can be copied"
        self._references[target].renew(dict(self.body.trainable()))

    def weights(self) -> list[tuple[str, Tensor]]:
        """The policy's trained weights by name, in full (`Shards.full_tensors`); all ranks call this."""
        found: list[tuple[str, Tensor]] = []
        together(lambda: found.extend(self._shards.full_tensors(self.body.trainable())), self._ranks)
        return found

    def save(self, folder: Path) -> None:
        """As in `Learner`: a model folder that can be loaded, evaluated and served directly, and what resuming needs.

        Every random choice is a function of the seed and the step (data/order.py): there is no random state to keep.
        """
        together(lambda: self._save(folder, writes=self._ranks.rank == 0), self._ranks)  # all ranks have the same

    def _save(self, folder: Path, *, writes: bool) -> None:
        with self._shards.unsharded(self.body.network, folder):
            if writes:
                self._save_model(folder)
        if self._renewed is not None and (weights := self._renewed.kept()):
            self._shards.save(folder / RENEWED, weights, writes=writes)
        for part, optimizer in self._optimizers.items():
            masters = optimizer.named_masters()
            self._shards.save(folder / (prefix_of(part) + MASTERS), masters, writes=writes)
            tensors, about = optimizer_state(optimizer.adam, masters)
            self._shards.save(folder / (prefix_of(part) + OPTIMIZER), tensors, writes=writes)
            if writes:
                (folder / (prefix_of(part) + ABOUT)).write_text(json.dumps(about), encoding="utf-8")

    def restore(self, folder: Path) -> None:
        """As in `Learner`."""
        together(lambda: self._restore(folder), self._ranks)
        self._discard()
        self._kept.begin("")

    def _restore(self, folder: Path) -> None:
        for part, optimizer in self._optimizers.items():
            masters = optimizer.named_masters()
            about: dict[str, Any] = json.loads((folder / (prefix_of(part) + ABOUT)).read_text(encoding="utf-8"))
            tensors = self._shards.load(folder / (prefix_of(part) + OPTIMIZER), masters)  # first: it may not be there
            optimizer.load_masters(self._shards.load(folder / (prefix_of(part) + MASTERS), masters))
            restore_optimizer(optimizer.adam, masters, tensors, about, self._shards)
        if self._renewed is not None:
            own = self._renewed.kept()
            saved = self._shards.load(folder / RENEWED, own)
            self._renewed.renew({name: self._shards.shard_like(saved[name], mine) for name, mine in own.items()})

    def _discard(self) -> None:
        """Of all calls and parts, so that no step uses a partial gradient."""
        for optimizer in self._optimizers.values():
            optimizer.discard()


def learner_for(
    options: TrainingOptions,
    model: M,
    save_model: Callable[[Path], None],
    *,
    body: LanguageModel | None = None,
    **parts: Any,
) -> LocalLearner[M]:
    """A learner with the optimiser that the options name (`optimizer_for`); `parts` as those of `LocalLearner`."""
    trained: Any = model
    read_by: LanguageModel = trained if body is None else body
    optimizer = optimizer_for(options, trained.trainable(), embedding=read_by.embedding)
    most = options.microbatch_tokens
    return LocalLearner(model, optimizer, microbatch_tokens=most, body=body, save_model=save_model, **parts)
