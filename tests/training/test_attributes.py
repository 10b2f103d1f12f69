"""An update on ratings against the same in plain floats, however the batch is cut."""

import math

import pytest
import torch

from posttrain.data.packing import Graded
from posttrain.training.attributes import read_all, standard
from posttrain.training.optimizer import MasterAdamW
from tests.models.test_attributes import EXAMPLES, UNITS, model_of_three, tiny_attributes
from tests.models.test_heads import plain_scores
from tests.training.steps import rating_step

RATINGS = [{"helpful": 5.0, "clear": 1.0}, {"long": 2.0}, {"helpful": 2.0, "clear": 4.0, "long": 1.5}, {"clear": 3.0}]
GRADED = [Graded(example, ratings) for example, ratings in zip(EXAMPLES, RATINGS, strict=True)]
CUTS = pytest.mark.parametrize("microbatch_tokens", [7, 100])


def errors(model) -> list[dict[str, float]]:
    """By hand: of each response its squared errors in units of each attribute's spread."""
    found = []
    for one in GRADED:
        said = plain_scores(model_of_three(model), [*one.example.prefix, *one.example.continuation])
        scale = {name: (a, mean, spread) for name, a, mean, spread in zip(UNITS.names, said, *UNITS[1:], strict=True)}
        found.append(
            {name: (scale[name][0] - (r - scale[name][1]) / scale[name][2]) ** 2 for name, r in one.ratings.items()}
        )
    return found


@CUTS
def test_the_loss_of_ratings_by_hand(microbatch_tokens):
    model = tiny_attributes()
    expected = errors(model)
    found = rating_step(MasterAdamW(model.trainable()), model, GRADED, lr=0.0, microbatch_tokens=microbatch_tokens)
    assert found["loss"] == pytest.approx(sum(sum(e.values()) / len(e) for e in expected) / 4, rel=1e-5)
    for name in UNITS.names:
        each = [e[name] for e in expected if name in e]
        assert found[f"error/{name}"] == pytest.approx(sum(each) / len(each), rel=1e-5)


def gradients(microbatch_tokens: int) -> dict[str, torch.Tensor]:
    """Of a first step whose Adam does nothing but remember them, ten times as small."""
    model = tiny_attributes()
    optimizer = MasterAdamW(model.trainable(), max_grad_norm=math.inf)
    rating_step(optimizer, model, GRADED, lr=0.0, microbatch_tokens=microbatch_tokens)
    return {name: 10 * optimizer.adam.state[m]["exp_avg"] for name, m in optimizer.named_masters().items()}


def test_gradients_do_not_depend_on_the_cut_and_the_gate_has_none():
    whole, cut = gradients(100), gradients(7)
    assert set(whole) == {name for name, _ in tiny_attributes().body.network.named_parameters()}
    for name, gradient in whole.items():
        assert (cut[name] - gradient).norm() < 1e-6 * gradient.norm(), name


def test_heads_learn_the_ratings():
    model = tiny_attributes(dtype=torch.float32)
    optimizer = MasterAdamW(model.trainable())
    for _ in range(60):
        found = rating_step(optimizer, model, GRADED, lr=3e-3, microbatch_tokens=100)
    assert found["loss"] < 0.01
    read = read_all(model, EXAMPLES, microbatch_tokens=7)
    rated, known = standard(UNITS, GRADED, like=read.attributes_EK)
    assert rated[0].tolist()[:2] == [1.0, -1.0] and known.tolist()[1] == [False, False, True]
    assert (read.attributes_EK - rated)[known].abs().max() < 0.2


def test_what_is_read_comes_in_order_and_without_a_gradient():
    model = tiny_attributes()
    read = read_all(model, EXAMPLES, microbatch_tokens=7)
    assert not read.attributes_EK.requires_grad and not read.prompts_ED.requires_grad
    for place, example in enumerate(EXAMPLES):
        alone = read_all(model, [example], microbatch_tokens=100)
        torch.testing.assert_close(read.attributes_EK[place], alone.attributes_EK[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(read.prompts_ED[place], alone.prompts_ED[0], rtol=1e-4, atol=1e-5)
