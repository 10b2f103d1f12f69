import math

import pytest
import torch

from posttrain.errors import UserError
from posttrain.serving.losses import loss_of
from tests.references import off_policy as reference

RL = {"logprobs", "advantages"}


def columns(**numbers):
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}


def summed(name, p, config=None, **numbers):
    """The loss of tokens of one datum, and its derivatives."""
    p = torch.tensor(p, dtype=torch.float64, requires_grad=True)
    given = columns(**numbers)
    loss = loss_of(name, config or {}, set(given), 1).of_row(p, given, torch.zeros(len(p), dtype=torch.long))
    loss.backward()
    return loss.item(), p.grad.tolist()


def test_cross_entropy_is_the_weighted_sum_of_negative_logprobs():
    loss, slopes = summed("cross_entropy", [-1.0, -2.0, -0.5], weights=[0.0, 1.0, 3.0])
    assert loss == 2.0 + 1.5 and slopes == [0.0, -1.0, -3.0]


def test_cross_entropy_without_weights_weighs_every_token_by_one():
    assert summed("cross_entropy", [-1.0, -2.0]) == (3.0, [-1.0, -1.0])


def test_weights_that_are_minus_a_losss_derivatives_give_its_gradient():
    """What `forward_backward_custom` relies on, with C = sum of squares: dC/dp = 2 p."""
    logprobs = [-1.0, -2.5]
    _, slopes = summed("cross_entropy", logprobs, weights=[-2 * p for p in logprobs])
    assert slopes == [2 * p for p in logprobs]


@pytest.mark.parametrize(
    ("name", "equation", "config", "settings"),
    [
        ("importance_sampling", reference.importance, {}, ()),
        ("ppo", reference.clipped, {}, (0.8, 1.2)),
        ("ppo", reference.clipped, {"clip_low_threshold": 0.5, "clip_high_threshold": 3.0}, (0.5, 3.0)),
        ("cispo", reference.cispo, {}, (0.8, 1.2)),
        ("cispo", reference.cispo, {"clip_high_threshold": 4.0}, (0.8, 4.0)),
        ("dro", reference.dro, {}, (0.05,)),
        ("dro", reference.dro, {"beta": 2.0}, (2.0,)),
    ],
)
def test_losses_of_samples_are_sums_of_what_plain_floats_give(name, equation, config, settings):
    p, q = [-0.3, -1.0, -2.0, -0.1, -1.5], [-0.5, -0.2, -2.1, -1.4, -1.5]
    advantages = [1.5, -0.5, 2.0, 0.7, -3.0]
    expected = [equation(*each, *settings) for each in zip(p, q, advantages, strict=True)]
    loss, slopes = summed(name, p, config, logprobs=q, advantages=advantages)
    assert loss == pytest.approx(math.fsum(loss for loss, _ in expected), rel=1e-12)
    assert slopes == pytest.approx([slope for _, slope in expected], rel=1e-12)


def test_by_hand_a_token_whose_ratio_is_e():
    of_two = {"logprobs": [-2.0], "advantages": [2.0]}
    assert summed("importance_sampling", [-1.0], **of_two)[0] == pytest.approx(-2 * math.e)
    assert summed("ppo", [-1.0], **of_two) == (pytest.approx(-2.4), [0.0])
    assert summed("cispo", [-1.0], **of_two) == (pytest.approx(2.4), [pytest.approx(-2.4)])
    assert summed("dro", [-1.0], **of_two)[0] == pytest.approx(2 + 0.025)


def test_gspo_takes_one_ratio_for_each_datum():
    p = torch.tensor([-1.0, -1.0, -1.0, -3.0], dtype=torch.float64)
    given = columns(logprobs=[-2.0, -1.0, -1.0, -1.0], advantages=[1.0] * 4, sequence_ratio_mask=[1, 1, 0, 1])
    config = {"clip_low_threshold": 0.0, "clip_high_threshold": 9.0}
    loss = loss_of("gspo", config, set(given), 1).of_row(p, given, torch.tensor([5, 5, 7, 7]))
    assert loss.item() == pytest.approx(-2 * math.exp(0.5) - 2 * math.exp(-2.0))


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo"])
def test_a_token_of_advantage_zero_is_left_out_where_its_ratio_overflows(name):
    loss, slopes = summed(name, [-1.0, -1.0], logprobs=[-1e4, -1.0], advantages=[0.0, 1.0])
    assert math.isfinite(loss) and slopes == [0.0, -1.0]


def test_weights_multiply_the_loss_of_each_token_where_they_are_given():
    loss, slopes = summed(
        "importance_sampling", [-1.0, -1.0], logprobs=[-1.0] * 2, advantages=[1.0] * 2, weights=[0, 3]
    )
    assert (loss, slopes) == (-3.0, [0.0, -3.0])


@pytest.mark.parametrize(
    ("name", "config", "given", "targets", "reason"),
    [
        ("cross_entropi", {}, set(), 1, "cross_entropy"),
        ("stable_reinforce", {}, RL, 1, "not served"),
        ("ppo", {"beta": 1.0}, RL, 1, "no setting 'beta'; it has: clip_low_threshold, clip_high_threshold"),
        ("cross_entropy", {"beta": 1.0}, set(), 1, "it has: none"),
        ("ppo", {"clip_low_threshold": math.nan}, RL, 1, "finite"),
        ("dro", {"beta": -1.0}, RL, 1, "not negative"),
        ("dro", {"beta": math.inf}, RL, 1, "finite"),
        ("ppo", {"clip_low_threshold": 2.0}, RL, 1, "above clip_high_threshold"),
        ("ppo", {}, {"logprobs"}, 1, "needs advantages"),
        ("gspo", {}, RL, 1, "needs sequence_ratio_mask"),
        ("cross_entropy", {}, {"advantages"}, 1, "does not read 'advantages'"),
        ("ppo", {}, {*RL, "mask"}, 1, "does not read 'mask'"),
        ("importance_sampling", {}, RL, 2, "one target per token"),
    ],
)
def test_what_a_loss_cannot_read_is_refused(name, config, given, targets, reason):
    with pytest.raises(UserError, match=reason):
        loss_of(name, config, given, targets)
