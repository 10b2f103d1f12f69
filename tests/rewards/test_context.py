"""What reward functions are given besides episodes: judges and the run's seed."""

import asyncio

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import Named, RewardContext, Weighted, apart, from_function, reward_function
from posttrain.types import Message, Sampling
from tests.rewards.episodes import episode, scores
from tests.rewards.judges.test_pointwise import Says

EPISODES = [episode("ab", id="t0"), episode("abcd", id="t1")]


async def asks(completion, reward_context):
    judge = reward_context.judge("kind")
    reply = await judge.chat(
        [Message("user", completion)], sampling=Sampling(9), seed=reward_context.seed_for(completion)
    )
    return float(reply.text)


def test_a_function_asks_a_judge_by_name_with_seeds_of_the_run():
    model = Says(lambda asked, seed: str(len(asked) / 10))
    reward = Weighted(((from_function(asks), 1.0),))
    context = RewardContext(5, {"kind": model})
    reward.give(RewardContext(4))  # of a run before
    reward.give(context)
    assert [s.value for s in scores(reward.parts[0][0], EPISODES)] == [0.2, 0.4]
    assert [seed for _, _, seed in model.asked] == [context.seed_for("ab"), context.seed_for("abcd")]
    assert context.seed_for("ab") != RewardContext(6).seed_for("ab") and context.seed_for("ab") >= 0


def test_batches_groups_declared_and_gold_functions_get_it_too():
    found = []

    @reward_function(role="judge", bounds=(0, 1))
    def batch(completions, reward_context=None):
        found.append(reward_context)
        return [1.0] * len(completions)

    def group(group, reward_context):
        found.append(reward_context)
        return [0.0] * len(group.episodes)

    reward = Weighted(((from_function(batch), 1.0), (Named(from_function(group), "gold"), 0.0)))
    context = RewardContext(3)
    reward.give(context)
    asyncio.run(reward.score_parts(apart(EPISODES)))
    assert found == [context] * 3
    assert reward.asks == ["batch", "group"] and from_function(batch).patient
    assert not from_function(lambda completion: 1).patient


def test_a_column_called_context_is_still_a_column():
    reward = from_function(lambda completion, context: float(context == "from the data"), "mine")
    assert scores(reward, [episode("a", context="from the data")])[0].value == 1.0
    assert not reward.asks


def test_a_judge_that_is_not_there_is_named_with_what_to_type():
    reward = from_function(asks)
    with pytest.raises(UserError, match=r'asks the judge \'kind\', and there are none; type `judge="kind=MODEL"`'):
        scores(reward, EPISODES)
    Weighted(((reward, 1.0),)).give(RewardContext(0, {"kins": Says(lambda asked, seed: "1")}))
    with pytest.raises(UserError, match=r"unknown judge 'kind'; did you mean 'kins'"):
        scores(reward, EPISODES)


def test_what_a_judge_raises_names_the_task():
    reward = from_function(asks)
    Weighted(((reward, 1.0),)).give(RewardContext(0, {"kind": Says(lambda asked, seed: "no number")}))
    with pytest.raises(RewardError, match=r"reward 'asks' raised ValueError: .* task 't0'"):
        scores(reward, EPISODES[:1])


def test_only_a_model_that_runs_here_gives_logprobs():
    class Scores(Says):
        async def logprobs(self, messages, continuations):
            return [(-0.5, -1.0) for _ in continuations]

    says = Says(lambda asked, seed: "1")
    context = RewardContext(0, {"here": Scores(lambda asked, seed: "1"), "there": says})
    assert asyncio.run(context.scorer("here").logprobs([], ["Yes"])) == [(-0.5, -1.0)]
    with pytest.raises(UserError, match=r'judge \'there\' gives no logprobs of given answers.*`judge="there=MODEL"`'):
        context.scorer("there")
