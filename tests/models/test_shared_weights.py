import pytest
import torch

from posttrain.data.packing import Example, pack
from posttrain.models.language_model import with_shared_weights
from posttrain.models.lora import add_lora
from tests.tiny import tiny_llama

ROW = pack([Example.whole((3, 4, 5, 6), (False, True, True, True))], 16)[0]


def moved(model, value: float):
    """The model with every B of its adapter set, so that it is another policy."""
    with torch.no_grad():
        for name, parameter in model.trainable():
            if "lora_B" in name:
                parameter.fill_(value)
    return model


def test_the_weights_are_the_same_tensors_and_the_modules_are_not():
    model = tiny_llama()
    other = with_shared_weights(model)
    ours, theirs = dict(model.network.named_parameters()), dict(other.network.named_parameters())
    assert ours.keys() == theirs.keys() and all(theirs[name] is weight for name, weight in ours.items())
    assert not {*map(id, model.network.modules())} & {*map(id, other.network.modules())}
    assert all(theirs is ours for theirs, ours in zip(other.network.buffers(), model.network.buffers(), strict=True))


def test_an_adapter_on_one_changes_no_other_and_not_the_base():
    model = tiny_llama()
    before = model.logprobs(ROW).logprobs.detach().clone()
    one, two = (moved(add_lora(with_shared_weights(model), 2, seed=seed), 0.1 * (1 + seed)) for seed in (1, 2))
    found = [each.logprobs(ROW).logprobs.detach() for each in (one, two, model, one)]
    assert torch.equal(found[2], before) and torch.equal(found[0], found[3])
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[0], before)


def test_the_numbers_are_those_of_a_network_of_its_own():
    shared = moved(add_lora(with_shared_weights(tiny_llama()), 2, seed=1), 0.1)
    own = moved(add_lora(tiny_llama(), 2, seed=1), 0.1)
    for model in (shared, own):
        model.logprobs(ROW).logprobs.sum().backward()
    for (name, ours), (other, theirs) in zip(shared.trainable(), own.trainable(), strict=True):
        assert name == other and torch.equal(ours.grad, theirs.grad)


def test_a_model_with_an_adapter_is_refused():
    with pytest.raises(ValueError, match="has an adapter"):
        with_shared_weights(add_lora(tiny_llama(), 2))
