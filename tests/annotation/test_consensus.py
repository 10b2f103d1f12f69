"""One judgement of many, by hand and by property."""

import pytest
from hypothesis import given

from posttrain.annotation.aggregation import METHODS, majority, method
from posttrain.annotation.rankings import Belief, Odds, agree
from posttrain.errors import UserError
from posttrain.types import Ranking
from tests.annotation.said import SEED, rankings
from tests.references.annotation import majority_order


def believed(size, better=(), equal=()):
    """A belief in which exactly these stand above each other."""
    pairs = [(i, j) for j in range(size) for i in range(j)]
    sure = {True: Odds(0.6, 0.3, 0.1), False: Odds(0.1, 0.3, 0.6)}
    found = {pair: sure[pair in better] for pair in pairs if pair in better or pair[::-1] in better}
    return {"x": Belief(found | {pair: Odds(0.3, 0.4, 0.3) for pair in equal})}


def said(size, failed=()):
    groups = (tuple(i for i in range(size) if i not in failed),)
    return [Ranking("x", "a", groups if groups[0] else (), tuple(failed))]


@pytest.mark.parametrize("name", METHODS)
def test_two_of_three_annotators_carry_the_example(name):
    (found,) = agree(SEED, method(name)(SEED))
    assert found.item == "hot"
    assert found.order == ((1,), (0,), (2,))
    assert found.pairs == ((1, 0), (1, 2), (0, 2))
    assert found.failed == ()


def test_an_order_is_made_of_pairs():
    (found,) = agree(said(3), believed(3, better={(2, 0), (2, 1), (0, 1)}))
    assert found.order == ((2,), (0,), (1,)) and found.pairs == ((2, 0), (2, 1), (0, 1))


def test_a_circle_is_a_tie_and_makes_no_pairs():
    (found,) = agree(said(3), believed(3, better={(0, 1), (1, 2), (2, 0)}))
    assert found.order == ((0, 1, 2),) and found.pairs == ()


def test_a_pair_against_the_order_is_none():
    # 3 beats only 0, which beats both others, and 1 beats 2: 0 comes first, and 3 is not chosen over it
    (found,) = agree(said(4), believed(4, better={(0, 1), (0, 2), (3, 0), (1, 2), (1, 3), (2, 3)}))
    assert found.order == ((0, 1), (2, 3))
    assert (3, 0) not in found.pairs and set(found.pairs) == {(0, 2), (1, 2), (1, 3)}


def test_what_is_found_equal_makes_no_pair():
    (found,) = agree(said(3), believed(3, better={(0, 2)}, equal={(0, 1), (1, 2)}))
    assert found.order == ((0,), (1,), (2,)) and found.pairs == ((0, 2),)


@pytest.mark.parametrize(
    ("odds", "verdict"),
    [
        ((0.5, 0.2, 0.3), 1),
        ((0.3, 0.2, 0.5), -1),
        ((0.3, 0.4, 0.3), 0),
        ((0.3, 0.5, 0.2), 0),
        ((0.4, 0.2, 0.4), 0),
        ((0.4, 0.4, 0.2), 1),
        ((0.2, 0.4, 0.4), -1),
        ((0.45, 0.1, 0.45), 0),
        ((0.5 + 1e-9, 0.0, 0.5 - 1e-9), 0),
    ],
)
def test_a_verdict_is_the_likeliest_outcome(odds, verdict):
    assert Odds(*odds).verdict == verdict


def test_failed_is_what_more_than_half_of_those_who_saw_it_failed():
    groups = {"a": ((0,), (1,)), "b": ((0,),), "c": ((0,),), "d": ((0,),)}
    failed = {"a": (), "b": (1,), "c": (1,), "d": ()}
    everybody = [Ranking("x", who, groups[who], failed[who]) for who in "abcd"]
    (found,) = agree(everybody, majority(everybody))
    assert found.failed == (1,) and found.order == ((0,), (1,)) and found.pairs == ((0, 1),)
    (found,) = agree(everybody[:2], majority(everybody[:2]))
    assert found.failed == ()  # one of two is not most
    said = [Ranking("x", who, (), (0, 1)) for who in "ab"] + [Ranking("x", "c", ((1,),), (0,))]
    said += [Ranking("x", who, ((0,), (1,))) for who in "de"]
    (found,) = agree(said, majority(said))
    assert found.failed == (0,) and found.order == ((1,), (0,)) and found.pairs == ()
    everyone_failed = [Ranking("x", who, (), (0, 1)) for who in "ab"]
    (found,) = agree(everyone_failed, majority(everyone_failed))
    assert found.failed == (0, 1) and found.order == ((0, 1),) and found.pairs == ()


@given(everybody=rankings(most=4))
def test_where_votes_make_an_order_it_is_found(everybody):
    found = agree(everybody, majority(everybody))
    for one in found:
        tables = [r.tiers for r in everybody if r.item == one.item]
        if any(r.failed for r in everybody):
            continue  # two failed ones are not compared
        order = majority_order(tables)
        if order is not None:
            assert [list(group) for group in one.order] == order
            assert len(one.pairs) == len(order) * (len(order) - 1) / 2


@given(everybody=rankings())
@pytest.mark.parametrize("name", ["majority", "bradley-terry", "plackett-luce"])
def test_whatever_people_say_the_consensus_is_whole_and_does_not_contradict_itself(name, everybody):
    for one in agree(everybody, method(name)(everybody)):
        seen = {c for r in everybody if r.item == one.item for tier in r.tiers for c in tier}
        assert sorted(c for group in one.order for c in group) == sorted(seen)
        place = {c: level for level, group in enumerate(one.order) for c in group}
        assert all(place[chosen] < place[rejected] for chosen, rejected in one.pairs)
        assert len(set(one.pairs)) == len(one.pairs)
        assert all(abs(sum(odds) - 1) < 1e-9 and min(odds) >= 0 for odds in one.belief.odds.values())


@given(everybody=rankings(most_people=3))
@pytest.mark.parametrize("name", ["majority", "bradley-terry", "plackett-luce"])
def test_names_and_numbers_do_not_matter(name, everybody):
    def renamed(ranking):
        groups = tuple(tuple(9 - one for one in group) for group in ranking.groups)
        return Ranking(f"z{ranking.item}", f"q{ranking.annotator}", groups, tuple(9 - one for one in ranking.failed))

    before = agree(everybody, method(name)(everybody))
    after = agree([renamed(r) for r in everybody], method(name)([renamed(r) for r in everybody]))
    for one, other in zip(before, after, strict=True):
        assert [{9 - c for c in group} for group in one.order] == [set(group) for group in other.order]
        assert {(9 - c, 9 - r) for c, r in one.pairs} == set(other.pairs)


def test_an_unknown_method_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'dawid-skene'"):
        method("dawid-sken")
