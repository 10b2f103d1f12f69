"""Shares of votes, by hand."""

from posttrain.annotation.aggregation import majority
from posttrain.types import Ranking


def test_shares_are_of_those_who_compared_the_two():
    said = [
        Ranking("x", "a", ((0,), (1,), (2,))),
        Ranking("x", "b", ((0, 1),)),
        Ranking("x", "c", ((1,),), failed=(0,)),
        Ranking("x", "d", ((0,), (1,))),
        Ranking("y", "a", ((1,), (0,))),
    ]
    found = majority(said)
    assert found["x"].odds == {(0, 1): (0.5, 0.25, 0.25), (0, 2): (1, 0, 0), (1, 2): (1, 0, 0)}
    assert found["y"].odds == {(0, 1): (0, 0, 1)} and not found["y"].strengths
