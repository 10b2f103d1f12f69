import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from posttrain.errors import RewardError
from posttrain.rewards import NumberVerifier, Weighted, from_function, parse_rewards
from posttrain.testing import check_gold, check_reward
from posttrain.types import EpisodeGroup, Message, Score, Task
from tests.rewards.episodes import episode
from tests.violations import violations

EPISODES = [episode("#### 4", 4, id="0"), episode("#### 5", 4, id="1"), episode("none", 4, id="2")]


def check(reward: Any, **options: Any) -> list[str]:
    return violations(check_reward, reward, EPISODES, timeout_s=5, **options)


@dataclass
class Faulty:
    """A reward with one fault: `score` is called with the episodes and the number of the call."""

    scorer: Any
    name: str = "faulty"
    calls: int = field(default=0)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score(self, groups):
        self.calls += 1
        episodes = [episode for group in groups for episode in group.episodes]
        found = iter(self.scorer(episodes, self.calls))
        return [[next(found) for _ in group.episodes] for group in groups] or [[score] for score in found]


def test_a_reward_that_conforms_has_no_failures():
    assert check(NumberVerifier()) == []


@pytest.mark.parametrize(
    "scorer, said",
    [
        (lambda es, n: [Score(2.0) for _ in es], "it states 0.0 to 1.0"),
        (lambda es, n: [Score(-0.1) for _ in es], "it states 0.0 to 1.0"),
        (lambda es, n: [Score(1.0, unparsed=True) for _ in es], "unparsed"),
        (lambda es, n: [Score(i / 10) for i, _ in enumerate(es)], "in a reversed batch"),
        (lambda es, n: [Score(len(es) / 10) for _ in es], "alone"),
        (lambda es, n: [Score(min(n, 9) / 10) for _ in es], "but"),
        (lambda es, n: [Score(0.0)] if not es else [Score(0.0) for _ in es], "empty batch"),
        (lambda es, n: [Score(float("nan")) for _ in es], "nan"),
        (lambda es, n: [][1:] if not es else 1 / 0, "ZeroDivisionError"),
        (lambda es, n: [e.task.metadata.update(seen=1) or Score(0.0) for e in es], "changed the episodes"),
    ],
)
def test_each_fault_is_found(scorer, said):
    failures = check(Faulty(scorer))
    assert failures and any(said in failure for failure in failures), failures


@dataclass
class Compares:
    """A reward of groups: `scorer` is called with one."""

    scorer: Any
    name: str = "compares"
    role: str = "rule"

    async def score(self, groups):
        return [[Score(value) for value in self.scorer(group)] for group in groups]


THREE = [
    EpisodeGroup(EPISODES[0].task, (EPISODES[0], EPISODES[0], EPISODES[1])),
    EpisodeGroup(EPISODES[2].task, (EPISODES[2], EPISODES[1])),
]


def check_groups(scorer, **options):
    return violations(check_reward, Compares(scorer, **options), THREE, timeout_s=5)


def how_often(group):
    said = [episode.completion for episode in group.episodes]
    return [said.count(one) / len(said) for one in said]


def test_a_reward_that_compares_within_a_group_conforms():
    assert check_groups(how_often) == []


def test_one_that_goes_by_the_place_in_a_group_or_has_no_role_does_not():
    assert any(
        "in a reversed group" in f for f in check_groups(lambda group: [i / 9 for i, _ in enumerate(group.episodes)])
    )
    assert any("its role is 'teacher'" in failure for failure in check_groups(how_often, role="teacher"))
    seen = []
    failures = check_groups(lambda group: seen.append(group) or [len(seen) / 99] * len(group.episodes))
    assert any("in a reversed batch" in f for f in failures) and any("alone" in f for f in failures)


def test_a_reward_that_compares_passes_when_it_is_not_asked_to_be_deterministic():
    compares = Faulty(lambda es, n: [Score(len(es) / 10) for _ in es])
    assert check(compares, deterministic=False) == []


def test_a_reward_without_a_name_is_refused():
    assert "expected a non-empty string" in check(Faulty(lambda es, n: [], name=""))[0]


def task(gold: str | None, answer: Any, id: str) -> Task:
    return Task((Message("user", "?"),), answer=answer, gold=gold, id=id)


def test_gold_failures_name_the_task_and_what_was_read():
    tasks = [task("so #### 4", 4, "good"), task("so #### 5", 4, "bad"), task("five", 4, "ugly"), task(None, 4, "none")]
    failures = violations(check_gold, NumberVerifier(), tasks)
    assert len(failures) == 2
    assert "'bad'" in failures[0] and "parsed '5'" in failures[0]
    assert "'ugly'" in failures[1] and "no ####" in failures[1]


def test_no_gold_at_all_is_a_failure_and_not_a_pass():
    assert len(violations(check_gold, NumberVerifier(), [task(None, 4, "none")])) == 1


def test_a_task_whose_answer_is_not_an_answer_raises():
    with pytest.raises(RewardError, match="'broken'"):
        check_gold(NumberVerifier(), [task("#### 4", "many", "broken")])


READABLE = {
    "numbers": ["42", "3/4", "so #### 4"],
    "last_number": ["42"],
    "exact": ["yes", ["a", "b"]],
    "choice": ["B", 1],
    "math": ["42", r"\frac{\pi}{2}", ["1", "x+1"], r"\frac{\pi}{2}"],
}
UNREADABLE = {
    "numbers": [("three quarters", "needs a number"), (None, "needs a number")],
    "last_number": [("many", "needs a number")],
    "exact": [(None, "has none"), ("", "has none")],
    "choice": [("42", "needs a letter"), (26, "needs a letter")],
    "math": [
        ("three quarters", "cannot be read as mathematics"),
        (None, "there is none"),
        ([], "there is none"),
        ("9^{9^{9^9}}", "too large"),
        (["x", "three quarters"], "cannot be read as mathematics"),
    ],
    "gym": [("42", "needs the keys 'dataset' and 'entry'")],
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_answers_that_a_verifier_cannot_read_are_told_apart(name):
    """Each between ones that it can read, so that the places are told, too."""
    fine, faulty = READABLE.get(name, []), UNREADABLE[name]
    tasks = [task(None, answer, "t") for answer in (*fine, *(bad for bad, _ in faulty), *fine)]
    found = asyncio.run(parse_rewards(name).unreadable(tasks))
    assert found[: len(fine)] == found[len(tasks) - len(fine) :] == [""] * len(fine)
    for (_, what), why in zip(faulty, found[len(fine) :], strict=False):
        assert what in why and f"'{name}'" in why


def test_rewards_that_need_no_answer_are_not_asked():
    def asked(completion):
        pytest.fail("asked")

    rewards = Weighted(((from_function(asked), 1.0), *parse_rewards("tags numbers").parts))
    tasks = [task(None, "4", "a"), task(None, "many", "b")]
    assert [bool(why) for why in asyncio.run(rewards.unreadable(tasks))] == [False, True]
