"""Every online algorithm beside GRPO against its equation in plain floats: values, gradients, any cut of a batch."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain import algorithms
from posttrain.algorithms.algorithm import Counts, OnlineAlgorithm, Rollout
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.grpo_bucketed import BucketedGRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.reinforce_pp import ReinforcePlusPlus
from posttrain.algorithms.remax import ReMax
from posttrain.algorithms.rloo import RLOO
from posttrain.errors import UserError
from tests.references import online as reference

LONGEST, KINDS, GREEDY = 6, ("sum", "word", "sum"), [0.5, 0.0, 1.0]
CASES = {
    "dr-grpo": (DrGRPO(clip_low=0.1, clip_high=0.3), partial(reference.dr_grpo, longest=LONGEST, low=0.1, high=0.3)),
    "dapo": (DAPO(overlong_share=0.5), partial(reference.dapo, longest=LONGEST, share=0.5)),
    "dapo without a punishment": (DAPO(overlong_share=0.0), partial(reference.dapo, longest=LONGEST, share=0.0)),
    "gspo": (GSPO(clip_low=0.1, clip_high=0.15), partial(reference.gspo, low=0.1, high=0.15)),
    "grpo-bucketed": (BucketedGRPO(kl_coefficient=0.0), lambda batch: reference.bucketed(batch, KINDS)),
    "reinforce": (Reinforce(kl_coefficient=0.3), partial(reference.reinforce, beta=0.3)),
    "reinforce without KL": (Reinforce(kl_coefficient=0.0), partial(reference.reinforce, beta=0.0)),
    "rloo": (RLOO(kl_coefficient=0.3, clip=0.1), partial(reference.rloo, beta=0.3, clip=0.1)),
    "remax": (ReMax(kl_coefficient=0.3), lambda batch: reference.remax(batch, GREEDY, beta=0.3)),
    "reinforce++": (
        ReinforcePlusPlus(kl_coefficient=0.3, clip=0.1),
        partial(reference.reinforce_pp, beta=0.3, clip=0.1),
    ),
}
EACH = pytest.mark.parametrize("name", CASES)


def batch(seed: int = 0, drift: float = 0.2) -> list:
    """Three prompts with three completions of one to six tokens."""
    g = torch.Generator().manual_seed(seed)

    def completion() -> dict:
        length = int(torch.randint(1, LONGEST + 1, (1,), generator=g))
        old = (-torch.rand(length, generator=g, dtype=torch.float64) * 2 - 0.1).tolist()
        noise = torch.randn(2, length, generator=g, dtype=torch.float64).tolist()
        tokens = [(o + drift * a, o, o + 0.5 * b) for o, a, b in zip(old, *noise, strict=True)]
        return {"reward": float(torch.rand(1, generator=g, dtype=torch.float64)), "tokens": tokens}

    return [[completion() for _ in range(3)] for _ in range(3)]


def scalar(algorithm: OnlineAlgorithm, said: list, rows: list[int] | None = None):
    """The loss of a batch, or the share of some completions, renumbered from 0 in a micro-batch; and the logprobs."""
    members = reference.completions(said)
    row = torch.tensor([number for number, c in enumerate(members) for _ in c["tokens"]])
    logprobs, old, behind = torch.tensor([t for c in members for t in c["tokens"]], dtype=torch.float64).unbind(1)
    logprobs = logprobs.clone().requires_grad_()
    rewards = torch.tensor([[c["reward"] for c in group] for group in said], dtype=torch.float64)
    greedy = torch.tensor(GREEDY, dtype=torch.float64)
    found = algorithm.advantages(Rollout(rewards, row, LONGEST, old, behind, greedy, KINDS)).advantages_N
    chosen = torch.arange(len(members)) if rows is None else torch.tensor(rows)
    here = torch.isin(row, chosen)
    renumbered = torch.searchsorted(chosen, row[here])
    out = algorithm.loss(
        logprobs[here], old_N=old[here], advantages_N=found[here], row_N=renumbered, reference_N=behind[here]
    )
    return algorithm.reduce(out.loss_N, renumbered, Counts(len(members), len(row), LONGEST)), logprobs


@EACH
@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_values_and_gradients_are_those_of_the_equation(name, seed):
    algorithm, equation = CASES[name]
    said = batch(seed)
    loss, logprobs = scalar(algorithm, said)
    assert loss.item() == pytest.approx(equation(said), rel=1e-9, abs=1e-12)
    (grad,) = torch.autograd.grad(loss, logprobs)
    places = [(p, g, t) for p, group in enumerate(said) for g, c in enumerate(group) for t in range(len(c["tokens"]))]
    for n, (p, g, t) in list(enumerate(places))[::4]:
        around = []
        for by in (1e-6, -1e-6):
            moved = copy.deepcopy(said)
            logprob, old, behind = moved[p][g]["tokens"][t]
            moved[p][g]["tokens"][t] = (logprob + by, old, behind)
            around.append(equation(moved))
        assert grad[n].item() == pytest.approx((around[0] - around[1]) / 2e-6, rel=1e-4, abs=1e-7)


@EACH
@pytest.mark.parametrize(
    "cut", [[[0, 1, 2, 3], [4, 5, 6, 7, 8]], [[1, 3, 5, 7], [0, 2, 4, 6, 8]], [[n] for n in range(9)]]
)
def test_no_cut_of_the_batch_changes_the_gradient(name, cut):
    algorithm, _ = CASES[name]
    said = batch()
    whole = torch.autograd.grad(*scalar(algorithm, said))[0]
    parts = sum(torch.autograd.grad(*scalar(algorithm, said, rows))[0] for rows in cut)
    torch.testing.assert_close(parts, whole, rtol=1e-11, atol=1e-14)


@EACH
def test_on_the_first_update_the_ratio_is_one_and_nothing_is_clipped(name):
    algorithm, _ = CASES[name]
    said = batch(drift=0.0)
    members = reference.completions(said)
    row = torch.tensor([number for number, c in enumerate(members) for _ in c["tokens"]])
    logprobs = torch.tensor([t[0] for c in members for t in c["tokens"]], dtype=torch.float64)
    found = algorithm.loss(logprobs, old_N=logprobs, advantages_N=torch.ones_like(logprobs), row_N=row)
    assert (found.metrics["ratio"] == 1).all() and not found.metrics["clip_fraction"].any()
    assert not any(values.requires_grad for values in found.metrics.values())


@pytest.mark.parametrize("name", [name for name in CASES if "KL" not in name])
def test_where_it_is_silent_at_zero_a_token_of_no_advantage_has_no_gradient(name):
    algorithm, _ = CASES[name]
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    out = algorithm.loss(
        logprobs,
        old_N=logprobs.detach() - 0.3,
        advantages_N=torch.zeros(3, dtype=torch.float64),
        row_N=torch.tensor([0, 0, 1]),
    )
    assert algorithm.silent_at_zero
    assert not torch.autograd.grad(out.loss_N.sum(), logprobs)[0].any()


def test_dapo_throws_away_what_is_all_right_or_all_wrong():
    accepted = [
        DAPO().accepts(torch.tensor(rewards)) for rewards in ([1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0], [1.0, 1.1])
    ]
    assert accepted == [False, False, True, True]
    others = [n for n in algorithms.ONLINE if n != "dapo"]
    assert all(algorithms.online(name)().accepts(torch.zeros(2)) for name in others)


def test_the_punishment_of_dapo_is_seen_in_its_metrics():
    rewards, row = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
    assert DAPO(overlong_share=0.5).advantages(Rollout(rewards, row, 6)).metrics["overlong"] == -0.5
    assert "overlong" not in DAPO(overlong_share=0.0).advantages(Rollout(rewards, row, 6)).metrics
    assert "overlong" not in DAPO().advantages(Rollout(rewards, row)).metrics  # no limit, so none is near


@pytest.mark.parametrize("kind", [Reinforce, RLOO, ReinforcePlusPlus])
def test_a_kl_in_the_reward_without_a_reference_is_an_error(kind):
    rollout = Rollout(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0, 1]), 6, torch.zeros(2))
    assert kind().needs_reference and not kind(kl_coefficient=0.0).needs_reference
    with pytest.raises(ValueError, match="needs reference_N"):
        kind().advantages(rollout)
    assert not kind(kl_coefficient=0.0).advantages(rollout).advantages_N.any()


def test_remax_without_greedy_completions_is_an_error():
    assert ReMax.needs_greedy and not Reinforce.needs_greedy
    with pytest.raises(ValueError, match="needs greedy_P"):
        ReMax(kl_coefficient=0.0).advantages(Rollout(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0])))


def test_the_kl_in_the_metrics_is_in_nats():
    rollout = Rollout(
        torch.zeros(1, 2, dtype=torch.float64),
        torch.tensor([0, 0, 1]),
        6,
        torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64),
        torch.tensor([-2.0, -1.5, -2.0], dtype=torch.float64),
    )
    assert Reinforce().advantages(rollout).metrics["kl"] == pytest.approx(0.75)  # per completion
    assert ReinforcePlusPlus().advantages(rollout).metrics["kl_per_token"] == pytest.approx(0.5)


def test_rounding_of_a_kl_does_not_become_a_signal_where_nothing_was_earned():
    noise = 1e-6 * torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rollout = Rollout(torch.zeros(2, 2, dtype=torch.float64), torch.arange(4).repeat_interleave(3), 6, noise, 0 * noise)
    for algorithm in (Reinforce(), RLOO(), ReinforcePlusPlus()):
        assert 0 < algorithm.advantages(rollout).advantages_N.abs().max() < 1e-3


def test_what_a_bucket_says_of_itself():
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    found = BucketedGRPO().advantages(Rollout(rewards, torch.arange(6), kinds_P=("a", "a", "b")))
    assert found.metrics == {"kinds": 2.0, "zero_advantage": pytest.approx(1 / 3)}
    assert BucketedGRPO().advantages(Rollout(rewards, torch.arange(6))).metrics["kinds"] == 1.0


@pytest.mark.parametrize(
    ("kind", "knob", "value"),
    [
        (DAPO, "overlong_share", 1.1),
        (DAPO, "overlong_share", -0.1),
        (DAPO, "clip_high", -1.0),
        (Reinforce, "kl_coefficient", -0.1),
        (RLOO, "clip", -0.1),
        (RLOO, "kl_coefficient", math.nan),
        (ReinforcePlusPlus, "clip", math.inf),
        (ReinforcePlusPlus, "std_epsilon", -1.0),
        (DrGRPO, "std_epsilon", 0.1),
        (ReinforcePlusPlus, "kl_coefficient", -1.0),
    ],
)
def test_a_knob_that_cannot_be_is_refused(kind, knob, value):
    with pytest.raises(UserError, match=knob):
        kind(**{knob: value})


def test_the_published_defaults():
    assert (DAPO().clip_low, DAPO().clip_high, DAPO().overlong_share, DAPO().kl_coefficient) == (0.2, 0.28, 0.2, 0.0)
    assert (GSPO().clip_low, GSPO().clip_high, GSPO().kl_coefficient) == (3e-4, 4e-4, 0.0)
    assert (DrGRPO().clip_low, DrGRPO().kl_coefficient) == (0.2, 0.0)
    assert (Reinforce().kl_coefficient, ReMax().kl_coefficient) == (0.05, 0.1)
    assert (RLOO().kl_coefficient, RLOO().clip) == (0.05, 0.2)
    assert (ReinforcePlusPlus().kl_coefficient, ReinforcePlusPlus().clip) == (0.01, 0.2)
    least = {name: algorithms.online(name).least_group for name in algorithms.ONLINE}
    assert {name for name, size in least.items() if size == 2} == {"grpo", "dr-grpo", "dapo", "gspo", "rloo"}
