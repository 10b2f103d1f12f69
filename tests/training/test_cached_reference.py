"""A reference that is remembered says what the policy said before training, to the last bit."""

import pytest
import torch

from posttrain.algorithms.dpo import DPO
from posttrain.data.packing import Example, Pair, pack
from posttrain.models.reference import FrozenCopy
from posttrain.training.preference import examples_of, remember
from tests.tiny import tiny_llama
from tests.training.steps import PreferenceSteps, learner_of


def pair(prefix, chosen, rejected):
    return Pair(*(Example(prefix, said, (True,) * len(said)) for said in (chosen, rejected)))


PAIRS = [
    pair((5, 9, 3), (4, 8, 1), (7, 1)),
    pair((7, 2), (11, 1), (30, 31, 32, 1)),
    pair((7, 2), (21, 1), (11, 1)),  # a response that was met before, in another pair
    pair((8,), (4, 8, 1), (7, 1)),  # responses that were met before, to another prompt
]
BATCHES = [PAIRS[:2], PAIRS[2:], [PAIRS[0], PAIRS[3]]]


def remembered(model, batches, *, tokens=14, together=2, **options):
    learner = learner_of(model, microbatch_tokens=tokens)
    return remember(learner, batches, microbatch_tokens=tokens, together=together, **options)


def by_token(found, examples):
    return [value for values in found(examples) for value in values]


def said(model, examples):
    return [value for row in pack(examples, 100) for value in model.logprobs(row).logprobs.tolist()]


def test_training_beside_it_is_training_beside_a_copy():
    runs = []
    for kind in ("remembered", "copied"):
        model = tiny_llama()
        known = remembered(model, [examples_of(batch) for batch in BATCHES]) if kind == "remembered" else None
        copied = FrozenCopy(model) if kind == "copied" else None
        steps = PreferenceSteps(model, DPO(), copied, remembered=known, microbatch_tokens=14)
        runs.append([steps.step(batch, lr=0.01) for batch in BATCHES])
    # what comes again is taken from the row in which it was first, whose rounding may be another
    assert runs[0][0] == runs[1][0]
    for found, expected in zip(*runs, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_sequence_that_comes_again_is_computed_once_and_one_by_other_tokens_is_another():
    model, asked = tiny_llama(), []
    right = model.logprobs
    model.logprobs = lambda row, *more: asked.append(row) or right(row, *more)
    told = []
    found = remembered(model, [examples_of(b) for b in (*BATCHES, *BATCHES)], on_batch=told.append)
    assert told == [1, 2, 3, 4, 5, 6]
    assert sum(len(row.examples) for row in asked) == 8  # of the third batch all is known
    for one in PAIRS:
        assert by_token(found, one) == pytest.approx(said(model, one), rel=1e-4, abs=1e-5)


def test_what_was_said_first_is_kept():
    model, calls = tiny_llama(), []
    right = model.logprobs

    def drifting(row, *more):
        calls.append(row)
        found = right(row, *more)
        return found._replace(logprobs=found.logprobs + 100 * len(calls))

    model.logprobs = drifting
    found = remembered(model, [examples_of(PAIRS[:1]), examples_of(PAIRS[:2])], tokens=100)
    assert max(by_token(found, PAIRS[0])) < 101 < min(by_token(found, PAIRS[1]))


def test_it_stays_what_it_was_first():
    model = tiny_llama()
    first = remembered(model, [examples_of(PAIRS[:1])])
    before = by_token(first, PAIRS[0])
    with torch.no_grad():
        model.head.add_(0.1)
    assert by_token(first, PAIRS[0]) == before != said(model, PAIRS[0])


def test_what_was_not_asked_for_in_time_is_an_error():
    found = remembered(tiny_llama(), [examples_of(PAIRS[:1])])
    with pytest.raises(KeyError):
        found(PAIRS[1])


def test_masks_of_one_text_are_told_apart():
    whole, part = Example((5,), (4, 8, 1), (True,) * 3), Example((5,), (4, 8, 1), (False, True, True))
    model = tiny_llama()
    found = remembered(model, [[whole], [part]], together=1)
    for example in (whole, part):
        assert by_token(found, [example]) == pytest.approx(said(model, [example]), rel=1e-6)
