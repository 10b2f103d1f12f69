"""Shares of one item: by hand, and as the general method finds them from all items."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.annotation.aggregation import majority
from posttrain.annotation.agreement import annotators, annotators_by_item
from posttrain.annotation.consensus import agree, settle
from posttrain.annotation.item_shares import majority_shares, verdict_shares
from posttrain.annotation.rankings import by_item
from posttrain.types import Ranking
from tests.annotation.said import SEED, rankings


def test_the_example_by_hand():
    """H1 and H2 agree on three comparisons; H3 says the opposite of each."""
    found = majority_shares(SEED)
    assert found.with_all == {"H1": [1, 1, 1], "H2": [1, 1, 1], "H3": [0, 0, 0]}
    assert found.with_others == {"H3": 0.0}  # without H1 or H2 the other two cancel


def test_a_tie_counts_half_and_a_completion_that_most_fail_is_last():
    up, tied = ((0,), (1,), (2,)), ((0, 1), (2,))
    found = majority_shares([Ranking("x", "a", up), Ranking("x", "b", up), Ranking("x", "c", tied)])
    assert found.with_all["c"] == [0.5, 1, 1] and found.with_others["c"] == pytest.approx(2.5 / 3)
    failing = [Ranking("x", who, ((1,), (2,)), failed=(0,)) for who in "ab"]
    assert majority_shares([*failing, Ranking("x", "c", up)]).with_all["c"] == [0, 0, 1]


def test_one_annotator_has_no_others_and_a_decision_stands_in_place_of_both():
    up, down = ((0,), (1,)), ((1,), (0,))
    alone = majority_shares([Ranking("x", "a", up)], Ranking("x", "", down))
    assert alone.with_all == {"a": [0]} and alone.with_others == {}
    two = majority_shares([Ranking("x", "a", up), Ranking("x", "b", down)], Ranking("x", "", down))
    assert two.with_others == {"a": 0, "b": 1}


@given(said=rankings(most_items=4), decide=st.lists(st.booleans(), min_size=4, max_size=4))
def test_item_by_item_is_what_the_general_method_finds(said, decide):
    """The same numbers, decisions included, as from rankings of all items without the annotator's own."""
    items = by_item(said)
    chosen = [mine[0] for mine, one in zip(items.values(), decide, strict=False) if one]
    decided = {str(one.item): Ranking(one.item, "", one.groups[::-1], one.failed) for one in chosen}
    agreed = settle(agree(said, majority.beliefs(said)), decided)
    expected = annotators(said, agreed, majority.beliefs, decided)
    found = annotators_by_item(majority_shares(mine, decided.get(str(item))) for item, mine in items.items())
    assert {one.annotator: one for one in found} == {one.annotator: one for one in expected}


def test_verdicts_by_hand():
    found = verdict_shares({"a": 1, "b": 1, "c": None})
    assert found.with_all == {"a": [1], "b": [1], "c": [0]}
    assert found.with_others == {"c": 0}  # without a, b and c cancel
    assert verdict_shares({"a": 1, "b": 2}).with_all == {"a": [], "b": []}
    assert verdict_shares({"a": 1}).with_others == {} and verdict_shares({"a": 1}, 2).with_all == {"a": [0]}
    assert verdict_shares({"a": 1, "b": 2}, None).with_others == {"a": 0, "b": 0}
