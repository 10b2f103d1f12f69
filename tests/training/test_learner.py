"""The learner in this process keeps to the kit, and the kit notices learners that do not."""

import gc
import inspect
import weakref
from dataclasses import replace

import pytest
import torch

from posttrain.models.critic import CRITICS
from posttrain.models.lora import add_adapter
from posttrain.models.lora_config import Lora
from posttrain.models.reference import FrozenAdapter, FrozenCopy, FrozenModel
from posttrain.testing import learners
from posttrain.testing.learners import COUNTS, EXAMPLES, Interrupted, check_learner
from posttrain.training.learner import REFERENCE, TEACHER, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from tests.tiny import tiny_llama
from tests.violations import violations


def made(
    microbatch_tokens,
    *,
    dtype=torch.float32,
    adapter=None,
    critic="trunk",
    kind=LocalLearner,
    device="cpu",
    offload=False,
    **more,
):
    model, other, teacher = (tiny_llama(seed=seed, dtype=dtype) for seed in range(3))
    for each in (model, other, teacher):
        each.network.to(device)
    if adapter:
        model = add_adapter(model, adapter)
        with torch.no_grad():
            for _, p in model.trainable():
                p += 0.1
        reference = FrozenAdapter(model)
        for weights in reference.kept().values():
            weights.mul_(0.5)
    else:
        reference = FrozenCopy(other)
    found = CRITICS[critic](model)
    return kind(
        model,
        MasterAdamW(model.trainable(), max_grad_norm=1e9, offload=offload),
        microbatch_tokens=microbatch_tokens,
        critic=(found, MasterAdamW(found.parameters(), offload=offload)),
        references={REFERENCE: reference, TEACHER: FrozenModel(teacher)},
        renewed=True,
        **more,
    )


@pytest.mark.parametrize("critic", ["trunk", "own"])
def test_the_learner_of_this_process_keeps_to_the_kit(critic, tmp_path):
    check_learner(lambda tokens: made(tokens, critic=critic), tmp_path)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_so_it_does_with_an_adapter(dropout, tmp_path):
    pytest.importorskip("peft")
    check_learner(lambda tokens: made(tokens, adapter=Lora(2, dropout=dropout)), tmp_path)


def test_a_learner_is_freed_with_its_moments_without_the_garbage_collector(tmp_path):
    """A second one in the same process would otherwise be held beside it: 2 GB of a model of 135M parameters."""
    learner = made(64)
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    learner.restore(tmp_path / "saved")
    with pytest.raises(KeyboardInterrupt):
        learner.forward_backward(Batch(EXAMPLES, COUNTS), Interrupted())
    ref = weakref.ref(learner)
    gc.collect()
    gc.disable()
    try:
        del learner
        assert ref() is None
    finally:
        gc.enable()


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
        self._trained = replace(self._trained, critic=None)
        super().restore(folder)


class TeachesItself(LocalLearner):
    def logprobs(self, examples, model="policy", *, temperature=1.0, together=1):
        known = "policy" if model == "teacher" else model
        return super().logprobs(examples, known, temperature=temperature, together=together)


@pytest.mark.parametrize(
    "kind",
    [
        TeachesItself,
        CountsItself,
        Remembers,
        Forgets,
        StepsInForward,
        AtOne,
        OneRate,
        KeepsGradients,
        RestoresNoCritic,
    ],
)
def test_the_kit_notices(kind, tmp_path):
    assert violations(check_learner, lambda tokens: made(tokens, kind=kind), tmp_path)


def test_every_check_of_the_kit_is_run():
    found = {name for name, each in vars(learners).items() if {"make", "folder"} <= set(annotations_of(each))}
    assert found - {"check_learner"} == {check.__name__ for check in learners.CHECKS}


def annotations_of(each):
    return getattr(each, "__annotations__", {}) if inspect.isfunction(each) else {}
