"""Self-rewarding: the policy is the judge of its own episodes."""

import asyncio
import random
import time
from dataclasses import dataclass

import pytest

from posttrain.bindings.judges import judges_in, rewards_with
from posttrain.engine.chat_models import PolicyChat
from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import ScoredEnvironment
from posttrain.environments.scored import judged
from posttrain.episodes.episodes import sample_groups
from posttrain.errors import UserError
from posttrain.options.online import SampledOptions
from posttrain.rewards import Judge, RewardContext, Weighted
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Message, Sampling, Score
from tests.episodes.conversations import CHAT, Quiz, players, question

(STOP,) = CHAT.stop_ids


def says(request):
    """`ab` to a question with an even seed and `abcd` otherwise; to the judge's prompt, how long the answer is."""
    text = CHAT.tokenizer.decode(request.token_ids)
    said = ("ab" if request.seed % 2 else "abcd") if "Score:" not in text else f"Score: {2 if 'abcd' in text else 7}"
    return (*CHAT.tokenizer.encode(said, add_special_tokens=False), STOP)


@pytest.fixture
def engine():
    return ScriptedEngine(says, CHAT.stop_ids)


@pytest.fixture
def policy():
    chat = PolicyChat()
    chat.bind(CHAT, 4000)
    return chat


def sampled(engine, policy, reward, **more):
    environment = ScoredEnvironment(Weighted(((reward, 1.0),)), Quiz())
    found = players(engine, Sampling(16), policy_chat=policy, **more)
    return sample_groups(environment, [question("1?"), question("2?")], found, completions_per_prompt=4, seed=3)


def test_the_policy_scores_what_it_has_said(engine, policy):
    groups = sampled(engine, policy, Judge(policy))
    rows = [(row.trajectory.text, row.reward) for group in groups for row in group.rows]
    assert {text for text, _ in rows} == {"ab", "abcd"}
    assert all(reward == pytest.approx({"ab": 0.7, "abcd": 0.2}[text]) for text, reward in rows)
    assert [len(batch) for batch in engine.asked] == [8, 8]  # the answers, and then all verdicts together


def test_elsewhere_it_cannot_be_asked(engine, policy):
    def ask(chat):
        asyncio.run(chat.chat([Message("user", "1?")], sampling=Sampling(4)))

    sampled(engine, policy, Judge(policy))
    for chat in (policy, PolicyChat()):
        with pytest.raises(UserError, match="can only be asked by a reward, while its own episodes are scored"):
            ask(chat)


@dataclass
class Shuffled(EpisodeReward):
    """Asks in an order of its own, each question after a different number of rounds of its event loop."""

    policy: PolicyChat
    draw: random.Random
    name: str = "shuffled"
    patient = True

    async def score_episodes(self, episodes):
        async def one(number):
            if self.draw.random() < 0.5:
                await asyncio.sleep(0)
            time.sleep(0.002)  # as the encoding of a long prompt
            asked = Message("user", f"{number} {episodes[number].completion}")
            reply = await self.policy.chat([asked], sampling=Sampling(8), seed=number)
            return number, Score(float(len(reply.text)))

        order = self.draw.sample(range(len(episodes)), len(episodes))
        return [score for _, score in sorted(await asyncio.gather(*map(one, order)), key=lambda found: found[0])]


def test_in_lockstep_batches_do_not_depend_on_who_asked_first(policy):
    """What is asked together is ordered by what it is, and nothing starts before the reward's own loop is idle."""
    batches = []
    for seed in range(6):
        engine = ScriptedEngine(says, CHAT.stop_ids)
        sampled(engine, policy, Shuffled(policy, random.Random(seed)), schedule="lockstep")
        batches.append([[(r.token_ids, r.seed) for r in batch] for batch in engine.asked])
    assert all(found == batches[0] for found in batches) and [len(batch) for batch in batches[0]] == [8, 8]


def test_it_is_typed_as_a_judge_and_functions_find_it(tmp_path):
    options = SampledOptions(judge="mine=policy", seed=5)
    judging = judges_in(options)
    assert judging.models == {"mine": judging.policy} and judging.folders == {}
    rewards, _, _ = rewards_with(judging, options, "")
    assert rewards.weights == {"mine": 1.0} and rewards.parts[0][0].model is judging.policy
    with pytest.raises(UserError, match="posttrain score has no policy to ask; a judge is NAME=MODEL or"):
        judging.refuse_policy("posttrain score")
    judges_in(SampledOptions(judge="mine=OWNER/NAME")).refuse_policy("posttrain score")

    (tmp_path / "mine.py").write_text("async def own(completion, reward_context):\n    return 0.0\n")
    rewards, _, _ = judged(f"{tmp_path}/mine.py:own", judges={}, policy=judging.policy, seed=5)
    assert rewards.parts[0][0].context == [RewardContext(5, {}, judging.policy)]
