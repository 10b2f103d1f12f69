"""Cached reference logprobs: a reference without a second model in memory."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from posttrain.data.packing import Example, pack
from posttrain.training.learner import Column, Learner

Key = tuple[tuple[int, ...], int]  # the tokens of a sequence, and how many of them are learned


class Remembered:
    """The logprobs of sequences that were asked for in time."""

    def __init__(self, kept: Mapping[Key, Sequence[float]]) -> None:
        self._kept = kept

    def __call__(self, examples: Sequence[Example]) -> Column:
        """Of each example's learned tokens, at temperature 1; raises `KeyError` for one not asked for."""
        return [self._kept[_key(example)] for example in examples]


def remember(
    learner: Learner,
    batches: Iterable[Sequence[Example]],
    *,
    microbatch_tokens: int,
    together: int,
    on_batch: Callable[[int], None] = lambda done: None,
) -> Remembered:
    """Ask a learner's policy, as it is now, for the logprobs of everything that it will be compared with.

    The batches are those of training, in order, so that rows are cut alike and a number does not depend on where a run
    is resumed. A sequence that comes again is computed once; a row of which all is known is not computed.

    Args:
        learner: whose policy has had no update yet.
        batches: sequences of each.
        microbatch_tokens: of one row, at most.
        together: how many sequences that follow each other must be in one row (`pack`).
        on_batch: told how many batches are done.
    """
    kept: dict[Key, Sequence[float]] = {}
    for done, batch in enumerate(batches, 1):
        for row in pack(batch, microbatch_tokens, together=together):
            examples = [batch[number] for number in row.examples]
            if any(_key(example) not in kept for example in examples):
                for example, found in zip(examples, learner.logprobs(examples, together=together), strict=True):
                    kept.setdefault(_key(example), array("d", found))
        on_batch(done)
    return Remembered(kept)


def _key(example: Example) -> Key:
    return (*example.prefix, *example.continuation), sum(example.learned)
