import bz2
import csv
import gzip
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from posttrain.data import load_demonstrations
from posttrain.data.sources import has_splits, in_memory, load_rows, read_rows
from posttrain.errors import DataError, UserError
from posttrain.types import Message

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


def test_compressed_files_read_as_what_they_hold(tmp_path):
    text = Path(write(tmp_path / "a.jsonl")).read_bytes()
    zst = pyarrow.compress(text, "zstd", asbytes=True)
    for name, content in {
        "a.jsonl.xz": lzma.compress(text),
        "a.ndjson.bz2": bz2.compress(text),
        "a.jsonl.zst": zst,
        "two_frames.jsonl.zst": pyarrow.compress(text + b"\n", "zstd", asbytes=True) + zst,
        "A.JSONL.GZ": gzip.compress(text),
        "twice.jsonl.gz.gz": gzip.compress(gzip.compress(text)),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert load_rows(str(tmp_path / name)) == ROWS * (1 + name.startswith("two")), name


def test_a_csv_is_rows_of_text_by_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"prompt", answer,\r\n"1, or\r\n2?",007,x\r\n\r\n"say ""hi""",,\r\n')
    rows = read_rows(str(path))
    assert [dict(row.fields) for row in rows] == [
        {"prompt": "1, or\r\n2?", "answer": "007", "unnamed_3": "x"},
        {"prompt": 'say "hi"', "answer": None, "unnamed_3": None},
    ]
    assert [row.place for row in rows] == ["a.csv line 2", "a.csv line 5"]
    assert rows[1].id == "a.csv:5"


@pytest.mark.parametrize(
    "name, text",
    [("a.tsv", "a\tb,c\n1\t2"), ("a.csv", "a;b\n1;2"), ("a.csv", 'a,"b,c"\n1,2'), ("a.csv.gz", "a\tb\n1\t2")],
)
def test_cells_are_divided_by_what_the_header_has(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert [list(row.values()) for row in load_rows(str(path))] == [["1", "2"]]


def test_cells_of_a_csv_are_text_and_a_conversation_in_one_is_read(tmp_path):
    messages = [{"role": "user", "content": "a, b"}, {"role": "assistant", "content": "c"}]
    rows = [
        {
            "messages": json.dumps(messages),
            "x": '[{"id": 1}]',
            "y": '{"role": 1}',
            "z": '["role"',
            "n": '[{"id": {"role": 1}}]',
        }
    ]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    (read,) = load_rows(str(tmp_path / "a.csv"))
    assert read == rows[0]
    assert load_demonstrations(str(tmp_path / "a.csv")) == [(Message("user", "a, b"), Message("assistant", "c"))]


def test_both_formats_of_arrow(tmp_path):
    table = pyarrow.Table.from_pylist(ROWS)
    with (
        pyarrow.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink,
        pyarrow.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=2)
    with pyarrow.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as out:
        out.write_table(table, max_chunksize=2)
    for name in ("stream.arrow", "file.arrow"):
        assert load_rows(str(tmp_path / name)) == ROWS
    assert read_rows(str(tmp_path / "file.arrow"))[2].place == "file.arrow row 3"
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("stream.arrow", "file.arrow", "a.parquet"):
        (tmp_path / f"{name}.xz").write_bytes(lzma.compress((tmp_path / name).read_bytes()))
        assert load_rows(str(tmp_path / f"{name}.xz")) == ROWS


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
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-20], "cannot read a.jsonl.gz"),
        ("a.parquet", b"not parquet", "cannot read a.parquet as parquet"),
        ("a.xlsx", b"PK", r"cannot read '.*a.xlsx'; expected a file that ends with .jsonl, .ndjson, .json, .csv"),
        ("a.parquet.gz", b"not gzip", "cannot read a.parquet.gz: Not a gzipped file"),
        ("a.parquet.gz", gzip.compress(b"not parquet", mtime=0), "cannot read a.parquet.gz as parquet"),
        ("a.parquet", b"", "cannot read a.parquet as parquet"),
        ("a.csv", b"", "has no rows"),
        ("a.csv", b"a,b\n", "has no rows"),
        ("a.csv", b"a,b\n1\n", "a.csv line 2: 1 cells under a header of 2 columns; put cells"),
        ("a.csv", b'a,b\n1,"x\ny"\n1,2,3\n', "a.csv line 4: 3 cells under a header of 2"),
        ("a.csv", b"a,a\n1,2\n", "a.csv line 1: two columns are called 'a'"),
        ("a.csv", b'a,b\n1,"2\n', r"a.csv line 2: not csv \(unexpected end of data\)"),
        ("a.csv", b"a\n\xe9\n", "a.csv is not UTF-8 text"),
        ("a.arrow", b"not arrow", "cannot read a.arrow as arrow"),
        ("a.arrow", b"ARROW1not arrow", "cannot read a.arrow as arrow"),
        ("a.jsonl.xz", b"not xz", "cannot read a.jsonl.xz: Input format not supported"),
        ("a.jsonl.xz", lzma.compress(b'{"a": 1}\n' * 999)[:-20], "cannot read a.jsonl.xz"),
        ("a.jsonl.bz2", b"not bz2", "cannot read a.jsonl.bz2"),
        ("a.jsonl.zst", b"not zst", "cannot read a.jsonl.zst"),
        ("a.jsonl.zst", pyarrow.compress(b'{"a": 1}\n' * 999, "zstd", asbytes=True)[:-4], "cannot read a.jsonl.zst"),
    ],
)
def test_files_that_cannot_be_read_say_so_in_one_line(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=problem) as caught:
        load_rows(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source", ["none.jsonl", "./none", "/no/such/folder", "a/b/c", "x.csv", "a/b.parquet", "no.txt", "a b"]
)
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
    (tmp_path / "dataset_infos.json").write_text("{}")  # what the hub's folders have beside the data
    write(tmp_path / "a.jsonl", ROWS[:1])
    write(tmp_path / "b.jsonl", ROWS[1:])
    assert load_rows(str(tmp_path)) == ROWS


def test_a_folder_of_two_formats_is_not_guessed_at(tmp_path):
    write(tmp_path / "train.jsonl")
    (tmp_path / "train.csv").write_text("a\n1\n")
    (tmp_path / "dataset_infos.json").write_text("{}")
    with pytest.raises(DataError, match=r"has .csv and .jsonl files; name one kind, such as '.*/\*\*/\*.jsonl'"):
        load_rows(str(tmp_path))
    assert load_rows(f"{tmp_path}/**/*.jsonl") == ROWS


def test_a_glob_reads_its_files_in_order(tmp_path):
    for number, row in enumerate(ROWS):
        write(tmp_path / "deep" / f"part-{number}-{'test' if number == 2 else 'train'}.jsonl", [row])
    (tmp_path / "deep" / "README.md").write_text("no data")
    assert load_rows(f"{tmp_path}/deep/part-*.jsonl") == load_rows(f"{tmp_path}/**/*") == ROWS
    assert load_rows(f"{tmp_path}/*/part-[12]-*.jsonl") == ROWS[1:]
    assert load_rows(f"{tmp_path}/deep/*", split="test") == ROWS[2:]
    assert read_rows(f"{tmp_path}/*/*")[1].id == "deep/part-1-train.jsonl:1"
    for pattern, problem in (("*.jsonl", "it has no file"), ("deep/*.md", "it has only: README.md")):
        with pytest.raises(DataError, match=f"holds no data: {problem}; expected"):
            load_rows(f"{tmp_path}/{pattern}")
    with pytest.raises(DataError, match="has no file of split 'dev'; it has: deep/part-0"):
        load_rows(f"{tmp_path}/*/*", split="dev")
    literal = write(tmp_path / "a[1].jsonl", ROWS[:1])  # a name that exists is no pattern
    assert load_rows(literal) == ROWS[:1]


def test_what_save_to_disk_writes(tmp_path):
    import datasets

    whole = datasets.Dataset.from_list(ROWS)
    whole.select([2, 0]).save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=whole, test=whole.select([1])).save_to_disk(tmp_path / "two")
    datasets.DatasetDict(dev=whole).save_to_disk(tmp_path / "three")
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    assert load_rows(one) == [ROWS[2], ROWS[0]] and load_rows(one, limit=1) == ROWS[2:]
    assert load_rows(two) == load_rows(f"{two}/train") == load_rows(three) == ROWS
    assert load_rows(two, split="test") == load_rows(f"{two}/test", split="test") == ROWS[1:2]
    assert [row.id for row in read_rows(two, split="test")] == ["two/test:1"]
    with pytest.raises(DataError, match="has no split 'dev'; it has: train, test"):
        load_rows(two, split="dev")
    with pytest.raises(DataError, match="is one data set, not divided into splits; got split 'test'"):
        load_rows(one, split="test")
    assert [has_splits(source) for source in (one, two, f"{two}/*", "owner/name")] == [False, True, False, True]
    (tmp_path / "one" / "data-00000-of-00001.arrow").write_bytes(b"damaged")
    with pytest.raises(DataError, match="as saved by datasets: ") as caught:
        load_rows(one)
    assert "\n" not in str(caught.value)


def test_rows_in_memory_are_a_source_named_by_their_content():
    import datasets

    source = in_memory(ROWS)
    assert source == in_memory(datasets.Dataset.from_list(ROWS)) != in_memory(ROWS[:2])
    assert load_rows(source, limit=2) == ROWS[:2] and not has_splits(source)
    assert read_rows(source)[1].place == f"row 2 of {source}"
    changed = [dict(row) for row in ROWS]
    source = in_memory(changed)
    changed[0]["prompt"] = "changed"
    load_rows(source)[0]["prompt"] = "changed"
    assert load_rows(source) == ROWS
    with pytest.raises(DataError, match="in the memory of another process; write them to a file"):
        load_rows("memory:0123")


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
    load_rows("owner/name:config@refs/convert/parquet")
    load_rows("name@v1.0")
    assert calls[2:] == [
        (("owner/name", "config"), {"split": "train", "revision": "refs/convert/parquet"}),
        (("name", None), {"split": "train", "revision": "v1.0"}),
    ]


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
