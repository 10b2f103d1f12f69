"""From spans to tokens: over turns, branches and seats, with stop tokens and characters of several tokens."""

import pickle
from dataclasses import dataclass

import pytest

from posttrain.engine.scripted import ScriptedEngine
from posttrain.environments import Environment, ScoredEnvironment
from posttrain.episodes.episodes import sample_groups
from posttrain.episodes.step_rewards import step_rewards
from posttrain.errors import RewardError
from posttrain.rewards import Weighted
from posttrain.types import Episode, Message, Outcome, Score, Span, StopReason, Trajectory, Turn
from tests.episodes.conversations import CHAT, Quiz, players, question

(STOP,) = CHAT.tokenizer.encode("<|im_end|>", add_special_tokens=False)


def letters(text: str) -> tuple[int, ...]:
    """A token per byte."""
    return tuple(CHAT.tokenizer.convert_tokens_to_ids(t) for c in text for t in CHAT.tokenizer.tokenize(c))


def turn(text: str, *, given: str = "", restarts: bool = False) -> Turn:
    ids = (*letters(text), STOP)
    return Turn((1, 2, *letters(given)), ids, (-1.0,) * len(ids), StopReason.STOP, given + text, restarts)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_span_is_paid_at_the_last_token_that_it_overlaps_in_whatever_turn_or_branch(restarts):
    """Turns of 2 characters in 3 tokens and 3 in 3, each with a stop token: 0-3 and 4-7."""
    row = Trajectory((turn("aé"), turn("xyz", restarts=restarts)))
    assert len(row.branches) == 1 + restarts
    spans = [Span(0, 0, 1, 1.0), Span(0, 0, 2, 0.5), Span(1, 0, 2, 0.25), Span(1, 2, 3, 0.0), Span(0, 1, 2, 2.0)]
    assert step_rewards(row, spans, CHAT) == {0: 1.0, 2: 2.5, 5: 0.25, 6: 0.0}
    assert step_rewards(row, [], CHAT) == {}


def test_a_token_of_two_characters_is_paid_by_the_spans_that_end_in_it():
    ids = (*CHAT.text_ids("20"), *CHAT.text_ids("\n\n"), STOP)
    row = Trajectory((Turn((1,), ids, (-1.0,) * len(ids), StopReason.STOP, "20\n\n"),))
    assert len(ids) == 3
    assert step_rewards(row, [Span(0, 0, 1, 1.0), Span(0, 0, 2, 1.0), Span(0, 0, 3, 8.0)], CHAT) == {0: 2.0, 1: 8.0}


def test_what_was_given_is_paid_at_no_token():
    row = Trajectory((turn("cd", given="ab"),))
    assert step_rewards(row, [Span(0, 0, 2, 1.0), Span(0, 1, 3, 0.5), Span(0, 0, 4, 0.25)], CHAT) == {0: 0.5, 1: 0.25}


@dataclass(frozen=True)
class Letters:
    """A span for each letter `a`: of a named seat, or of all; the value of the score is 10."""

    name: str = "letters"
    seat: str = ""

    async def score(self, groups):
        return [[self._of(episode) for episode in group.episodes] for group in groups]

    def _of(self, episode: Episode):
        texts = episode.turn_texts(self.seat)
        spans = tuple(Span(n, i, i + 1, 1.0) for n, text in enumerate(texts) for i, c in enumerate(text) if c == "a")
        return {self.seat: Score(10.0, spans=spans)} if self.seat else Score(10.0, spans=spans)


@dataclass(frozen=True)
class Plain:
    """1, without spans."""

    name: str = "plain"

    async def score(self, groups):
        return [[Score(1.0) for _ in group.episodes] for group in groups]


def sampled(parts, environment=None, say="ba", turns=2):
    engine = ScriptedEngine(lambda request: (*letters(say), STOP), CHAT.stop_ids)
    scored = ScoredEnvironment(Weighted(parts), environment or Quiz())
    return sample_groups(scored, [question(turns=turns)], players(engine), completions_per_prompt=2, seed=0)


def test_groups_have_what_spans_pay_by_weight_and_cross_a_process():
    (group,) = pickle.loads(pickle.dumps(sampled(((Letters(), 0.5), (Plain(), 2.0)))))
    assert [row.step_rewards for row in group.rows] == [{1: 0.5, 4: 0.5}] * 2
    assert group.rewards == (0.5 * 12 + 2.0,) * 2
    assert [row.scores["letters"].total for row in group.rows] == [12.0] * 2


def test_rewards_of_weight_0_and_without_spans_pay_no_steps():
    (group,) = sampled(((Letters(), 0.0), (Plain(), 1.0)))
    assert [(row.step_rewards, row.reward) for row in group.rows] == [({}, 1.0)] * 2
    (group,) = sampled(((Letters(), 1.0),), say="bb")
    assert [row.step_rewards for row in group.rows] == [{}] * 2


class Pair(Environment):
    """Two trained seats: the first says two things, the second one."""

    seats = ("policy", "critic")
    trained = ("policy", "critic")
    max_turns = 2

    async def play(self, task, seats, seed):
        said = await seats["policy"].turn(task.prompt)
        answer = await seats["critic"].turn([Message("user", said.text)])
        await seats["policy"].turn([Message("user", answer.text)])
        return Outcome()


def test_each_seat_is_paid_for_what_it_said():
    (group,) = sampled(((Letters(seat="policy"), 1.0), (Letters("of the critic", seat="critic"), -1.0)), Pair())
    assert [row.seat for row in group.rows] == ["policy", "critic"] * 2
    assert [row.step_rewards for row in group.rows] == [{1: 1.0, 4: 1.0}, {1: -1.0}] * 2
    assert group.rewards == (12.0, -11.0) * 2


def test_spans_for_all_of_several_seats_are_refused():
    with pytest.raises(
        RewardError, match=r"reward 'letters' returned spans for all of the seats policy, critic; .*mapping"
    ):
        sampled(((Letters(), 1.0),), Pair())
