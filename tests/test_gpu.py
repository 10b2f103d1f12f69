"""What is proven on a CPU holds on a GPU: the sampler conforms, and an update is the same."""

import pytest

from posttrain.rollouts.engine import check_engine
from posttrain.training.policy_batch import policy_batch
from tests.rollouts.test_transformers import subject
from tests.tiny import tiny_llama
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
