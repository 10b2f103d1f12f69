"""Every online algorithm beside GRPO against its equation in plain floats: values, gradients, any cut of a batch."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain import algorithms
from posttrain.algorithms.algorithm import ActorCritic, Counts, OnlineAlgorithm, Tokens
from posttrain.algorithms.cispo import CISPO
from posttrain.algorithms.clip_cov import ClipCov
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dppo import DPPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.gdpo import GDPO
from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.gmpo import GMPO
from posttrain.algorithms.grpo_bucketed import BucketedGRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.inputs import (
    CriticValues,
    GreedyReward,
    PretrainingNLL,
    ProverValues,
    ReferenceLogprobs,
    SeatBaselines,
    StateValues,
    TeacherDistributions,
    TeacherLogprobs,
    declared,
    trained,
)
from posttrain.algorithms.kl_cov import KLCov
from posttrain.algorithms.maxrl import MaxRL
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.pass_at_k import PassAtK
from posttrain.algorithms.pav import PAV
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.ppo_penalty import PPOPenalty
from posttrain.algorithms.ppo_ptx import PPOPtx
from posttrain.algorithms.prime import PRIME
from posttrain.algorithms.rae import RAE
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.reinforce_pp import ReinforcePlusPlus
from posttrain.algorithms.remax import ReMax
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.rollout import Rollout
from posttrain.algorithms.sapo import SAPO
from posttrain.algorithms.vapo import VAPO
from posttrain.algorithms.vineppo import VinePPO
from posttrain.errors import UserError
from posttrain.objectives.advantages import moving_baselines
from tests.references import online as reference
from tests.references import recent

WEIGHTS = (1.0, 0.3)  # of two rewards
LONGEST, KINDS = 6, ("sum", "word", "sum")
GREEDY = [(0.5, -0.5), (0.0, 0.25), (1.0, -1.0)]  # of each task what each seat earned
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
    "ppo": (
        PPO(kl_coefficient=0.3, discount=0.9, gae_lambda=0.7, clip_low=0.1, clip_high=0.1, entropy_coefficient=0.2),
        partial(reference.ppo, beta=0.3, gamma=0.9, lam=0.7, clip=0.1, c2=0.2),
    ),
    "ppo without KL": (PPO(kl_coefficient=0.0, value_coefficient=0.7), partial(reference.ppo, beta=0.0, c1=0.7)),
    "vapo": (VAPO(length_alpha=0.5), partial(reference.vapo, alpha=0.5, mu=0.1)),
    "vineppo": (VinePPO(kl_coefficient=0.0), reference.vineppo),
    "rae": (RAE(baseline_decay=0.75), partial(reference.rae, alpha=0.75)),
    "opd": (OPD(reward_coefficient=0.5, clip=0.1), partial(reference.opd, c_reward=0.5, clip=0.1)),
    "opd without rewards": (OPD(), partial(reference.opd, c_reward=0.0, clip=0.2)),
    "gkd": (GKD(reward_coefficient=0.5, clip=0.1), partial(reference.gkd, c_reward=0.5, clip=0.1)),
    "maxrl": (MaxRL(clip_low=0.1), partial(recent.maxrl, longest=LONGEST, low=0.1)),
    "pass-at-k": (PassAtK(k=2, right_from=0.2), partial(recent.pass_at_k, k=2, right_from=0.2)),
    "gdpo": (GDPO(), partial(recent.gdpo, weights=WEIGHTS)),
    "cispo": (CISPO(clip_low=0.1, clip_high=0.15), partial(recent.cispo, low=0.1, high=0.15)),
    "sapo": (SAPO(tau_negative=2.0), partial(recent.sapo, tau_positive=1.0, tau_negative=2.0)),
    "gmpo": (GMPO(clip_low=0.1, clip_high=0.15), partial(recent.gmpo, low=0.1, high=0.15)),
    "dppo": (DPPO(clip_low=0.05, clip_high=0.1), partial(recent.dppo, low=0.05, high=0.1, kind="tv")),
    "dppo by binary divergence": (
        DPPO(clip_low=0.005, clip_high=0.01, divergence="kl"),
        partial(recent.dppo, low=0.005, high=0.01, kind="kl"),
    ),
    "clip-cov": (ClipCov(chosen_share=1.0, cov_low=0.2), partial(recent.clip_cov, low=0.2, high=5.0)),
    "kl-cov": (KLCov(penalised_share=0.2, penalty=0.5), partial(recent.kl_cov, share=0.2, beta=0.5)),
    "prime": (PRIME(prm_beta=0.3, clip_low=0.1), partial(recent.prime, beta=0.3, low=0.1)),
    "pav": (PAV(progress_weight=0.7, kl_coefficient=0.0), partial(recent.pav, weight=0.7)),
}
ZEROS = torch.zeros(9, dtype=torch.long)
CRITICS = [name for name, (algorithm, _) in CASES.items() if isinstance(algorithm, ActorCritic)]
EACH = pytest.mark.parametrize("name", CASES)


def batch(seed: int = 0, drift: float = 0.2) -> list:
    """Three tasks with two to four episodes, of one seat or two, whose rows have one to six tokens and a branch or two.

    In batches of an even seed all tasks have three episodes, of one seat, and every row is one branch.
    """
    g = torch.Generator().manual_seed(seed)
    plain = seed % 2 == 0

    def number(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (1,), generator=g))

    def row(seat: int) -> dict:
        length = int(torch.randint(1, LONGEST + 1, (1,), generator=g))
        old = (-torch.rand(length, generator=g, dtype=torch.float64) * 2 - 0.1).tolist()
        noise = torch.randn(2, length, generator=g, dtype=torch.float64).tolist()
        tokens = [(o + drift * a, o, o + 0.5 * b) for o, a, b in zip(old, *noise, strict=True)]
        steps = (torch.rand(length, generator=g) < 0.5).long().cumsum(0)
        worth = torch.rand(LONGEST + 1, generator=g, dtype=torch.float64)[steps]
        scores = torch.rand(2, generator=g, dtype=torch.float64).round(decimals=1).tolist()
        values, now, entropy = torch.rand(3, length, generator=g, dtype=torch.float64).tolist()
        return {
            "reward": float(torch.rand(1, generator=g, dtype=torch.float64)) - 0.3,
            "seat": seat,
            "cut": length if plain else number(1, length),
            "tokens": tokens,
            "frozen": [logprob for logprob, _, _ in tokens],
            "scores": [scores[0], None if not plain and scores[1] < 0.3 else scores[1]],
            "teacher": [0.7 * b + 0.1 * o - 0.2 for _, o, b in tokens],
            "prm": [0.6 * b - 0.2 * o - 0.4 for _, o, b in tokens],
            "divergence": [0.1 + 0.3 * abs(b - o) for _, o, b in tokens],
            "values": values,
            "now": now,
            "entropy": entropy,
            "steps": (steps - steps[0]).tolist(),
            "worth": worth.tolist(),
        }

    seats = range(1 if plain else number(1, 2))
    return [[row(seat) for _ in range(3 if plain else number(2, 4)) for seat in seats] for _ in range(3)]


def rollout_of(said: list, **columns) -> Rollout:
    """The rows of a batch, and whatever else is known of them."""
    members = reference.completions(said)
    places = [(number, c["seat"]) for number, task in enumerate(said) for c in task]
    rewards = torch.tensor([c["reward"] for c in members], dtype=torch.float64)
    return Rollout(
        rewards,
        torch.tensor([number for number, _ in places]),
        torch.tensor([number for number, c in enumerate(members) for _ in c["tokens"]]),
        LONGEST,
        greedy_R=torch.tensor([GREEDY[number][seat] for number, seat in places], dtype=torch.float64),
        kinds_R=tuple(KINDS[number] for number, _ in places),
        seat_R=torch.tensor([seat for _, seat in places]),
        teacher_N=torch.tensor([x for c in members for x in c["teacher"]], dtype=torch.float64),
        scores_RK=torch.tensor(
            [[math.nan if x is None else x for x in c["scores"]] for c in members], dtype=torch.float64
        ),
        weights_K=torch.tensor(WEIGHTS, dtype=torch.float64),
        more={
            "prm_N": torch.tensor([x for c in members for x in c["prm"]], dtype=torch.float64),
            "taught_B": None,
        },
        baselines_R=moving_baselines(rewards, [str(seat) for _, seat in places], {}, decay=0.75)[0],
        **columns,
    )


def branches_of(said: list) -> torch.Tensor:
    """Which branch of the batch each token belongs to, [N]."""
    parts = [part for c in reference.completions(said) for part in reference.branches(c)]
    return torch.tensor([number for number, part in enumerate(parts) for _ in part])


def scalar(algorithm: OnlineAlgorithm, said: list, branches: list[int] | None = None):
    """The loss of a batch, or the share of some branches, renumbered from 0 in a micro-batch; and the logprobs."""
    loss, tokens = with_tokens(algorithm, said, branches)
    return loss, tokens["logprobs_N"]


def with_tokens(algorithm: OnlineAlgorithm, said: list, branches: list[int] | None = None):
    """The same, and everything that carries a gradient, by name."""
    members, branch = reference.completions(said), branches_of(said)
    logprobs, old, behind = torch.tensor([t for c in members for t in c["tokens"]], dtype=torch.float64).unbind(1)
    now, entropy, values, worth, steps, divergence = (
        torch.tensor([x for c in members for x in c[name]], dtype=torch.float64)
        for name in ("now", "entropy", "values", "worth", "steps", "divergence")
    )
    leaves = {"logprobs_N": logprobs.clone(), "values_N": now, "entropy_N": entropy, "divergence_N": divergence}
    for leaf in leaves.values():
        leaf.requires_grad_()
    states = isinstance(algorithm, VinePPO)
    rollout = rollout_of(
        said,
        sampler_N=old,
        reference_N=behind,
        values_N=worth if states else values,
        step_N=steps.long() if states else None,
    )
    found = algorithm.advantages(rollout)
    chosen = branch.unique() if branches is None else torch.tensor(branches)
    here = torch.isin(branch, chosen)
    tokens = Tokens(
        leaves["logprobs_N"][here],
        old_N=old[here],
        advantages_N=found.advantages_N[here],
        branch_N=torch.searchsorted(chosen, branch[here]),
        reference_N=behind[here],
        entropy_N=leaves["entropy_N"][here],
        values_N=leaves["values_N"][here],
        old_values_N=values[here],
        sampler_N=old[here],
        divergence_N=leaves["divergence_N"][here],
        **{name: numbers_N[here] for name, numbers_N in found.columns.items() if name != "advantages_N"},
    )
    out = algorithm.loss(tokens)
    length = rollout.per_token(rollout.lengths_R)[here]
    return algorithm.reduce(out.loss_N, length, Counts(len(members), len(branch), LONGEST)), leaves


@EACH
@settings(max_examples=20)
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


CUTS = {
    "in halves": lambda n: [list(range(n // 2)), list(range(n // 2, n))],
    "evens and odds": lambda n: [list(range(1, n, 2)), list(range(0, n, 2))],
    "each alone": lambda n: [[i] for i in range(n)],
}


@EACH
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_no_cut_of_the_batch_changes_the_gradient(name, cut, seed):
    """Nor one between two branches of a row."""
    algorithm, _ = CASES[name]
    said = batch(seed)
    pieces = CUTS[cut](int(branches_of(said).max()) + 1)
    whole = torch.autograd.grad(*scalar(algorithm, said))[0]
    parts = sum(torch.autograd.grad(*scalar(algorithm, said, piece))[0] for piece in pieces)
    torch.testing.assert_close(parts, whole, rtol=1e-11, atol=1e-14)


def test_the_batches_are_ragged_of_two_seats_and_of_several_branches():
    said = [batch(seed) for seed in (1, 3, 5, 7)]
    assert all(len({len(task) for task in one}) > 1 for one in said)
    assert {len({c["seat"] for task in one for c in task}) for one in said} == {1, 2}
    assert all(int(branches_of(one).max()) + 1 > len(reference.completions(one)) for one in said)


def as_groups_of_one_seat(rollout: Rollout) -> Rollout:
    """The same rows, where each seat of a task is a group of its own."""
    kinds = tuple(f"{kind} {seat}" for kind, seat in zip(rollout.kinds_R, rollout.seats, strict=True))
    return rollout._replace(group_R=2 * rollout.group_R + rollout.seat_R, seat_R=None, kinds_R=kinds)


@EACH
@pytest.mark.parametrize("seed", [s for s in range(20) if len({c["seat"] for c in batch(s)[0]}) == 2][:3])
def test_two_seats_are_compared_as_two_groups_of_one_seat(name, seed):
    algorithm, _ = CASES[name]
    said = batch(seed)
    g = torch.Generator().manual_seed(0)
    numbers = torch.randn(3, len(branches_of(said)), generator=g, dtype=torch.float64)
    columns = dict(zip(("sampler_N", "reference_N", "values_N"), numbers, strict=True))
    rollout = rollout_of(said, **columns, step_N=torch.zeros(numbers.shape[1], dtype=torch.long))
    both, apart = algorithm.advantages(rollout), algorithm.advantages(as_groups_of_one_seat(rollout))
    torch.testing.assert_close(both.advantages_N, apart.advantages_N, rtol=0, atol=0)
    drop = ("kinds",)  # each seat of a kind has a name of its own where it is a group of its own
    assert {k: v for k, v in both.metrics.items() if k not in drop} == {
        k: v for k, v in apart.metrics.items() if k not in drop
    }


@EACH
def test_on_the_first_update_the_ratio_is_one_and_nothing_is_clipped(name):
    algorithm, _ = CASES[name]
    said = batch(drift=0.0)
    members = reference.completions(said)
    logprobs = torch.tensor([t[0] for c in members for t in c["tokens"]], dtype=torch.float64)
    ones = torch.ones_like(logprobs)
    found = algorithm.loss(
        Tokens(
            logprobs.clone().requires_grad_(),
            old_N=logprobs,
            advantages_N=ones,
            branch_N=branches_of(said),
            entropy_N=ones,
            values_N=ones.clone().requires_grad_(),
            old_values_N=ones,
            returns_N=ones,
            imitation_N=ones,
            penalty_N=ones,
            sampler_N=logprobs,
            divergence_N=ones,
        )
    )
    assert (found.metrics["ratio"] == 1).all() and not found.metrics["clip_fraction"].any()
    assert not any(values.requires_grad for values in found.metrics.values())


@pytest.mark.parametrize("name", CRITICS)
def test_what_the_critic_and_the_entropy_learn_is_the_slope_of_the_equation(name):
    algorithm, equation = CASES[name]
    said = batch(3)
    members = reference.completions(said)
    loss, leaves = with_tokens(algorithm, said)
    grads = torch.autograd.grad(loss, [leaves["values_N"], leaves["entropy_N"]], allow_unused=True)
    places = [(c, t) for c in range(len(members)) for t in range(len(members[c]["tokens"]))]
    for field, grad in zip(("now", "entropy"), grads, strict=True):
        for n, (c, t) in enumerate(places):
            around = []
            for by in (1e-6, -1e-6):
                moved = copy.deepcopy(said)
                reference.completions(moved)[c][field][t] += by
                around.append(equation(moved))
            slope = (around[0] - around[1]) / 2e-6
            assert (0.0 if grad is None else grad[n].item()) == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", CRITICS)
def test_the_critic_alone_learns_what_it_learns_beside(name):
    algorithm, _ = CASES[name]
    now, old, target = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind(0)
    zeros, row = torch.zeros_like(now), torch.zeros(5, dtype=torch.long)
    given = {"entropy_N": zeros, "imitation_N": zeros, "values_N": now, "old_values_N": old, "returns_N": target}
    both = algorithm.loss(Tokens(zeros, zeros, zeros, row, **given))
    torch.testing.assert_close(algorithm.critic_loss(now, old, target).loss_N, both.loss_N)
    assert set(algorithm.critic_loss(now, old, target).metrics) == {"value_loss", "value_clip_fraction"}


@pytest.mark.parametrize("name", [name for name in CASES if "KL" not in name and name not in (*CRITICS, "gkd")])
def test_where_it_is_silent_at_zero_a_token_of_no_advantage_has_no_gradient(name):
    algorithm, _ = CASES[name]
    logprobs = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    out = algorithm.loss(
        Tokens(
            logprobs,
            old_N=logprobs.detach() - 0.3,
            advantages_N=torch.zeros(3, dtype=torch.float64),
            branch_N=torch.tensor([0, 0, 1]),
            penalty_N=torch.zeros(3, dtype=torch.float64),
            sampler_N=logprobs.detach() - 0.3,
        )
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
    rewards, row = torch.zeros(2, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
    group = torch.zeros(2, dtype=torch.long)
    assert DAPO(overlong_share=0.5).advantages(Rollout(rewards, group, row, 6)).metrics["overlong"] == -0.5
    assert "overlong" not in DAPO(overlong_share=0.0).advantages(Rollout(rewards, group, row, 6)).metrics
    assert "overlong" not in DAPO().advantages(Rollout(rewards, group, row)).metrics  # no limit, so none is near


@pytest.mark.parametrize("kind", [Reinforce, RLOO, ReinforcePlusPlus])
def test_a_kl_in_the_reward_without_a_reference_is_an_error(kind):
    rollout = Rollout(torch.zeros(2, dtype=torch.float64), ZEROS[:2], torch.tensor([0, 1]), 6, torch.zeros(2))
    assert (kind().inputs, kind(kl_coefficient=0.0).inputs) == ((ReferenceLogprobs(),), ())
    with pytest.raises(ValueError, match="reference_N; got None"):
        kind().advantages(rollout)
    assert not kind(kl_coefficient=0.0).advantages(rollout).advantages_N.any()


def test_remax_without_greedy_completions_is_an_error():
    assert declared(ReMax(), GreedyReward) and not declared(Reinforce(), GreedyReward)
    with pytest.raises(ValueError, match="needs greedy_R"):
        ReMax(kl_coefficient=0.0).advantages(Rollout(torch.zeros(1, dtype=torch.float64), ZEROS[:1], torch.tensor([0])))


def test_rae_without_averages_and_opd_without_a_teacher_are_errors():
    assert RAE(baseline_decay=0.5).inputs == (SeatBaselines(0.5),) and OPD().inputs == (TeacherLogprobs(),)
    assert RAE(kl_coefficient=0.1).inputs == (ReferenceLogprobs(), SeatBaselines(0.95))
    one = torch.zeros(1, dtype=torch.float64)
    rollout = Rollout(one, ZEROS[:1], torch.tensor([0]), sampler_N=one)
    with pytest.raises(ValueError, match="needs baselines_R"):
        RAE().advantages(rollout)
    with pytest.raises(ValueError, match="needs teacher_N"):
        OPD().advantages(rollout)


def test_opd_compares_rewards_only_where_they_weigh_something():
    one = torch.zeros(1, dtype=torch.float64)
    rollout = Rollout(one, ZEROS[:1], torch.tensor([0]), sampler_N=one - 1, teacher_N=one - 3)
    assert (OPD().least_group, OPD(reward_coefficient=0.1).least_group) == (1, 2)
    found = OPD().advantages(rollout)
    assert (found.advantages_N.tolist(), found.metrics) == ([-2.0], {"teacher_kl": 2.0})
    with pytest.raises(UserError, match="needs 2 or more"):
        OPD(reward_coefficient=0.1).advantages(rollout)


def test_gkd_needs_a_teacher_and_its_distributions():
    assert GKD(beta=0.1, top_k=5).inputs == (TeacherDistributions(0.1, 5),) and not GKD().silent_at_zero
    one = torch.ones(1, dtype=torch.float64)
    rollout = Rollout(one, ZEROS[:1], torch.tensor([0]), more={"taught_B": [("teacher", None)]})
    assert GKD().advantages(rollout).advantages_N.tolist() == [0.0]
    with pytest.raises(ValueError, match="needs taught_B"):
        GKD().advantages(rollout._replace(more={}))
    with pytest.raises(UserError, match="needs 2 or more"):
        GKD(reward_coefficient=0.1).advantages(rollout)
    tokens = Tokens(one, one, 0 * one, ZEROS[:1], divergence_N=2 * one)
    assert GKD().loss(tokens).loss_N.tolist() == [2.0] and list(GKD().loss(tokens).metrics) == ["divergence"]
    assert GKD().loss(tokens._replace(advantages_N=-one)).loss_N.tolist() == [3.0]
    with pytest.raises(ValueError, match="needs divergence_N"):
        GKD().loss(tokens._replace(divergence_N=None))


def test_without_a_critic_or_continuations_there_is_nothing_to_compare_with():
    rollout = Rollout(torch.zeros(1, dtype=torch.float64), ZEROS[:1], torch.tensor([0]))
    for algorithm in (PPO(), VAPO()):
        with pytest.raises(ValueError, match="needs values_N"):
            algorithm.advantages(rollout)
    ones = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="needs values_N and step_N"):
        VinePPO().advantages(rollout._replace(values_N=ones))
    tokens = Tokens(ones, ones, ones, torch.tensor([0]), entropy_N=ones, values_N=ones, old_values_N=ones)
    for algorithm, missing in (
        (PPO(), {}),
        (PPO(entropy_coefficient=0.1), {"returns_N": ones, "entropy_N": None}),
        (VAPO(), {"returns_N": ones}),
    ):
        with pytest.raises(ValueError, match=r"returns_N|entropy_N|imitation_N"):
            algorithm.loss(tokens._replace(**missing))


def test_what_an_actor_critic_says_of_its_batch():
    rollout = Rollout(
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        ZEROS[:2],
        torch.tensor([0, 0, 1]),
        6,
        torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64),
        torch.tensor([-2.0, -1.5, -2.0], dtype=torch.float64),
        values_N=torch.tensor([0.5, 1.0, 0.0], dtype=torch.float64),
    )
    found = PPO(kl_coefficient=0.0, gae_lambda=1.0).advantages(rollout)
    assert found.returns_N.tolist() == [1.0, 1.0, 0.0]
    assert found.metrics == {"value": 0.5, "explained_variance": pytest.approx(0.75)}
    told = PPO(kl_coefficient=0.1).advantages(rollout).metrics
    assert (told["kl"], told["kl_coefficient"]) == (pytest.approx(0.75), 0.1)
    good = VAPO().advantages(rollout)
    assert good.imitation_N.tolist() == [1.5, 1.5, 0.0]  # their mean is that over the two tokens that earned something
    nothing = VAPO().advantages(rollout._replace(rewards_R=torch.zeros(2, dtype=torch.float64)))
    assert nothing.imitation_N.tolist() == [0.0, 0.0, 0.0]


def test_what_vineppo_says_of_its_batch():
    rollout = Rollout(
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        ZEROS[:2],
        torch.tensor([0, 0, 0, 1]),
        values_N=torch.tensor([0.5, 0.5, 1.0, 0.0], dtype=torch.float64),
        step_N=torch.tensor([0, 0, 1, 0]),
    )
    found = VinePPO(std_epsilon=0.0).advantages(rollout)
    assert found.metrics == {"value": 0.25, "unchanged": 0.5}  # by completion, and by token


def test_what_pav_and_prime_say_of_their_batch():
    rollout = Rollout(
        torch.tensor([1.0, 0.0], dtype=torch.float64),
        ZEROS[:2],
        torch.tensor([0, 0, 0, 1]),
        reference_N=torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64),
        values_N=torch.tensor([0.5, 0.5, 1.0, 0.0], dtype=torch.float64),
        step_N=torch.tensor([0, 0, 1, 0]),
        more={"prm_N": torch.tensor([-1.0, -1.0, 1.0, 3.0], dtype=torch.float64)},
    )
    pav = PAV(progress_weight=2.0).advantages(rollout)
    assert pav.metrics == {"value": 0.25, "progress": 0.25, "unchanged": 0.5}
    assert pav.advantages_N.tolist() == [2.0, 2.0, 1.0, -1.0]  # 1 and -1 of the outcome, 2 x 0.5 of progress
    prime = PRIME(prm_beta=0.5).advantages(rollout)
    # 0, 0, 1 and 2 are implicit: sums 1 and 2, of which the first has its label's sign; means 1/3 and 2
    assert prime.metrics == {"implicit_reward": 1.5, "prm_accuracy": 0.5}
    assert prime.advantages_N.tolist() == pytest.approx([1 - 5, 1 - 3, 1 - 1, 2 - 1 / 3 - 1])
    assert prime.returns_N.tolist() == [1.0, 1.0, 1.0, 0.0]
    beyond = PRIME().advantages(rollout._replace(rewards_R=torch.tensor([1.2, -0.1], dtype=torch.float64)))
    assert beyond.returns_N.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_pav_and_prime_need_what_they_declare():
    half = torch.full((2,), 0.5, dtype=torch.float64)
    rollout = Rollout(half, ZEROS[:2], torch.arange(2))
    with pytest.raises(ValueError, match="needs values_N and step_N"):
        PAV().advantages(rollout)
    for have in ({}, {"reference_N": half}, {"more": {"prm_N": half}}):
        with pytest.raises(ValueError, match="needs logprobs"):
            PRIME().advantages(rollout._replace(**have))
    for algorithm in (PAV(), PRIME()):
        with pytest.raises(UserError, match="needs 2 or more"):
            algorithm.advantages(Rollout(half[:1], ZEROS[:1], torch.arange(1), more={"prm_N": half[:1]}))


def test_a_coefficient_is_steered_to_its_target():
    algorithm = PPOPenalty(kl_coefficient=0.5, kl_target=2.0, kl_gain=0.1)
    assert algorithm.adapted(2.0) == algorithm
    assert algorithm.adapted(2.2).kl_coefficient == pytest.approx(0.5 * 1.01)
    assert algorithm.adapted(9.0).kl_coefficient == pytest.approx(0.5 * 1.02)  # the error is at most 0.2
    assert algorithm.adapted(0.0).kl_coefficient == pytest.approx(0.5 * 0.98)
    assert algorithm.adapted(9.0).adapted(9.0).kl_coefficient == pytest.approx(0.5 * 1.02**2)
    assert PPO().adapted(100.0) == PPO()


def test_what_else_an_algorithm_asks_for():
    steps = [declared(algorithm, CriticValues) for algorithm in (VAPO(), PPO(), PPO(critic_warmup_steps=3))]
    assert steps == [CriticValues(50), CriticValues(0), CriticValues(3)]
    assert PPO(entropy_coefficient=0.1).needs_entropy and not PPO().needs_entropy
    assert PPOPtx().extra_losses == (PretrainingNLL(27.8),) and PPO().extra_losses == ()
    states = declared(VinePPO(continuations=3, step_tokens=2, max_states=4), StateValues)
    assert states == StateValues(3, 2, 4) and declared(PPO(), StateValues) is None
    progress = declared(PAV(continuations=3, step_tokens=2, max_states=4), ProverValues)
    assert progress == ProverValues(3, 2, 4) and progress.by == "prover" and not states.by
    assert trained(PPO(critic_warmup_steps=3)) == {"critic": CriticValues(3)} and trained(VinePPO()) == {}
    (prm,) = trained(PRIME(prm_lr=0.5, prm_beta=0.1)).values()
    assert (prm.part, prm.lr, prm.beta, prm.warmup_steps, prm.head) == ("prm", 0.5, 0.1, 0, False)
    whole = {name for name in algorithms.ONLINE if algorithms.online(name).sequence_ratio}
    assert whole == {"reinforce", "rloo", "remax", "gspo", "rae", "gmpo"}
    assert {n for n in algorithms.ONLINE if isinstance(algorithms.online(n)(), ActorCritic)} == {
        "ppo",
        "ppo-penalty",
        "ppo-ptx",
        "vapo",
    }


def test_the_kl_in_the_metrics_is_in_nats():
    rollout = Rollout(
        torch.zeros(2, dtype=torch.float64),
        ZEROS[:2],
        torch.tensor([0, 0, 1]),
        6,
        torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64),
        torch.tensor([-2.0, -1.5, -2.0], dtype=torch.float64),
    )
    assert Reinforce().advantages(rollout).metrics["kl"] == pytest.approx(0.75)  # per completion
    assert ReinforcePlusPlus().advantages(rollout).metrics["kl_per_token"] == pytest.approx(0.5)


def test_rounding_of_a_kl_does_not_become_a_signal_where_nothing_was_earned():
    noise = 1e-6 * torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs, row = torch.tensor([0, 0, 1, 1]), torch.arange(4).repeat_interleave(3)
    rollout = Rollout(torch.zeros(4, dtype=torch.float64), pairs, row, 6, noise, 0 * noise)
    for algorithm in (Reinforce(), RLOO(), ReinforcePlusPlus()):
        assert 0 < algorithm.advantages(rollout).advantages_N.abs().max() < 1e-3


def test_what_a_bucket_says_of_itself():
    rewards, pairs = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5, 0.5], dtype=torch.float64), torch.arange(6) // 2
    rollout = Rollout(rewards, pairs, torch.arange(6), kinds_R=("a", "a", "a", "a", "b", "b"))
    assert BucketedGRPO().advantages(rollout).metrics == {"kinds": 2.0, "zero_advantage": pytest.approx(1 / 3)}
    assert BucketedGRPO().advantages(rollout._replace(kinds_R=())).metrics["kinds"] == 1.0


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
        (PPO, "clip_low", -0.1),
        (PPO, "clip_high", math.nan),
        (PPO, "kl_coefficient", -0.1),
        (PPO, "discount", 0.0),
        (PPO, "discount", 1.1),
        (PPO, "gae_lambda", -0.1),
        (PPO, "value_clip", 0.0),
        (PPO, "value_coefficient", -0.1),
        (PPO, "entropy_coefficient", -0.1),
        (PPO, "std_epsilon", -0.1),
        (PPO, "critic_warmup_steps", -1),
        (PPOPenalty, "kl_coefficient", 0.0),
        (PPOPenalty, "kl_target", 0.0),
        (PPOPenalty, "kl_gain", 0.0),
        (PPOPenalty, "kl_gain", 5.0),
        (PPOPtx, "pretraining_coefficient", 0.0),
        (VAPO, "length_alpha", 0.0),
        (VAPO, "imitation_coefficient", -0.1),
        (VinePPO, "continuations", 0),
        (VinePPO, "step_tokens", -1),
        (VinePPO, "max_states", 0),
        (PAV, "progress_weight", -0.1),
        (PAV, "std_epsilon", 0.1),
        (PRIME, "prm_beta", 0.0),
        (PRIME, "prm_lr", 0.0),
        (PRIME, "std_epsilon", 0.1),
        (VinePPO, "clip_low", -0.1),
        (RAE, "baseline_decay", 0.0),
        (RAE, "baseline_decay", 1.0),
        (RAE, "kl_coefficient", -0.1),
        (OPD, "reward_coefficient", -0.1),
        (OPD, "clip", math.nan),
        (GKD, "beta", -0.1),
        (GKD, "beta", 1.1),
        (GKD, "top_k", -1),
        (GKD, "reward_coefficient", math.inf),
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
    ppo = PPO()
    assert (ppo.clip_low, ppo.clip_high, ppo.kl_coefficient, ppo.discount, ppo.gae_lambda) == (
        0.2,
        0.2,
        0.05,
        1.0,
        0.95,
    )
    assert (ppo.value_clip, ppo.value_coefficient, ppo.entropy_coefficient) == (0.2, 0.1, 0.0)
    assert (PPOPenalty().kl_target, PPOPenalty().kl_gain, PPOPtx().kl_coefficient) == (6.0, 0.1, 0.02)
    vapo = VAPO()
    assert (vapo.clip_low, vapo.clip_high, vapo.kl_coefficient, vapo.gae_lambda) == (0.2, 0.28, 0.0, 1.0)
    assert (vapo.length_alpha, vapo.imitation_coefficient) == (0.05, 0.1)
    vine = VinePPO()
    assert (vine.continuations, vine.max_states, vine.step_tokens, vine.kl_coefficient) == (9, 25, 0, 1e-4)
    assert (RAE().baseline_decay, RAE().kl_coefficient) == (0.95, 0.0)
    assert (OPD().reward_coefficient, OPD().clip) == (0.0, 0.2)
    assert (GKD().reward_coefficient, GKD().clip, GKD().beta, GKD().top_k) == (0.0, 0.2, 0.5, 0)
    assert (CISPO().clip_low, CISPO().clip_high, GMPO().clip_low, GMPO().clip_high) == (1.0, 4.0, 0.4, 0.4)
    assert (SAPO().tau_positive, SAPO().tau_negative, DPPO().clip_low, DPPO().clip_high) == (1.0, 1.05, 0.2, 0.2)
    assert (ClipCov().chosen_share, ClipCov().cov_low, ClipCov().cov_high) == (2e-4, 1.0, 5.0)
    assert (KLCov().penalised_share, KLCov().penalty, PassAtK().right_from) == (2e-3, 1.0, 1.0)
    assert (PRIME().prm_beta, PRIME().prm_lr, PRIME().kl_coefficient) == (0.05, 1e-6, 0.0)
    assert (PAV().progress_weight, PAV().kl_coefficient) == (3.0, 1e-3)
    least = {name: algorithms.online(name)().least_group for name in algorithms.ONLINE}
    recent = {"maxrl", "gdpo", "cispo", "sapo", "gmpo", "dppo", "clip-cov", "kl-cov", "prime", "pav"}
    compares = {"grpo", "dr-grpo", "dapo", "gspo", "rloo", *recent}
    assert {name for name, size in least.items() if size == 2} == compares and least["pass-at-k"] == 4
    assert [PassAtK(k=k).least_group for k in (1, 2, 8)] == [2, 2, 8]
