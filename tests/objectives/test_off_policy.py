import doctest
import math

import pytest
import torch

from posttrain.objectives import off_policy
from tests.references import off_policy as reference
from tests.references import recent

E = math.e


def drawn(number: int = 12, seed: int = 0):
    """Logprobs of both policies and advantages, of either sign, ratios on both sides of any bound."""
    g = torch.Generator().manual_seed(seed)
    p, q = (-2 * torch.rand(number, generator=g, dtype=torch.float64) for _ in range(2))
    return p.requires_grad_(), q, torch.randn(number, generator=g, dtype=torch.float64)


def agree(loss_N, p, expected):
    """That losses and derivatives are those of the plain floats."""
    loss_N.sum().backward()
    losses, slopes = zip(*expected, strict=True)
    torch.testing.assert_close(loss_N.detach(), torch.tensor(losses, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(p.grad, torch.tensor(slopes, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def by_token(function, p, q, advantages, *settings):
    return [function(*each, *settings) for each in zip(p.tolist(), q.tolist(), advantages.tolist(), strict=True)]


def test_importance_weights_are_those_written_with_floats():
    p, q, advantages = drawn()
    expected = by_token(reference.importance, p, q, advantages)
    agree(off_policy.importance_weighted(p, q, advantages), p, expected)


def test_cispo_is_that_written_with_floats():
    p, q, advantages = drawn()
    expected = by_token(reference.cispo, p, q, advantages, 0.9, 1.3)
    agree(off_policy.clipped_weight(p, q, advantages, lowest=0.9, highest=1.3), p, expected)


@pytest.mark.parametrize("level", off_policy.LEVELS)
@pytest.mark.parametrize("masked", [False, True])
def test_weights_of_tokens_and_sequences_are_those_written_with_floats(level, masked):
    g = torch.Generator().manual_seed(1)
    sizes = (1, 5, 2, 7, 3)
    logs = [(torch.randn(size, generator=g, dtype=torch.float64) * 0.7).tolist() for size in sizes]
    bounds = {"low": 0.5, "high": 1.5, "masked": masked}
    expected = [w for of_row in logs for w in recent.importance(of_row, level, **bounds)]
    row_N = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    flat_N = torch.tensor([value for of_row in logs for value in of_row], dtype=torch.float64)
    words = {"level": level, "masked": masked, "highest": 1.5, "lowest": 0.5}
    found, outside, log = off_policy.importance_weights(flat_N, row_N, **words)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
    assert outside.tolist() == [float(not 0.5 <= math.exp(value) <= 1.5) for value in log.tolist()]
    assert 0 < outside.mean() < 1
    if masked:
        assert (found == 0).equal(outside == 1)
    order = torch.randperm(len(flat_N), generator=g)  # tokens of a sequence may be anywhere
    moved, _, _ = off_policy.importance_weights(flat_N[order], row_N[order], **words)
    torch.testing.assert_close(moved, found[order])


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="one of token, product, mean; got turn"):
        off_policy.importance_weights(torch.zeros(1), torch.zeros(1).long(), level="turn", masked=False, highest=2.0)


def test_a_token_leaves_the_trust_region_only_on_the_side_it_is_pushed_to():
    q = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.01]).log()
    p = torch.tensor([0.8, 0.8, 0.2, 0.2, 0.05]).log().requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    for name, (lowest, highest), out in (
        ("tv", (0.25, 0.25), [1, 0, 0, 1, 0]),  # rare tokens may grow fivefold
        ("tv", (0.25, 0.35), [0, 0, 0, 1, 0]),
        ("tv", (0.35, 0.25), [1, 0, 0, 0, 0]),
        ("kl", (0.2, 0.2), [1, 0, 0, 1, 0]),  # 0.223 nats for both
        ("kl", (0.3, 0.02), [1, 0, 0, 0, 1]),  # 0.0248 nats for the last
    ):
        words = {"lowest": lowest, "highest": highest, "divergence": name}
        loss_N, out_N = off_policy.divergence_masked(p, q, advantages, **words)
        assert out_N.tolist() == out
        (slope_N,) = torch.autograd.grad(loss_N.sum(), p)
        assert (slope_N == 0).tolist() == [bool(one) for one in out]


def test_dro_is_that_written_with_floats():
    p, q, advantages = drawn()
    expected = by_token(reference.dro, p, q, advantages, 0.7)
    agree(off_policy.quadratic_penalty(p, q, advantages, beta=0.7), p, expected)


def test_gspo_is_that_written_with_floats_for_each_sequence():
    p, q, advantages = drawn(10)
    row_N, counted_N = torch.tensor([0] * 4 + [1] * 3 + [2] * 3), torch.tensor([0, 1, 1, 1, 1, 0, 1, 0, 0, 0.0])
    expected = []
    for rows in (slice(0, 4), slice(4, 7), slice(7, 10)):
        parts = [values[rows].tolist() for values in (p, q, advantages, counted_N)]
        expected += reference.gspo(*parts, 0.9, 1.2)
    counted_N = counted_N.double()
    loss_N = off_policy.sequence_ratio_by_token(p, q, advantages, row_N, counted_N, lowest=0.9, highest=1.2)
    agree(loss_N, p, expected)


def test_by_hand_a_ratio_of_e_with_an_advantage_of_two():
    p, q, two = torch.tensor([-1.0]), torch.tensor([-2.0]), torch.tensor([2.0])
    assert off_policy.importance_weighted(p, q, two).item() == pytest.approx(-2 * E)
    assert off_policy.clipped_weight(p, q, two).item() == pytest.approx(1.2 * 2 * 1)  # -(1.2)(2)(-1)
    assert off_policy.clipped_weight(q, p, two).item() == pytest.approx(0.8 * 2 * 2)  # 1/e is clipped to 0.8
    assert off_policy.quadratic_penalty(p, q, two, beta=0.5).item() == pytest.approx(2 + 0.25)


def test_a_sequence_no_token_of_which_counts_has_the_ratio_one():
    p, q, one = torch.tensor([-1.0, -1.0]), torch.tensor([-5.0, -5.0]), torch.ones(2)
    loss_N = off_policy.sequence_ratio_by_token(p, q, one, torch.tensor([0, 0]), torch.zeros(2))
    assert loss_N.tolist() == [-1.0, -1.0]


def test_on_policy_all_gradients_are_those_of_reinforce():
    for loss in (
        lambda p, q, a: off_policy.importance_weighted(p, q, a),
        lambda p, q, a: off_policy.clipped_weight(p, q, a),
        lambda p, q, a: off_policy.quadratic_penalty(p, q, a, beta=0.3),
        lambda p, q, a: off_policy.sequence_ratio_by_token(p, q, a, torch.zeros(len(p)).long(), torch.ones_like(p)),
    ):
        p, _, advantages = drawn()
        loss(p, p.detach(), advantages).sum().backward()
        torch.testing.assert_close(p.grad, -advantages, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "loss",
    [
        off_policy.importance_weighted,
        off_policy.clipped_weight,
        lambda p, q, a: off_policy.quadratic_penalty(p, q, a, beta=0.3),
        lambda p, q, a: off_policy.sequence_ratio_by_token(p, q, a, torch.arange(len(p)), torch.ones_like(p.detach())),
    ],
)
def test_no_gradient_reaches_the_sampler_or_the_advantages(loss):
    p, q, advantages = drawn()
    q.requires_grad_()
    advantages.requires_grad_()
    loss(p, q, advantages).sum().backward()
    assert p.grad is not None and q.grad is None and advantages.grad is None


@pytest.mark.parametrize(
    "loss",
    [
        off_policy.importance_weighted,
        off_policy.clipped_weight,
        lambda p, q, a: off_policy.quadratic_penalty(p, q, a, beta=0.3),
        lambda p, q, a: off_policy.sequence_ratio_by_token(p, q, a, torch.zeros(2).long(), torch.ones(2)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ValueError, match=r"advantages\w* \(1,\)"):
        loss(torch.zeros(2), torch.zeros(2), torch.zeros(1))


def test_examples_in_docstrings_run():
    assert doctest.testmod(off_policy).failed == 0
