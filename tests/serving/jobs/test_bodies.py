"""Rows are cut out of a body and read one by one, within bounds that no body exceeds."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import UserError
from posttrain.serving.jobs.specification import CONTAINERS, DEPTH, TEXT_BYTES, submitted
from tests.serving.jobs.serving import sft


def read(body):
    """What was asked for, and its rows by field."""
    rows = {}
    asked = submitted(
        body if isinstance(body, bytes) else body.encode(), lambda name, row: rows.setdefault(name, []).append(row)
    )
    return asked, rows


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), min_size=1, max_size=4)


@settings(max_examples=30)
@given(ROWS, ROWS, st.sampled_from([None, 1]), st.booleans())
def test_rows_are_those_that_were_sent(train, heldout, indent, plain):
    body = sft(dataset={"rows": train}, eval_dataset={"rows": heldout}, knobs={"dataset": "[", "rows": 1})
    asked, rows = read(json.dumps(body, indent=indent, ensure_ascii=plain))
    assert rows == {"dataset": train, "eval_dataset": heldout}
    assert (asked.options, asked.knobs) == (body["options"], body["knobs"])


def whole(rows="[ROW]", **changes):
    return json.dumps(sft(dataset={"rows": "ROWS"}) | changes).replace('"ROWS"', rows)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("[]", "dataset.rows must have a row"),
        ("8", "dataset"),
        ('"[{}]"', "dataset"),
        ("[{} {}]", "list of objects"),
        ("[{},]", "list of objects"),
        ("[,{}]", "list of objects"),
        ('["{}", {}]', "list of objects"),
        ("[[], {}]", "list of objects"),
        ("[{}, 1]", "list of objects"),
        ("[{}}", "list of objects"),
        ('[{"a": 1]}]', "row 1 is not JSON"),
        ("[{}, {'a': 1}]", "row 2 is not JSON"),
        ('[{"a": tru}]', "row 1 is not JSON"),
        ("[{}", "ends within dataset.rows"),
        ('[{"a": "', "ends within dataset.rows"),
        ('[{}], "rows": [{}]', "given twice"),
    ],
)
def test_what_are_no_rows_is_refused(rows, says):
    body = whole(rows)
    with pytest.raises(UserError, match=says):
        read(body[: body.index("[{") + len(rows)] if "ends" in says else body)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(UserError, match="row 1 is not JSON"):
        read(whole('[{"a": "X"}]').encode().replace(b"X", b"\xff"))


@pytest.mark.parametrize(
    ("fits", "over", "says"),
    [
        ("[" * (DEPTH - 1) + "]" * (DEPTH - 1), "[" * (DEPTH + 1) + "]" * (DEPTH + 1), f"{DEPTH} of them"),
        (f"[{'[],' * (CONTAINERS - 3)}{{}}]", f"[{'[],' * CONTAINERS}{{}}]", f"{CONTAINERS} lists"),
        ('"' + "x" * (TEXT_BYTES - 20) + '"', '"' + "x" * TEXT_BYTES + '"', f"{TEXT_BYTES} bytes"),
    ],
)
def test_a_row_and_the_rest_have_bounds(fits, over, says):
    _, rows = read(whole(f'[{{"a": {fits}}}, {{"a": {fits}}}]'))
    assert len(rows["dataset"]) == 2
    with pytest.raises(UserError, match=rf"a row of dataset may have .*{says}"):
        read(whole(f'[{{}}, {{"a": {over}}}]'))
    with pytest.raises(UserError, match=rf"a body without its rows may have .*{says}"):
        read(whole("[{}]", options="X").replace('"X"', over))


def test_memory_does_not_grow_with_the_body():
    """300 KB of empty lists were 8 MB of objects when they were read as a whole."""
    row = f'{{"a": [{"[]," * 10_000}0]}}'
    body = whole(f"[{','.join([row] * 10)}]").encode()
    tracemalloc.start()
    submitted(body, lambda name, row: None)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 << 20
