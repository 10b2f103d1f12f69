import doctest

import pytest
import torch

from posttrain.objectives import policy
from tests.references import policy as reference


def example(seed: int = 0, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 5, generator=g, dtype=dtype) for _ in range(3)]


def test_matches_the_paper_equation_written_with_floats():
    logprobs, old, adv = example()
    expected = reference.clipped_surrogate(logprobs.tolist(), old.tolist(), adv.tolist(), 0.2, 0.28)
    actual = policy.clipped_surrogate(logprobs, old, adv, clip_low=0.2, clip_high=0.28).loss
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_flat_tokens_get_the_same_values_as_padded_ones():
    logprobs, old, adv = example()
    flat = policy.clipped_surrogate(logprobs.flatten(), old.flatten(), adv.flatten()).loss
    assert torch.equal(flat, policy.clipped_surrogate(logprobs, old, adv).loss.flatten())


@pytest.mark.parametrize("advantage, logprob", [(1.0, 1.0), (-1.0, -1.0)])
def test_gradient_is_zero_where_the_clip_bites(advantage, logprob):
    logprobs = torch.tensor([logprob], requires_grad=True)
    policy.clipped_surrogate(logprobs, torch.zeros(1), torch.full((1,), advantage)).loss.sum().backward()
    assert logprobs.grad.item() == 0.0


@pytest.mark.parametrize("advantage, logprob", [(1.0, -1.0), (-1.0, 1.0)])
def test_gradient_survives_on_the_pessimistic_side(advantage, logprob):
    logprobs = torch.tensor([logprob], requires_grad=True)
    policy.clipped_surrogate(logprobs, torch.zeros(1), torch.full((1,), advantage)).loss.sum().backward()
    assert logprobs.grad.item() == pytest.approx(-advantage * torch.tensor(logprob).exp().item())


def test_clipped_flag_marks_only_the_tokens_the_clip_changed():
    flags = policy.clipped_surrogate(torch.tensor([1.0, 0.0, -1.0]), torch.zeros(3), torch.ones(3)).clipped
    assert flags.tolist() == [1.0, 0.0, 0.0]


def test_ratio_is_that_of_the_new_policy_to_the_old_and_carries_no_gradient():
    logprobs = torch.tensor([0.5], requires_grad=True)
    ratio = policy.clipped_surrogate(logprobs, torch.tensor([-0.5]), torch.ones(1)).ratio
    assert ratio.item() == pytest.approx(2.718281828)
    assert not ratio.requires_grad


def test_no_gradient_reaches_advantages_or_old_logprobs():
    logprobs, old, adv = (x.requires_grad_() for x in example())
    policy.clipped_surrogate(logprobs, old, adv).loss.sum().backward()
    assert logprobs.grad is not None and old.grad is None and adv.grad is None


def test_on_policy_gradient_is_reinforce():
    logprobs, _, adv = example()
    logprobs.requires_grad_()
    policy.clipped_surrogate(logprobs, logprobs.detach(), adv).loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -adv, rtol=1e-12, atol=1e-12)


def test_shapes_that_would_broadcast_silently_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"advantages \(2,\).*values_B\[row_N\]"):
        policy.clipped_surrogate(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2))


ROW = torch.tensor([0, 0, 0, 1, 1])


@pytest.mark.parametrize("by_length", [True, False])
def test_one_ratio_for_a_whole_completion(by_length):
    g = torch.Generator().manual_seed(0)
    logprobs, old = (-torch.rand(5, generator=g, dtype=torch.float64) for _ in range(2))
    advantages = torch.tensor([1.5, 1.5, 1.5, -2.0, -2.0], dtype=torch.float64)
    logprobs.requires_grad_()
    found = policy.sequence_surrogate(logprobs, old, advantages, ROW, clip_low=0.9, clip_high=9.0, by_length=by_length)
    expected, slopes = [], []
    for start, stop in ((0, 3), (3, 5)):
        power = 1 / (stop - start) if by_length else 1.0
        ratio = (logprobs[start:stop].sum() - old[start:stop].sum()).exp().item() ** power
        expected += [-ratio * advantages[start].item()] * (stop - start)
        # each of its n tokens has the value, so a logprob moves n of them by the ratio times the power
        slopes += [-ratio * advantages[start].item() * power * (stop - start)] * (stop - start)
    assert found.loss.tolist() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.grad(found.loss.sum(), logprobs)[0].tolist() == pytest.approx(slopes, rel=1e-12)


def test_a_whole_completion_is_clipped():
    logprobs = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    found = policy.sequence_surrogate(
        logprobs,
        torch.zeros(3),
        torch.ones(3),
        torch.tensor([0, 0, 1]),
        clip_low=0.2,
        clip_high=0.6,
        by_length=True,
    )
    assert found.clipped.tolist() == [1.0, 1.0, 0.0] and found.loss.tolist() == pytest.approx([-1.6, -1.6, -1.0])
    assert torch.autograd.grad(found.loss.sum(), logprobs)[0].tolist() == [0.0, 0.0, -1.0]


def test_a_sequence_surrogate_of_unequal_shapes_is_refused():
    with pytest.raises(ValueError, match="row_N"):
        policy.sequence_surrogate(
            torch.zeros(2), torch.zeros(2), torch.zeros(2), ROW, clip_low=0.2, clip_high=0.2, by_length=True
        )


def test_docstring_examples_run():
    results = doctest.testmod(policy, extraglobs={"torch": torch})
    assert results.failed == 0 and results.attempted > 0
