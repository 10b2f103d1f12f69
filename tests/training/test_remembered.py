"""A reference that is remembered says what the policy said before training, to the last bit."""

import pytest
import torch

from posttrain.algorithms.dpo import DPO
from posttrain.data.packing import Example, Pair, pack
from posttrain.models.reference import FrozenCopy
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.pairwise import examples_of, pairwise_step, preference_loss
from posttrain.training.remembered import remember
from tests.tiny import tiny_llama


def pair(prefix, chosen, rejected):
    return Pair(*(Example(prefix, said, (True,) * len(said)) for said in (chosen, rejected)))


PAIRS = [
    pair((5, 9, 3), (4, 8, 1), (7, 1)),
    pair((7, 2), (11, 1), (30, 31, 32, 1)),
    pair((7, 2), (21, 1), (11, 1)),  # a response that was met before, in another pair
    pair((8,), (4, 8, 1), (7, 1)),  # responses that were met before, to another prompt
]
BATCHES = [PAIRS[:2], PAIRS[2:], [PAIRS[0], PAIRS[3]]]
OPTIONS = {"microbatch_tokens": 14, "together": 2}


def test_training_beside_it_is_training_beside_a_copy():
    runs = []
    for kind in ("remembered", "copied"):
        model = tiny_llama()
        reference = (
            remember(model, [examples_of(batch) for batch in BATCHES], **OPTIONS)
            if kind == "remembered"
            else FrozenCopy(model)
        )
        optimizer = MasterAdamW(model.trainable())
        loss_of = preference_loss(model, DPO(), reference)
        runs.append([pairwise_step(optimizer, b, loss_of, lr=0.01, microbatch_tokens=14) for b in BATCHES])
    # what comes again is taken from the row in which it was first, whose rounding may be another
    assert runs[0][0] == runs[1][0]
    for found, expected in zip(*runs, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_sequence_that_comes_again_is_computed_once_and_one_by_other_tokens_is_another():
    model, asked = tiny_llama(), []
    right = model.logprobs
    model.logprobs = lambda row, *more: asked.append(row) or right(row, *more)
    told = []
    found = remember(model, [examples_of(b) for b in (*BATCHES, *BATCHES)], **OPTIONS, on_batch=told.append)
    assert told == [1, 2, 3, 4, 5, 6]
    assert sum(len(row.examples) for row in asked) == 8  # of the third batch all is known
    for one in PAIRS:
        (row,) = pack(examples_of([one]), 100, together=2)
        torch.testing.assert_close(found.logprobs(row, 1.0), right(row).logprobs.detach(), rtol=1e-4, atol=1e-5)
        assert not found.logprobs(row, 1.0).requires_grad


def test_what_was_said_first_is_kept():
    model, calls = tiny_llama(), []
    right = model.logprobs

    def drifting(row, *more):
        calls.append(row)
        found = right(row, *more)
        return found._replace(logprobs=found.logprobs + 100 * len(calls))

    model.logprobs = drifting
    found = remember(model, [examples_of(PAIRS[:1]), examples_of(PAIRS[:2])], microbatch_tokens=100, together=2)
    rows = [pack(examples_of([one]), 100, together=2)[0] for one in PAIRS[:2]]
    assert found.logprobs(rows[0], 1.0).max() < 101 < found.logprobs(rows[1], 1.0).min()


def test_it_stays_what_it_was_first():
    model = tiny_llama()
    first = remember(model, [examples_of(PAIRS[:1])], **OPTIONS)
    (row,) = pack(examples_of(PAIRS[:1]), 100, together=2)
    before = first.logprobs(row, 1.0).clone()
    with torch.no_grad():
        model.head.add_(0.1)
    assert torch.equal(first.logprobs(row, 1.0), before)


def test_what_was_not_asked_for_in_time_is_an_error():
    found = remember(tiny_llama(), [examples_of(PAIRS[:1])], **OPTIONS)
    (row,) = pack(examples_of(PAIRS[1:2]), 100, together=2)
    with pytest.raises(KeyError):
        found.logprobs(row, 1.0)
    with pytest.raises(AssertionError, match="temperature 1"):
        found.logprobs(row, 0.5)


def test_masks_of_one_text_are_told_apart():
    whole, part = Example((5,), (4, 8, 1), (True,) * 3), Example((5,), (4, 8, 1), (False, True, True))
    model = tiny_llama()
    found = remember(model, [[whole], [part]], microbatch_tokens=14, together=1)
    for example in (whole, part):
        (row,) = pack([example], 100)
        torch.testing.assert_close(found.logprobs(row, 1.0), model.logprobs(row).logprobs.detach())
