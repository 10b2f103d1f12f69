import asyncio
import math
import threading
from dataclasses import dataclass

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import REWARDS, NumberVerifier, Repetition, Tags, Weighted, from_function, parse_rewards
from posttrain.types import Score
from tests.rewards.episodes import episode
from tests.rewards.episodes import parts as parts_of

EPISODES = [episode("<think>2+2</think>#### 4", 4, id="a"), episode("#### 5", 4, id="b"), episode("four", 4, id="c")]


def test_parts_are_kept_by_name_in_order_and_the_total_is_their_weighted_sum():
    reward = Weighted(((NumberVerifier(), 1.0), (Tags(), 0.1), (from_function(lambda completion: -3, "three"), 0.5)))
    parts = parts_of(reward, EPISODES)
    assert [list(p) for p in parts] == [["numbers", "tags", "three"]] * 3
    assert [p["numbers"].value for p in parts] == [1.0, 0.0, 0.0]
    assert [p["numbers"].unparsed for p in parts] == [False, False, True]
    assert [reward.total(p) for p in parts] == pytest.approx([1 + 0.1 - 1.5, -1.5, -1.5])
    assert asyncio.run(reward.score_parts([])) == []


def test_a_missing_part_is_not_taken_for_0():
    with pytest.raises(KeyError):
        Weighted(((Tags(), 1.0),)).total({})


def test_rewards_work_at_the_same_time():
    both = threading.Barrier(2, timeout=60)

    def meets(completion):
        return both.wait() >= 0

    one, two = from_function(meets, "one"), from_function(meets, "two")
    parts = parts_of(Weighted(((one, 1.0), (two, 1.0))), EPISODES[:1])
    assert [s.value for s in parts[0].values()] == [1.0, 1.0]


def test_one_failure_stops_the_others_and_is_the_error():
    cancelled = threading.Event()

    @dataclass(frozen=True)
    class Waits:
        name: str = "waits"

        async def score(self, episodes):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    def fails(completion):
        raise OSError("no answer from the service")

    with pytest.raises(RewardError, match="'fails' raised OSError"):
        parts_of(Weighted(((Waits(), 1.0), (from_function(fails), 1.0))), EPISODES)
    assert cancelled.wait(5)


def test_the_time_limit_reaches_every_part():
    @dataclass(frozen=True)
    class Waits:
        name: str = "waits"

        async def score(self, episodes):
            await asyncio.sleep(60)

    with pytest.raises(RewardError, match=r"'waits' did not finish within 0\.05 s"):
        parts_of(Weighted(((Waits(), 1.0),), timeout_s=0.05), EPISODES)


def test_the_outcome_is_the_first_verifier():
    assert Weighted(((Tags(), 0.1), (NumberVerifier(), 1.0))).outcome == "numbers"
    assert Weighted(((Tags(), 0.1), (Repetition(), 1.0))).outcome == "tags"
    assert Weighted(((Repetition(), 1.0), (Tags(), 0.1))).outcome == "tags"  # of the first, 0 is the most
    assert Weighted(((Repetition(), 1.0),)).outcome == "" and not Weighted(((Repetition(), 1.0),)).certain
    assert Weighted(((Tags(), 0.1),)).certain and Weighted(((NumberVerifier(), 1.0),)).certain


@pytest.mark.parametrize(
    ("values", "outcome"),
    [((0.0, 1.0, 0.5), "given"), ((0.0, 37.0, 1.0), ""), ((1.0, -0.1, 1.0), ""), ((1.0, 1.0 + 1e-9), "")],
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_function_is_an_outcome_until_it_gives_a_score_outside_0_to_1(values, outcome, batch):
    told = iter(values)

    def given(completion):
        return next(told)

    def givens(completions):
        return [next(told) for _ in completions]

    both = Weighted(((from_function(givens if batch else given, "given"), 1.0), (Tags(), 0.1)))
    assert both.outcome == "given" and not both.certain
    parts_of(both, [EPISODES[0]] * (len(values) - 1))
    parts_of(both, [EPISODES[0]])
    assert both.outcome == outcome and not both.certain
    assert Weighted((*both.parts, (NumberVerifier(), 1.0))).outcome == "numbers"


@pytest.mark.parametrize(
    "spec, weights",
    [
        ("gym=1.0 tags=0.1", {"gym": 1.0, "tags": 0.1}),
        ("gym", {"gym": 1.0}),
        (["gym=2", "length=-0.5"], {"gym": 2.0, "length": -0.5}),
        (["gym=2 tags=.5", "steps=0"], {"gym": 2.0, "tags": 0.5, "steps": 0.0}),
    ],
)
def test_parsing(spec, weights):
    assert parse_rewards(spec).weights == weights


def test_parsing_a_function_with_its_weight(tmp_path):
    path = tmp_path / "my rewards.py"
    path.write_text("def brief(completion): return 1\n")
    for word, weight in ((f"{path}:brief", 1.0), (f"{path}:brief=0.2", 0.2), (f"{path}:brief:0.2", 0.2)):
        assert parse_rewards(f"tags '{word}'").weights == {"tags": 1.0, "brief": weight}


@pytest.mark.parametrize("name", ["mean", "std"])
def test_a_reward_cannot_be_called_like_a_measure_of_the_sum(name):
    """Its metric would be overwritten, or overwrite, without a word."""
    with pytest.raises(UserError, match=f"cannot be called '{name}'"):
        Weighted(((Tags(), 1.0), (from_function(lambda completion: 1.0, name=name), 1.0)))


@pytest.mark.parametrize(
    "spec, said",
    [
        ("gyn=1", "unknown reward 'gyn'; did you mean 'gym'"),
        ("gym=much", "'gym=much' has the weight 'much', which is not a number"),
        ("gym=", "which is not a number"),
        ("gym=nan", "must be a finite number; got nan"),
        ("gym=inf", "must be a finite number; got inf"),
        ("gym gym", "two rewards are called 'gym'"),
        ("", "at least one"),
        ([], "at least one"),
        ("gym 'tags", "cannot read the rewards"),
        ("no/such/file.py", "say which function: no/such/file.py:FUNCTION"),
        ("no/such/file.py:f", "'no/such/file.py', which does not exist"),
    ],
)
def test_every_mistake_is_named(spec, said):
    with pytest.raises(UserError, match=said) as caught:
        parse_rewards(spec)
    assert "\n" not in str(caught.value)


def test_a_time_limit_that_is_none_is_refused():
    for limit in (0.0, -1.0, math.nan):
        with pytest.raises(UserError, match="time limit"):
            parse_rewards("gym", timeout_s=limit)


def test_every_registered_reward_is_called_what_it_is_registered_as():
    needs = {"classifier": {"model": "M", "label": "good"}}
    names = set(REWARDS) - {"consensus"}  # which needs judges
    assert {name: REWARDS[name](**needs.get(name, {})).name for name in names} == {name: name for name in names}
    assert len(names) == 24


@pytest.mark.parametrize(("name", "values"), [("numbers", [1.0, 0.0]), ("last_number", [1.0, 1.0])])
def test_numbers_wants_the_form_and_last_number_does_not(name, values):
    episodes = [episode("#### 12", 12), episode("3 times 4, so it is 12.", 12)]
    scores = parts_of(parse_rewards(name), episodes)
    assert [part[name].value for part in scores] == values


def test_scores_are_the_ones_of_the_rewards_themselves():
    def explained(completion):
        return Score(0.25, parsed="x", explanation="because")

    parts = parts_of(Weighted(((from_function(explained), 2.0),)), EPISODES[:1])
    assert parts == [{"explained": Score(0.25, parsed="x", explanation="because")}]


def test_of_two_verifiers_the_first_says_what_is_solved():
    assert parse_rewards("tags numbers exact").outcome == "numbers"
    assert parse_rewards("tags exact numbers").outcome == "exact"
