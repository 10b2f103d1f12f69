"""The expectations here are exact: a categorical of four tokens is summed over, not sampled from."""

import doctest
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.objectives import kl

LOGPROBS = st.floats(-6, 0)


def policy_and_reference(distance: float = 1.0):
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    offset = torch.tensor([0.9, 0.2, -0.5, 0.0], dtype=torch.float64) * distance
    return logits, (logits.detach() + offset).log_softmax(-1)


def expected_gradient(estimator, logits, reference):
    """E_p[grad estimator], with p held fixed as the sampling distribution."""
    logprobs = logits.log_softmax(-1)
    loss = (logprobs.detach().exp() * estimator(logprobs, reference)).sum()
    return torch.autograd.grad(loss, logits)[0]


def true_gradient(logits, reference, *, forward: bool):
    """The gradient of KL(p || q), or with `forward` of KL(q || p), by differentiating the whole sum."""
    logprobs = logits.log_softmax(-1)
    terms = reference.exp() * (reference - logprobs) if forward else logprobs.exp() * (logprobs - reference)
    return torch.autograd.grad(terms.sum(), logits)[0]


@given(LOGPROBS, LOGPROBS)
def test_matches_the_equations_written_with_floats(logprob, reference):
    pair = torch.tensor([logprob], dtype=torch.float64), torch.tensor([reference], dtype=torch.float64)
    ratio = math.exp(reference) / math.exp(logprob)
    assert kl.k1(*pair).item() == pytest.approx(-math.log(ratio), abs=1e-12)
    assert kl.k2(*pair).item() == pytest.approx(math.log(ratio) ** 2 / 2, rel=1e-9, abs=1e-12)
    assert kl.k3(*pair).item() == pytest.approx(ratio - math.log(ratio) - 1, rel=1e-9, abs=1e-12)
    assert kl.k3(*pair).item() >= 0


def test_k1_and_k3_are_unbiased_in_value_and_k2_is_not():
    logits, reference = policy_and_reference(distance=2.0)
    logprobs = logits.detach().log_softmax(-1)
    true = (logprobs.exp() * (logprobs - reference)).sum()
    mean = {name: (logprobs.exp() * k(logprobs, reference)).sum() for name, k in kl.ESTIMATORS.items()}
    torch.testing.assert_close(mean["k1"], true, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mean["k3"], true, rtol=1e-12, atol=1e-12)
    assert abs(mean["k2"] - true) > 0.01


def test_k1_has_no_gradient_in_expectation():
    gradient = expected_gradient(kl.k1, *policy_and_reference())
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)


def test_k2_has_the_gradient_of_the_kl_from_policy_to_reference():
    logits, reference = policy_and_reference()
    true = true_gradient(logits, reference, forward=False)
    torch.testing.assert_close(expected_gradient(kl.k2, logits, reference), true, rtol=1e-12, atol=1e-14)


def test_k3_has_the_gradient_of_the_kl_from_reference_to_policy():
    logits, reference = policy_and_reference()
    gradient = expected_gradient(kl.k3, logits, reference)
    torch.testing.assert_close(gradient, true_gradient(logits, reference, forward=True), rtol=1e-12, atol=1e-14)
    assert (gradient - true_gradient(logits, reference, forward=False)).abs().max() > 0.01


def test_k2_and_k3_agree_to_first_order_near_the_reference():
    def difference(distance: float) -> float:
        pair = policy_and_reference(distance)
        return (expected_gradient(kl.k2, *pair) - expected_gradient(kl.k3, *pair)).norm().item()

    assert difference(1e-3) / difference(1e-2) == pytest.approx(1e-2, rel=0.05)  # the gap is of second order


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_no_gradient_reaches_the_reference(name):
    logprobs, reference = (torch.tensor([value], requires_grad=True) for value in (-1.0, -1.5))
    kl.ESTIMATORS[name](logprobs, reference).sum().backward()
    assert logprobs.grad is not None and reference.grad is None


def test_k3_keeps_its_digits_near_the_reference():
    logprobs = torch.tensor([-1.0])
    reference = torch.tensor([-1.0 + 2**-12])
    assert kl.k3(logprobs, reference).item() == pytest.approx(2**-25, rel=1e-3)  # x^2 / 2


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_shapes_that_would_broadcast_silently_are_refused(name):
    with pytest.raises(ValueError, match=rf"^{name} needs tensors of one shape"):
        kl.ESTIMATORS[name](torch.zeros(2, 2), torch.zeros(2))


def test_the_dictionary_names_each_estimator():
    assert {name: estimator.__name__ for name, estimator in kl.ESTIMATORS.items()} == {n: n for n in ("k1", "k2", "k3")}


def test_docstring_examples_run():
    results = doctest.testmod(kl, extraglobs={"torch": torch})
    assert results.failed == 0 and results.attempted > 0


DISTRIBUTIONS = st.lists(st.floats(-3, 3), min_size=3, max_size=3)


def jsd(student, teacher, beta):
    """Agarwal et al., eq. 1, in floats; at the ends the KL that it tends to, over beta and 1 - beta."""

    def divergence(p, q):
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    if beta in (0, 1):
        return divergence(*((teacher, student) if beta == 0 else (student, teacher)))
    mixed = [beta * t + (1 - beta) * s for s, t in zip(student, teacher, strict=True)]
    return beta * divergence(teacher, mixed) + (1 - beta) * divergence(student, mixed)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_the_generalised_jsd_is_that_of_the_equation(beta, mine, its):
    student, teacher = (torch.tensor([row], dtype=torch.float64).log_softmax(-1) for row in (mine, its))
    expected = jsd(*(each.exp()[0].tolist() for each in (student, teacher)), beta)
    assert kl.generalised_jsd(student, teacher, beta=beta).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_generalised_jsd_by_hand():
    student, teacher = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    # beta 1/4: M = (0.4375, 0.5625)
    expected = 0.25 * (0.25 * math.log(0.25 / 0.4375) + 0.75 * math.log(0.75 / 0.5625))
    expected += 0.75 * (0.5 * math.log(0.5 / 0.4375) + 0.5 * math.log(0.5 / 0.5625))
    found = kl.generalised_jsd(student, teacher, beta=0.25)
    assert found.tolist() == pytest.approx([expected, 0.0], abs=1e-7)
    swapped = kl.generalised_jsd(teacher, student, beta=0.75)
    torch.testing.assert_close(found, swapped, rtol=1e-5, atol=1e-7)


def test_the_generalised_jsd_tends_to_both_kls_at_its_ends():
    student, teacher = (torch.tensor([row], dtype=torch.float64).log_softmax(-1) for row in ([1.0, 0, 2], [0.0, 1, -1]))
    for end, inside, share in ((0.0, 1e-6, 1e-6), (1.0, 1 - 1e-6, 1e-6)):
        near = kl.generalised_jsd(student, teacher, beta=inside) / share
        torch.testing.assert_close(near, kl.generalised_jsd(student, teacher, beta=end), rtol=1e-5, atol=0)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_gradient_of_the_generalised_jsd_reaches_the_student_alone(beta):
    logits = torch.tensor([[0.3, -1.2, 0.8]], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([[1.0, 0.0, -0.5]], dtype=torch.float64, requires_grad=True)
    kl.generalised_jsd(logits.log_softmax(-1), other.log_softmax(-1), beta=beta).sum().backward()
    assert other.grad is None
    teacher = other.detach().softmax(-1)[0].tolist()
    for place in range(3):
        around = []
        for by in (1e-6, -1e-6):
            moved = logits.detach().clone()
            moved[0, place] += by
            around.append(jsd(moved.softmax(-1)[0].tolist(), teacher, beta))
        assert logits.grad[0, place].item() == pytest.approx((around[0] - around[1]) / 2e-6, rel=1e-6, abs=1e-9)
