import gzip
import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from posttrain.data.sources import load_rows, read_rows
from posttrain.errors import DataError, UserError

ROWS = [{"prompt": "1+1?", "answer": "2"}, {"prompt": "2+2?", "answer": "4"}, {"prompt": "é?", "answer": "☃"}]


def write(path, rows=ROWS, ensure_ascii=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(json.dumps(row, ensure_ascii=ensure_ascii) for row in rows)
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def test_every_kind_of_file_reads_the_same(tmp_path):
    sources = [write(tmp_path / "a.jsonl"), write(tmp_path / "a.jsonl.gz"), write(tmp_path / "lines.json")]
    (tmp_path / "list.json").write_text(json.dumps(ROWS), encoding="utf-8")
    (tmp_path / "wrapped.json").write_text(json.dumps({"version": 1, "data": ROWS}), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    sources += [str(tmp_path / name) for name in ("list.json", "wrapped.json", "a.parquet")]
    for source in sources:
        assert load_rows(source) == ROWS, source


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode())
    assert load_rows(str(path)) == ROWS[:1]


def test_places_count_lines_and_skip_blank_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    assert [(row.place, row.id) for row in read_rows(str(path))] == [
        ("a.jsonl line 1", "a.jsonl:1"),
        ("a.jsonl line 3", "a.jsonl:3"),
    ]


def test_the_limit_stops_before_a_bad_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\nbroken\n')
    assert len(load_rows(str(path), limit=2)) == 2
    with pytest.raises(DataError, match=r"a.jsonl line 3: not JSON \(Expecting value, column 1\)"):
        load_rows(str(path), limit=3)
    with pytest.raises(UserError, match="must be 1 or more; got 0"):
        load_rows(str(path), limit=0)


def test_columns_are_mapped(tmp_path):
    rows = load_rows(write(tmp_path / "a.jsonl"), columns={"question": "prompt"})
    assert rows[0] == {"question": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    "name, content, problem",
    [
        ("a.jsonl", b"", "has no rows"),
        ("a.json", b"", "has no rows"),
        ("a.json", b"[]", "has no rows"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', "a.jsonl line 2: expected an object with named fields; got list"),
        ("a.json", b'[{"a": 1}, 2]', "a.json row 2: expected an object with named fields; got int"),
        ("a.json", b'{"a": 1}', "a.json: expected a list of objects"),
        ("a.json", b'[{"a": 1},\n', "a.json line 2: not JSON"),
        ("a.jsonl", b'{"a": "\xff"}', "a.jsonl is not UTF-8 text"),
        ("a.jsonl.gz", b"not gzip", "cannot read a.jsonl.gz"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999)[:-20], "cannot read a.jsonl.gz"),
        ("a.parquet", b"not parquet", "cannot read a.parquet as parquet"),
        ("a.csv", b"a,b\n", r"cannot read '.*a.csv'; expected a file that ends with .jsonl"),
    ],
)
def test_files_that_cannot_be_read_say_so_in_one_line(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        load_rows(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["none.jsonl", "./none", "/no/such/folder", "a/b/c"])
def test_a_missing_file_is_not_looked_for_on_the_hub(source):
    with pytest.raises(DataError, match=f"there is no file or folder '{source}'"):
        load_rows(source)


def test_a_folder_gives_the_split_asked_for_and_train_by_itself(tmp_path):
    write(tmp_path / "train-00000-of-00002.jsonl", ROWS[:1])
    write(tmp_path / "train-00001-of-00002.jsonl", ROWS[1:2])
    write(tmp_path / "test" / "part.jsonl", ROWS[2:])
    (tmp_path / "README.md").write_text("no data")
    folder = str(tmp_path)
    assert load_rows(folder) == load_rows(folder, split="train") == ROWS[:2]
    assert load_rows(folder, split="test") == ROWS[2:]
    assert read_rows(folder, split="test")[0].id == "test/part.jsonl:1"
    with pytest.raises(DataError, match=r"no file of split 'dev'; it has: test/part.jsonl, train-00000"):
        load_rows(folder, split="dev")


def test_a_folder_without_splits_is_one_data_set(tmp_path):
    write(tmp_path / "a.jsonl", ROWS[:1])
    write(tmp_path / "b.jsonl", ROWS[1:])
    assert load_rows(str(tmp_path)) == ROWS


def test_an_empty_folder(tmp_path):
    with pytest.raises(DataError, match="holds no data"):
        load_rows(str(tmp_path))


def test_the_split_of_a_file_must_be_in_its_name(tmp_path):
    source = write(tmp_path / "test-first3.jsonl")
    assert load_rows(source, split="test") == load_rows(source) == ROWS
    with pytest.raises(DataError, match="not divided into splits; got split 'validation'"):
        load_rows(source, split="validation")


def hub(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))


def test_a_hub_id_is_loaded_with_its_config_and_split(monkeypatch):
    calls = []
    hub(monkeypatch, lambda *args, **kwargs: calls.append((args, kwargs)) or ROWS)
    assert load_rows("openai/gsm8k:main", split="test", limit=2) == ROWS[:2]
    assert calls == [(("openai/gsm8k", "main"), {"split": "test"})]
    row = read_rows("owner/name")[1]
    assert calls[1] == (("owner/name", None), {"split": "train"})
    assert (row.place, row.id) == ("owner/name train row 2", "owner/name/train/2")


@pytest.mark.parametrize(
    "error, problem",
    [
        (
            ConnectionError("Couldn't reach 'a/b' on the Hub\nlong story"),
            "from the hub: Couldn't reach 'a/b' on the Hub; check",
        ),
        (ValueError("Config name is missing.\nPick one"), "Config name is missing; name one: owner/name:CONFIG"),
        (ValueError("Unknown split \"dev\". Should be one of ['train']"), 'Unknown split "dev"'),
    ],
)
def test_a_hub_that_cannot_be_reached_says_so_in_one_line(monkeypatch, error, problem):
    def load(*_, **__):
        raise error

    hub(monkeypatch, load)
    with pytest.raises(DataError) as caught:
        load_rows("owner/name")
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_gym_source_has_no_rows():
    with pytest.raises(DataError, match="makes tasks, not rows"):
        load_rows("gym:chain_sum")
