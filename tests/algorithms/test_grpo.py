"""GRPO as a whole against its reading in plain floats, its gradients, and what must not change it."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.algorithms.algorithm import Counts, Tokens
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.inputs import ReferenceLogprobs
from posttrain.algorithms.rollout import Rollout
from posttrain.errors import UserError
from posttrain.objectives import kl
from tests.references import grpo as reference

LENGTHS = [[2, 5, 1], [3, 1, 4]]
REWARDS = [[1.0, 0.0, 0.25], [0.5, 2.0, 0.5]]
WITHOUT_KL = GRPO(kl_coefficient=0.0)


def batch(seed: int = 0, rewards=REWARDS, lengths=LENGTHS, drift: float = 0.3):
    """A batch of groups as a recipe would have it: flat tokens in float64, `logprobs` with a gradient."""
    g = torch.Generator().manual_seed(seed)
    sizes = [n for group in lengths for n in group]
    row = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    old = -torch.rand(len(row), generator=g, dtype=torch.float64) * 3 - 1
    noise = torch.randn(2, len(row), generator=g, dtype=torch.float64)
    return SimpleNamespace(
        sizes=sizes,
        row=row,
        old=old,
        reference=old + 0.5 * noise[0],
        logprobs=(old + drift * noise[1]).requires_grad_(),
        rewards=torch.tensor([reward for group in rewards for reward in group], dtype=torch.float64),
        group=torch.tensor([number for number, group in enumerate(rewards) for _ in group]),
    )


def scalar(algorithm, b, rows=None):
    """The loss of the whole batch, or the share of the sequences `rows`, renumbered from 0 as a micro-batch is."""
    chosen = torch.arange(len(b.sizes)) if rows is None else torch.tensor(rows)
    here = torch.isin(b.row, chosen)
    row = torch.searchsorted(chosen, b.row[here])
    found = algorithm.advantages(Rollout(b.rewards, b.group, b.row)).advantages_N[here]
    out = algorithm.loss(
        Tokens(b.logprobs[here], old_N=b.old[here], advantages_N=found, branch_N=row, reference_N=b.reference[here])
    )
    return algorithm.reduce(out.loss_N, b.row.bincount()[b.row][here], Counts(len(b.sizes), len(b.row)))


def advantages(algorithm, rewards, lengths=None):
    """Of whole completions, of as many tokens as `lengths` says, or of one each."""
    flat = torch.tensor([reward for group in rewards for reward in group], dtype=torch.float64)
    group = torch.tensor([number for number, group in enumerate(rewards) for _ in group])
    sizes = torch.ones(len(flat), dtype=torch.long) if lengths is None else torch.tensor(lengths)
    row = torch.repeat_interleave(torch.arange(len(flat)), sizes)
    return algorithm.advantages(Rollout(flat, group, row))


def gradient(loss, b):
    return torch.autograd.grad(loss, b.logprobs)[0]


def as_floats(b, rewards=REWARDS, lengths=LENGTHS):
    tokens = iter(zip(b.logprobs.tolist(), b.old.tolist(), b.reference.tolist(), strict=True))
    return [
        [(reward, [next(tokens) for _ in range(n)]) for reward, n in zip(group, sizes, strict=True)]
        for group, sizes in zip(rewards, lengths, strict=True)
    ]


RAGGED = ([[1.0, 0.0], [0.5, 2.0, 0.5, 0.25], [0.75, 0.0, 1.0]], [[2, 5], [3, 1, 4, 2], [1, 2, 6]])


@pytest.mark.parametrize("groups", [(REWARDS, LENGTHS), RAGGED], ids=["equal groups", "ragged groups"])
@pytest.mark.parametrize("beta", [0.0, 0.04, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_matches_the_paper_written_with_floats(beta, seed, groups):
    algorithm = GRPO(clip_low=0.15, clip_high=0.28, kl_coefficient=beta, std_epsilon=1e-3)
    b = batch(seed, *groups)
    expected = reference.loss(as_floats(b, *groups), epsilon_low=0.15, epsilon_high=0.28, beta=beta, std_epsilon=1e-3)
    assert scalar(algorithm, b).item() == pytest.approx(expected, rel=1e-12)


def test_gradient_is_that_of_the_paper_written_with_floats():
    b = batch(drift=0.1)
    actual = gradient(scalar(GRPO(), b), b)
    step, values = 1e-6, b.logprobs.tolist()
    for n in range(len(values)):
        around = []
        for sign in (1, -1):
            moved = [v + sign * step * (i == n) for i, v in enumerate(values)]
            shifted = SimpleNamespace(**{**vars(b), "logprobs": torch.tensor(moved, dtype=torch.float64)})
            around.append(
                reference.loss(as_floats(shifted), epsilon_low=0.2, epsilon_high=0.2, beta=0.04, std_epsilon=1e-4)
            )
        assert actual[n].item() == pytest.approx((around[0] - around[1]) / (2 * step), rel=1e-5, abs=1e-9)


def test_the_defaults_are_the_papers():
    algorithm = GRPO()
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.2)
    assert (algorithm.kl_coefficient, algorithm.kl_estimator, algorithm.std_epsilon) == (0.04, "k3", 1e-4)
    assert (algorithm.inputs, WITHOUT_KL.inputs) == ((ReferenceLogprobs(),), ())


def test_on_the_first_update_the_ratio_is_one_nothing_is_clipped_and_the_gradient_is_reinforce():
    b = batch(drift=0.0)
    of_each = advantages(WITHOUT_KL, REWARDS).advantages_N
    out = WITHOUT_KL.loss(Tokens(b.logprobs, old_N=b.old, advantages_N=of_each[b.row], branch_N=b.row))
    assert out.metrics["ratio"].tolist() == [1.0] * len(b.row)
    assert out.metrics["clip_fraction"].tolist() == [0.0] * len(b.row)
    expected = [-of_each[r].item() / b.sizes[r] / len(b.sizes) for r in b.row.tolist()]
    assert gradient(scalar(WITHOUT_KL, b), b).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("algorithm", [GRPO(), WITHOUT_KL, GRPO(kl_estimator="k2")])
@pytest.mark.parametrize("cut", [[[0, 1, 2], [3, 4, 5]], [[0], [1, 2, 3, 4], [5]], [[1, 3, 5], [0, 2, 4]]])
def test_no_cut_of_the_batch_changes_the_gradient(algorithm, cut):
    b = batch()
    whole = gradient(scalar(algorithm, b), b)
    parts = sum(gradient(scalar(algorithm, b, rows), b) for rows in cut)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-15)


@given(st.integers(-3, 3), st.sampled_from([0.5, 4.0]))
def test_a_shift_or_scale_of_all_rewards_changes_nothing(shift, scale):
    algorithm = GRPO(std_epsilon=0.0)
    b = batch()
    expected = gradient(scalar(algorithm, b), b)
    moved = batch(rewards=[[scale * reward + shift for reward in group] for group in REWARDS])
    torch.testing.assert_close(gradient(scalar(algorithm, moved), moved), expected, rtol=1e-9, atol=1e-12)


@given(st.permutations(range(3)))
def test_the_order_within_a_group_does_not_matter(order):
    b = batch(lengths=[[4, 4, 4], [2, 2, 2]])
    expected = scalar(GRPO(), b)
    swapped = batch(lengths=[[4, 4, 4], [2, 2, 2]])
    swapped.rewards = b.rewards.view(2, 3)[:, order].flatten()
    rows = [order[r] if r < 3 else 3 + order[r - 3] for r in range(6)]
    tokens = torch.cat([torch.nonzero(b.row == r)[:, 0] for r in rows])
    for name in ("logprobs", "old", "reference"):
        setattr(swapped, name, getattr(b, name)[tokens])
    torch.testing.assert_close(scalar(GRPO(), swapped), expected, rtol=1e-12, atol=1e-12)


def test_without_a_kl_term_a_token_of_no_advantage_is_silent_and_with_one_it_is_not():
    b = batch(rewards=[[1.0, 0.0, 0.25], [0.1, 0.1, 0.1]])
    assert WITHOUT_KL.silent_at_zero and not GRPO().silent_at_zero
    whole = gradient(scalar(WITHOUT_KL, b), b)
    assert torch.equal(gradient(scalar(WITHOUT_KL, b, [0, 1, 2]), b), whole) and whole.abs().max() > 0
    assert gradient(scalar(GRPO(), b), b)[b.row >= 3].abs().min() > 0


@pytest.mark.parametrize("rewards", [[[1.0, 0.0]], [[0.0, 0.5, 1.0]], [[0.0, 0.0, 0.0, 1.0]]])
def test_a_group_with_any_advantage_at_all_is_not_counted_as_dead(rewards):
    assert advantages(WITHOUT_KL, rewards).metrics["zero_advantage"] == 0.0  # in the second, one is just average


def test_every_group_is_accepted():
    assert GRPO().accepts(torch.zeros(3)) and GRPO().accepts(torch.ones(2))


def test_an_advantage_is_that_of_all_tokens_of_its_completion():
    found = advantages(GRPO(std_epsilon=0.0), [[1.0, 0.0], [0.0, 1.0]], [2, 1, 3, 1]).advantages_N
    half = math.sqrt(0.5)
    assert found.tolist() == pytest.approx([half, half, -half, -half, -half, -half, half])


def test_the_kl_estimator_is_the_one_asked_for():
    b = batch()
    zeros = torch.zeros_like(b.old)
    for name, estimator in kl.ESTIMATORS.items():
        out = GRPO(kl_coefficient=0.5, kl_estimator=name).loss(
            Tokens(b.logprobs, old_N=b.old, advantages_N=zeros, branch_N=b.row, reference_N=b.reference)
        )
        torch.testing.assert_close(out.loss_N, 0.5 * estimator(b.logprobs, b.reference))
        torch.testing.assert_close(out.metrics["kl"], estimator(b.logprobs, b.reference).detach())


def test_metrics_carry_no_gradient():
    b = batch()
    out = GRPO().loss(Tokens(b.logprobs, old_N=b.old, advantages_N=b.old, branch_N=b.row, reference_N=b.reference))
    assert set(out.metrics) == {"ratio", "clip_fraction", "kl"}
    assert not any(value.requires_grad for value in out.metrics.values())


def test_advantage_metrics_show_a_run_that_learns_nothing():
    rewards = [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [3.0, 3.0]]
    metrics = advantages(GRPO(), rewards).metrics
    assert metrics["zero_advantage"] == 0.75
    assert metrics["reward_std"] == pytest.approx(math.sqrt(0.5) / 4)
    ragged = advantages(GRPO(), [[1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0], [3.0] * 4]).metrics
    assert ragged == {"zero_advantage": 0.5, "reward_std": pytest.approx(2 * math.sqrt(0.5) / 4)}  # groups count alike


def test_a_group_of_one_says_what_to_type():
    with pytest.raises(UserError, match="needs 2 or more of them; got 1: type `completions_per_prompt=2`"):
        advantages(GRPO(), [[0.0]] * 4)
    with pytest.raises(ValueError, match="one group has 1 left, another 3: leave groups out"):
        advantages(GRPO(), [[0.0] * 3, [1.0]])


def test_a_kl_term_without_a_reference_is_an_error_not_a_loss_without_kl():
    b = batch()
    with pytest.raises(ValueError, match="needs reference_N"):
        GRPO().loss(Tokens(b.logprobs, old_N=b.old, advantages_N=b.old, branch_N=b.row))


@pytest.mark.parametrize("knob", ["clip_low", "clip_high", "kl_coefficient", "std_epsilon"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_knob_that_makes_no_sense_is_refused(knob, value):
    with pytest.raises(UserError, match=f"^{knob} must be a number of at least 0; got"):
        GRPO(**{knob: value})


def test_an_unknown_estimator_names_the_nearest():
    with pytest.raises(UserError, match="unknown KL estimator 'K3'"):
        GRPO(kl_estimator="K3")
