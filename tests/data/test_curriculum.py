"""Curricula: what a draw is made from, by hand; the same draws again after a resume."""

from collections import Counter

import pytest

from posttrain.data.curriculum import ByRank, BySuccess, curriculum_for
from posttrain.errors import UserError
from posttrain.types import Message, Task


def tasks(*columns, prompt="x"):
    return [Task((Message("user", prompt * (n + 1)),), metadata=one, id=f"t{n}") for n, one in enumerate(columns)]


def test_the_easiest_first_and_all_of_them_later():
    ranks = [float(9 - n) for n in range(10)]  # the last task is the easiest
    by_rank = ByRank(ranks, 100)
    assert by_rank.share(2, 0) == 0.2 and by_rank.share(2, 25) == 1.0 and by_rank.share(2, 49) == 1.0
    assert by_rank.share(4, 5) == pytest.approx(0.2 + 0.8 * 20 / 50)
    assert {*by_rank.indices(2, 0, 0)} == {9, 8}
    seen = Counter(place for draw in range(12, 13) for seed in range(200) for place in by_rank.indices(2, draw, seed))
    assert {*seen} == {9, 8, 7, 6, 5, 4}  # 58% of ten, rounded up
    late = Counter(place for draw in range(25, 50) for seed in range(40) for place in by_rank.indices(2, draw, seed))
    assert len(late) == 10 and max(late.values()) < 1.5 * min(late.values())


def test_a_batch_has_no_task_twice_while_there_are_enough():
    for curriculum in (ByRank([1.0, 2.0, 3.0], 30), BySuccess("abc")):
        assert sorted(curriculum.indices(3, 0, 5)) == [0, 1, 2]
        assert Counter(curriculum.indices(6, 0, 5)) == {0: 2, 1: 2, 2: 2}
        assert curriculum.indices(2, 7, 5) == curriculum.indices(2, 7, 5)
        assert any(curriculum.indices(2, 7, 5) != curriculum.indices(2, draw, 5) for draw in range(8, 12))


def test_tasks_that_are_solved_half_of_the_time_are_drawn():
    curriculum = BySuccess("abcd")
    curriculum.note({"a": 1.0, "b": 0.0, "c": 0.5})
    drawn = Counter(place for draw in range(4000) for place in curriculum.indices(1, draw, 0))
    # weights: 0.02, 0.02, 0.27 and, of one that was not drawn yet, 0.27
    assert [drawn[n] / 4000 for n in range(4)] == pytest.approx([0.034, 0.034, 0.466, 0.466], abs=0.03)


def test_success_is_a_moving_average_that_a_checkpoint_has():
    curriculum = BySuccess("abc")
    curriculum.note({"a": 1.0})
    curriculum.note({"a": 0.0, "c": 0.25})
    assert curriculum.state == {"a": 0.5, "c": 0.25}
    again = BySuccess("abc")
    again.state = dict(curriculum.state)
    assert [again.indices(2, n, 1) for n in range(9)] == [curriculum.indices(2, n, 1) for n in range(9)]
    assert curriculum.note({}) == {"curriculum/seen": pytest.approx(2 / 3), "curriculum/success": 0.375}


def test_by_name():
    rows = tasks({"level": 3, "kind": "a"}, {"level": 1, "kind": "b"}, {"level": 2.0, "kind": "a"})
    assert curriculum_for("level", rows, 30).indices(1, 0, 0) == [1]
    assert curriculum_for("length", rows, 30).indices(1, 0, 0) == [0]
    assert isinstance(curriculum_for("success", rows, 30), BySuccess)


@pytest.mark.parametrize(("name", "says"), [("kind", "task 't0' has 'a'"), ("depth", "has None.*kind, level")])
def test_a_column_without_numbers_is_refused(name, says):
    with pytest.raises(UserError, match=f"`curriculum={name}` needs a number.*{says}"):
        curriculum_for(name, tasks({"level": 1, "kind": "a"}), 3)
