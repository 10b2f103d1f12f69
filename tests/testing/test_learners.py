"""The kit itself: each fault that it looks for, planted in a learner, and found."""

import inspect
import random
from dataclasses import replace

import pytest

from posttrain.testing import check_learner, learners
from posttrain.training.local_learner import LocalLearner
from tests.training.test_learner import made
from tests.violations import violations


class CountsItself(LocalLearner):
    def forward_backward(self, batch, loss):
        return super().forward_backward(replace(batch, counts=batch.counts._replace(tokens=len(batch.examples))), loss)


class Remembers(LocalLearner):
    def forward_backward(self, batch, loss):
        return super().forward_backward(replace(batch, key="always"), loss)


class Forgets(LocalLearner):
    def forward_backward(self, batch, loss):
        return super().forward_backward(replace(batch, key=""), loss)


class StepsInForward(LocalLearner):
    def forward(self, batch, loss):
        return self.forward_backward(batch, loss)


class AtOne(LocalLearner):
    def logprobs(self, examples, model="policy", *, temperature=1.0, together=1):
        return super().logprobs(examples, model, together=together)


class OneRate(LocalLearner):
    def optim_step(self, rates):
        return super().optim_step(dict.fromkeys(("policy", "critic"), next(iter(rates.values()))))


class KeepsGradients(LocalLearner):
    def forward_backward(self, batch, loss):
        optimizer = self._optimizers["policy"]
        optimizer.discard = lambda: None
        try:
            return super().forward_backward(batch, loss)
        finally:
            del optimizer.discard


class RestoresNoCritic(LocalLearner):
    def restore(self, folder):
        all_parts = self._optimizers
        self._optimizers = {"policy": all_parts["policy"]}
        super().restore(folder)
        self._optimizers = all_parts


class TeachesItself(LocalLearner):
    def logprobs(self, examples, model="policy", *, temperature=1.0, together=1):
        known = "policy" if model == "teacher" else model
        return super().logprobs(examples, known, temperature=temperature, together=together)


class AveragesMicrobatches(LocalLearner):
    """Divides by the number of its micro-batches, as a mean over them would."""

    def __init__(self, *args, microbatch_tokens, **options):
        super().__init__(*args, microbatch_tokens=microbatch_tokens, **options)
        self.parts = 1 if microbatch_tokens > 100 else 3

    def forward_backward(self, batch, loss):
        sequences, tokens, longest = batch.counts
        counts = batch.counts._replace(sequences=self.parts * sequences, tokens=self.parts * tokens, longest=longest)
        return super().forward_backward(replace(batch, counts=counts), loss)


class LearnsFromNothing(LocalLearner):
    def forward_backward(self, batch, loss):
        found = super().forward_backward(batch, loss)
        return found if batch.examples else found | {"loss": 1.0}


class CopiesNothing(LocalLearner):
    def copy(self, source, target):
        pass


class DropsAtRandom(LocalLearner):
    def forward_backward(self, batch, loss):
        found = super().forward_backward(batch, loss)
        noise = 0.0 if batch.seed is None else random.SystemRandom().random()
        return found | {"loss": found["loss"] + noise}


class Warms(LocalLearner):
    def logprobs(self, examples, model="policy", *, temperature=1.0, together=1):
        return super().logprobs(examples, model, temperature=temperature * 1.1, together=together)


FAULTS = [
    (learners.how_a_batch_is_cut_changes_nothing, AveragesMicrobatches, "cut into micro-batches, a batch has other"),
    (learners.several_calls_are_one_gradient, CountsItself, "the losses of two halves add up to"),
    (learners.forward_is_forward_backward_without_gradients, StepsInForward, "forward leaves a gradient behind"),
    (learners.the_loss_is_minus_the_mean_of_the_logprobs, Warms, "the logprobs say"),
    (learners.the_loss_is_minus_the_mean_of_the_logprobs, AtOne, "tokens are not all equally likely"),
    (learners.old_logprobs_are_kept_by_key, Remembers, "against the policy before an earlier one"),
    (learners.old_logprobs_are_kept_by_key, Forgets, "is not measured against the policy before the first"),
    (learners.rates_are_of_each_part, OneRate, "a step of the critic tells"),
    (learners.what_is_not_finite_touches_nothing, KeepsGradients, "is left"),
    (learners.a_batch_without_examples_is_a_step_of_nothing, LearnsFromNothing, "a batch without examples has"),
    (learners.a_copy_renews_the_reference, CopiesNothing, "a reference that was renewed is not the policy"),
    (learners.a_restored_learner_goes_on_as_if_nothing_had_been, RestoresNoCritic, "goes on otherwise"),
    (learners.a_teacher_stays_and_reads_alike_in_every_cut, TeachesItself, "the teacher says what the policy says"),
    (learners.dropout_is_a_function_of_the_seed, DropsAtRandom, "by seeds 1, 1, 2 and none the loss is"),
]


@pytest.mark.parametrize(("rule", "kind", "said"), FAULTS)
def test_each_fault_is_found(rule, kind, said, tmp_path):
    assert said in "\n".join(rule(lambda tokens: made(tokens, kind=kind), tmp_path))


def test_the_kit_raises_what_its_rules_find():
    (found,) = violations(check_learner, lambda tokens: made(tokens, kind=Warms))
    assert "the logprobs say" in found


def test_every_check_of_the_kit_is_run():
    found = {name for name, each in vars(learners).items() if {"make", "folder"} <= set(annotations_of(each))}
    assert found - {"check_learner"} == {check.__name__ for check in learners.CHECKS}
    assert {rule for rule, _, _ in FAULTS} == set(learners.CHECKS)


def annotations_of(each):
    return getattr(each, "__annotations__", {}) if inspect.isfunction(each) else {}
