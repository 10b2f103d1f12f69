"""The learner in this process keeps to the kit, and the kit notices learners that do not."""

import gc
import weakref

import pytest
import torch

from posttrain.models.lora import Lora, add_adapter
from posttrain.models.reference import Critic, FrozenAdapter, FrozenCopy, Reference
from posttrain.testing.learners import COUNTS, EXAMPLES, Interrupted, check_learner
from posttrain.training.learner import CRITIC, REFERENCE, TEACHER, Batch
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from tests.tiny import tiny_llama


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
    teacher.network.requires_grad_(False)
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
    found = Critic(model, own=critic == "own")
    return kind(
        model,
        MasterAdamW(model.trainable(), max_grad_norm=1e9, offload=offload),
        microbatch_tokens=microbatch_tokens,
        beside={CRITIC: (found, MasterAdamW(found.parameters(), offload=offload))},
        references={REFERENCE: reference, TEACHER: Reference(teacher)},
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
