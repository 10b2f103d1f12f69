"""Labels of steps by continuations and by rule, and which completions are labelled."""

import doctest
import math
from dataclasses import dataclass, replace

import pytest

from posttrain.data import in_memory
from posttrain.data.ratings import load_steps
from posttrain.engine.scripted import ScriptedEngine
from posttrain.episodes.episodes import sample_groups
from posttrain.errors import UserError
from posttrain.evaluation import step_labels
from posttrain.evaluation.step_labels import most_convincing, step_rows
from posttrain.rewards import Weighted
from posttrain.types import Sampling, Score
from tests.episodes.conversations import CHAT, Judge, players, question, scored
from tests.episodes.test_episodes import STOP, letters

RIGHT = scored(of=lambda episode: float("z" in episode.completion))
"""An answer with a z is right; it earns ten points, of which labels must not be made."""
TEXT = "ab\n\n cd\nez"


def groups(*texts: str, prompts=("p",)):
    said = iter(texts)

    def say(request):
        text = next(said)
        return letters(text[3:]) if text.startswith("...") else (*letters(text), STOP)  # which ... is cut off

    engine = ScriptedEngine(say, CHAT.stop_ids)
    asked = [question(prompt) for prompt in prompts]
    each = len(texts) // len(prompts)
    return sample_groups(RIGHT, asked, players(engine, Sampling(16)), completions_per_prompt=each, seed=0)


def continued(asked: list[str]):
    """Behind `ab` two of four continuations are right, behind `cd` none."""

    def go_on(request):
        said = CHAT.decode(request.token_ids).rpartition("assistant\n")[2]
        asked.append(said)
        return (*letters("z" if "c" not in said and asked.count(said) % 2 else "q"), STOP)

    return players(ScriptedEngine(go_on, CHAT.stop_ids), Sampling(16))


def rows(found, asked, environment=RIGHT, **options):
    words = {"by": "soft", "continuations": 4, "seed": 0}
    return step_rows(found, environment, continued(asked), **words | options)


@pytest.mark.parametrize(
    ("by", "labels"), [("soft", [0.5, 0.0, 1.0]), ("hard", [1.0, 0.0, 1.0]), ("rule", [None, None, True])]
)
def test_a_step_is_labelled_by_what_follows_from_it(by, labels):
    asked: list[str] = []
    (row,) = rows(groups(TEXT), asked, by=by)
    assert (row["steps"], row["labels"], row["solved"], row["id"]) == (["ab", "cd", "ez"], labels, True, "p")
    assert row["prompt"] == [{"role": "user", "content": "p"}]
    assert sorted(set(asked)) == ([] if by == "rule" else ["", "ab\n", "ab\n\n", TEXT[:-2]])
    assert load_steps(in_memory([row])).items[0].steps[0] == "ab"


def test_what_ends_wrong_has_a_wrong_last_step_and_what_was_cut_off_none():
    (found,) = rows(groups("...ab\nz", "ab\nq"), [])
    assert found["steps"] == ["ab", "q"] and found["labels"] == [0.5, 0.0] and found["solved"] is False


@pytest.mark.parametrize(("by", "labels"), [("soft", [0.5, 0.0, 1.0]), ("hard", [1.0, 0.0, 1.0])])
def test_part_of_a_reward_is_not_right(by, labels):
    """Continuations without a z earn 0.4, as an answer does that only contains the right one."""
    partly = scored(of=lambda episode: 1.0 if "z" in episode.completion else 0.4)
    (row,) = rows(groups(TEXT), [], partly, by=by)
    assert row["labels"] == labels


def test_a_reward_that_does_not_say_what_is_right_is_refused():
    @dataclass(frozen=True)
    class Unbounded(Judge):
        bounds = (0.0, math.inf)

    points = replace(RIGHT, reward=Weighted(((Unbounded(), 1.0),)))
    with pytest.raises(UserError, match="`step_labels` needs a `reward` that says what is right"):
        rows(groups(TEXT), [], points)


def test_of_a_prompt_the_convincing_wrong_ones_are_labelled_else_random_ones():
    assert doctest.testmod(step_labels).failed == 0
    assert most_convincing([False, True, False, True], [0.1, 0.2, 0.3, 0.9]) == [2, 0, 3, 1]
    (group,) = groups("z1", "q2", "q3", "q4")
    scores = [0.9, 0.2, 0.8, 0.5]
    judged = [
        replace(row, scores={**row.scores, "reward_model": Score(score)})
        for row, score in zip(group.rows, scores, strict=True)
    ]
    found = rows([replace(group, rows=tuple(judged))], [], by="rule", per_prompt=2)
    assert [row["steps"] for row in found] == [["q3"], ["q4"]]
    drawn = {row["steps"][0] for seed in range(30) for row in rows([group], [], by="rule", per_prompt=1, seed=seed)}
    assert drawn == {"z1", "q2", "q3", "q4"}


def test_prompts_are_labelled_together_and_equal_states_once():
    asked: list[str] = []
    found = rows(groups("ab\nz", "ab\nq", "cd\nz", "q", prompts=("p", "r")), asked)
    assert [row["labels"] for row in found] == [[0.5, 1.0], [0.5, 0.0], [0.0, 1.0], [0.0]]
    assert len(asked) == 4 * (2 + 2)  # of each prompt its beginning and one line
