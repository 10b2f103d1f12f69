import pytest

from posttrain.errors import UserError
from posttrain.rewards import StepDiversity
from posttrain.rewards.rules import steps_of
from tests.rewards.episodes import score, value


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a\nb", ["a", "b"]),
        ("A b. C d! E?\nF; g, h", ["a b", "c d", "e", "f", "g", "h"]),
        ("1. one\n2) two\nStep 3: three\n- four\n* five", ["one", "two", "three", "four", "five"]),
        ("3.5 + 1,000 = 1003.5", ["3.5 + 1,000 = 1003.5"]),  # neither a decimal point nor a group of three ends a step
        ("12+7=19", ["12+7=19"]),
        (" \n .\n", []),
    ],
)
def test_steps(text, expected):
    assert steps_of(text) == expected


def test_hand_counted_diversity():
    diversity = StepDiversity()
    assert value(diversity, "<think>1+1=2, 2+1=3, 3+1=4, 1+1=2</think>4") == 0.75
    assert value(diversity, "<think>Add.\nadd\n 1. ADD!\n</think>4") == pytest.approx(1 / 3)
    assert value(diversity, "<think>1+1=2</think> then, much, more") == 0.5  # one step of the two that it takes
    assert value(StepDiversity(min_steps=1), "<think>1+1=2</think>2") == 1.0
    assert value(diversity, "<think></think>4") == 0.0
    assert value(diversity, "1+1=2, 2+1=3") == 1.0  # no tags: all of it is reasoning


def test_the_counts_are_explained():
    assert score(StepDiversity(), "a\nb\na").explanation == "2 of 3 distinct"


def test_min_steps_of_zero_is_refused():
    with pytest.raises(UserError, match="got 0"):
        StepDiversity(min_steps=0)


def test_numbering_case_and_white_space_do_not_tell_steps_apart():
    found = steps_of("Step 1: 12+7=19, 19-5=14. Check:  14+5=19.")
    assert found == ["12+7=19", "19-5=14", "check: 14+5=19"]
