"""Dropout of an adapter: on in updates alone, by seed, layer, example and token, however a batch is cut."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.packing import Example, pack
from posttrain.engine.transformers import TransformersEngine
from posttrain.models.dropout import Dropout
from posttrain.models.lora import Lora, add_adapter, load_adapter
from posttrain.models.reference import reference_for
from posttrain.types import Request, Sampling
from tests.models.test_adapters import EXAMPLES, ROW, moved
from tests.tiny import tiny_llama

pytest.importorskip("peft")

MANY = [*EXAMPLES, Example((5, 9, 3), (2, 2, 1), (True,) * 3), Example((5, 9, 3), (8, 1), (True,) * 2)]


def dropped(**knobs):
    return moved(add_adapter(tiny_llama(), Lora(4, dropout=0.4, **knobs)))


def logprobs(model, seed, examples=EXAMPLES, tokens=100):
    """Of each example, whatever the rows."""
    found = {}
    with torch.no_grad(), model.dropping(seed):
        for row in pack(examples, tokens):
            parts = model.logprobs(row).logprobs.split([sum(examples[i].learned) for i in row.examples])
            found |= dict(zip(row.examples, parts, strict=True))
    return torch.cat([found[i] for i in range(len(examples))])


@pytest.mark.parametrize("dora", [False, True])
def test_one_layer_against_the_equation(dora):
    """y = W x + s B A (x m / (1 - p)); with DoRA W sees what is left, too, and rows are scaled."""
    model = dropped(dora=dora)
    layer = model.network.model.layers[0].mlp.down_proj
    x = torch.randn(1, len(ROW.token_ids), 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), model.dropping(3):
        model.dropout.read(ROW)
        found = layer(x)[0]
        left = layer.lora_dropout["default"](x)[0]
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        w = layer.base_layer.weight
        gone = left == 0
        assert 0.3 < gone.float().mean() < 0.5
        torch.testing.assert_close(left[~gone], x[0][~gone] / 0.6)
        expected = x[0] @ w.T + 2 * left @ a.T @ b.T
        if dora:
            scale = layer.lora_magnitude_vector["default"].weight / (w + 2 * b @ a).norm(dim=1)
            expected = x[0] @ w.T + (scale - 1) * (left @ w.T) + scale * (2 * left @ a.T @ b.T)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_masks_differ_between_layers_examples_tokens_and_seeds_and_are_repeated():
    dropout = Dropout()
    x = torch.ones(1, len(ROW.token_ids), 64)
    masks = {}
    for seed in (0, 1):
        with dropout.dropping(seed):
            dropout.read(ROW)
            for layer in (0, 1):
                masks[seed, layer] = dropout.kept(layer, 0.5, x)
                assert torch.equal(masks[seed, layer], dropout.kept(layer, 0.5, x))
    rows = torch.cat(list(masks.values()))
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)  # no two tokens, layers, seeds alike
    assert set(rows.unique().tolist()) == {0.0, 2.0}


@settings(max_examples=20)
@given(tokens=st.integers(8, 40), seed=st.integers(0, 5))
def test_how_a_batch_is_cut_changes_nothing(tokens, seed):
    whole, cut = (logprobs(MODEL, seed, MANY, most) for most in (100, tokens))
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-5)


MODEL = dropped()


def test_gradients_do_not_depend_on_the_cut_either():
    found = []
    for tokens in (100, 9):
        model = dropped()
        with model.dropping(5):
            for row in pack(MANY, tokens):
                model.logprobs(row).logprobs.sum().backward()
        found.append([p.grad for _, p in model.trainable()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_it_is_on_in_the_block_alone_and_by_the_seed():
    model = dropped()
    off = logprobs(model, None)
    assert not model.drops
    with model.dropping(1):
        assert model.drops
        with model.dropping(None):
            assert not model.drops
        assert model.drops
    on = logprobs(model, 1)
    assert (on - off).abs().max() > 0.01
    assert torch.equal(on, logprobs(model, 1)) and not torch.equal(on, logprobs(model, 2))
    assert torch.equal(off, logprobs(model, None))
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    logprobs(model, 1)
    assert torch.equal(torch.rand(1), expected)  # no random state is used


def test_an_exception_in_an_update_leaves_it_off():
    model = dropped()
    with pytest.raises(RuntimeError), model.dropping(1):
        raise RuntimeError
    assert not model.drops and all(not layer.training for layer in model.dropout.layers)


def test_without_it_nothing_is_kept_and_nothing_happens():
    model = moved(add_adapter(tiny_llama(), Lora(4)))
    assert model.dropout is None and not model.drops
    assert torch.equal(logprobs(model, 1), logprobs(model, None))


def test_sampling_and_references_do_not_drop(tmp_path):
    model = dropped()
    model.save(tmp_path)
    engine = TransformersEngine(model, frozenset())
    (found,) = engine.generate([Request((5, 9, 3), Sampling(6), 0)])
    (row,) = pack([Example((5, 9, 3), found.token_ids, (True,) * 6)], 100)
    with torch.no_grad():
        torch.testing.assert_close(model.logprobs(row).logprobs, torch.tensor(found.logprobs), rtol=0, atol=1e-5)
    for policy in (model, load_adapter(tiny_llama(), tmp_path)):  # whose references are the base, and the adapter
        reference = reference_for(policy)
        still, predicted = reference.logprobs(ROW, 1.0), reference.predictions(ROW)[0]
        with policy.dropping(1):
            assert torch.equal(reference.logprobs(ROW, 1.0), still)
            assert torch.equal(reference.predictions(ROW)[0], predicted)
            assert policy.drops  # on again for the backward pass


def test_a_reference_in_the_middle_does_not_change_what_a_recomputed_pass_drops():
    """Gradient checkpointing runs a layer again in the backward pass, after the reference was asked."""
    model = dropped()
    reference = reference_for(model)
    layer = model.network.model.layers[0].mlp.down_proj
    x = torch.ones(1, len(ROW.token_ids), 48)
    with torch.no_grad(), model.dropping(1):
        model.states(ROW)
        first = layer(x)
        reference.logprobs(pack([EXAMPLES[1]], 100)[0], 1.0)
        assert torch.equal(layer(x), first)


def test_a_saved_adapter_keeps_its_dropout_and_a_copy_has_its_own(tmp_path):
    model = dropped()
    model.save(tmp_path)
    again = load_adapter(tiny_llama(), tmp_path)
    assert torch.equal(logprobs(again, 4), logprobs(model, 4))
    other = copy.deepcopy(model)
    with model.dropping(1):
        assert model.drops and not other.drops
        assert torch.equal(logprobs(other, None), logprobs(again, None))
    assert torch.equal(logprobs(other, 4), logprobs(model, 4))
