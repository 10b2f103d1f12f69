"""Every preference algorithm against its equation in plain floats: values, and gradients by differences of them."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from posttrain import algorithms
from posttrain.algorithms.algorithm import PreferenceAlgorithm, Responses, UnpairedAlgorithm
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dpop import DPOP
from posttrain.algorithms.inputs import ReferenceDivergence, ReferenceLogprobs, declared
from posttrain.algorithms.ipo import IPO
from posttrain.algorithms.irpo import IRPO
from posttrain.algorithms.kto import KTO
from posttrain.algorithms.orpo import ORPO
from posttrain.algorithms.simpo import SimPO
from posttrain.algorithms.sppo import SPPO
from posttrain.algorithms.step_dpo import StepDPO
from posttrain.algorithms.tdpo import TDPO
from posttrain.errors import UserError
from tests.references import preferences as reference

BETA, WEIGHT = st.floats(0.05, 2.0), st.floats(0.1, 3.0)
CASES = {
    "dpo": (DPO, reference.dpo, {"beta": BETA, "label_smoothing": st.floats(0, 0.4)}),
    "dpo without a reference": (partial(DPO, reference_free=True), reference.dpo_without_reference, {"beta": BETA}),
    "ipo": (IPO, reference.ipo, {"beta": BETA}),
    "ipo by length": (partial(IPO, length_normalised=True), reference.ipo_by_length, {"beta": BETA}),
    "simpo": (SimPO, reference.simpo, {"beta": BETA, "gamma": st.floats(0, 2)}),
    "orpo": (ORPO, reference.orpo, {"odds_weight": WEIGHT}),
    "dpop": (DPOP, reference.dpop, {"beta": BETA, "penalty": WEIGHT}),
    "tdpo": (TDPO, reference.tdpo2, {"beta": BETA, "alpha": WEIGHT}),
    "tdpo1": (partial(TDPO, stop_gradient=False, alpha=1.0), reference.tdpo1, {"beta": BETA}),
    "step-dpo": (StepDPO, reference.dpo, {"beta": BETA}),
    "irpo": (IRPO, reference.irpo, {"beta": BETA, "alpha": WEIGHT}),
    "sppo": (SPPO, reference.sppo, {"eta": st.floats(0.5, 50)}),
}
TOKEN = st.tuples(st.floats(-3, -0.05), st.floats(-3, -0.05))
RESPONSE = st.fixed_dictionaries({"tokens": st.lists(TOKEN, min_size=1, max_size=4), "divergence": st.floats(0, 3)})
STEP = 1e-5


def responses(said, column: int) -> Responses:
    """By the policy, column 0, or by the reference, column 1."""

    def numbers(values):
        return torch.tensor(list(values), dtype=torch.float64)

    summed = numbers(sum(token[column] for token in one["tokens"]) for one in said)
    lengths = numbers(float(len(one["tokens"])) for one in said)
    return Responses(summed, lengths, numbers(one["divergence"] for one in said) if column == 0 else None)


def losses(algorithm, pairs):
    """The losses, and what they are differentiated by: logprobs and divergences of both sides."""
    (chosen, rejected), anchors = (
        tuple(responses([pair[side] for pair in pairs], column) for side in (0, 1)) for column in (0, 1)
    )
    leaves = [t.requires_grad_() for policy in (chosen, rejected) for t in (policy.logprob_B, policy.divergence_B)]
    return algorithm.loss(chosen, rejected, reference=anchors), leaves


def moved(pair, side: int, field: str, by: float):
    """The pair with one of its numbers changed: a token's logprob, or a divergence."""
    pair = copy.deepcopy(pair)
    if field == "divergence":
        pair[side]["divergence"] += by
    else:
        (logprob, anchor), *others = pair[side]["tokens"]
        pair[side]["tokens"] = [(logprob + by, anchor), *others]
    return pair


@pytest.mark.parametrize("name", CASES)
@given(st.data())
def test_values_and_gradients_are_those_of_the_equation(name, data):
    kind, equation, spaces = CASES[name]
    knobs = {knob: data.draw(space) for knob, space in spaces.items()}
    pairs = data.draw(st.lists(st.tuples(RESPONSE, RESPONSE), min_size=1, max_size=3))
    assume(all(abs(math.log(reference.ratio(chosen))) > 1e-3 for chosen, _ in pairs))  # DPOP has a corner there
    found, leaves = losses(kind(**knobs), pairs)
    assert found.loss_B.tolist() == pytest.approx([equation(*pair, **knobs) for pair in pairs], rel=1e-8, abs=1e-12)

    grads = torch.autograd.grad(found.loss_B.sum(), leaves, allow_unused=True)
    places = [(side, field) for side in (0, 1) for field in ("logprob", "divergence")]
    for grad, (side, field) in zip(grads, places, strict=True):
        for b, pair in enumerate(pairs):
            value = partial(equation, **knobs)
            if equation is reference.tdpo2:
                value = partial(value, fixed=pair[0]["divergence"])
            up, down = (value(*moved(pair, side, field, by)) for by in (STEP, -STEP))
            slope = 0.0 if grad is None else grad[b].item()
            assert slope == pytest.approx((up - down) / (2 * STEP), rel=1e-4, abs=1e-5)


@given(st.lists(st.tuples(RESPONSE, st.booleans()), min_size=1, max_size=4), st.floats(0, 5), BETA, WEIGHT, WEIGHT)
def test_kto_is_its_equation_and_so_are_its_gradients(judged, divergence, beta, good, bad):
    algorithm = KTO(beta, good, bad)
    policy, anchor = (responses([one for one, _ in judged], column) for column in (0, 1))
    policy.logprob_B.requires_grad_()
    good_B = torch.tensor([flag for _, flag in judged])
    found = algorithm.loss_of_each(policy, good_B, reference=anchor, divergence=divergence)
    knobs = {"beta": beta, "good_weight": good, "bad_weight": bad}
    expected = [reference.kto(one, flag, divergence, **knobs) for one, flag in judged]
    assert found.loss_B.tolist() == pytest.approx(expected, rel=1e-8, abs=1e-12)
    (grad,) = torch.autograd.grad(found.loss_B.sum(), policy.logprob_B)
    for b, (one, flag) in enumerate(judged):
        up, down = (reference.kto(moved([one], 0, "logprob", by)[0], flag, divergence, **knobs) for by in (STEP, -STEP))
        assert grad[b].item() == pytest.approx((up - down) / (2 * STEP), rel=1e-4, abs=1e-6)


def test_kto_tells_gains_from_losses_by_the_reference_point():
    one = Responses(torch.tensor([3.0, 1.0, 3.0, 1.0, 2.0]), torch.ones(5))
    anchor = Responses(torch.zeros(5), torch.ones(5))
    good_B = torch.tensor([True, True, False, False, True])
    found = KTO(beta=0.5).loss_of_each(one, good_B, reference=anchor, divergence=2.0)
    assert found.metrics["accuracy"].tolist() == [1, 0, 0, 1, 0.5]  # the last is the reference point itself
    assert found.metrics["reward/good"].tolist() == [1.5, 0.5, 1.0]
    assert found.metrics["reward/bad"].tolist() == [1.5, 0.5]


@pytest.mark.parametrize("name", [name for name in CASES if name != "orpo"])
def test_a_policy_that_is_its_reference_prefers_neither(name):
    same = {"tokens": [(-1.0, -1.0), (-0.5, -0.5)], "divergence": 0.0}
    found, _ = losses(CASES[name][0](), [(same, copy.deepcopy(same))])
    assert found.metrics["margin"].tolist() == [0.0] and found.metrics["accuracy"].tolist() == [0.5]
    at_rest = {"ipo": 25.0, "ipo by length": 25.0, "sppo": 500_000.0, "simpo": math.log1p(math.e)}
    start = at_rest.get(name, math.log(2)) + (0.75 if name == "irpo" else 0)
    assert found.loss_B.tolist() == pytest.approx([start])


@pytest.mark.parametrize("name", CASES)
def test_metrics_carry_no_gradient_and_are_one_number_per_pair(name):
    pair = ({"tokens": [(-1.0, -2.0)], "divergence": 1.0}, {"tokens": [(-2.0, -1.0)], "divergence": 2.0})
    found, _ = losses(CASES[name][0](), [pair] * 2)
    assert {"reward/chosen", "reward/rejected", "margin", "accuracy"} <= found.metrics.keys()
    assert all(values.shape == (2,) and not values.requires_grad for values in found.metrics.values())
    assert found.metrics["accuracy"].tolist() == [1.0, 1.0]
    margin = found.metrics["reward/chosen"] - found.metrics["reward/rejected"]
    assert found.metrics["margin"].tolist() == margin.tolist()


def test_rewards_in_the_metrics_are_in_the_units_that_are_said():
    pair = ({"tokens": [(-1.0, -2.0), (-1.0, -1.5)], "divergence": 1.0}, {"tokens": [(-2.0, -1.0)], "divergence": 2.0})
    expected = {"ipo": 0.15, "ipo by length": 0.075, "simpo": -2.0, "dpop": 0.45, "sppo": 0.0015, "irpo": 0.15}
    for name, value in expected.items():
        found, _ = losses(CASES[name][0](), [pair])
        assert found.metrics["reward/chosen"].item() == pytest.approx(value), name
    likelihood = {name: losses(CASES[name][0](), [pair])[0].metrics["likelihood"].item() for name in ("orpo", "irpo")}
    assert likelihood == {"orpo": 1.0, "irpo": 1.0}
    found, _ = losses(TDPO(), [pair])
    assert [found.metrics[f"divergence/{side}"].item() for side in ("chosen", "rejected")] == [1.0, 2.0]
    fallen = ({"tokens": [(-3.0, -2.0)], "divergence": 0.0}, pair[1])
    assert losses(DPOP(beta=0.5), [fallen])[0].metrics["penalty"].item() == pytest.approx(0.5)


@pytest.mark.parametrize("name", algorithms.PREFERENCE)
def test_one_that_needs_a_reference_refuses_to_do_without(name):
    algorithm = algorithms.preference(name)()
    one = Responses(-torch.ones(1), torch.ones(1), torch.zeros(1))
    if isinstance(algorithm, UnpairedAlgorithm):
        assert declared(algorithm, ReferenceLogprobs)
    elif declared(algorithm, ReferenceLogprobs):
        with pytest.raises(ValueError, match="reference"):
            algorithm.loss(one, one)
    else:
        assert algorithm.loss(one, one).loss_B.isfinite().all()


def test_without_divergences_there_is_no_token_level_loss():
    one = Responses(-torch.ones(1), torch.ones(1))
    assert declared(TDPO(), ReferenceDivergence) and not declared(DPO(), ReferenceDivergence)
    with pytest.raises(ValueError, match="divergence_B"):
        TDPO().loss(one, one, reference=(one, one))


@pytest.mark.parametrize(
    ("kind", "knob", "value"),
    [
        (IPO, "beta", 0.0),
        (SimPO, "beta", math.nan),
        (SimPO, "gamma", -0.1),
        (ORPO, "odds_weight", 0.0),
        (DPOP, "penalty", -1.0),
        (DPOP, "beta", 0.0),
        (IRPO, "alpha", math.inf),
        (IRPO, "label_smoothing", 0.5),
        (SPPO, "eta", 0.0),
        (TDPO, "alpha", -1.0),
        (TDPO, "beta", -1.0),
        (TDPO, "reference_free", True),
        (DPOP, "reference_free", True),
        (KTO, "beta", 0.0),
        (KTO, "good_weight", 0.0),
        (KTO, "bad_weight", -1.0),
        (StepDPO, "beta", 0.0),
    ],
)
def test_a_knob_that_cannot_be_is_refused(kind, knob, value):
    with pytest.raises(UserError, match=knob.replace("_", ".")):
        kind(**{knob: value})


def test_the_published_defaults():
    assert StepDPO().beta == 0.5
    assert (DPOP().beta, DPOP().penalty) == (0.3, 50.0)
    assert (IRPO().beta, IRPO().alpha) == (0.1, 1.0)
    assert (SimPO().beta, SimPO().gamma) == (2.0, 1.0)
    assert (TDPO().beta, TDPO().alpha, TDPO().stop_gradient) == (0.1, 0.5, True)
    assert (KTO().beta, KTO().good_weight, KTO().bad_weight) == (0.1, 1.0, 1.0)
    assert (IPO().beta, ORPO().odds_weight, SPPO().eta) == (0.1, 0.1, 1000.0)
    papers = {name: algorithms.preference(name)().paper for name in algorithms.PREFERENCE}
    assert len(set(papers.values())) == len(papers) == 10


def test_all_but_kto_learn_from_pairs():
    unpaired = [n for n in algorithms.PREFERENCE if isinstance(algorithms.preference(n)(), UnpairedAlgorithm)]
    paired = [n for n in algorithms.PREFERENCE if isinstance(algorithms.preference(n)(), PreferenceAlgorithm)]
    assert unpaired == ["kto"] and len(paired) == 9
