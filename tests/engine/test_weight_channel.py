import socket
import threading

import pytest
import torch
from safetensors.torch import save

from posttrain.engine import weight_channel
from posttrain.engine.weight_channel import ChannelError, offered, received
from posttrain.errors import EngineError

WEIGHTS = {
    "a.weight": torch.arange(12.0).view(3, 4).T,  # not in one piece
    "b.weight": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "large": torch.randn(700, 700, generator=torch.Generator().manual_seed(0)),
    "empty": torch.empty(0, 3),
    "number": torch.tensor(0.5, dtype=torch.float64),
}


def test_every_weight_arrives_as_it_was_and_as_often_as_it_is_asked_for():
    with offered(WEIGHTS.items, "127.0.0.1") as (port, key):
        for _ in range(2):
            found = dict(received("127.0.0.1", port, key))
            assert list(found) == list(WEIGHTS)
            assert all(torch.equal(found[n], WEIGHTS[n]) and found[n].dtype == WEIGHTS[n].dtype for n in WEIGHTS)


def test_several_receivers_are_served():
    counts = []
    with offered(WEIGHTS.items, "127.0.0.1") as (port, key):
        threads = [
            threading.Thread(target=lambda: counts.append(len(list(received("127.0.0.1", port, key)))))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [len(WEIGHTS)] * 3


def test_whoever_lacks_the_key_gets_nothing_and_does_not_stop_the_others():
    with offered(WEIGHTS.items, "127.0.0.1") as (port, key):
        wrong = key[::-1] if key != key[::-1] else "00" * 32
        with pytest.raises(EngineError, match="are incomplete"):
            list(received("127.0.0.1", port, wrong))
        assert len(list(received("127.0.0.1", port, key))) == len(WEIGHTS)


def test_nothing_is_offered_after_the_block():
    with offered(WEIGHTS.items, "127.0.0.1") as (port, key):
        pass
    with pytest.raises(EngineError):
        list(received("127.0.0.1", port, key))
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(EngineError):
        other.listen()
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        list(received("127.0.0.1", other.getsockname()[1], key))


DATA = len(save({"a": torch.ones(300)}))
CHANGED = {
    "a number": (DATA, -1, "are corrupt: wrong checksum"),
    "the name": (DATA, 10, "wrong checksum"),
    "a length": (12, 0, "are corrupt"),  # of 2^56 bytes and more
    "a byte more": (12, 7, "wrong checksum"),
}


@pytest.mark.parametrize(("length", "place", "says"), CHANGED.values(), ids=CHANGED)
def test_a_weight_that_was_changed_on_the_way_is_refused(monkeypatch, length, place, says):
    read = weight_channel._read
    met = []

    def flipped(file, count):
        data = bytearray(read(file, count))
        met.append(len(data))
        if len(data) == length:
            data[place] ^= 1
        return bytes(data)

    with offered({"a": torch.ones(300)}.items, "127.0.0.1") as (port, key):
        monkeypatch.setattr(weight_channel, "_read", flipped)
        with pytest.raises(ChannelError, match=says):
            list(received("127.0.0.1", port, key))
    assert length in met


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_what_fails_while_weights_are_read_is_said_at_the_end(error):
    def breaks():
        yield "a", torch.ones(3)
        raise error("gone")

    with pytest.raises(EngineError, match=f"the weights could not be sent: {error.__name__}: gone"):  # noqa: SIM117
        with offered(breaks, "127.0.0.1") as (port, key):
            with pytest.raises(weight_channel.ChannelError, match="are incomplete"):
                list(received("127.0.0.1", port, key))


def test_a_format_that_cannot_be_sent_is_said():
    with pytest.raises(EngineError, match=r"'a' is in torch.int64, which cannot be sent"):  # noqa: SIM117
        with offered({"a": torch.ones(3, dtype=torch.int64)}.items, "127.0.0.1") as (port, key):
            with pytest.raises(ChannelError, match="are incomplete"):
                list(received("127.0.0.1", port, key))
