"""The reward of the reference's probability, on probabilities that are given."""

import asyncio
import math

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import RewardContext, parse_rewards
from posttrain.types import Episode, EpisodeGroup, Message, Reply, Task

TASK = Task((Message("user", "3+4?"),), 7, id="sum")
# by what the assistant has said: the probability of each token of the answer
PROBABILITIES = {
    "<answer>": (0.2, 0.4),
    "good <answer>": (0.9, 0.7),
    "bad\n<answer>": (0.1, 0.1),
    "a <answer> so<answer>": (1, 1),
}


class Policy:
    """Gives these probabilities."""

    def __init__(self):
        self.asked = []

    async def chat(self, messages, *, sampling, tools=(), seed=0) -> Reply:
        raise NotImplementedError

    async def logprobs(self, messages, continuations):
        self.asked.append((messages[-1].content, *continuations))
        assert tuple(messages[:-1]) == TASK.prompt
        return [tuple(map(math.log, PROBABILITIES[messages[-1].content])) for _ in continuations]


def scores(said, policy, word="rlpr", task=TASK):
    rewards = parse_rewards(word)
    rewards.give(RewardContext(policy=policy))
    told = [(*TASK.prompt, *([] if text is None else [Message("assistant", text)])) for text in said]
    group = EpisodeGroup(task, tuple(Episode(task, messages) for messages in told))
    ((*found,),) = asyncio.run(rewards.score_parts([group]))
    return [each["rlpr"] for each in found], rewards


def test_it_is_the_mean_probability_after_the_reasoning_less_that_without_it():
    policy = Policy()
    found, rewards = scores(["good <answer>8</answer>", "bad", "a <answer> so<answer>", None], policy)
    assert [score.value for score in found[:3]] == pytest.approx([0.8 - 0.3, 0.0, 0.7])
    assert [score.applicable for score in found] == [True, True, True, False]
    assert policy.asked[0] == ("<answer>", "7") and len(policy.asked) == 4  # once without reasoning for all
    assert rewards.outcome == "" and rewards.asks == rewards.asks_policy == ["rlpr"]  # no value means a right answer


def test_what_stands_before_the_answer_can_be_named():
    policy = Policy()
    PROBABILITIES.update({"####": (0.5,), "so ####": (0.75,)})
    found, _ = scores(["so #### 8"], policy, "rlpr?before=####")
    assert found[0].value == pytest.approx(0.25)


def test_it_asks_a_policy_that_gives_logprobs_and_needs_an_answer():
    class Speaks:
        chat = Policy.chat

    for policy in (None, Speaks()):
        with pytest.raises(RewardError, match="'rlpr' asks the policy that is trained; use it in rl"):
            scores(["good <answer>8"], policy)
    tasks = [TASK, Task(TASK.prompt, None)]
    assert asyncio.run(parse_rewards("rlpr").unreadable(tasks)) == ["", "rlpr needs a reference answer"]
    with pytest.raises(UserError, match="before"):
        parse_rewards("rlpr?befor=x")
