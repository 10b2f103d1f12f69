import json

import pytest

from posttrain.engine.budget import ReplyCache, digest_of
from posttrain.types import Message, Reply, StopReason, ToolCall, Usage

WHOLE = Reply(
    Message("assistant", "a\ud83d\u2028\nb", (ToolCall("c", "look", "{}"),), reasoning="Hm."),
    StopReason.LENGTH,
    Usage(3, 4),
)


def plain(text: str) -> Reply:
    return Reply(Message("assistant", text), StopReason.STOP, Usage(1, 2))


@pytest.fixture
def path(tmp_path):
    cache = ReplyCache()
    with cache.kept_in(tmp_path / "cache.jsonl"):
        for key, reply in {"one": WHOLE, "two": plain("b"), "three": plain("c")}.items():
            cache.put(key, reply)
    return tmp_path / "cache.jsonl"


def found(path) -> dict[str, Reply | None]:
    cache = ReplyCache()
    with cache.kept_in(path):
        return {key: cache.get(key) for key in ("one", "two", "three", "four")}


def test_replies_come_back_as_they_were(path):
    assert found(path) == {"one": WHOLE, "two": plain("b"), "three": plain("c"), "four": None}


@pytest.mark.parametrize("cut", [1, 2, 30, 100])
def test_a_torn_last_line_is_asked_for_again_and_closed_by_the_next(path, cut):
    path.write_bytes(path.read_bytes()[:-cut])
    kept = found(path)
    assert kept["one"] == WHOLE and kept["two"] == plain("b") and (kept["three"] is None) == (cut > 1)
    cache = ReplyCache()
    with cache.kept_in(path):
        cache.put("four", plain("d"))
    assert found(path)["four"] == plain("d") and found(path)["two"] == plain("b")


def test_a_reply_that_was_changed_is_not_believed(path):
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"b"', '"x"')
    nested = ["[" * 100_000, '{"a":' * 100_000]
    path.write_text("\n".join([lines[0], "", "[]", "3", *nested, "null", '{"key": "four"}', lines[1], lines[2]]) + "\n")
    assert found(path) == {"one": WHOLE, "two": None, "three": plain("c"), "four": None}


def test_a_reply_stands_under_its_own_question(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["key"] = "four"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert found(path)["four"] is None


def test_what_was_asked_is_not_kept(path):
    assert set(json.loads(path.read_text().splitlines()[0])) == {"key", "reply", "checksum"}
    assert digest_of("kind", "secret question") == digest_of("kind", "secret question") != digest_of("kind", "other")
    assert "secret" not in digest_of("kind", "secret question")


def test_after_its_run_it_knows_nothing(path):
    cache = ReplyCache()
    with cache.kept_in(path):
        assert len(cache.replies) == 3
    assert not cache.replies
    cache.put("four", plain("d"))
    assert found(path)["four"] is None and cache.get("four") == plain("d")
