"""Rewards by row: a column `rewards` says which of them a task has."""

import asyncio
import math

import pytest

from posttrain.environments.scored import refuse_unknown_rewards
from posttrain.errors import DataError
from posttrain.rewards import Disagreement, Named, Weighted, parse_rewards
from posttrain.types import Episode, EpisodeGroup, Message, Task


def task(number: int, rewards: object = None, answer: str = "5") -> Task:
    metadata = {} if rewards is None else {"rewards": rewards}
    return Task((Message("user", f"{number}?"),), answer, metadata=metadata, id=f"row {number}")


def scored(rewards: Weighted, *tasks: Task, text: str = "#### 5"):
    groups = [EpisodeGroup(one, (Episode(one, (*one.prompt, Message("assistant", text))),)) for one in tasks]
    return [of_group[0] for of_group in asyncio.run(rewards.score_parts(groups))]


def test_a_reward_that_a_row_does_not_name_does_not_apply_and_is_not_asked():
    asked = []

    def brief(completion: str, id: str) -> float:
        asked.append(id)
        return 0.5

    rewards = parse_rewards(["numbers=1.0", (brief, 2.0)])
    tasks = task(1, ["numbers"]), task(2, "brief"), task(3), task(4, "numbers, brief"), task(5, [])
    found = scored(rewards, *tasks)
    applicable = [tuple(name for name, score in parts.items() if score.applicable) for parts in found]
    assert applicable == [("numbers",), ("brief",), *[("numbers", "brief")] * 3]
    assert [rewards.total(parts) for parts in found] == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert asked == ["row 2", "row 3", "row 4", "row 5"]
    assert found[0]["brief"].explanation == "the row does not name it"


def test_monitors_apply_to_all_rows():
    spread = Disagreement(lambda conversations: [[0.0, 2.0] for _ in conversations])
    gold = Named(parse_rewards("tags").parts[0][0], "gold")
    found = scored(Weighted((*parse_rewards("numbers").parts, (spread, 0.0), (gold, 0.0))), task(1, ["numbers"]))
    assert all(score.applicable for score in found[0].values())


def test_a_row_that_names_no_reward_with_a_weight_is_lost():
    (parts,) = scored(parse_rewards("numbers=1.0 tags=0.0"), task(1, ["tags"]))
    assert math.isnan(parse_rewards("numbers=1.0 tags=0.0").total(parts))


def test_reference_answers_are_read_by_the_rewards_that_apply():
    tasks = [task(1, ["numbers"], "5"), task(2, ["tags"], "no number"), task(3, None, "no number")]
    why = asyncio.run(parse_rewards("numbers tags").unreadable(tasks))
    assert [bool(one) for one in why] == [False, False, True]


def test_a_row_that_names_a_reward_that_is_not_there_is_refused_in_a_line():
    rewards = parse_rewards("numbers tags=0.1")
    refuse_unknown_rewards([task(1, ["numbers", "reward_model"])], rewards, "MODEL")
    refuse_unknown_rewards([task(1, [0.5]), task(2, 3)], rewards)  # a column of numbers means something else
    with pytest.raises(DataError, match=r"row 2 names the reward 'math' .* there are: numbers, tags; add it") as error:
        refuse_unknown_rewards([task(1), task(2, ["math"])], rewards)
    assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="names the reward 'reward_model'"):
        refuse_unknown_rewards([task(1, "reward_model")], rewards)
