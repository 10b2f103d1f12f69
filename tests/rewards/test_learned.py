"""Rewards that a model learned, with a lambda for the model."""

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import fmean, pvariance

import pytest

from posttrain.errors import RewardError, UserError
from posttrain.rewards import (
    Classifier,
    Disagreement,
    LearnedReward,
    Named,
    SoftOverlong,
    StepReward,
    Tags,
    Weighted,
    cached_scores,
)
from posttrain.rewards.verifiers.numbers import NumberVerifier
from posttrain.types import Episode, EpisodeGroup, Message, Span, Task
from tests.references.process import softmin
from tests.rewards.episodes import parts as parts_of
from tests.rewards.episodes import scores as scores_of

SAID = {"a": (1.0, 3.0, 8.0), "b": (-2.0, -2.0, -2.0)}


def episodes(*texts: str) -> list[Episode]:
    task = Task((Message("user", "q"),))
    return [Episode(task, (*task.prompt, Message("assistant", text))) for text in texts]


def ask(conversations):
    assert all(one[0] == Message("user", "q") for one in conversations)
    return [SAID[one[-1].content] for one in conversations]


def scores(reward, *texts: str) -> list[float]:
    return [score.value for score in scores_of(reward, episodes(*texts), timeout_s=5)]


@pytest.mark.parametrize(
    ("use", "expected"), [("mean", 4.0), ("worst", 1.0), ("uncertain", 4.0 - 0.25 * pvariance((1.0, 3.0, 8.0)))]
)
def test_what_is_made_of_an_ensemble(use, expected):
    assert scores(LearnedReward(ask, use=use, penalty=0.25), "a", "b") == pytest.approx([expected, -2.0])
    assert scores(LearnedReward(ask), "a")[0] == fmean(SAID["a"])


def test_disagreement_is_the_standard_deviation_of_the_members():
    assert scores(Disagreement(ask), "a", "b") == pytest.approx([pvariance((1.0, 3.0, 8.0)) ** 0.5, 0.0])


def test_a_model_is_asked_once_by_those_who_share_it():
    asked = []
    started = threading.Barrier(2)

    def slow(conversations):
        asked.append(len(conversations))
        time.sleep(0.1)  # in which the other one asks, too
        return ask(conversations)

    shared = cached_scores(slow)

    def one(text: str):
        started.wait()
        return shared([[Message("user", "q"), Message("assistant", text)]])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(one, ["a", "a"])) == [[SAID["a"]]] * 2
    assert asked == [1]
    assert shared([[Message("user", "q"), Message("assistant", "b")]]) == [SAID["b"]]
    assert asked == [1, 1]


def test_no_score_of_a_learned_reward_means_solved():
    learned, verifier = (LearnedReward(ask), 1.0), (NumberVerifier(), 0.5)
    assert Weighted((learned,)).outcome == ""
    assert Weighted((learned, verifier)).outcome == "numbers"
    assert Weighted((learned, (Named(NumberVerifier(), "gold"), 0.0))).outcome == ""
    assert Weighted((learned, (SoftOverlong(), 1.0))).outcome == ""
    beside = ((Named(LearnedReward(ask), "gold"), 0.0), (Disagreement(ask), 0.0))
    assert Weighted((*beside, (Tags(), 1.0))).outcome == "tags"


def test_a_model_may_take_longer_than_rewards_may():
    def slow(conversations):
        time.sleep(0.2)
        return ask(conversations)

    for reward, weight in ((LearnedReward(slow), 1.0), (Named(LearnedReward(slow), "gold"), 0.0)):
        found = parts_of(Weighted(((reward, weight),), timeout_s=0.01), episodes("a"))
        assert found[0][reward.name].value == 4.0
    assert scores(Named(LearnedReward(ask), "gold"), "a") == [4.0]


@pytest.mark.parametrize("answers", [[], [(1.0,), (2.0,)], [()]])
def test_answers_that_are_not_one_for_each_episode_stop_the_run(answers):
    for reward in (LearnedReward(lambda _: answers), Disagreement(lambda _: answers)):
        with pytest.raises(RewardError, match=r"gave \d answers to 1 episodes"):
            scores(reward, "a")


@pytest.mark.parametrize("reward", [partial(LearnedReward, ask), partial(StepReward, [ask])])
def test_a_use_that_is_not_known_is_refused(reward):
    with pytest.raises(UserError, match="did you mean 'worst'"):
        reward(use="wurst")
    with pytest.raises(UserError, match="0 or more; got -1"):
        reward(penalty=-1)


def test_an_aggregation_that_is_not_known_is_refused():
    with pytest.raises(UserError, match="did you mean 'product'"):
        StepReward([ask], "produkt")


ODDS = {"a": 0.9, "b": 0.5, "c": 0.8, "d": 0.1}  # that a step is right


def logits(conversations):
    """Of each line of the last message."""
    return [
        [
            math.log(ODDS[line.strip()] / (1 - ODDS[line.strip()]))
            for line in one[-1].content.split("\n")
            if line.strip()
        ]
        for one in conversations
    ]


@pytest.mark.parametrize(
    ("aggregation", "before", "parts", "total"),
    [
        ("min", 1.0, [-0.1, -0.4, 0.0], 0.5),
        ("product", 1.0, [-0.1, 0.45 - 0.9, 0.36 - 0.45], 0.36),
        ("last", 0.0, [0.9, -0.4, 0.3], 0.8),
        ("mean", 0.0, [0.3, 0.5 / 3, 0.8 / 3], 2.2 / 3),
        ("sum", 0.0, [0.8, 0.0, 0.6], 1.4),
        ("softmin", 0.0, (weighed := softmin([0.9, 0.5, 0.8], 0.1)), sum(weighed)),
    ],
)
def test_each_step_is_paid_what_it_changes_of_the_aggregate(aggregation, before, parts, total):
    (found,) = scores_of(StepReward([logits], aggregation), episodes("a\n\n  b\nc"), timeout_s=5)
    assert found.value == before and found.total == pytest.approx(total)
    assert [(span.turn, span.start, span.end) for span in found.spans] == [(0, 0, 1), (0, 5, 6), (0, 7, 8)]
    assert [span.value for span in found.spans] == pytest.approx(parts)
    assert found.explanation == "steps 0.90 0.50 0.80"


def test_min_form_credit_stops_behind_the_worst_step_and_does_not_grow_with_their_number():
    """PURE: what follows a step sums to the least reward ahead; one more good step changes nothing."""

    def paid(text: str, aggregation: str) -> list[float]:
        (found,) = scores_of(StepReward([logits], aggregation), episodes(text), timeout_s=5)
        return [span.value for span in found.spans]

    worst = paid("a\nd\nc", "softmin")
    assert sum(worst) == pytest.approx(-0.8, abs=1e-3) and sum(worst[2:]) == pytest.approx(0.0, abs=1e-3)
    assert sum(paid("a\nd\nc\na", "softmin")) == pytest.approx(sum(worst), abs=1e-3)
    assert sum(paid("a\nd\nc\na", "sum")) == pytest.approx(sum(paid("a\nd\nc", "sum")) + 0.8)


def test_a_response_without_steps_is_worth_nothing_and_the_model_is_not_asked():
    (empty, one) = scores_of(StepReward([lambda asked: logits(asked[:1])]), episodes(" \n", "b"), timeout_s=5)
    assert (empty.total, empty.spans, one.total) == (0.0, (), pytest.approx(0.5))


def test_steps_of_several_models_are_aggregated_step_by_step():
    def sure(conversations):
        return [[20.0] * len(one) for one in logits(conversations)]

    totals = [
        scores_of(StepReward([logits, sure], use=use), episodes("a\nb"), timeout_s=5)[0].total
        for use in ("mean", "worst")
    ]
    assert totals == pytest.approx([0.75, 0.5], abs=1e-6)


def test_steps_of_all_turns_and_seats_are_scored_after_what_came_before_them():
    asked = []

    def recorded(conversations):
        asked.extend([message.content for message in one] for one in conversations)
        return logits(conversations)

    task = Task((Message("user", "e"), Message("assistant", "shown"), Message("user", "q")))
    view = (*task.prompt, Message("assistant", "a"), Message("user", "more"), Message("assistant", "seen as b"))
    other = (Message("user", "p"), Message("assistant", "d"))
    played = Episode(task, view, views={"x": view, "y": other}, texts={"x": ("a", "b"), "y": ("d",)})
    reward = StepReward([recorded], "product")
    ((found,),) = asyncio.run(reward.score([EpisodeGroup(task, (played,))]))
    before = ["e", "shown", "q"]
    assert asked == [[*before, "a"], [*before, "a", "more", "b"], ["p", "d"]]
    assert found["x"].total == pytest.approx(0.45) and found["y"].total == pytest.approx(0.1)
    assert [span.turn for span in found["x"].spans] == [0, 1] and found["y"].spans[0] == Span(
        0, 0, 1, pytest.approx(-0.9)
    )


def test_a_model_that_finds_other_steps_stops_the_run():
    with pytest.raises(RewardError, match="gave 1 scores to 2 steps"):
        scores_of(StepReward([lambda asked: [[0.0] for _ in asked]]), episodes("a\nb"), timeout_s=5)


def test_a_classifier_gives_the_probability_of_its_label_or_the_rest():
    for avoid, expected in ((False, [0.25, 1.0]), (True, [0.75, 0.0])):
        reward = Classifier("M", "toxic", avoid=avoid)
        reward.ask[:] = [lambda texts: [{"a": 0.25, "b": 1.0}[text] for text in texts]]
        assert scores(reward, "a", "b") == expected
        assert Weighted(((reward, 1.0),)).outcome == ""
