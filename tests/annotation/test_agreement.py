"""Agreement by hand, by another reading, and with annotators whose errors are planted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.annotation.aggregation import METHODS, majority, method
from posttrain.annotation.agreement import (
    alpha,
    alpha_of,
    annotators,
    kendall_w,
    mean_kendall_w,
    shares,
    verdict_shares,
)
from posttrain.annotation.rankings import agree, by_item, midranks
from posttrain.types import Ranking
from tests.annotation.said import SEED, planted, rankings
from tests.references import annotation as reference


def people(said, name="majority"):
    way = method(name)
    return {one.annotator: one for one in annotators([shares(said, agree(said, way(said)), way)])}


def majority_shares(said, decided=None):
    decided = {said[0].item: decided} if decided else {}
    return shares(said, agree(said, majority(said), decided), majority, decided)


def test_the_example_by_hand():
    assert kendall_w(SEED) == pytest.approx(12 * 2 / (9 * 24))  # rank sums 6, 5, 7
    assert mean_kendall_w(SEED) == kendall_w(SEED)
    found = people(SEED)
    assert [found[who].agreement for who in ("H1", "H2", "H3")] == [1, 1, 0]
    assert found["H1"].comparisons == 3 and found["H3"].items == 1
    assert not any(one.noisy for one in found.values())  # one item says little of anybody
    # without H3 the other two agree on all; without H1, H2 and H3 cancel
    assert found["H3"].with_others == 0 and found["H1"].with_others is None
    assert "no consensus" in found["H1"].evidence and found["H3"].evidence.startswith("with the others in 0.00 (0.00")


@given(said=rankings())
def test_alpha_is_that_of_another_reading(said):
    units = {}
    for ranking in said:
        for one, rank in midranks(ranking).items():
            units.setdefault((ranking.item, one), []).append(rank)
    shared = [values for values in units.values() if len(values) > 1]
    found = alpha(said)
    if len({value for values in shared for value in values}) < 2:
        assert found is None
    else:
        assert found == pytest.approx(reference.ordinal_alpha(list(units.values())), abs=1e-9)


@given(said=rankings())
def test_kendall_w_is_that_of_another_reading(said):
    for mine in by_item(said).values():
        found = kendall_w(mine)
        tables = [ranking.tiers for ranking in mine]
        size = sum(map(len, tables[0]))
        if len(mine) < 2 or size < 2 or all(len(tiers) == 1 for tiers in tables):
            assert found is None
        else:
            assert found == pytest.approx(reference.kendall_w(tables)) and -1e-9 <= found <= 1 + 1e-9
            if len(set(tables)) == 1 and all(len(tier) == 1 for tier in tables[0]):
                assert found == pytest.approx(1)


def test_w_needs_the_same_completions_and_is_a_mean_over_items():
    apart = [Ranking("y", "a", ((0,), (1,))), Ranking("y", "b", ((0,), (2,)))]
    assert kendall_w(apart) is None and mean_kendall_w(apart) is None
    whole = [Ranking("z", who, ((0,), (1,))) for who in "ab"]
    assert mean_kendall_w([*SEED, *apart, *whole]) == pytest.approx((1 / 9 + 1) / 2)


def test_shares_by_hand():
    """H1 and H2 agree on three comparisons; H3 says the opposite of each."""
    found = majority_shares(SEED)
    assert found.with_all == {"H1": [1, 1, 1], "H2": [1, 1, 1], "H3": [0, 0, 0]}
    assert found.with_others == {"H1": [], "H2": [], "H3": [0.0]}  # without H1 or H2 the other two cancel
    few = [Ranking("hot", "H4", ((2,), (1,))), Ranking("unknown", "H4", ((2,), (0,)))]
    found = shares(few, agree(SEED, majority(SEED)), majority)
    assert found.judged == {"H4": 2} and found.with_all == {"H4": [0]}


def test_a_tie_counts_half_and_a_completion_that_most_fail_is_last():
    up, tied = ((0,), (1,), (2,)), ((0, 1), (2,))
    found = majority_shares([Ranking("x", "a", up), Ranking("x", "b", up), Ranking("x", "c", tied)])
    assert found.with_all["c"] == [0.5, 1, 1] and found.with_others["c"] == [pytest.approx(2.5 / 3)]
    failing = [Ranking("x", who, ((1,), (2,)), failed=(0,)) for who in "ab"]
    assert majority_shares([*failing, Ranking("x", "c", up)]).with_all["c"] == [0, 0, 1]


def test_one_annotator_has_no_others_and_a_decision_stands_in_place_of_both():
    up, down = ((0,), (1,)), ((1,), (0,))
    alone = majority_shares([Ranking("x", "a", up)], Ranking("x", "", down))
    assert alone.with_all == {"a": [0]} and alone.with_others == {"a": []}
    two = majority_shares([Ranking("x", "a", up), Ranking("x", "b", down)], Ranking("x", "", down))
    assert two.with_others == {"a": [0], "b": [1]}


@given(said=rankings(most_items=4), decide=st.lists(st.booleans(), min_size=4, max_size=4))
def test_item_by_item_is_what_is_found_of_all_items_at_once(said, decide):
    items = by_item(said)
    chosen = [mine[0] for mine, one in zip(items.values(), decide, strict=False) if one]
    decided = {str(one.item): Ranking(one.item, "", one.groups[::-1], one.failed) for one in chosen}
    agreed = agree(said, majority(said), decided)
    expected = annotators([shares(said, agreed, majority, decided)])
    found = annotators(majority_shares(mine, decided.get(str(item))) for item, mine in items.items())
    assert {one.annotator: one for one in found} == {one.annotator: one for one in expected}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_those_who_guess_or_say_the_opposite_are_named_and_no_others(name, seed):
    said, _ = planted((4, 4, 4, 4, 4, 0, 0, -2), items=40, each=6, seed=seed)
    found = people(said, name)
    named = {who for who, one in found.items() if one.noisy}
    if name == "majority":  # to which three who guess are a large part of what the others say
        assert {"person 7"} <= named <= {"person 5", "person 6", "person 7"}
    else:
        assert named == {"person 5", "person 6", "person 7"}
    assert found["person 7"].agreement < 0.3 < 0.65 < found["person 0"].agreement


@pytest.mark.parametrize("seed", range(20))
def test_among_equals_nobody_is_named(seed):
    said, _ = planted((1,) * 8, items=40, each=4, seed=seed)
    assert not any(one.noisy for one in people(said).values())


def test_an_interval_is_over_items():
    said, _ = planted((3, 3, 3, 0), items=20, each=4)
    few, many = people(said[: 4 * 5])["person 3"], people(said)["person 3"]
    assert few.interval[1] - few.interval[0] > many.interval[1] - many.interval[0]
    low, high = many.interval
    assert low < many.with_others < high


def test_of_two_who_always_differ_neither_is_named():
    orders = ((0,), (1,)), ((1,), (0,))
    said = [Ranking(item, who, orders[who]) for item in range(40) for who in (0, 1)]
    found = people(said)
    assert [one.with_others for one in found.values()] == [0, 0] and not any(one.noisy for one in found.values())


@given(units=st.lists(st.lists(st.sampled_from([None, 0, 1, 2]), max_size=4), max_size=6))
def test_the_alpha_of_verdicts_is_that_of_another_reading(units):
    found = alpha_of(map(tuple, units), "nominal")
    if len({value for values in units if len(values) > 1 for value in values}) < 2:
        assert found is None
    else:
        assert found == pytest.approx(reference.nominal_alpha(units))


def test_verdicts_by_hand():
    found = verdict_shares({"a": 1, "b": 1, "c": None})
    assert found.with_all == {"a": [1], "b": [1], "c": [0]}
    assert found.with_others == {"a": [], "b": [], "c": [0]}  # without a, b and c cancel
    assert verdict_shares({"a": 1, "b": 2}).with_all == {"a": [], "b": []}
    assert verdict_shares({"a": 1}).with_others == {"a": []} and verdict_shares({"a": 1}, 2).with_all == {"a": [0]}
    assert verdict_shares({"a": 1, "b": 2}, None).with_others == {"a": [0], "b": [0]}


def test_verdicts_are_compared_with_what_most_say_and_with_what_most_others_say():
    verdicts = {"x": {"a": 1, "b": 1, "c": None}, "y": {"a": 2, "b": 2, "c": 2}, "z": {"a": 0, "b": 1}, "w": {"c": 0}}
    found = {one.annotator: one for one in annotators(map(verdict_shares, verdicts.values()), name_noisy=False)}
    a, c = found["a"], found["c"]
    assert (a.items, a.comparisons, a.agreement) == (3, 2, 1.0)  # of z nobody knows what most say
    assert (c.items, c.comparisons, c.agreement) == (3, 3, pytest.approx(2 / 3))
    # without a, x has one vote for each; y agrees; z has b alone, who says something else
    assert a.with_others == pytest.approx(1 / 2)
    assert c.with_others == pytest.approx(
        1 / 2
    )  # x: not what the others say; y: just so; of w nobody else says anything
    assert c.interval is not None and not c.noisy
    alone = annotators([verdict_shares({"a": 1})], name_noisy=False)[0]
    assert (alone.agreement, alone.with_others, alone.interval) == (1.0, None, None)
