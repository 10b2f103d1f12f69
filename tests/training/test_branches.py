"""A row of several branches: its tokens learn what they would in one, whatever micro-batches its branches are in."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain import algorithms
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.inputs import columns_of
from posttrain.algorithms.ppo import PPO
from posttrain.data.packing import pack
from posttrain.models.float64_reference import Float64
from posttrain.models.reference import Critic, FrozenCopy, TrainedCopy
from posttrain.training.beside import BesideLoss
from posttrain.training.learner import CRITIC, POLICY, REFERENCE, TEACHER
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from posttrain.training.policy import (
    PolicyLoss,
    context_of,
    distance,
    example_of,
    examples_in,
    policy_batch,
    shortened,
)
from posttrain.types import Group, Score, StateValues, StopReason, Task, Trajectory, Turn
from tests.groups import group_of, with_rows
from tests.tiny import tiny_llama
from tests.training.test_policy import difference

EACH = pytest.mark.parametrize("name", algorithms.ONLINE)
PLAY = (
    [(5, 9), (4, 8), (7, 2), (11, 6, 1)],  # context and reply in turn
    [(5, 9), (7, 1)],
    [(5, 9), (6, 12, 13), (3,), (30, 1), (22, 21), (14, 1)],
    [(17,), (31, 32, 1), (2, 2), (9, 1)],
    [(17,), (20, 1), (3, 3, 3), (8, 8, 1)],
)
TASKS, REWARDS = (0, 0, 0, 1, 1), (1.0, 0.0, 0.25, 0.5, 2.0)


def turn(context, said, *, restarts=False) -> Turn:
    logprobs = tuple(-1.0 - 0.1 * (token % 7) for token in said)
    return Turn(tuple(context), tuple(said), logprobs, StopReason.STOP, "", restarts)


def in_one(spoken) -> Trajectory:
    return Trajectory(tuple(turn(*words) for words in zip(spoken[::2], spoken[1::2], strict=True)))


def in_branches(spoken) -> Trajectory:
    """Each turn a branch of its own, whose context is exactly the tokens of the branch before."""
    turns, so_far = [], ()
    for context, said in zip(spoken[::2], spoken[1::2], strict=True):
        turns.append(turn(so_far + context, said, restarts=bool(turns)))
        so_far += (*context, *said)
    return Trajectory(tuple(turns))


def groups_of(trajectory) -> list[Group]:
    rows = [(task, trajectory(spoken), reward) for task, spoken, reward in zip(TASKS, PLAY, REWARDS, strict=True)]
    groups = []
    for number in (0, 1):
        _, trajectories, rewards = zip(*[row for row in rows if row[0] == number], strict=True)
        task = Task((), metadata={"kind": "sums"})
        scores = [{"first": Score(reward), "second": Score(reward**2 % 0.3)} for reward in rewards]
        groups.append(group_of(trajectories, rewards, task=task, scores=scores))
    return groups


ONE, CUT = groups_of(in_one), groups_of(in_branches)


class Kept(MasterAdamW):
    def step(self, lr, *, norm=None):
        self.kept = {n: m.grad.clone() for n, m in self.named_masters().items() if m.grad is not None}
        return super().step(lr)


def greedy(groups):
    return [{"": 0.3 * number} for number in range(len(groups))]


def states(groups, need):
    """Steps of two tokens."""
    found = []
    for row in (row for group in groups for row in group.rows):
        steps = tuple(n // 2 for n in range(len(row.trajectory.logprobs)))
        found.append(StateValues(tuple(0.4 - 0.1 * (step % 3) for step in steps), steps))
    return found


def updated(algorithm, groups, *, tokens=1000, updates=2):
    """Loss and gradients of each update, of a policy and its critic in float64; and the batch."""
    model = tiny_llama(dtype=torch.float64)
    critic = Critic(model)
    with torch.no_grad():
        critic.parameters()[0][1].copy_(0.1 * torch.linspace(-1, 1, 32)[None])
    optimizer, critics = Kept(model.trainable()), Kept(critic.parameters())
    reference = FrozenCopy(tiny_llama(seed=1, dtype=torch.float64))
    second = TrainedCopy(tiny_llama(seed=2, dtype=torch.float64))
    learner = LocalLearner(
        model,
        optimizer,
        microbatch_tokens=tokens,
        beside={CRITIC: (critic, critics), "prm": (second, Kept(second.parameters()))},
        references={REFERENCE: reference, TEACHER: reference},
    )
    weights, found = {"first": 1.0, "second": 0.5, "logged": 0.0}, []
    context = context_of(learner, greedy_rewards=greedy, state_values=states, weights=weights)
    with Float64():
        sampled = columns_of(algorithm.inputs, groups, context, samples=True)
        batch, metrics = policy_batch(groups, algorithm, longest=9, sampled=sampled, context=context, key="1")
        for _ in range(updates):
            metrics |= learner.forward_backward(batch, PolicyLoss(algorithm, tis_cap=0.0))
            learner.optim_step({POLICY: 0.003, CRITIC: 0.003})
            found.append((metrics, {**optimizer.kept, **{f"critic {n}": g for n, g in critics.kept.items()}}))
    return found, batch


def made(name):
    knobs = {"gspo": {"clip_low": 0.5, "clip_high": 0.5}, "pass-at-k": {"k": 1}}
    return algorithms.online(name)(**knobs.get(name, {}))


def test_the_critic_alone_learns_the_same_in_branches():
    found = []
    for groups, tokens in ((ONE, 1000), (CUT, 1000), (CUT, 20)):
        model = tiny_llama(dtype=torch.float64)
        critic = Critic(model)
        critics = Kept(critic.parameters())
        learner = LocalLearner(
            model, Kept(model.trainable()), microbatch_tokens=tokens, beside={CRITIC: (critic, critics)}
        )
        algorithm = PPO(kl_coefficient=0.0)
        with Float64():
            batch, _ = policy_batch(groups, algorithm, context=context_of(learner))
            learner.forward_backward(batch, BesideLoss(algorithm))
            learner.optim_step({CRITIC: 0.01})
        found.append(critics.kept)
    assert difference(found[1], found[0]) < 1e-8 and difference(found[2], found[0]) < 1e-8


def test_a_weight_of_branches_is_of_each_branch_alone():
    """Truncated importance sampling beside a sequence's ratio: exp of the gap summed over the branch's own tokens."""
    model = tiny_llama(dtype=torch.float64)
    algorithm = GSPO(clip_low=0.5, clip_high=0.5)
    with Float64():
        batch, _ = policy_batch(CUT, algorithm)
        learner = LocalLearner(model, Kept(model.trainable()), microbatch_tokens=1000)
        own = learner.logprobs(batch.examples)
        apart = [tuple(0.1 * ((i + j) % 3) - 0.05 for j in range(len(of))) for i, of in enumerate(own)]
        said = [tuple(v - a for v, a in zip(*both, strict=True)) for both in zip(own, apart, strict=True)]
        batch = replace(batch, tokens={**batch.tokens, "sampler_logprobs": said})
        seen = learner.forward(batch, PolicyLoss(algorithm, tis_cap=10.0))
    weights = [w for of in apart for w in [torch.tensor(of).sum().exp().item()] * len(of)]
    assert seen["importance/mean"] == pytest.approx(sum(weights) / len(weights), rel=1e-5)


IDS = st.lists(st.integers(2, 39), min_size=1, max_size=3)


@st.composite
def played(draw):
    """Groups of any size, of one seat or two, whose turns restart or do not."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 4))
        trajectories = [
            Trajectory(tuple(turn(draw(IDS), draw(IDS), restarts=draw(st.booleans())) for _ in range(turns)))
            for turns in [draw(st.integers(0 if rows > 1 else 1, 3)) for _ in range(rows)]
        ]
        seats = draw(st.lists(st.sampled_from("ab"), min_size=rows, max_size=rows))
        rewards = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=rows, max_size=rows))
        found.append(group_of(trajectories, rewards, seats=seats))
    return found


@settings(max_examples=60)
@given(played())
def test_every_sampled_token_is_learned_in_exactly_one_example(found):
    batch, _ = policy_batch(found, algorithms.online("grpo-bucketed")(kl_coefficient=0.01), context=LOGPROBS)
    rows = [row.trajectory for group in found for row in group.rows]
    learned = [
        [token for token, mine in zip(example.continuation, example.learned, strict=True) if mine]
        for example in batch.examples
    ]
    assert [token for of in learned for token in of] == [
        token for row in rows for each in row.turns for token in each.token_ids
    ]
    assert tuple(batch.counts)[:2] == (len(rows), sum(map(len, learned)))
    for column in ("advantages", "length", "sampler_logprobs", "reference_logprobs"):
        assert [len(numbers) for numbers in batch.tokens[column]] == [len(of) for of in learned]
    lengths = [len(row.logprobs) for row in rows for branch in row.branches]
    assert [set(of) for of in batch.tokens["length"]] == [{length} for length in lengths]
    said = [branch.logprobs for row in rows for branch in row.branches]
    assert list(batch.tokens["sampler_logprobs"]) == said


class Halves:
    """A learner whose every logprob is -1/2."""

    def logprobs(self, examples, model="policy", **options):
        return [(-0.5,) * sum(example.learned) for example in examples]


LOGPROBS = context_of(Halves())


def test_the_reward_falls_on_the_last_token_of_the_last_branch_and_gae_goes_on_between_branches():
    class Zeros:
        def values(self, examples):
            return [(0.0,) * sum(example.learned) for example in examples]

    algorithm = PPO(kl_coefficient=0.0, discount=0.5, gae_lambda=1.0)
    group = group_of([in_branches(PLAY[0])], [8.0])
    batch, _ = policy_batch([group], algorithm, context=context_of(Zeros()))
    assert batch.tokens["returns"] == [(0.5, 1.0), (2.0, 4.0, 8.0)]


def test_a_group_without_a_signal_leaves_with_all_its_branches():
    dead = with_rows(CUT[1], reward=[1.0, 1.0])
    batch, metrics = policy_batch([dead, CUT[0]], GRPO(kl_coefficient=0.0))
    assert metrics["groups/kept"] == 1 and metrics["groups/zero_advantage"] == 0.5
    assert batch.examples == [example_of(branch) for row in CUT[0].rows for branch in row.trajectory.branches]
    assert batch.counts.sequences == 5


def test_a_pair_is_not_made_of_several_branches():
    with pytest.raises(ValueError, match="a trajectory of 2 branches"):
        example_of(CUT[0].rows[0].trajectory)


def test_a_kl_is_of_a_row_and_not_of_a_branch():
    found = distance(CUT, [(-0.5,) * sum(e.learned) for e in examples_in(CUT)])
    rows = [row.trajectory for group in CUT for row in group.rows]
    assert found == pytest.approx(sum(sum(row.logprobs) + 0.5 * len(row.logprobs) for row in rows) / 5)
    batch, _ = policy_batch(CUT, GRPO(), context=LOGPROBS)
    assert batch.scalars["kl"] == pytest.approx(found)


def test_seats_are_compared_with_themselves_alone():
    """Black earned 1 and 0, white 5 and 7: as two groups of one seat would have it."""
    rows = tuple(in_one(PLAY[i]) for i in (0, 1, 0, 1))
    both = group_of(rows, [1.0, 5.0, 0.0, 7.0], seats=["black", "white"] * 2, episodes=[0, 0, 1, 1])
    batch, metrics = policy_batch([both], DAPO(overlong_share=0.0, std_epsilon=0.0))
    half = 0.5**0.5
    assert [of[0] for of in batch.tokens["advantages"]] == pytest.approx([half, -half, -half, half])
    assert metrics["groups/reward_std"] == pytest.approx((half + 2 * half) / 2)
    later = group_of(rows[:2], [3.0, 9.0], seats=["white", "white"])  # seats are known by name
    again, _ = policy_batch([both, later], GRPO(kl_coefficient=0.0, std_epsilon=0.0))
    assert [of[0] for of in again.tokens["advantages"]] == pytest.approx([half, -half, -half, half, -half, half])


def test_a_penalty_on_length_goes_by_what_the_seat_earns():
    rows = tuple(in_one(PLAY[i]) for i in (0, 1, 1, 0))  # of 5, 2, 2 and 5 tokens
    both = group_of(rows, [1.0, 0.0, 1.0, 0.0], seats=["a", "b"] * 2, episodes=[0, 0, 1, 1])
    found = shortened(both, 0.6, longest=10).rewards  # a is always solved, b never: as if once in two
    assert found == pytest.approx([1 - 0.6 * 0.5, -0.6 * 0.2 / 2, 1 - 0.6 * 0.2, -0.6 * 0.5 / 2])


@EACH
def test_in_two_branches_of_the_same_context_tokens_learn_what_they_do_in_one(name):
    """Where ratios are of tokens, in every update; where they are of branches, in the first, in which all are 1."""
    algorithm = made(name)
    updates = 1 if algorithm.sequence_ratio else 2
    (one, whole), (cut, parts) = (updated(algorithm, groups, updates=updates) for groups in (ONE, CUT))
    assert len(parts.examples) > len(whole.examples) == 5 and parts.counts == whole.counts
    for column, numbers in whole.tokens.items():
        flat, others = ([x for each in batch.tokens[column] for x in each] for batch in (whole, parts))
        assert others == pytest.approx(flat, rel=1e-8, abs=1e-10), column
        assert len(numbers) == 5
    for (told, gradient), (other, gradients) in zip(one, cut, strict=True):
        assert difference(gradients, gradient) < 1e-8
        if not algorithm.sequence_ratio or name == "gspo":  # others add up the losses of branches
            assert other["loss"] == pytest.approx(told["loss"], rel=1e-8)


@EACH
def test_a_micro_batch_may_end_between_the_branches_of_a_row(name):
    algorithm = made(name)
    whole, batch = updated(algorithm, CUT)
    places = [{n for n in range(2) if n in row.examples} for row in pack(batch.examples, 12)]
    assert {0} in places and {1} in places  # the two branches of the first row
    cut, _ = updated(algorithm, CUT, tokens=12)
    for (told, gradient), (other, gradients) in zip(whole, cut, strict=True):
        assert difference(gradients, gradient) < 1e-8
        assert other["loss"] == pytest.approx(told["loss"], rel=1e-8)
