import asyncio
import threading
import time

import pytest
from starlette.exceptions import HTTPException

from posttrain.serving import run
from posttrain.serving.run import Entry, Futures


def retrieved(found, name, seconds=0.0):
    return asyncio.run(found.retrieve(name, seconds))


def test_a_result_is_there_for_all_who_ask_and_as_often_as_they_do():
    found = Futures()
    assert found.open("a") and not found.open("a") and found.known("a") and not found.known("b")
    assert retrieved(found, "a") is None
    found.finish("a", Entry("x", b"1"))
    found.finish("a", Entry("x", b"2"))  # the first stays
    assert [retrieved(found, "a").body for _ in range(2)] == [b"1", b"1"]
    with pytest.raises(HTTPException, match="410"):
        retrieved(found, "b")


def test_who_waits_gets_it_as_soon_as_it_is_there_and_giving_up_costs_the_others_nothing():
    found = Futures()
    found.open("a")
    began = time.monotonic()
    threading.Timer(0.3, lambda: found.finish("a", Entry("x", b"1"))).start()

    async def wait():
        short, long = await asyncio.gather(found.retrieve("a", 0.05), found.retrieve("a", 10))
        return short, long.body, time.monotonic() - began

    short, body, taken = asyncio.run(wait())
    assert (short, body) == (None, b"1") and 0.2 < taken < 5


def test_the_oldest_results_are_forgotten_and_none_that_is_awaited(monkeypatch):
    monkeypatch.setattr(run, "KEPT_BYTES", 3000)
    found = Futures()
    found.open("awaited")
    for name in "abcd":
        found.finish(name, Entry("x", bytes(600)))
    assert [name for name in ("a", "b", "c", "d", "awaited") if found.known(name)] == ["c", "d", "awaited"]
    found.finish("large", Entry("x", bytes(9000)))
    assert [name for name in ("c", "d", "large", "awaited") if found.known(name)] == ["large", "awaited"]
