"""Groups that are scored while others are sampled: the same groups, and no episode waits for a reward."""

import asyncio
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.environments import Environment, ScoredEnvironment
from posttrain.errors import EpisodeError, RewardError, UserError
from posttrain.rewards import Judge, Weighted
from posttrain.rewards.reward import EpisodeReward
from posttrain.rollouts.chat_models import PolicyChat
from posttrain.rollouts.episodes import sample_groups
from posttrain.rollouts.scripted import ScriptedEngine
from posttrain.types import Outcome, Sampling, Score
from tests.rollouts.conversations import CHAT, Quiz, players, question, scored

(STOP,) = CHAT.stop_ids
G = 2


def says(request):
    """A letter that depends on the seed; to a judge, a score that depends on the answer."""
    text = CHAT.tokenizer.decode(request.token_ids)
    said = "abcd"[request.seed % 4] if "Score:" not in text else f"Score: {text.count('a') % 10}"
    return (*CHAT.tokenizer.encode(said, add_special_tokens=False), STOP)


def sampled(environment, tasks, *, pipelined=True, min_group=1, **more):
    engine = ScriptedEngine(says, CHAT.stop_ids)
    asked = players(engine, Sampling(16), schedule="continuous", pipelined=pipelined, **more)
    return sample_groups(environment, tasks, asked, completions_per_prompt=G, seed=3, min_group=min_group)


class Uneven(Quiz):
    """Some episodes fail: those of a task whose letter and seed a test names."""

    failing: frozenset = frozenset()

    async def play(self, task, seats, seed):
        outcome = await super().play(task, seats, seed)
        if (task.id, seed % 3) in self.failing:
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
            on_lost=lambda each, heard=lost[pipelined]: heard.append(str(each.error)),
        )
        for pipelined in (True, False)
    ]
    assert found[0] == found[1]
    assert lost[True] == lost[False]


@dataclass
class Held(Environment):
    """Each task but the first ends when a test says so."""

    go: bool = False
    ended: list[str] = field(default_factory=list)

    async def play(self, task, seats, seed):
        await seats["policy"].turn(task.prompt)
        until = time.monotonic() + 20
        while task.id != "a" and not self.go:  # rewards have event loops of their own
            assert time.monotonic() < until
            await asyncio.sleep(0.001)
        if task.id == "c":  # it ends after the others
            await asyncio.sleep(0.05)
        self.ended.append(task.id)
        return Outcome()


@dataclass
class Opens(EpisodeReward):
    """Scores the first group, and only then lets the others end; holds the calls that it got."""

    held: Held
    calls: list[list[str]] = field(default_factory=list)
    under_way: int = 0
    name: str = "opens"

    async def score_episodes(self, episodes):
        self.calls.append([episode.task.id for episode in episodes])
        self.under_way += 1
        assert self.under_way == 1, "two calls at once"
        self.held.go = True
        while len(self.held.ended) < 3 * G:  # all end while this call is under way
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        self.under_way -= 1
        return [Score(1.0) for _ in episodes]


def test_an_episode_that_waits_for_a_reward_of_another_task_ends_and_calls_do_not_overlap():
    held = Held()
    reward = Opens(held)
    environment = ScoredEnvironment(Weighted(((reward, 1.0),)), held)
    groups = sampled(environment, [question(name) for name in ("c", "b", "a")])
    assert [group.task.id for group in groups] == ["c", "b", "a"]
    # the first that ended alone, and then in their order all that ended during that call
    assert reward.calls == [["a"] * G, ["c"] * G + ["b"] * G]


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


def test_too_many_failed_episodes_are_an_error_of_all():
    environment = Uneven()
    environment.failing = frozenset(("b?", seed) for seed in range(3))
    with pytest.raises(EpisodeError, match=r"2 of 4 episodes failed \(2 KeyError\), more than `max_lost` 0.4"):
        sampled(scored(environment), [question("a?"), question("b?")], max_lost=0.4)
    assert len(sampled(scored(environment), [question("a?"), question("b?")], max_lost=0.5)) == 1
    assert sampled(scored(), []) == []


def test_the_policy_judges_the_groups_that_have_ended():
    def of(pipelined):
        policy = PolicyChat()
        policy.bind(CHAT, 4000)
        environment = ScoredEnvironment(Weighted(((Judge(policy), 1.0),)), Quiz(pauses={"2?": 50}))
        found = sampled(environment, [question("1?"), question("2?")], pipelined=pipelined, policy_chat=policy)
        with pytest.raises(UserError, match="can only be asked by a reward"):
            asyncio.run(policy.chat(question().prompt, sampling=Sampling(4)))
        return found

    assert of(True) == of(False)
