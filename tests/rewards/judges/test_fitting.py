"""Weights of propositions: planted ones are recovered, and the optimum is one in plain floats."""

import math
from itertools import product

import pytest

from posttrain.errors import UserError
from posttrain.rewards.judges import read_prompt
from posttrain.rewards.judges.fitting import PENALTY, fitted_weights, shared_criteria
from posttrain.rewards.judges.prompt import JudgePrompt
from posttrain.types import Task


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_planted_weights_are_recovered():
    planted, n = (2.0, -1.0, 0.5), 4000
    pairs: list[tuple[float, ...]] = []
    for d in product((-1.0, 0.0, 1.0), repeat=3):
        if d > (0.0, 0.0, 0.0):  # d and -d are the same two answers
            won = round(n * sigmoid(math.fsum(w * x for w, x in zip(planted, d, strict=True))))
            pairs += [d] * won + [tuple(-x for x in d)] * (n - won)
    assert fitted_weights(pairs) == pytest.approx(planted, abs=0.01)


def test_the_gradient_at_the_weights_is_zero_where_a_few_pairs_are_all_ranked_right():
    pairs = [(1.0, 0.0), (1.0, -1.0), (0.5, 0.5), (0.0, -1.0)]
    weights = fitted_weights(pairs)
    for j in range(2):
        pulled = math.fsum(d[j] * sigmoid(-math.fsum(w * x for w, x in zip(weights, d, strict=True))) for d in pairs)
        assert pulled == pytest.approx(PENALTY * weights[j], abs=1e-9)
    assert weights[0] > 0 > weights[1]


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ([], "finds different in one criterion or more; there is none"),
        ([(0.0, 0.0)], "finds different in one criterion or more; there is none"),
        ([(-1.0, 0.0), (-1.0, 0.0)], "no criterion that chosen answers meet more often"),
    ],
)
def test_pairs_that_say_nothing_of_weights_are_refused_in_one_line(pairs, why):
    with pytest.raises(UserError, match=why) as caught:
        fitted_weights(pairs)
    assert "\n" not in str(caught.value)


def test_all_rows_have_the_same_criteria():
    one, other = (Task((), id=name, metadata={"rubric": [f"is {name}"]}) for name in "ab")
    assert shared_criteria(read_prompt("rubric"), [one, one]) == ["is a"]
    with pytest.raises(UserError, match="the same criteria in every row; b has others than a"):
        shared_criteria(read_prompt("rubric"), [one, other])
    with pytest.raises(UserError, match="is of a judge of the kind rubric"):
        shared_criteria(read_prompt("quality"), [one])
    own = JudgePrompt('kind: rubric\nrubric: ["short"]\n---\n{answer} {criterion}')
    assert shared_criteria(own, [one, other]) == ["short"]
