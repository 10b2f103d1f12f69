"""Digests of the data that a recipe's options name."""

import hashlib

from posttrain.data.digests import digests, rows_digest
from posttrain.data.packing import Example


def test_files_folders_mixtures_and_globs_have_a_digest_each_and_names_of_hubs_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    texts = {"a.jsonl": "one", "b.jsonl": "two", "folder/c.parquet": "three", "name with space.jsonl": "four"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}

    def of(*names):
        return {name: sums[name] for name in names}

    assert digests({"dataset": "a.jsonl", "eval_dataset": "b.jsonl", "model": "folder"}) == of("a.jsonl", "b.jsonl")
    assert digests({"dataset": "folder"}) == of("folder/c.parquet")
    assert digests({"dataset": "name with space.jsonl"}) == of("name with space.jsonl")
    assert digests({"dataset": "a.jsonl=0.7 folder=0.3"}) == of("a.jsonl", "folder/c.parquet")
    assert digests({"ratings": "*.jsonl"}) == of("a.jsonl", "b.jsonl", "name with space.jsonl")
    assert digests({"dataset": "**/*.parquet"}) == of("folder/c.parquet")
    assert digests({"dataset": "OWNER/NAME", "eval_dataset": "gym:chain_sum", "ratings": "", "limit": None}) == {}
    assert digests({"dataset": "it's an open quote"}) == {}
    # longer than a file's name may be
    assert digests({"dataset": f"a.jsonl=1 {'gym:chain_sum?max_terms=3=1 ' * 11}"}) == of("a.jsonl")
    assert digests({"dataset": "x" * 300}) == {}


def test_what_rows_mean_has_the_digest_that_it_always_had():
    """Else no run that was made before could be gone on with."""
    assert rows_digest([Example((1,), (2, 3), (False, True))]) == "f1bb8c7bf8fe2c73a128ee7a9ddcf722"
