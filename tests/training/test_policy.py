"""A policy step against the paper in plain sequences, and everything that must not change it."""

import math
from contextlib import nullcontext
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.algorithms.algorithm import Counts
from posttrain.algorithms.dppo import DPPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.data.packing import Example, pack
from posttrain.errors import TrainingError
from posttrain.models.attention import FamilyAttention
from posttrain.models.float64_reference import Float64
from posttrain.models.lora import Lora, add_adapter, add_lora
from posttrain.models.reference import AdapterOff, FrozenCopy
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import PolicyLoss, example_of, policy_batch, shortened
from posttrain.types import Group, StopReason, Trajectory, Turn
from tests.groups import group_of, with_rows
from tests.references import grpo as reference_grpo
from tests.tiny import tiny_llama
from tests.training.steps import context_of, learner_of, policy_step

NO_KL = GRPO(kl_coefficient=0.0)
SPOKEN = [
    [((5, 9, 3), (4, 8, 1)), ((5, 9, 3), (7, 1)), ((5, 9, 3), (6, 6, 12, 13, 1))],
    [((7, 2), (11, 1)), ((7, 2), (30, 31, 32, 1)), ((7, 2), (21, 1))],
]  # prompts and completions; every completion ends with the stop token 1
REWARDS = [[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]]


def group(spoken, rewards) -> Group:
    trajectories = [
        Trajectory((Turn(shown, said, tuple(-1.0 - 0.1 * i for i in range(len(said))), StopReason.STOP, ""),))
        for shown, said in spoken
    ]
    return group_of(trajectories, rewards)


def groups(rewards=REWARDS) -> list[Group]:
    return [group(spoken, values) for spoken, values in zip(SPOKEN, rewards, strict=True)]


class Gradients(MasterAdamW):
    """Keeps each update's gradient instead of following it."""

    def __init__(self, model):
        super().__init__(model.trainable())
        self.kept = []

    def step(self, lr, *, norm=None):
        norm = self.grad_norm()
        self.kept.append({n: m.grad.clone() for n, m in self.named_masters().items() if m.grad is not None})
        self.discard()
        return norm


def gradient(model, algorithm, batch, *, tokens=1000, **options):
    """The gradient of a float64 model, which would take its norms and angles in float32 if it were let."""
    optimizer = Gradients(model)
    with Float64() if model.dtype == torch.float64 else nullcontext():
        metrics = policy_step(model, optimizer, algorithm, batch, lr=0.0, microbatch_tokens=tokens, **options)
    return optimizer.kept[0], metrics


def batch_of(found, algorithm, reference=None, **options):
    """A batch with the logprobs of a reference in float64, which would take its norms in float32 if it were let."""
    with Float64() if reference is not None else nullcontext():
        return policy_batch(found, algorithm, context=context_of(MODEL, reference=reference, **options))[0]


def with_column(batch, **columns):
    """The batch with other numbers of its tokens."""
    return replace(batch, tokens={**batch.tokens, **columns})


def difference(a, b) -> float:
    """Relative difference of two whole gradients."""
    assert a.keys() == b.keys()
    apart = sum((a[name] - b[name]).square().sum().item() for name in a)
    return math.sqrt(apart / sum(g.square().sum().item() for g in b.values()))


def distributions(model, shown, said, temperature=1.0):
    """Log probabilities [T, V] at each token of what was said, from one plain sequence in a row of its own."""
    ids = torch.tensor([[*shown, *said]])
    hidden = model.hidden(ids, torch.arange(ids.shape[1])[None], FamilyAttention([(ids.shape[1], [])]))[0]
    return (hidden @ model.head.T / temperature).log_softmax(-1)[len(shown) - 1 : -1]


def alone(model, shown, said, temperature=1.0):
    """Logprobs of what was said, with their gradient."""
    return torch.stack(
        [row[token] for row, token in zip(distributions(model, shown, said, temperature), said, strict=True)]
    )


def by_hand(model, old_model, reference_model, *, beta, temperature, rewards=REWARDS):
    """GRPO, eq. 3 of 2402.03300, sequence by sequence with autograd: the loss as a tensor."""
    total = 0.0
    for spoken, values in zip(SPOKEN, rewards, strict=True):
        mean = sum(values) / len(values)
        std = math.sqrt(sum((r - mean) ** 2 for r in values) / (len(values) - 1))
        for (shown, said), reward in zip(spoken, values, strict=True):
            advantage = (reward - mean) / (std + 1e-4)
            new = alone(model, shown, said, temperature)
            old = alone(old_model, shown, said, temperature).detach()
            ratio = torch.exp(new - old)
            bounded = torch.where(ratio < 0.8, 0.8, torch.where(ratio > 1.2, 1.2, ratio))
            gain = torch.minimum(ratio * advantage, bounded * advantage)
            behind = alone(reference_model, shown, said, temperature).detach() - new
            total = total - (gain - beta * (torch.exp(behind) - behind - 1)).mean() / len(values)
    return total / len(SPOKEN)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_gradient_is_that_of_the_paper_sequence_by_sequence(beta, temperature):
    model = tiny_llama(dtype=torch.float64)
    reference = tiny_llama(seed=1, dtype=torch.float64)
    algorithm = GRPO(kl_coefficient=beta)
    frozen = FrozenCopy(reference) if beta else None
    batch = batch_of(groups(), algorithm, frozen, temperature=temperature, microbatch_tokens=9)
    found, metrics = gradient(model, algorithm, batch, temperature=temperature)
    plain = tiny_llama(dtype=torch.float64)
    with Float64():
        loss = by_hand(plain, plain, reference, beta=beta, temperature=temperature)
        loss.backward()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert difference(found, {name: p.grad for name, p in plain.trainable()}) < 1e-9


def test_loss_is_that_of_the_reading_in_plain_floats():
    model, reference = tiny_llama(dtype=torch.float64), tiny_llama(seed=1, dtype=torch.float64)
    algorithm = GRPO(kl_coefficient=0.2)
    _, metrics = gradient(model, algorithm, batch_of(groups(), algorithm, FrozenCopy(reference)))
    with Float64():
        spoken = [
            [
                (reward, list(zip(*[alone(m, *words).tolist() for m in (model, model, reference)], strict=True)))
                for words, reward in zip(members, rewards, strict=True)
            ]
            for members, rewards in zip(SPOKEN, REWARDS, strict=True)
        ]
    expected = reference_grpo.loss(spoken, epsilon_low=0.2, epsilon_high=0.2, beta=0.2, std_epsilon=1e-4)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_the_first_update_the_ratio_is_exactly_1_in_every_micro_batch(dtype):
    ratios = []

    class Watched(GRPO):
        def loss(self, tokens):
            found = super().loss(tokens)
            ratios.append(found.metrics["ratio"])
            return found

    model = tiny_llama(dtype=dtype)
    batch, _ = policy_batch(groups(), NO_KL)
    _, metrics = gradient(model, Watched(kl_coefficient=0.0), batch, tokens=9)
    assert len(ratios) > 2 and all((ratio == 1).all() for ratio in ratios)
    assert (metrics["ratio/mean"], metrics["ratio/max"], metrics["clip_fraction"]) == (1.0, 1.0, 0.0)


def test_the_second_update_of_a_batch_is_measured_against_the_first_ones_start():
    model = tiny_llama(dtype=torch.float64)
    start, after_one = tiny_llama(dtype=torch.float64), tiny_llama(dtype=torch.float64)
    batch, _ = policy_batch(groups(), NO_KL)
    options = {"lr": 0.003, "microbatch_tokens": 9}
    policy_step(after_one, MasterAdamW(after_one.trainable()), NO_KL, batch, **options)
    metrics = policy_step(model, MasterAdamW(model.trainable()), NO_KL, batch, updates=2, **options)
    expected = by_hand(after_one, start, start, beta=0.0, temperature=1.0).item()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-9)
    ratios = [torch.exp(alone(after_one, *words) - alone(start, *words)) for members in SPOKEN for words in members]
    assert metrics["ratio/mean"] == pytest.approx(torch.cat(ratios).mean().item(), rel=1e-9)
    assert (
        metrics["ratio/max"] == pytest.approx(torch.cat(ratios).max().item(), rel=1e-9) and metrics["ratio/max"] > 1.001
    )


def test_later_updates_are_held_to_the_same_reference():
    model, algorithm = tiny_llama(dtype=torch.float64), GRPO(kl_coefficient=0.1)
    batch = batch_of(groups(), algorithm, FrozenCopy(tiny_llama(seed=1, dtype=torch.float64)))
    options = {"lr": 0.01, "microbatch_tokens": 14}
    found = policy_step(model, MasterAdamW(model.trainable()), algorithm, batch, updates=2, **options)
    after_one, start = tiny_llama(dtype=torch.float64), tiny_llama(dtype=torch.float64)
    policy_step(after_one, MasterAdamW(after_one.trainable()), algorithm, batch, **options)
    expected = by_hand(after_one, start, tiny_llama(seed=1, dtype=torch.float64), beta=0.1, temperature=1.0).item()
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


def test_a_reference_is_asked_for_nothing_that_the_algorithm_does_not_need():
    class Refuses:
        def logprobs(self, row, temperature):
            raise AssertionError("asked")

    assert (
        policy_batch(groups(), NO_KL, context=context_of(MODEL, reference=Refuses()))[0].tokens.get(
            "reference_logprobs"
        )
        is None
    )
    with pytest.raises(AssertionError, match="asked"):
        policy_batch(groups(), GRPO(), context=context_of(MODEL, reference=Refuses()))


def test_another_batch_has_old_logprobs_of_its_own():
    model = tiny_llama(dtype=torch.float64)
    optimizer = MasterAdamW(model.trainable())
    batch, _ = policy_batch(groups(), NO_KL)
    for _ in range(2):
        metrics = policy_step(model, optimizer, NO_KL, batch, lr=0.01, microbatch_tokens=1000)
    assert metrics["ratio/max"] == 1.0


def test_a_group_without_a_signal_adds_nothing_but_counts():
    model = tiny_llama(dtype=torch.float64)
    dead = group(SPOKEN[1], [1.0, 1.0, 1.0])
    first = groups()[0]
    with_dead, counted = policy_batch([first, dead], NO_KL)
    alone_, _ = policy_batch([first], NO_KL)
    assert (len(with_dead.examples), with_dead.counts) == (3, Counts(6, 18))
    assert (counted["groups/kept"], counted["groups/zero_advantage"]) == (1, 0.5)
    found, _ = gradient(model, NO_KL, with_dead)
    single, _ = gradient(model, NO_KL, alone_)
    assert difference({n: 2 * g for n, g in found.items()}, single) < 1e-12
    kept = GRPO(kl_coefficient=0.1)
    assert len(batch_of([first, dead], kept, REFERENCE).examples) == 6  # with a KL term it does have a gradient


def test_a_group_that_is_left_out_takes_nothing_of_the_others_with_it():
    dead, live = group(SPOKEN[1], [1.0, 1.0, 1.0]), groups()[0]
    found, alone_ = (policy_batch(batch, NO_KL)[0] for batch in ([dead, live], [live]))
    assert found.examples == alone_.examples and found.tokens["sampler_logprobs"] == alone_.tokens["sampler_logprobs"]
    assert [sum(each) for each in found.tokens["advantages"]] == pytest.approx(
        [sum(each) for each in alone_.tokens["advantages"]]
    )


def test_the_kl_of_a_batch_is_of_whole_completions():
    class Half:
        def logprobs(self, row, temperature):
            return torch.full((len(row.targets),), -3.0)

    batch, _ = policy_batch(groups(), GRPO(kl_coefficient=0.1), context=context_of(MODEL, reference=Half()))
    said = [row.trajectory.logprobs for one in groups() for row in one.rows]
    assert batch.scalars["kl"] == pytest.approx(sum(sum(logprob + 3.0 for logprob in each) for each in said) / 6)


def test_a_batch_without_any_signal_changes_no_weight_by_the_optimizers_momentum_either():
    model = tiny_llama()
    optimizer = MasterAdamW(model.trainable(), weight_decay=0.1)
    options = {"lr": 0.1, "microbatch_tokens": 100}
    policy_step(model, optimizer, NO_KL, policy_batch(groups(), NO_KL)[0], **options)
    before = {name: p.detach().clone() for name, p in model.trainable()}
    batch, _ = policy_batch([group(SPOKEN[0], [0.0, 0.0, 0.0])], NO_KL)
    metrics = policy_step(model, optimizer, NO_KL, batch, **options)
    assert (metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0)
    assert all(torch.equal(before[name], p) for name, p in model.trainable())


def test_only_sampled_tokens_of_later_turns_are_learned():
    turns = (
        Turn((5, 9), (4, 1), (-0.1, -0.2), StopReason.STOP, ""),
        Turn((20, 21, 22), (8, 1), (-0.3, -0.4), StopReason.STOP, ""),
    )
    example = example_of(Trajectory(turns))
    assert example.prefix == (5, 9)
    assert example.continuation == (4, 1, 20, 21, 22, 8, 1)
    assert example.learned == (True, True, False, False, False, True, True)


def test_metrics_by_hand():
    model = tiny_llama(dtype=torch.float64)
    batch, _ = policy_batch(groups(), NO_KL)
    _, metrics = gradient(model, NO_KL, batch, tokens=9, temperature=0.8)
    with Float64():
        own = [alone(model, *words, 0.8) for members in SPOKEN for words in members]
        spread = torch.cat([distributions(model, *words, 0.8) for members in SPOKEN for words in members])
    sampler = [-1.0 - 0.1 * i for members in SPOKEN for _, said in members for i in range(len(said))]
    gap = (torch.cat(own) - torch.tensor(sampler, dtype=torch.float64)).abs()
    assert metrics["logprob_gap/mean"] == pytest.approx(gap.mean().item(), rel=1e-6)
    assert metrics["logprob_gap/max"] == pytest.approx(gap.max().item(), rel=1e-6)
    assert metrics["entropy"] == pytest.approx(-(spread.exp() * spread).sum(1).mean().item(), rel=1e-9)
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("tokens", [9, 1000])
def test_the_gap_is_that_of_each_token_to_itself(tokens):
    model = tiny_llama(dtype=torch.float64)
    batch, _ = policy_batch(groups(), NO_KL)
    with Float64():
        own = [tuple(alone(model, *words).tolist()) for members in SPOKEN for words in members]
    _, metrics = gradient(model, NO_KL, with_column(batch, sampler_logprobs=own), tokens=tokens)
    assert metrics["logprob_gap/max"] < 1e-12


def test_kl_is_measured_to_the_reference_that_was_kept():
    model = tiny_llama(dtype=torch.float64)
    reference = FrozenCopy(model)
    algorithm = GRPO(kl_coefficient=0.05)
    batch = policy_batch(groups(), algorithm, context=context_of(MODEL, reference=reference))[0]
    optimizer = MasterAdamW(model.trainable())
    first = policy_step(model, optimizer, algorithm, batch, lr=0.01, microbatch_tokens=1000)
    assert first["kl"] == pytest.approx(0.0, abs=1e-12)
    again = policy_batch(groups(), algorithm, context=context_of(MODEL, reference=reference))[0]
    found = policy_step(model, optimizer, algorithm, again, lr=0.0, microbatch_tokens=1000)["kl"]
    start = tiny_llama(dtype=torch.float64)
    behind = torch.cat([alone(start, *w) - alone(model, *w) for members in SPOKEN for w in members])
    assert found == pytest.approx((behind.exp() - behind - 1).mean().item(), rel=1e-9) and found > 1e-4


def test_the_base_under_an_adapter_is_a_reference_that_costs_nothing():
    pytest.importorskip("peft")
    base = tiny_llama()
    frozen = FrozenCopy(base)
    model = add_lora(base, rank=2)
    algorithm = GRPO(kl_coefficient=0.05)
    optimizer = MasterAdamW(model.trainable())

    def kl(reference, lr: float) -> float:
        batch, _ = policy_batch(groups(), algorithm, context=context_of(MODEL, reference=reference))
        return policy_step(model, optimizer, algorithm, batch, lr=lr, microbatch_tokens=1000)["kl"]

    assert kl(AdapterOff(model), 0.05) == 0.0
    found = kl(AdapterOff(model), 0.0)
    assert found == pytest.approx(kl(frozen, 0.0), rel=1e-5) and found > 1e-5


@pytest.mark.parametrize("whole", [False, True])
def test_a_weight_is_that_of_what_the_ratio_is_of(whole):
    model = tiny_llama(dtype=torch.float64)
    algorithm = GSPO(clip_low=0.5, clip_high=0.5) if whole else NO_KL
    batch, _ = policy_batch(groups(), algorithm)
    with Float64():
        own = [alone(model, *words).tolist() for members in SPOKEN for words in members]
    apart = [[0.3, -0.1, 0.2, 0.0, 0.1][: len(values)] for values in own]
    said = [tuple(v - a for v, a in zip(values, by, strict=True)) for values, by in zip(own, apart, strict=True)]
    weights = [[math.exp(sum(by))] * len(by) if whole else [math.exp(a) for a in by] for by in apart]
    capped = [[min(w, 1.2) for w in each] for each in weights]
    assert any(w > 1.2 for each in weights for w in each)
    found, metrics = gradient(model, algorithm, with_column(batch, sampler_logprobs=said), tokens=9, tis_cap=1.2)
    both = zip(batch.tokens["advantages"], capped, strict=True)
    by_weight = [tuple(a * w for a, w in zip(*each, strict=True)) for each in both]
    expected, _ = gradient(model, algorithm, with_column(batch, advantages=by_weight), tokens=9)
    assert difference(found, expected) < 1e-9
    flat = [w for each in capped for w in each]
    assert metrics["importance/mean"] == pytest.approx(sum(flat) / len(flat), rel=1e-9)
    assert metrics["importance/max"] == pytest.approx(1.2)
    of_all = [w for each in weights for w in each]
    assert metrics["importance_capped"] == pytest.approx(sum(w > 1.2 for w in of_all) / len(of_all))
    behind = [a for by in apart for a in by]
    assert metrics["sampler_kl"] == pytest.approx(-sum(behind) / len(behind), abs=1e-9)


def test_a_weight_may_be_of_a_row_by_its_mean_and_masked_and_its_drift_with_length_is_told():
    model = tiny_llama(dtype=torch.float64)
    batch, _ = policy_batch(groups(), NO_KL)
    with Float64():
        own = [alone(model, *words).tolist() for members in SPOKEN for words in members]
    lengths = [len(values) for values in own]
    said = [tuple(value - 0.1 for value in values) for values in own]  # each token's log-ratio is 0.1
    batch = with_column(batch, sampler_logprobs=said)

    def told(**words):
        learner = learner_of(model, microbatch_tokens=9)
        return learner.forward(batch, PolicyLoss(NO_KL, tis_cap=1.3, **words))

    product, mean = told(importance_level="product"), told(importance_level="mean")
    of_token = [length for length in lengths for _ in range(length)]
    far = fmean(of_token)
    for name, chosen in (("short", [n for n in of_token if n <= far]), ("long", [n for n in of_token if n > far])):
        assert product[f"log_importance/{name}"] == pytest.approx(0.1 * fmean(chosen), rel=1e-4)
        assert mean[f"log_importance/{name}"] == pytest.approx(0.1, rel=1e-4)
    assert mean["importance/mean"] == pytest.approx(math.exp(0.1), rel=1e-4) and mean["importance_capped"] == 0
    assert product["importance/max"] == pytest.approx(1.3)
    beyond = [math.exp(0.1 * n) > 1.3 for n in of_token]
    assert product["importance_capped"] == pytest.approx(fmean(beyond)) and 0 < fmean(beyond) < 1
    masked = told(importance_level="product", importance="masked")["importance/mean"]
    assert masked == pytest.approx(
        fmean(0.0 if out else math.exp(0.1 * n) for n, out in zip(of_token, beyond, strict=True)), rel=1e-4
    )
    below = told(importance_level="product", importance="masked", importance_floor=1.25)["importance_capped"]
    assert below == pytest.approx(fmean(not 1.25 <= math.exp(0.1 * n) <= 1.3 for n in of_token))


def test_dppo_compares_with_the_sampler_and_not_with_the_policy_before_the_update():
    model = tiny_llama(dtype=torch.float64)
    batch, _ = policy_batch(groups(), DPPO())
    with Float64():
        own = [alone(model, *words).tolist() for members in SPOKEN for words in members]
    near = learner_of(model, microbatch_tokens=9)
    equal = near.forward(with_column(batch, sampler_logprobs=[tuple(values) for values in own]), PolicyLoss(DPPO()))
    assert equal["ratio/max"] == pytest.approx(1.0, rel=1e-4) and equal["clip_fraction"] == 0
    behind = with_column(batch, sampler_logprobs=[tuple(value - 0.4 for value in values) for values in own])
    found = near.forward(behind, PolicyLoss(DPPO()))
    assert found["ratio/mean"] == pytest.approx(math.exp(0.4), rel=1e-4)


def test_a_penalty_on_length_is_taken_off_the_rewards():
    said = group(SPOKEN[0], [1.0, 0.0, 0.5])  # 3, 2 and 5 tokens; two of three earned something
    found = shortened(said, 0.6, longest=10)
    expected = [r - 0.6 * n / 10 * 2 / 3 for r, n in zip([1.0, 0.0, 0.5], [3, 2, 5], strict=True)]
    assert found.rewards == pytest.approx(expected, rel=1e-12)
    assert with_rows(found, reward=said.rewards) == said and said.rewards == (1.0, 0.0, 0.5)
    assert shortened(said, 0.0, longest=10) is said


def test_a_loss_that_is_not_finite_names_its_examples_and_touches_nothing():
    model = tiny_llama()
    optimizer = MasterAdamW(model.trainable())
    before = {name: p.detach().clone() for name, p in model.trainable()}

    class Explodes(GRPO):
        def loss(self, tokens):
            found = super().loss(tokens)
            return found._replace(loss_N=torch.where(tokens.branch_N == 4, math.inf, found.loss_N))

    batch, _ = policy_batch(groups(), NO_KL)
    with pytest.raises(TrainingError, match=r"loss is inf for examples \[3, 4\] of the batch"):
        policy_step(model, optimizer, Explodes(kl_coefficient=0.0), batch, lr=0.1, microbatch_tokens=8)
    assert all(torch.equal(before[name], p) for name, p in model.trainable())
    assert all(p.grad is None for _, p in model.trainable())


@st.composite
def batches(draw):
    """Groups of random sizes with random rewards, some of several turns, and a micro-batch that may hold little."""
    ids = st.integers(2, 39)
    found = []
    size = draw(st.integers(2, 4))
    for _ in range(draw(st.integers(1, 3))):
        shown = tuple(draw(st.lists(ids, min_size=1, max_size=4)))
        trajectories = []
        for _ in range(size):
            turns = [
                Turn(shown, said := (*draw(st.lists(ids, max_size=4)), 1), (-1.0,) * len(said), StopReason.STOP, "")
            ]
            if draw(st.booleans()):
                more = tuple(draw(st.lists(ids, min_size=1, max_size=3)))
                turns.append(Turn(more, (7, 1), (-1.0, -1.0), StopReason.STOP, ""))
            trajectories.append(Trajectory(tuple(turns)))
        rewards = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=size, max_size=size))
        found.append(group_of(trajectories, rewards))
    return found


MODEL, REFERENCE = tiny_llama(dtype=torch.float64), FrozenCopy(tiny_llama(seed=1, dtype=torch.float64))


@settings(max_examples=20)
@given(batches(), st.integers(14, 80), st.randoms(use_true_random=False))
def test_the_gradient_does_not_depend_on_how_a_batch_is_cut_or_ordered(found, tokens, random):
    algorithm = GRPO(kl_coefficient=0.1)
    whole, _ = gradient(MODEL, algorithm, batch_of(found, algorithm, REFERENCE))
    random.shuffle(found)
    cut, _ = gradient(MODEL, algorithm, batch_of(found, algorithm, REFERENCE, microbatch_tokens=tokens), tokens=tokens)
    assert difference(cut, whole) < 1e-9


@pytest.mark.parametrize("tokens", [1000, 9])
def test_with_dropout_the_ratio_begins_at_1_and_the_gap_is_the_samplers(tokens):
    """Old logprobs are of the same dropout; the gap, and with it the importance, is of the policy without any."""
    pytest.importorskip("peft")
    model = add_adapter(tiny_llama(dtype=torch.float64), Lora(2, dropout=0.5))
    with torch.no_grad():
        for _, p in model.trainable():
            p += 0.1
    own = [[alone_under(model, *words) for words in members] for members in SPOKEN]
    batch, _ = policy_batch(groups(), NO_KL)
    batch = with_column(batch, sampler_logprobs=[tuple(values) for members in own for values in members])
    batch = replace(batch, seed=7)
    optimizer = MasterAdamW(model.trainable())
    found = policy_step(model, optimizer, NO_KL, batch, lr=0.0, microbatch_tokens=tokens, updates=2, tis_cap=2.0)
    assert found["ratio/max"] == found["ratio/mean"] == 1.0  # of the second update, whose weights are the same
    assert found["logprob_gap/max"] < 1e-5 and found["importance/mean"] == pytest.approx(1.0, abs=1e-5)
    with model.dropping(7), torch.no_grad():
        dropped = [v for row in pack(batch.examples, 1000) for v in model.logprobs(row).logprobs.tolist()]
    flat = [value for members in own for values in members for value in values]
    assert max(abs(a - b) for a, b in zip(dropped, flat, strict=True)) > 0.01
    assert not model.drops


def alone_under(model, shown, said):
    """Logprobs of what was said, by a pass of its own in which nothing is dropped."""
    (row,) = pack([Example(tuple(shown), tuple(said), (True,) * len(said))], 1000)
    with torch.no_grad():
        return model.logprobs(row).logprobs.tolist()
