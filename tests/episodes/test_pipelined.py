"""Groups that are scored while others are sampled: the same groups, and none waits for the episodes of others."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.bindings.sampling import set_up
from posttrain.engine.chat_models import PolicyChat
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import Environment, ScoredEnvironment
from posttrain.episodes.episodes import sample_groups
from posttrain.errors import EpisodeError, RewardError, UserError
from posttrain.options.online import SampledOptions
from posttrain.rewards import Judge, Weighted
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Outcome, Sampling, Score
from tests.episodes.conversations import CHAT, Quiz, players, question, scored

(STOP,) = CHAT.stop_ids
G = 2


def says(request):
    """A letter that depends on the seed."""
    return (*CHAT.tokenizer.encode("abcd"[request.seed % 4], add_special_tokens=False), STOP)


def sampled(environment, tasks, *, pipelined=True, min_group=1, **more):
    engine = ScriptedEngine(says, CHAT.stop_ids)
    asked = players(engine, Sampling(16), pipelined=pipelined, **more)
    return sample_groups(environment, tasks, asked, completions_per_prompt=G, seed=3, min_group=min_group)


class Uneven(Quiz):
    """Some episodes fail: those of a task whose letter and seed a test names."""

    failing: frozenset = frozenset()
    failed = 0

    async def play(self, task, seats, seed):
        outcome = await super().play(task, seats, seed)
        if (task.id, seed % 3) in self.failing:
            self.failed += 1
            raise KeyError(task.id)
        return outcome


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 2))),
    st.integers(1, G),
)
def test_the_groups_are_those_of_scoring_at_the_end(pauses, failing, min_group):
    tasks = [question(f"{number}?", 1 + number % 2) for number in range(len(pauses))]
    environment = Uneven(pauses={f"{number}?": rounds for number, rounds in enumerate(pauses)})
    environment.failing = frozenset((f"{number}?", seed) for number, seed in failing)
    lost = {True: [], False: []}
    found = [
        sampled(
            scored(environment),
            tasks,
            pipelined=pipelined,
            min_group=min_group,
            max_lost=1.0,
            on_lost=lambda each, heard=lost[pipelined]: heard.append(str(each)),
        )
        for pipelined in (True, False)
    ]
    assert found[0] == found[1]
    assert lost[True] == lost[False]


@dataclass
class Held(Environment):
    """Each task but the first ends when a test says so."""

    go: bool = False

    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        until = time.monotonic() + 20
        while task.id != "a" and not self.go:  # rewards have event loops of their own
            assert time.monotonic() < until
            await asyncio.sleep(0.001)
        return Outcome()


@dataclass
class Opens(EpisodeReward):
    """Scores the first group, and only then lets the others end; each call waits until all are under way."""

    held: Held
    calls: list[list[str]] = field(default_factory=list)
    name: str = "opens"

    async def score_episodes(self, episodes):
        self.calls.append([episode.task.id for episode in episodes])
        self.held.go = True
        until = time.monotonic() + 20
        while len(self.calls) < 3:
            assert time.monotonic() < until
            await asyncio.sleep(0.001)
        return [Score(1.0) for _ in episodes]


def test_a_group_is_scored_while_others_are_sampled_and_scored():
    held = Held()
    reward = Opens(held)
    environment = ScoredEnvironment(Weighted(((reward, 1.0),)), held)
    groups = sampled(environment, [question(name) for name in ("c", "b", "a")])
    assert [group.task.id for group in groups] == ["c", "b", "a"]
    assert reward.calls[0] == ["a"] * G and sorted(reward.calls[1:]) == [["b"] * G, ["c"] * G]


def test_a_reward_that_fails_ends_the_episodes_that_are_under_way():
    cancelled = []

    class Hears(Held):
        async def play(self, task, seats, seed):
            try:
                return await super().play(task, seats, seed)
            except asyncio.CancelledError:
                cancelled.append(task.id)
                raise

    @dataclass
    class Breaks(EpisodeReward):
        name: str = "breaks"

        async def score_episodes(self, episodes):
            raise ValueError("no verdict")

    held = Hears()
    with pytest.raises(RewardError, match="no verdict"):
        sampled(ScoredEnvironment(Weighted(((Breaks(), 1.0),)), held), [question("a"), question("b")])
    assert cancelled == ["b"] * G


class Later(Uneven):
    """The episodes of the first task end when all others have failed."""

    async def play(self, task, seats, seed):
        while task.id == "a?" and self.failed < G:
            await asyncio.sleep(0.001)
        return await super().play(task, seats, seed)


def test_too_many_failed_episodes_are_an_error_before_others_are_scored():
    environment, calls = Later(pauses={"a?": 20}), []
    environment.failing = frozenset(("b?", seed) for seed in range(3))
    judged = scored(environment, lambda episode: calls.append(episode) or 1.0)
    tasks = [question("a?"), question("b?")]
    with pytest.raises(EpisodeError, match=r"2 of 4 episodes failed \(2 KeyError\), more than `max_lost` 0.4"):
        sampled(judged, tasks, max_lost=0.4)
    assert calls == []
    assert len(sampled(judged, tasks, max_lost=0.5)) == 1 and len(calls) == G
    assert sampled(judged, []) == []


def test_the_policy_which_is_sampling_is_no_judge():
    policy = PolicyChat()
    policy.bind(CHAT, 4000)
    environment = ScoredEnvironment(Weighted(((Judge(policy), 1.0),)), Quiz())
    with pytest.raises(UserError, match=r"can only be asked .* and no others are sampled"):
        sampled(environment, [question("1?"), question("2?")], policy_chat=policy)
    options = SampledOptions(dataset="gym:chain_sum", judge="mine=policy", schedule="pipelined")
    with pytest.raises(UserError, match="a judge that is the policy cannot answer while it samples"):
        set_up(options, "", lambda: None)
