import doctest
import json
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data import (
    in_memory,
    load_demonstrations,
    load_judgements,
    load_preferences,
    load_ratings,
    load_tasks,
    load_texts,
    loaded,
)
from posttrain.data.loaded import interleaved, mix, parts_of, split_for
from posttrain.data.sources import has_splits
from posttrain.errors import DataError, UserError


def test_doctests():
    assert doctest.testmod(loaded).failed == 0


def rows(letter, count):
    return [{"prompt": f"{letter}{i}", "answer": i} for i in range(count)]


def said(tasks):
    return [task.prompt[-1].content for task in tasks]


def test_an_epoch_has_every_row_and_the_shares():
    # 70 rows at 0.7 make an epoch of 100; 8 rows at 0.3 fill 30 places: three passes, and six rows once more.
    source = f"{in_memory(rows('a', 70))}=0.7 {in_memory(rows('b', 8))}=0.3"
    found = said(load_tasks(source))
    counts = Counter(found)
    assert len(found) == 100 and sum(name[0] == "b" for name in found) == 30
    assert all(counts[f"a{i}"] == 1 for i in range(70))
    assert sorted(counts[f"b{i}"] for i in range(8)) == [3, 3, 4, 4, 4, 4, 4, 4]
    assert [name for name in found if name[0] == "a"] == [f"a{i}" for i in range(70)]
    assert found == said(load_tasks(source)) != said(load_tasks(source, seed=1))
    assert said(load_tasks(source, limit=10)) == found[:10] and Counter(name[0] for name in found[:10]) == {
        "a": 7,
        "b": 3,
    }


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 50)), min_size=2, max_size=4), st.integers(0, 3))
def test_every_beginning_of_an_epoch_has_the_shares(parts, seed):
    weights = [Fraction(weight) for _, weight in parts]
    shares = [weight / sum(weights) for weight in weights]
    lists = [[(number, i) for i in range(size)] for number, (size, _) in enumerate(parts)]
    found = interleaved(lists, shares, seed)
    assert set(found) == {item for items in lists for item in items}
    assert all(max(c) - min(c) <= 1 for c in ([Counter(found)[item] for item in items] for items in lists))
    taken = [0] * len(lists)
    for place, (number, _) in enumerate(found, 1):
        taken[number] += 1
        assert all(abs(count - share * place) <= len(lists) for count, share in zip(taken, shares, strict=True))


@pytest.mark.parametrize(
    "source, problem",
    [
        ("a.jsonl b.jsonl=1", "the part 'a.jsonl' of the mixture .* has no weight; expected a weight for each source"),
        ("a.jsonl=x b.jsonl=1", "the part 'a.jsonl=x' .* has no weight"),
        ("a.jsonl=0 b.jsonl=1", "the part 'a.jsonl=0' .* needs a weight above 0"),
        ("a.jsonl=1 b.jsonl=-1", "needs a weight above 0"),
        ("a.jsonl=inf b.jsonl=nan", "needs a weight above 0"),
        ("a.jsonl=1 'b.jsonl=1", "cannot read the mixture .*: No closing quotation"),
    ],
)
def test_a_mixture_says_what_is_wrong_with_it(source, problem):
    with pytest.raises(UserError, match=problem) as caught:
        parts_of(source)
    assert "\n" not in str(caught.value)


def test_what_is_no_mixture_stays_whole(tmp_path):
    (tmp_path / "my rows=1 b=2.jsonl").write_text(json.dumps({"text": "x"}))
    for source in ("a.jsonl", "gym:chain_sum?max_terms=3", "a b.jsonl", str(tmp_path / "my rows=1 b=2.jsonl")):
        assert [part.source for part in parts_of(source)] == [source]
    assert load_texts(str(tmp_path / "my rows=1 b=2.jsonl")) == ["x"]
    quoted = f"'{tmp_path / 'my rows=1 b=2.jsonl'}=2' owner/name=1e0"
    assert [str(part.share) for part in parts_of(quoted)] == ["2/3", "1/3"]
    with pytest.raises(UserError, match="limit of rows must be 1 or more; got 0"):
        mix("a=1 b=1", lambda *_: ["x"], columns=None, limit=0, seed=0)


def test_a_mixture_may_be_longer_than_the_name_of_a_file():
    parts = [f"gym:chain_sum?min_terms=3&max_terms={terms}" for terms in range(4, 15)]
    assert [part.source for part in parts_of(" ".join(f"{part}=1" for part in parts))] == parts
    assert not has_splits("x" * 300 + "*")
    with pytest.raises(DataError, match="there is no file or folder 'xxx"):
        load_texts("x" * 300 + ".jsonl")


def test_each_part_is_read_in_its_own_layout_and_with_the_columns_it_has():
    gsm8k = in_memory([{"question": "1+1?", "answer": "so #### 2"}])
    other = in_memory([{"problem": "2+2?", "answer": 4}])
    tasks = load_tasks(f"{gsm8k}=1 {other}=1 gym:chain_sum=1000", columns={"prompt": "problem"})
    assert len(tasks) == 1002 and {"2", 4} <= {task.answer for task in tasks}


def test_a_column_that_no_part_has_is_named():
    a, b = in_memory([{"question": "x"}]), in_memory([{"problem": "y"}])
    with pytest.raises(DataError, match="unknown column 'questionn'; did you mean 'question'"):
        load_tasks(f"{a}=1 {b}=1", columns={"prompt": "questionn"})
    both = load_tasks(f"{a}=1 {in_memory([{'prompt': 'z'}])}=1", columns={"prompt": "question"})
    assert said(both) == ["x", "z"]
    with pytest.raises(DataError, match=f"{b}: unknown column 'question'; The data has: problem"):
        load_tasks(f"{a}=1 {b}=1", columns={"prompt": "question", "answer": "problem"})


def test_all_kinds_of_data_mix():
    shown = (
        in_memory([{"prompt": "a", "completion": "b"}]),
        in_memory([{"messages": [{"role": "assistant", "content": "c"}]}]),
    )
    assert [c[-1].content for c in load_demonstrations(f"{shown[0]}=1 {shown[1]}=2")] == ["c", "b", "c"]
    texts = in_memory([{"text": "a"}]), in_memory([{"text": "b"}, {"text": "c"}])
    assert load_texts(f"{texts[0]}=1 {texts[1]}=1") == ["a", "b", "a", "c"]
    rated = in_memory([{"prompt": "a", "completion": "b", "ratings": {"x": 1}}])
    assert len(load_ratings(f"{rated}=1 {rated}=3").items) == 4
    ranked = in_memory(
        [
            {"prompt": "a", "responses": ["p", "q", "r"], "scores": [1, 2, 3]},
            {"prompt": "t", "responses": ["p", "p"], "scores": [1, 1]},
        ]
    )
    pair = in_memory([{"prompt": "b", "chosen": "c", "rejected": "d"}, {"prompt": "e", "chosen": "c", "rejected": "d"}])
    found = load_preferences(f"{ranked}=1 {pair}=1")
    # Two prompts of each: the ranking's three pairs stay together, and it is there twice.
    assert "".join(one.prompt[0].content for one in found.items) == "aaabaaae"
    assert found.left_out == (f"row 2 of {ranked}: no two responses of which one was found better",)
    thumbs = in_memory(
        [{"prompt": "a", "completion": "b", "label": "true"}, {"prompt": "a", "completion": "c", "label": "0"}]
    )
    assert [one.good for unit in load_judgements(f"{thumbs}=1 {pair}=1").items for one in unit] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_only_a_source_that_may_have_splits_is_asked_for_one(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}")
    file = str(tmp_path / "a.jsonl")
    assert split_for(file) is split_for(f"{file}=1 {tmp_path}/*.jsonl=1") is None
    assert split_for(str(tmp_path)) == split_for("owner/name") == split_for(f"{file}=1 a/b=1") == "test"
