"""Rewards given as texts, tables and objects: the same rewards, and one line where something does not fit."""

import asyncio
import functools
import math
import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import UserError
from posttrain.rewards import (
    LengthTarget,
    NumberVerifier,
    Tags,
    load_again,
    load_reward,
    parse_rewards,
    reward_function,
    score_all,
)
from posttrain.types import Score
from tests.rewards.episodes import episode, flat, parts

EPISODES = [
    episode("#### 4", 4, id="a", scale=9),
    episode(r"five, \boxed{4}", 4, id="b", scale=9),
    episode("", 4, id="c", scale=9),
]

FILE = """
from posttrain.rewards import reward_function

def score(completion, answer, scale: float = 1.0, words: tuple[str, ...] = ()):
    return scale * len(completion) + completion.count("e") * ("e" in words)

def bound(completion, scale):  # no annotation: a text is a text
    return float(scale)

@reward_function(role="verifier", bounds=(0, 10))
class Counts:
    def __init__(self, step: int, start: int = 0):
        self.step, self.now = step, start

    def __call__(self, completion):
        self.now += self.step
        return self.now

class Whole:
    name = "whole"

    def __init__(self, value: float = 0.5):
        self.value = value

    async def score(self, groups):
        from posttrain.types import Score
        return [[Score(self.value) for _ in group.episodes] for group in groups]

ready = Whole(0.25)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my rewards.py"
    path.write_text(FILE)
    return path


def score(completion, answer, scale: float = 1.0, words: tuple[str, ...] = ()):
    return scale * len(completion) + completion.count("e") * ("e" in words)


class Counter:
    """Has a state."""

    def __init__(self):
        self.now = 0

    def __call__(self, completion):
        self.now += 1
        return self.now


class Asynchronous:
    role, bounds, at_once = "verifier", (0, 1), 2

    def __init__(self):
        self.running = self.most = 0

    async def __call__(self, completion):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        return len(completion) > 3


@dataclass(frozen=True)
class Own:
    name: str = "own"

    async def score(self, groups):
        return [[Score(0.5) for _ in group.episodes] for group in groups]


def totals(spec, episodes=EPISODES):
    weighted = parse_rewards(spec)
    return [weighted.total(scores) for scores in parts(weighted, episodes)]


@given(
    st.floats(-3, 3, allow_nan=False),
    st.floats(-2, 2, allow_nan=False),
    st.integers(1, 50),
    st.lists(st.text(alphabet="abcde", min_size=1, max_size=3), max_size=4),
)
def test_text_table_and_object_of_one_reward_give_the_same_scores(path_of, weight, scale, target, words):
    listed = f"&words={','.join(words)}" if words else ""
    text = f"'{path_of}:score?scale={scale}{listed}={weight}' length_target?target={target}=2"
    table = {
        f"{path_of}:score": {"weight": weight, "scale": scale, "words": words},
        "length_target": {"weight": 2, "target": target},
    }
    bound = functools.partial(score, scale=scale, words=words)
    objects = [(bound, weight), (LengthTarget(target), 2)]
    named = {"score": (bound, weight), "length_target": (LengthTarget(target), 2.0)}
    expected = totals(text)
    assert totals(table) == totals(objects) == totals(named) == expected
    assert parse_rewards(text).weights == parse_rewards(named).weights == {"score": weight, "length_target": 2.0}


@pytest.fixture(scope="module")
def path_of(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "my rewards.py"
    path.write_text(FILE)
    return path


def test_arguments_of_a_verifier_and_another_name_for_it():
    both = parse_rewards(r"numbers=0.5 numbers?answer_in=boxed&name=strict tags?tags=think,plan&text_after=false=0")
    assert both.parts == (
        (NumberVerifier(), 0.5),
        (NumberVerifier(answer_in="boxed", name="strict"), 1.0),
        (Tags(tags=("think", "plan"), text_after=False), 0.0),
    )
    assert [s["strict"].value for s in parts(parse_rewards(both.parts[1][0]), EPISODES)] == [0.0, 1.0, 0.0]


def test_an_argument_replaces_a_column_of_its_name(file):
    assert totals(f"'{file}:bound'") == [9.0] * 3
    assert totals(f"'{file}:bound?scale=2&name=two'") == [2.0] * 3


def test_a_function_takes_arguments_after_its_path_and_a_weight_after_those(file):
    found = parse_rewards(f"'{file}:score?scale=2&name=twice=0.5' '{file}:score:0.1' '{file}:score?name=c'")
    assert found.weights == {"twice": 0.5, "score": 0.1, "c": 1.0}
    assert [scores["twice"].value for scores in parts(found, EPISODES)] == [2.0 * len(e.completion) for e in EPISODES]


def test_an_object_of_a_class_in_a_file_keeps_its_state(file):
    found = parse_rewards(f"'{file}:Counts?step=2'")
    assert [s["Counts"].value for s in parts(found, EPISODES)] == [2.0, 4.0, 6.0]
    assert found.outcome == "Counts" and found.parts[0][0].bounds == (0, 10)
    assert totals(f"'{file}:Whole?value=0.75=2'") == [1.5] * 3 and totals(f"'{file}:ready'") == [0.25] * 3


def test_objects_with_state_and_their_attributes():
    counter = Counter()
    assert [s["Counter"].value for s in parts(parse_rewards(counter), EPISODES)] == [1.0, 2.0, 3.0]
    asynchronous = Asynchronous()
    found = parse_rewards({"long": asynchronous, "own": (Own(), 0.5), "other": Own()})
    assert found.outcome == "long" and found.weights == {"long": 1.0, "own": 0.5, "other": 1.0}
    assert [s["long"].value for s in parts(found, EPISODES)] == [1.0, 1.0, 0.0] and asynchronous.most == 2
    assert [s["other"].value for s in parts(found, EPISODES)] == [0.5] * 3


def test_a_monitor_has_weight_0_and_a_pair_its_own():
    @reward_function(role="monitor")
    def watched(completion):
        return 0.0

    assert parse_rewards([watched, (score, 0.5)]).weights == {"watched": 0.0, "score": 0.5}
    assert parse_rewards((score, 2)).weights == {"score": 2.0}
    assert parse_rewards(("numbers", "tags=0.1", ("exact", 3))).weights == {"numbers": 1.0, "tags": 0.1, "exact": 3.0}
    assert parse_rewards({"numbers": 2, "tags": {}}).weights == {"numbers": 2.0, "tags": 1.0}
    assert parse_rewards({"loud": lambda completion: 1.0}).weights == {"loud": 1.0}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("numbers?answer=boxed", "unknown argument of the reward 'numbers': 'answer'; did you mean 'answer_in'"),
        ("numbers?answer_in=box", "argument answer_in of the reward 'numbers' is 'box'; expected one of after_think"),
        ("numbers?last_number=1", "is '1'; expected true or false"),
        ("length?limit=3.5", "argument limit of the reward 'length' is '3.5'; expected a whole number"),
        ("length?limit=9", "length needs 0 < buffer <= limit"),
        ("length?limit", "'limit' in the reward 'length\\?limit' is not ARGUMENT=VALUE; write length\\?argument=value"),
        ("length?limit=200&limit=300", "'limit=300' in the reward .* is given twice"),
        ("length?limit=200=x", "has the weight 'x', which is not a number"),
        ("solved?rol=1", "unknown argument of the reward 'solved'"),
        ({"numbers": {"answer": "boxed"}}, "unknown argument of the reward 'numbers'"),
        ({"numbers": {"weight": "much"}}, "'numbers' has the weight 'much', which is not a number"),
        ({"numbers": True}, "'numbers' has the weight 'True', which is not a number"),
        ({"length": {"limit": True}}, "argument limit of the reward 'length' is True; expected a whole number"),
        ({"length": {"limit": 2.0}}, "argument limit of the reward 'length' is 2.0; expected a whole number"),
        ({"length": {"count": 3}}, "argument count of the reward 'length' is 3; expected collections.abc.Callable"),
        ({"tags": {"tags": 3}}, "argument tags of the reward 'tags' is 3; expected tuple"),
        ({"numbers=2": 0.5}, "the reward 'numbers=2' has its weight twice; write 'numbers' = 0.5"),
        ({"https://a.example/x": {"scale": 2}}, "the reward 'https://a.example/x' takes no arguments; got scale"),
        ({"nubmers": 1.0}, "unknown reward 'nubmers'; did you mean 'numbers'"),
        (lambda completion: 1, "a lambda has no name; give it one"),
        (3, "cannot use 3 as a reward; expected a text such as"),
        ([object], "the reward object is a class; give an object of it: object\\(\\)"),
        ({"a": lambda text: 1}, "cannot understand the parameters \\(text\\) of reward 'a'; expected \\(completion"),
        ([score, score], "two rewards are called 'score'; give one of them another name"),
        ({"mean": score}, "a reward cannot be called 'mean'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(spec, said):
    with pytest.raises(UserError, match=said) as refused:
        parse_rewards(spec)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "score?scal=2",
            "unknown argument of the reward '.*:score': 'scal'; did you mean 'scale'\\? There are: scale, w",
        ),
        ("score?completion=2", "unknown argument of the reward '.*:score': 'completion'"),
        ("score?scale=x", "argument scale of the reward '.*:score' is 'x'; expected a number"),
        ("Counts", "the reward '.*:Counts' needs the argument step, a whole number; give step=VALUE"),
        ("Counts?step=2&start=a", "argument start of the reward .* is 'a'"),
        ("ready?value=2", "the reward '.*:ready' is an object, which takes no arguments; got value"),
    ],
)
def test_arguments_of_a_file_are_checked_against_its_signature(file, word, said):
    with pytest.raises(UserError, match=said):
        parse_rewards(f"'{file}:{word}'")


def test_an_object_is_sent_pickled_and_a_file_by_its_path_and_arguments(file):
    offset = 0.5

    def local(completion):
        return len(completion) + offset

    weighted = parse_rewards([local, f"'{file}:score?scale=3'", "tags", Own()])
    assert [function.name for function in weighted.movable] == ["local", "score"]
    for function in weighted.movable:
        again = load_again(function.sent())
        assert again.name == function.name
        here, there = (
            flat(asyncio.run(score_all(each, [e], timeout_s=math.inf)))
            for e in _groups(EPISODES)[1:2]
            for each in (function, again)
        )
        assert here == there
    assert load_reward(f"{file}:score").sent().pickled == b""


def _groups(episodes):
    from posttrain.rewards import apart

    return apart(episodes)


def test_an_object_that_cannot_be_sent_is_refused_only_where_it_must_be():
    lock = threading.Lock()

    def held(completion):
        return lock.locked()

    (function,) = parse_rewards(held).movable
    assert parts(parse_rewards(held), EPISODES)[0]["held"].value == 0
    with pytest.raises(
        UserError, match=r"reward 'held' cannot be sent to scorers \(TypeError: .*lock.*; write it as a"
    ):
        function.sent()
