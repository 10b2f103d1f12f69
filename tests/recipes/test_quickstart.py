"""The demonstrations of the main job: what they say, and in which order those come that think."""

import random
import re

import pytest

from posttrain.recipes.quickstart import Quickstart, demonstrate, work_out
from posttrain.types import Message, Task


def task(expression, answer):
    return Task(
        (Message("user", f"{expression}?"),), str(answer), metadata={"entry": {"metadata": {"expression": expression}}}
    )


def test_the_steps_are_the_sum_from_left_to_right():
    said = work_out(task("4 - 1 - 7 + 3", -1), 0.0, random.Random(0))
    assert said == "<think>4-1=3, 3-7=-4, -4+3=-1</think>-1"


@pytest.mark.parametrize("seed", range(20))
def test_a_slip_is_near_and_is_corrected_at_once(seed):
    said = work_out(task("12 - 30 + 5", -13), 1.0, random.Random(seed))
    match = re.fullmatch(r"<think>12-30=(-?\d+), wait, 12-30=-18, -18\+5=(-?\d+), wait, -18\+5=-13</think>-13", said)
    assert 1 <= abs(int(match[1]) + 18) <= 2 and 1 <= abs(int(match[2]) + 13) <= 2


@pytest.mark.parametrize(("first", "thinking"), [(0.5, 0.0), (0.25, 0.0), (0.0, 0.0), (0.0, 1.0), (0.5, 0.5)])
def test_the_first_all_think_and_of_the_others_a_share(first, thinking):
    tasks = [task(f"{n} + 1", n + 1) for n in range(400)]
    said = demonstrate(Quickstart(thinking_first=first, thinking=thinking), tasks)
    assert [re.sub("<think>.*</think>", "", text) for text in said] == [task.answer for task in tasks]
    thought = [text.startswith("<think>") for text in said]
    beginning = round(400 * first)
    assert all(thought[:beginning])
    rest = thought[beginning:]
    assert abs(sum(rest) - thinking * len(rest)) <= 4 * (len(rest) * thinking * (1 - thinking)) ** 0.5
