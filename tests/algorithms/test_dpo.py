import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.algorithms.algorithm import PreferenceAlgorithm, Responses
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.inputs import ReferenceLogprobs
from posttrain.errors import UserError
from tests.references import pairwise as reference

TOKENS = st.lists(st.tuples(st.floats(-4, -0.01), st.floats(-4, -0.01)), min_size=1, max_size=4)
PAIRS = st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4)


def responses(pairs, side: int, column: int) -> Responses:
    """Sums over the tokens of one side of each pair: column 0 is the policy's logprobs, 1 the reference's."""
    tokens = [pair[side] for pair in pairs]
    sums = torch.tensor([sum(t[column] for t in response) for response in tokens], dtype=torch.float64)
    return Responses(sums, torch.tensor([float(len(response)) for response in tokens], dtype=torch.float64))


def loss(algorithm: DPO, pairs):
    (chosen, rejected), anchors = ((responses(pairs, 0, c), responses(pairs, 1, c)) for c in (0, 1))
    for policy in (chosen, rejected):
        policy.logprob_B.requires_grad_()
    return algorithm.loss(chosen, rejected, reference=anchors), chosen.logprob_B, rejected.logprob_B


@given(PAIRS, st.floats(0.01, 1.0), st.floats(0, 0.4))
def test_matches_the_paper_equation_written_with_floats(pairs, beta, smoothing):
    found, _, _ = loss(DPO(beta, smoothing), pairs)
    expected = reference.dpo(pairs, beta=beta, smoothing=smoothing)
    assert found.loss_B.mean().item() == pytest.approx(expected, rel=1e-9)


def test_a_policy_that_is_the_reference_pays_the_logarithm_of_two_and_is_right_by_half():
    found, _, _ = loss(DPO(), [([(-1.0, -1.0)], [(-2.0, -2.0), (-3.0, -3.0)])])
    assert found.loss_B.tolist() == pytest.approx([math.log(2)])
    assert found.metrics["accuracy"].tolist() == [0.5]


def test_the_gradient_raises_the_chosen_one_and_lowers_the_rejected_one_by_as_much():
    found, chosen, rejected = loss(DPO(beta=0.5), [([(-1.0, -2.0)], [(-2.0, -1.0)])])
    found.loss_B.sum().backward()
    weight = 0.5 / (1 + math.exp(0.5 * (1.0 - -1.0)))  # beta sigmoid(r_l - r_w)
    assert (chosen.grad.item(), rejected.grad.item()) == pytest.approx((-weight, weight))


def test_metrics_are_the_implicit_rewards_and_carry_no_gradient():
    found, _, _ = loss(DPO(beta=0.5), [([(-1.0, -2.0)], [(-2.0, -1.0)]), ([(-1.0, -1.0)], [(-1.0, -3.0)])])
    expected = {"reward/chosen": [0.5, 0.0], "reward/rejected": [-0.5, 1.0], "margin": [1.0, -1.0], "accuracy": [1, 0]}
    assert {name: values.tolist() for name, values in found.metrics.items()} == expected
    assert not any(values.requires_grad for values in found.metrics.values())


def test_without_a_reference_there_is_no_loss():
    one = Responses(torch.zeros(1), torch.ones(1))
    with pytest.raises(ValueError, match="reference"):
        DPO().loss(one, one)


@pytest.mark.parametrize("knobs", [{"beta": 0.0}, {"beta": math.inf}, {"label_smoothing": 0.5}])
def test_a_knob_that_cannot_be_is_refused(knobs):
    with pytest.raises(UserError, match=next(iter(knobs))):
        DPO(**knobs)


def test_it_is_a_preference_algorithm_with_the_published_defaults():
    assert isinstance(DPO(), PreferenceAlgorithm)
    assert (DPO().beta, DPO().label_smoothing, DPO().inputs) == (0.1, 0.0, (ReferenceLogprobs(),))
    assert DPO(reference_free=True).inputs == ()
