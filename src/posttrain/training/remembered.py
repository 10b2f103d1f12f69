"""What the policy said before training, kept: a reference that takes no second model.

Shape letters: N learned tokens of a packed row.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.models.language_model import LanguageModel

Key = tuple[tuple[int, ...], int]  # the tokens of a sequence, and how many of them are learned


class Remembered:
    """The logprobs of sequences that were asked for in time; conforms to `policy_batch.Reference`."""

    def __init__(self, kept: dict[Key, Tensor]) -> None:
        self._kept = kept

    def logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        """Logprobs of a row's learned tokens at temperature 1, [N]; raises `KeyError` for a sequence not asked for."""
        assert temperature == 1, "remembered at temperature 1"
        return torch.cat([self._kept[key] for key in _keys(row)])


@torch.no_grad()
def remember(
    model: LanguageModel,
    batches: Iterable[Sequence[Example]],
    *,
    microbatch_tokens: int,
    together: int,
    on_batch: Callable[[int], None] = lambda done: None,
) -> Remembered:
    """Ask a model, as it is now, for the logprobs of everything that it will be compared with.

    The batches are those of training, in order, so that rows are cut alike and a number does not depend on where a run
    is resumed. A sequence that comes again is computed once; a row of which all is known is not computed.

    Args:
        model: the policy before its first update.
        batches: sequences of each.
        microbatch_tokens: of one row, at most.
        together: how many sequences that follow each other must be in one row (`pack`).
        on_batch: told how many batches are done.
    """
    kept: dict[Key, Tensor] = {}
    for done, batch in enumerate(batches, 1):
        for row in pack(batch, microbatch_tokens, together=together):
            keys = _keys(row)
            if any(key not in kept for key in keys):
                found = model.logprobs(row).logprobs.split([learned for _, learned in keys])
                for key, part in zip(keys, found, strict=True):
                    kept.setdefault(key, part.clone())
        on_batch(done)
    return Remembered(kept)


def _keys(row: PackedRow) -> list[Key]:
    """Of each sequence, in the order of `row.examples`."""
    learned = dict.fromkeys(row.examples, 0)
    for number in row.rows:
        learned[number] += 1
    return list(zip(row.sequences(), learned.values(), strict=True))
