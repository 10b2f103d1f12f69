"""What is written in another layout says the same when it is read, or is not written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data import load_demonstrations, load_judgements, load_preferences
from posttrain.data.convert import TARGETS
from posttrain.data.judgements import Judgement, judgements_of
from posttrain.errors import DataError
from posttrain.types import Message, Preference

TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["\n\nHuman: x", " a", "\n\nAssistant:", "ok"]
)
TURNS = st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXT), max_size=3)


def preference(*turns: Message, **more: Any) -> Preference:
    return Preference(turns or (Message("user", "2+2?"),), "4", "5", **more)


def said(p: Preference) -> tuple[Any, ...]:
    return (p.prompt, p.chosen, p.rejected, p.opening, p.partial)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("converted") / "rows.jsonl"


def written(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("name", ["pairs", "conversations", "transcripts"])
@given(turns=TURNS, question=TEXT, chosen=TEXT, rejected=TEXT, opening=st.none() | TEXT)
def test_a_pair_that_is_written_reads_the_same(name, file, turns, question, chosen, rejected, opening):
    one = Preference(
        (*turns, Message("user", question)), chosen, rejected, opening=opening or "", partial=opening is not None
    )
    try:
        rows = TARGETS[name].rows(one)
    except DataError:
        return
    (again,) = load_preferences(written(file, rows)).items
    assert said(again) == said(one)


@pytest.mark.parametrize("name", ["pairs", "conversations", "transcripts"])
def test_what_anybody_would_say_can_be_written(name, file):
    """The test above would hold if nothing were written at all."""
    one = preference(Message("user", "2+2?"), Message("assistant", "3"), Message("user", "Sure?"))
    (again,) = load_preferences(written(file, TARGETS[name].rows(one))).items
    assert said(again) == said(one)


def test_the_rows_themselves():
    one = preference(Message("user", "2+2?"), Message("assistant", "3"), Message("user", "Sure?"))
    before = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "Sure?"},
    ]
    four, five = ({"role": "assistant", "content": text} for text in "45")
    assert TARGETS["pairs"].rows(one) == [{"prompt": before, "chosen": [four], "rejected": [five]}]
    assert TARGETS["conversations"].rows(one) == [{"chosen": [*before, four], "rejected": [*before, five]}]
    text = "\n\nHuman: 2+2?\n\nAssistant: 3\n\nHuman: Sure?\n\nAssistant: "
    assert TARGETS["transcripts"].rows(one) == [{"chosen": text + "4", "rejected": text + "5"}]
    assert TARGETS["judgements"].rows(judgements_of(one)) == [
        {"prompt": before, "completion": [four], "label": True},
        {"prompt": before, "completion": [five], "label": False},
    ]
    assert TARGETS["demonstrations"].rows(judgements_of(one)) == [{"messages": [*before, four]}]


@pytest.mark.parametrize(
    ("name", "one", "why"),
    [
        ("transcripts", preference(Message("system", "Be brief."), Message("user", "2+2?")), "role 'system'"),
        ("transcripts", preference(partial=True), "no field"),
        ("conversations", preference(opening="2+2", partial=True), "no field"),
        ("transcripts", preference(Message("user", "a\n\nHuman: b")), "something else"),
        ("transcripts", preference(Message("user", " a")), "something else"),
        ("judgements", preference(opening="2+2", partial=True), "no field"),
        ("demonstrations", preference(opening="2+2", partial=True), "no field"),
    ],
)
def test_what_a_layout_cannot_say_is_refused_by_its_place(name, one, why):
    one = Preference(*said(one)[:3], source="x.jsonl line 3", opening=one.opening, partial=one.partial)
    item = one if name in ("transcripts", "conversations") else judgements_of(one)
    with pytest.raises(DataError, match=f"x.jsonl line 3: .*{why}"):
        TARGETS[name].rows(item)


def test_steps_stay_steps(file):
    one = preference(opening="2+2 = ", partial=True)
    (again,) = load_preferences(written(file, TARGETS["pairs"].rows(one))).items
    assert said(again) == said(one)


@given(turns=TURNS, text=TEXT, good=st.booleans())
def test_a_judgement_that_is_written_reads_the_same(file, turns, text, good):
    one = Judgement((*turns, Message("user", "q")), text, good)
    try:
        rows = TARGETS["judgements"].rows((one,))
    except DataError:
        return
    ((again,),) = load_judgements(written(file, rows)).items
    assert (again.prompt, again.response, again.good) == (one.prompt, one.response, one.good)


def test_only_what_was_found_good_is_demonstrated(file):
    good, bad = (Judgement((Message("user", "2+2?"),), text, text == "4") for text in "45")
    unsayable = Judgement(bad.prompt, " ", False)  # no reason to lose what was good
    rows = TARGETS["demonstrations"].rows((bad, good, unsayable))
    assert load_demonstrations(written(file, rows)) == [(Message("user", "2+2?"), Message("assistant", "4"))]
