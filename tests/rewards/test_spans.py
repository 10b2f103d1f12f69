"""Spans in scores: what a score amounts to, which spans are refused, and that all that reads scores counts them."""

import math
from dataclasses import dataclass, replace

import pytest

from posttrain.bindings.heldout import weighed
from posttrain.episodes.metrics import rollout_metrics
from posttrain.errors import RewardError
from posttrain.evaluation.accuracy import summarize
from posttrain.recipes.score import Scored, ScoreResult
from posttrain.rewards import Weighted, from_function, reward_function
from posttrain.runs.run import samples_of
from posttrain.testing import check_gold, check_reward
from posttrain.types import Episode, Message, Score, Span, StopReason, Task, Trajectory, Turn
from tests.groups import group_of, with_rows
from tests.rewards.episodes import episode, parts, scores
from tests.violations import violations

HALVES = (Span(0, 0, 1, 0.5), Span(0, 1, 3, 0.25))  # of three characters
TASK = Task((Message("user", "a?"), Message("assistant", "earlier"), Message("user", "b?")), id="t")


@dataclass(frozen=True)
class Says:
    """A reward that gives one score to all."""

    given: Score
    name: str = "steps"
    bounds: tuple[float, float] = (-9.0, 9.0)
    role: str = "rule"

    async def score(self, groups):
        return [[self.given] * len(group.episodes) for group in groups]


def spanned(*spans: Span, value: float = 0.0) -> Score:
    return Score(value, spans=spans)


def test_a_score_amounts_to_its_value_and_its_spans():
    assert spanned(*HALVES, value=1.0).total == 1.75
    assert spanned(*[Span(0, 0, 1, 0.1)] * 10).total == 1.0  # a sum of ten, rounded once
    assert Score(0.1 + 0.2).total == 0.1 + 0.2


def test_turns_are_those_of_the_seat_and_of_what_was_not_sampled_the_replies():
    said = (*TASK.prompt, Message("assistant", "one"), Message("user", "and?"), Message("assistant", "two"))
    assert Episode(TASK, said).turn_texts() == Episode(TASK, said).turn_texts("policy") == ("one", "two")
    played = Episode(TASK, said, texts={"first": ("raw",), "second": ("x", "y")})
    assert played.turn_texts() == played.turn_texts("first") == ("raw",)
    assert played.turn_texts("second") == ("x", "y")


@pytest.mark.parametrize(
    ("span", "why"),
    [
        (Span(1, 0, 1, 1.0), "expected a turn from 0 to 0"),
        (Span(-1, 0, 1, 1.0), "expected a turn from 0 to 0"),
        (Span(0, 0, 4, 1.0), "end <= 3"),
        (Span(0, -1, 2, 1.0), "0 <= start"),
        (Span(0, 1, 1, 1.0), "start < end"),
        (Span(0, 2, 1, 1.0), "start < end"),
        (Span(0, 0, 1, math.nan), "a finite value"),
        (Span(0, 0, 1, math.inf), "a finite value"),
        (Span(0, 0, 1, "1"), "a finite value"),
        (Span(0, 0.5, 1, 1.0), "whole numbers"),
        ((0, 0, 1, 1.0), "a tuple among its spans"),
    ],
)
def test_a_span_that_is_not_in_the_text_is_an_error_that_names_the_reward(span, why):
    with pytest.raises(RewardError, match=rf"^reward 'steps' returned .*{why}.* on task 't'$"):
        scores(Says(spanned(Span(0, 0, 3, 1.0), span)), [episode("abc")])
    assert scores(Says(spanned(Span(0, 0, 3, 1.0))), [episode("abc")])[0].total == 1.0


def test_a_total_that_is_not_finite_is_an_error():
    with pytest.raises(RewardError, match="a score and spans of inf"):
        scores(Says(spanned(*[Span(0, 0, 1, 1e308)] * 2)), [episode("abc")])


def test_there_is_no_turn_where_nothing_was_said():
    with pytest.raises(RewardError, match="there is no turn"):
        scores(Says(spanned(Span(0, 0, 1, 1.0))), [Episode(Task((), id="t"), ())])
    sampled = Episode(TASK, (), texts={"policy": ("abc",)})

    class Other(Says):
        async def score(self, groups):
            return [[{"critic": self.given}] for _ in groups]

    with pytest.raises(RewardError, match="for seat 'critic', which sampled nothing; those that did: policy"):
        scores(Other(spanned(*HALVES)), [sampled])
    both = Episode(TASK, (), texts={"policy": ("abc",), "critic": ("ab",)})
    with pytest.raises(RewardError, match="end <= 2"):
        scores(Other(spanned(*HALVES)), [both])


def test_spans_of_what_does_not_apply_are_dropped():
    (found,) = scores(Says(replace(Score.not_applicable(), spans=(Span(7, 0, 1, 1.0),))), [episode("abc")])
    assert found.spans == () and math.isnan(found.total)


def test_the_weighted_sum_counts_spans():
    reward = Weighted(((Says(spanned(*HALVES, value=1.0)), 2.0), (Says(spanned(*HALVES), "logged"), 0.0)))
    (found,) = parts(reward, [episode("abc")])
    assert reward.total(found) == 3.5
    assert reward.spans(found) == [Span(0, 0, 1, 1.0), Span(0, 1, 3, 0.5)]
    found["steps"] = replace(Score.not_applicable(), spans=HALVES)
    assert reward.spans(found) == []


def test_a_function_is_held_to_its_bounds_by_its_total():
    @reward_function(bounds=(0, 1))
    def steps(completion):
        return Score(1.0, spans=(Span(0, 0, 1, float(completion)),))

    assert scores(from_function(steps), [episode("-1")])[0].total == 0.0
    for said in ("1", "-2"):
        with pytest.raises(RewardError, match=r"returned .* it declares bounds of 0 and 1"):
            scores(from_function(steps), [episode(said)])
    reward = from_function(lambda completion: Score(0.0, spans=(Span(0, 0, 1, float(completion)),)), "steps")
    scores(reward, [episode("1")])
    assert reward.bounds is None
    scores(reward, [episode("2")])
    assert reward.beyond == [2.0]
    with pytest.raises(RewardError, match="expected a finite number"):
        scores(reward, [episode("inf")])


def check(given):
    episodes = [episode("abc", id="a"), episode("abcd", id="b")]
    return violations(check_reward, given if hasattr(given, "score") else Says(given), episodes, timeout_s=5)


def test_the_conformance_kit_checks_spans():
    assert check(spanned(*HALVES)) == []
    assert "expected 0 <= start < end <= 3" in check(spanned(Span(0, 0, 4, 1.0)))[0]
    assert "it states -9.0 to 9.0" in check(spanned(Span(0, 0, 1, 9.0), value=1.0))[0]
    assert "for an unparsed answer" in check(replace(spanned(*HALVES), unparsed=True))[0]

    class Moves(Says):
        async def score(self, groups):
            place = Span(0, 0, len(groups), 1.0) if self.name == "places" else Span(0, 0, 1, float(len(groups)))
            return [[spanned(place)] for _ in groups]

    for name in ("places", "values"):
        assert any("with [Span(turn=0, start=0" in line for line in check(Moves(Score(0.0), name)))


def test_a_gold_answer_scores_1_by_its_total():
    task = Task((), answer="a", gold="abc", id="t")
    check_gold(Says(spanned(Span(0, 0, 3, 1.0))), [task])
    assert "scores 1.5" in violations(check_gold, Says(spanned(Span(0, 0, 3, 0.5), value=1.0)), [task])[0]


SAID = Trajectory((Turn((1,), (2,), (-1.0,), StopReason.STOP, "abc"),))
SCORES = [{"steps": spanned(Span(0, 0, 1, 1.0))}, {"steps": spanned(Span(0, 0, 1, 0.5))}]
GROUP = group_of([SAID] * 2, [1.0, 0.5], scores=SCORES, step_rewards=[{0: 1.0}, {0: 0.5}])


def test_metrics_samples_and_evaluations_count_spans():
    found = rollout_metrics([GROUP], "steps")
    assert (found["reward/steps"], found["accuracy"]) == (0.75, 0.5)
    assert [sample.rewards for sample in samples_of([GROUP])] == [{"steps": 1.0}, {"steps": 0.5}]
    assert summarize([GROUP], "steps", greedy=False).accuracy == 0.5
    assert weighed(SCORES[0], {"steps": 2.0}) == 2.0


def test_an_evaluation_of_one_seat_keeps_its_steps():
    seats = with_rows(GROUP, seat=["a", "b"], episode=[0, 0])
    (kept,) = summarize([seats], "steps", greedy=False).groups
    assert kept.rows == seats.rows[:1] and kept.rows[0].step_rewards == {0: 1.0}


def test_score_shows_and_averages_totals():
    rows = tuple(Scored("t", 1.0, scores) for scores in SCORES)
    assert rows[0].row()["scores"] == {"steps": 1.0}
    found = ScoreResult(rows, {"steps": 1.0}, None)
    assert found.mean == {"steps": 0.75}
    assert found.tables()[1].rows[1][2] == "0.500"
