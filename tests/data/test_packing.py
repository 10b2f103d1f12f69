import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.packing import Example, PackedRow, pack
from posttrain.errors import UserError


def test_a_family_is_laid_down_once_with_positions_that_go_on_from_the_prefix():
    examples = [Example((7, 8), (1, 2), (True, True)), Example((7, 8), (3,), (True,)), Example((9,), (4,), (True,))]
    (row,) = pack(examples, 100)
    assert row.token_ids == [7, 8, 1, 2, 3, 9, 4]
    assert row.positions == [0, 1, 2, 3, 2, 0, 1]
    assert row.families == [(2, [2, 1]), (1, [1])]
    assert row.sources == [1, 2, 1, 5]  # the first token of each continuation is predicted by the prefix's last
    assert row.targets == [1, 2, 3, 4]
    assert row.rows == [0, 0, 1, 2]


def test_only_what_is_learned_becomes_a_target():
    (row,) = pack([Example((5,), (1, 2, 3), (False, True, False))], 10)
    assert (row.sources, row.targets) == ([1], [2])


def test_a_family_too_long_for_a_row_is_cut_and_its_prefix_laid_down_again():
    examples = [Example((7, 8), (i, i), (True, True)) for i in range(1, 5)]
    rows = pack(examples, 6)
    assert [r.token_ids for r in rows] == [[7, 8, 1, 1, 2, 2], [7, 8, 3, 3, 4, 4]]


def test_what_belongs_together_is_not_cut():
    examples = [Example((7, 8), (i,), (True,)) for i in range(1, 7)]
    assert [r.token_ids for r in pack(examples, 5)] == [[7, 8, 1, 2, 3], [7, 8, 4, 5, 6]]
    assert [r.token_ids for r in pack(examples, 5, together=2)] == [[7, 8, 1, 2], [7, 8, 3, 4], [7, 8, 5, 6]]
    assert [r.examples for r in pack(examples, 6, together=2)] == [[0, 1, 2, 3], [4, 5]]


def test_pairs_of_different_prompts_fill_a_row():
    pairs = [Example(prefix, (i,), (True,)) for prefix in ((7,), (8,)) for i in range(2)]
    (row,) = pack(pairs, 6, together=2)
    assert row.families == [(1, [1, 1]), (1, [1, 1])]


def test_a_pair_that_does_not_fit_leaves_nothing_of_itself_behind():
    first = [Example((7, 8), (i,), (True,)) for i in range(2)]
    second = [Example((9, 9), (1,), (True,)), Example((9, 9), (2, 3), (True, True))]
    rows = pack([*first, *second], 8, together=2)  # 4 and 5 tokens; the second's prefix and first response would fit
    assert [row.families for row in rows] == [[(2, [1, 1])], [(2, [1, 2])]]


def test_the_last_token_of_each_example_is_known():
    examples = [Example((7, 8), (1, 2), (True, True)), Example((7, 8), (3,), (True,)), Example((9,), (4,), (True,))]
    (row,) = pack(examples, 100)
    assert [row.token_ids[i] for i in row.ends] == [2, 3, 4] and row.ends == [3, 4, 6]


def test_a_pair_longer_than_a_row_is_refused_though_each_of_it_fits():
    pair = [Example((1, 2), (3, 4), (True,) * 2), Example((1, 2), (5,), (True,))]
    assert len(pack(pair, 5, together=2)) == 1
    with pytest.raises(UserError, match=r"pair 0 has 5 tokens.*`microbatch_tokens=5`"):
        pack(pair, 4, together=2)


@pytest.mark.parametrize("prefixes", [((1,), (2,)), ((), ())])
def test_examples_that_share_no_prefix_cannot_stay_together(prefixes):
    with pytest.raises(ValueError, match="share no prefix"):
        pack([Example(prefix, (3,), (False,)) for prefix in prefixes], 10, together=2)


def test_units_of_several_sizes_stay_together_and_share_what_they_can():
    examples = [Example(prefix, (i,), (True,)) for i, prefix in enumerate(((7, 8),) * 5 + ((9,),) * 2)]
    rows = pack(examples, 5, together=[3, 2, 2])
    assert [row.token_ids for row in rows] == [[7, 8, 0, 1, 2], [7, 8, 3, 4], [9, 5, 6]]
    assert [row.families for row in pack(examples, 7, together=[3, 2, 2])] == [[(2, [1] * 5)], [(1, [1, 1])]]
    assert [row.examples for row in pack(examples, 7, together=[2, 3, 2])] == [[0, 1, 2, 3, 4], [5, 6]]
    with pytest.raises(UserError, match=r"ranking 0 has 5 tokens.*`microbatch_tokens=5`"):
        pack(examples, 4, together=[3, 2, 2])


@pytest.mark.parametrize(("count", "together"), [(3, 2), (1, 2), (3, [2]), (3, [2, 2]), (1, [])])
def test_units_that_are_not_all_of_a_batch_are_refused(count, together):
    with pytest.raises(ValueError, match="examples are not"):
        pack([Example((1,), (3,), (False,))] * count, 10, together=together)


def test_an_example_longer_than_a_row_is_refused_with_the_number_to_type():
    with pytest.raises(UserError, match="`microbatch_tokens=5`"):
        pack([Example((1, 2), (3, 4, 5), (True,) * 3)], 4)


def test_the_first_token_of_an_unconditional_sequence_cannot_be_learned():
    with pytest.raises(ValueError, match="nothing before it"):
        Example.whole([1, 2], [True, True])


def test_what_all_sequences_begin_with_is_laid_down_once_up_to_what_one_of_them_learns():
    said = [((5, 6, 7, 1), 3), ((5, 6, 7, 2, 4), 3), ((5, 6, 8), 2)]
    examples = [Example.whole(ids, [i >= learned for i in range(len(ids))]) for ids, learned in said]
    (row,) = pack(examples, 100)
    assert row.families == [(2, [3, 2, 1])] and row.token_ids == [5, 6, 7, 2, 4, 7, 1, 8]
    assert row.positions == [0, 1, 2, 3, 4, 2, 3, 2]
    assert (row.rows, row.targets, row.sources) == ([1, 1, 0, 2], [2, 4, 1, 8], [2, 3, 5, 1])
    early = Example.whole((5, 6, 7), [False, True, True])  # learns its second token, so the others share one with it
    (row,) = pack([*examples, early], 100)
    assert row.families == [(1, [4, 3, 2, 2])]


def test_what_two_begin_with_alike_is_not_what_all_do():
    examples = [Example.whole(ids, [False] * 3 + [True]) for ids in ((5, 6, 7, 1), (5, 6, 7, 2), (5, 6, 8, 9))]
    (row,) = pack(examples, 100)
    assert row.families == [(2, [2, 2, 2])]


@pytest.mark.parametrize("texts", [[(5, 6)], [(5, 6), (5, 6)], [(5,), (5, 6)], [(4, 6), (5, 6)]])
def test_every_sequence_keeps_a_token_of_its_own(texts):
    rows = pack([Example.whole(ids, [False] * len(ids)) for ids in texts], 100)
    shared = {prefix for row in rows for prefix, _ in row.families}
    assert shared == ({1} if texts == [(5, 6), (5, 6)] else {0})
    assert all(length for row in rows for _, lengths in row.families for length in lengths)


def learned_of(rows: list[PackedRow]) -> list[tuple[int, tuple[int, ...], int]]:
    """(example, everything the target's prediction may see, target), read from the layout alone."""
    found = []
    for row in rows:
        seen: dict[int, tuple[int, ...]] = {}
        at = 0
        for prefix, lengths in row.families:
            shared = tuple(row.token_ids[at : at + prefix])
            for i in range(prefix):
                seen[at + i] = shared[: i + 1]
            at += prefix
            for length in lengths:
                own = row.token_ids[at : at + length]
                for i in range(length):
                    seen[at + i] = shared + tuple(own[: i + 1])
                at += length
        assert at == len(row.token_ids) == len(row.positions)
        assert all(row.positions[i] == len(context) - 1 for i, context in seen.items())
        found += [(n, seen[s], t) for n, s, t in zip(row.rows, row.sources, row.targets, strict=True)]
    return sorted(found)


tokens = st.lists(st.integers(0, 9), max_size=5)


@st.composite
def batches(draw):
    examples = []
    for _ in range(draw(st.integers(1, 6))):
        prefix = tuple(draw(tokens))
        for _ in range(draw(st.integers(1, 3))):
            own = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=6)))
            flags = draw(st.lists(st.booleans(), min_size=len(own), max_size=len(own)))
            if not prefix:
                flags[0] = False
            examples.append(Example(prefix, own, tuple(flags)))
    return examples


@given(batches(), st.integers(11, 60))
def test_any_cut_learns_the_same_tokens_in_the_same_contexts(examples, limit):
    rows = pack(examples, limit)
    assert all(len(row.token_ids) <= limit for row in rows)
    expected = sorted(
        (n, e.prefix + e.continuation[:i], token)
        for n, e in enumerate(examples)
        for i, (token, learned) in enumerate(zip(e.continuation, e.learned, strict=True))
        if learned
    )
    assert learned_of(rows) == expected
    assert sorted(n for row in rows for n in row.examples) == list(range(len(examples)))
