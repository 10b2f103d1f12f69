"""Rankings from files, and what is wrong with one said by file, line and field."""

import json

import pytest
from hypothesis import given

from posttrain.annotation.rankings import by_item, load_rankings, midranks, votes_of
from posttrain.errors import DataError
from posttrain.types import Ranking
from tests.annotation.said import rankings

GOOD = {"item": "a", "annotator": "b", "ranking": [[1], [0, 2]], "failed": [3]}


def load(tmp_path, *rows):
    path = tmp_path / "said.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_rankings(str(path))


def test_a_row_is_read_as_it_is(tmp_path):
    (found,) = load(tmp_path, GOOD)
    assert (found.item, found.annotator, found.groups, found.failed) == ("a", "b", ((1,), (0, 2)), (3,))
    assert found.tiers == ((1,), (0, 2), (3,)) and found.source.endswith("said.jsonl line 1")
    numbered, without = load(
        tmp_path, GOOD | {"item": 0, "annotator": 7}, {"item": "c", "annotator": "b", "ranking": [[0]]}
    )
    assert (numbered.item, numbered.annotator) == ("0", "7") and without.failed == () and without.tiers == ((0,),)
    (all_failed,) = load(tmp_path, GOOD | {"ranking": [], "failed": [0, 1]})
    assert all_failed.tiers == ((0, 1),)
    (gaps,) = load(tmp_path, GOOD | {"ranking": [[], [0], [], [1]], "failed": []})
    assert gaps.groups == ((0,), (1,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"item": ""}, "'item' must be a name or a number; got ''"),
        ({"item": True}, "'item' must be a name"),
        ({"annotator": [1]}, "'annotator' must be a name"),
        ({"annotator": None}, "'annotator' has no value"),
        ({"ranking": None}, "'ranking' has no value"),
        ({"ranking": "012"}, "'ranking' must be a list"),
        ({"ranking": 3}, "'ranking' must be a list"),
        ({"ranking": [0, 1, 2]}, r"each group of 'ranking' must be a list of completions, such as \[0, 2\]; got 0"),
        ({"ranking": ["01"]}, "each group of 'ranking' must be a list"),
        ({"ranking": [[-1]]}, "0 or more; got -1"),
        ({"ranking": [[True]]}, "got True"),
        ({"ranking": [[0.5]]}, "got 0.5"),
        ({"ranking": [[0], [0]]}, "completion 0 stands twice"),
        ({"ranking": [[0, 1], [2]], "failed": [1]}, "completion 1 stands twice"),
        ({"failed": "3"}, "'failed' must be a list"),
        ({"failed": [[3]]}, r"'failed' has completions by their number, 0 or more; got \[3\]"),
        ({"ranking": [[]], "failed": []}, "names no completion"),
    ],
)
def test_a_row_that_is_no_ranking_is_named(tmp_path, change, message):
    with pytest.raises(DataError, match=f"said.jsonl line 2: .*{message}"):
        load(tmp_path, {**GOOD, "item": "other"}, GOOD | change)


def test_nobody_judges_an_item_twice(tmp_path):
    with pytest.raises(DataError, match=r"line 3: 'b' has judged item 'a' already, in .*said.jsonl line 1"):
        load(tmp_path, GOOD, GOOD | {"annotator": "c"}, GOOD | {"ranking": [[0], [1]], "failed": []})


def test_votes_by_hand():
    ranking = Ranking("a", "b", ((2,), (0, 3)), failed=(1, 4))
    assert {(v.first, v.second): v.outcome for v in votes_of([ranking])} == {
        (0, 1): 1,
        (0, 2): -1,
        (0, 3): 0,
        (0, 4): 1,
        (1, 2): -1,
        (1, 3): -1,
        (2, 3): 1,
        (2, 4): 1,
        (3, 4): 1,
    }  # 1 and 4 both failed: nobody says which is the better


@given(said=rankings())
def test_ranks_are_as_many_and_sum_to_what_they_must(said):
    for ranking in said:
        ranks = midranks(ranking)
        size = sum(map(len, ranking.tiers))
        assert len(ranks) == size and sum(ranks.values()) == size * (size + 1) / 2
        for vote in votes_of([ranking]):
            gap = ranks[vote.second] - ranks[vote.first]
            assert (gap > 0) - (gap < 0) == vote.outcome


def test_items_keep_their_order():
    said = [Ranking(item, "x", ((0,),)) for item in ("b", "a")] + [Ranking("b", "y", ((0,),))]
    assert [(item, len(mine)) for item, mine in by_item(said).items()] == [("b", 2), ("a", 1)]


def test_a_number_and_the_same_number_as_text_are_one_item(tmp_path):
    rows = load(tmp_path, GOOD | {"item": 1, "annotator": "b"}, GOOD | {"item": "1", "annotator": "c"})
    assert len(by_item(rows)) == 1
    with pytest.raises(DataError, match="has judged item '1' already"):
        load(tmp_path, GOOD | {"item": 1}, GOOD | {"item": "1"})
