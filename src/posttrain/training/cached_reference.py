"""Cached reference logprobs: a reference without a second model in memory."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from posttrain.data.packing import Example, pack
from posttrain.training.learner import Column, Learner

Key = tuple[tuple[int, ...], int]  # the tokens of a sequence, and how many of them are learned


class CachedLogprobs:
    """Precomputed logprobs of sequences."""

    def __init__(self, kept: Mapping[Key, Sequence[float]]) -> None:
        self._kept = kept

    def __call__(self, examples: Sequence[Example]) -> Column:
        """Of each example's learned tokens, at temperature 1; raises `KeyError` for one not precomputed."""
        return [self._kept[_key(example)] for example in examples]


def remember(
    learner: Learner,
    batches: Iterable[Sequence[Example]],
    *,
    microbatch_tokens: int,
    together: int,
    on_batch: Callable[[int], None] = lambda done: None,
) -> CachedLogprobs:
    """Precompute the reference logprobs of all training sequences with a learner's current policy.

    The batches are those of training, in order, so that rows are packed identically and the results do not depend on
    where a run is resumed. A repeated sequence is computed once; a row of only cached sequences is skipped.

    Args:
        learner: its policy must not have been updated yet.
        batches: sequences of each.
        microbatch_tokens: of one row, at most.
        together: number of consecutive sequences that must be in one row (`pack`).
        on_batch: called with the number of finished batches.
    """
    kept: dict[Key, Sequence[float]] = {}
    for done, batch in enumerate(batches, 1):
        for row in pack(batch, microbatch_tokens, together=together):
            examples = [batch[number] for number in row.examples]
            if any(_key(example) not in kept for example in examples):
                for example, found in zip(examples, learner.logprobs(examples, together=together), strict=True):
                    kept.setdefault(_key(example), array("d", found))
        on_batch(done)
    return CachedLogprobs(kept)


def _key(example: Example) -> Key:
    return (*example.prefix, *example.continuation), sum(example.learned)
