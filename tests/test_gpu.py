"""What is proven on a CPU holds on a GPU: the sampler conforms, updates are the same, also with host memory."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from posttrain.engine.engine import check_engine
from posttrain.models.lora import Lora
from posttrain.testing.learners import EXAMPLES, check_learner
from posttrain.training.learner import POLICY
from posttrain.training.policy import policy_batch
from posttrain.training.supervised import NLL, supervised_batch
from tests.engine.test_transformers import subject
from tests.tiny import tiny_llama
from tests.training.test_learner import made
from tests.training.test_policy import NO_KL, difference, gradient, groups

pytestmark = pytest.mark.gpu


@pytest.fixture
def on_gpu():
    model = tiny_llama()
    model.network.to("cuda")
    return model


@pytest.mark.parametrize("slots", [2, 128])
def test_the_sampler_conforms(on_gpu, slots):
    assert check_engine(subject(on_gpu, max_sequences=slots)) == []


@pytest.mark.parametrize("tokens", [9, 1000])
def test_a_policy_gradient_is_that_of_the_cpu(on_gpu, tokens):
    batch, _ = policy_batch(groups(), NO_KL)
    expected, metrics = gradient(tiny_llama(), NO_KL, batch)
    found, there = gradient(on_gpu, NO_KL, batch, tokens=tokens)
    assert difference({name: g.cpu() for name, g in found.items()}, expected) < 1e-5
    assert there == pytest.approx(metrics, rel=1e-4, abs=1e-5)


FORMATS = [torch.float32, torch.bfloat16]
APART = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""How far apart logprobs after some updates may be: both round alike but for AdamW's own arithmetic."""


def on_device(tokens, **more):
    return made(tokens, device="cuda", **more)


def updated(learner, updates=4):
    """Losses, and the logprobs after some updates of several micro-batches each."""
    losses = []
    for _ in range(updates):
        losses.append(learner.forward_backward(supervised_batch(EXAMPLES), NLL())["loss"])
        learner.optim_step({POLICY: 1e-3})
    return [*losses, *(x for values in learner.logprobs(EXAMPLES) for x in values)]


def state_of(learner):
    """Masters and moments of what is trained."""
    optimizer = learner._optimizers[POLICY]
    for master in optimizer.masters:
        yield master
        yield from (optimizer.adam.state[master][moment] for moment in ("exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize(("critic", "adapter"), [("own", None), ("trunk", Lora(2, dropout=0.5))])
def test_a_learner_with_its_optimizer_in_host_memory_keeps_to_the_kit(critic, adapter, tmp_path):
    check_learner(lambda n: on_device(n, critic=critic, adapter=adapter, offload=True), tmp_path)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("adapter", [None, Lora(2)])
def test_an_optimizer_in_host_memory_updates_as_one_on_the_gpu(dtype, adapter):
    here, there = (on_device(12, dtype=dtype, adapter=adapter, offload=offload) for offload in (False, True))
    assert updated(there) == pytest.approx(updated(here), rel=APART[dtype], abs=APART[dtype])
    assert {tensor.device.type for tensor in state_of(there)} == {"cpu"}
    assert {weight.device.type for _, weight in there.body.trainable()} == {"cuda"}


def test_a_checkpoint_goes_on_with_its_optimizer_elsewhere(tmp_path):
    here, there = (on_device(12, dtype=torch.bfloat16, offload=offload) for offload in (False, True))
    updated(here)
    here.save(tmp_path)
    there.restore(tmp_path)
    for mine, saved in zip(state_of(there), state_of(here), strict=True):
        assert torch.equal(mine.cpu(), saved.cpu())
    assert {tensor.device.type for tensor in state_of(there)} == {"cpu"}
    assert there.logprobs(EXAMPLES) == here.logprobs(EXAMPLES)


@pytest.fixture(scope="module")
def alone_in_a_group():
    """A process group of one rank."""
    if not hasattr(FSDPModule, "reset_iter_state"):
        pytest.skip("needs torch 2.13")
    process_group = pytest.importorskip("posttrain.distributed.process_group")
    group = process_group.ProcessGroup(dist.HashStore(), 0, 1, backend="nccl")
    yield group
    dist.destroy_process_group()


def sharded(group, tokens, *, keep=False, **more):
    """A learner that is loaded in host memory, and sharded on to the GPU; `keep`: its shards stay there."""
    ranks = pytest.importorskip("posttrain.distributed.sharding").ShardedRanks(group, 1, offload=keep)
    assert ranks.loads_on == "cpu"
    return made(tokens, ranks=ranks, **more)


@pytest.mark.parametrize(
    ("keep", "offload", "critic"),
    [(False, False, "own"), (True, False, "own"), (True, False, "trunk"), (False, True, "own")],
)
@pytest.mark.parametrize("adapter", [None, Lora(2)])
def test_shards_on_a_gpu_keep_to_the_kit(alone_in_a_group, keep, offload, critic, adapter, tmp_path):
    def make(tokens):
        return sharded(alone_in_a_group, tokens, keep=keep, offload=offload, critic=critic, adapter=adapter)

    check_learner(make, tmp_path)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("keep", "offload"), [(False, False), (True, False), (False, True)])
def test_shards_on_a_gpu_update_as_whole_weights_do(alone_in_a_group, keep, offload, dtype):
    learner = sharded(alone_in_a_group, 12, keep=keep, offload=offload, dtype=dtype)
    assert updated(learner) == pytest.approx(updated(on_device(12, dtype=dtype)), rel=APART[dtype], abs=APART[dtype])
    where = {learner._shards.local(tensor).device.type for tensor in state_of(learner)}
    assert where == {"cpu" if keep or offload else "cuda"}
    assert learner.body.device.type == "cuda"
    network = learner.body.network
    assert {learner._shards.local(p).device.type for p in network.parameters()} == {"cpu" if keep else "cuda"}
