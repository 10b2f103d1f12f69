"""Weights by a broadcast of their own: to the same bits, or not at all; who is lost costs others only another try."""

import os
import signal
import threading

import pytest
import torch

from posttrain.engine.transformers import TransformersEngine
from posttrain.engine.weight_channel import ChannelError
from posttrain.errors import EngineError
from tests.distributed.fakes import pids
from tests.distributed.test_samplers import REQUESTS, Trainer, load
from tests.tiny import STOP

pytest.importorskip("ray")

from posttrain.distributed import broadcast
from posttrain.distributed.broadcast import Offer, offered, received
from posttrain.distributed.pool import Share
from posttrain.distributed.samplers import SamplerGroup

HERE = "127.0.0.1"
WEIGHTS = [
    ("a", torch.randn(3, 700)),
    ("b", torch.randn(5).bfloat16()),
    ("none", torch.zeros(0, 4, dtype=torch.float16)),
    ("one", torch.tensor(2.5, dtype=torch.float64)),
    ("turned", torch.randn(4, 6).T),
]


@pytest.fixture
def alone(monkeypatch):
    """No cluster is asked, and a weight is sent in several slices."""
    monkeypatch.setattr(broadcast.cluster, "use_own_interface", lambda: None)
    monkeypatch.setattr(broadcast, "SLICE", 1000)


def taken(port, transfer="1", ranks=(1, 2), size=3, patience=20.0):
    """What processes get, or their errors; threads stand for them."""
    found = {}

    def take(rank):
        try:
            found[rank] = list(received(Offer("v", HERE, port, transfer, rank, size, patience)))
        except EngineError as error:
            found[rank] = error

    threads = [threading.Thread(target=take, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in ranks]


def same(found):
    return len(found) == len(WEIGHTS) and all(
        name == expected and weight.dtype == mine.dtype and torch.equal(weight, mine)
        for (name, weight), (expected, mine) in zip(found, WEIGHTS, strict=True)
    )


def test_all_get_the_weights_as_often_as_they_ask(alone):
    with offered(WEIGHTS, HERE) as port:
        for transfer in ("first", "second"):
            assert all(same(each) for each in taken(port, transfer))
        assert same(taken(port, "one alone", ranks=(1,), size=2)[0])


def test_who_does_not_come_is_waited_for_a_while_and_the_others_can_meet_again(alone):
    with offered(WEIGHTS, HERE) as port:
        (cut,) = taken(port, "first", ranks=(1,), patience=2.0)
        assert isinstance(cut, ChannelError) and "are incomplete" in str(cut) and "\n" not in str(cut)
        assert same(taken(port, "second", ranks=(1,), size=2)[0])


def test_nothing_is_offered_after_the_block(alone):
    with offered(WEIGHTS, HERE) as port:
        pass
    assert isinstance(taken(port, ranks=(1,), size=2, patience=2.0)[0], ChannelError)


def test_a_weight_that_was_changed_on_the_way_is_refused(alone, monkeypatch):
    joined = broadcast._joined

    def flipping(store, transfer, rank, *more):
        passed = joined(store, transfer, rank, *more)

        def changed(data):
            passed(data)
            if rank and data.numel() == WEIGHTS[0][1].nbytes:
                data[1234] ^= 1

        return changed

    monkeypatch.setattr(broadcast, "_joined", flipping)
    with offered(WEIGHTS, HERE) as port:
        for found in taken(port):
            assert isinstance(found, ChannelError) and "are corrupt: wrong checksum" in str(found)


class Breaking(list):
    """Its weights cannot be read."""

    def __iter__(self):
        raise MemoryError("gone")


@pytest.mark.parametrize(
    ("weights", "says"),
    [(Breaking(WEIGHTS), "MemoryError: gone"), ([("a", torch.ones(3, dtype=torch.int64))], "'a' is in torch.int64")],
)
def test_what_fails_while_weights_are_read_is_said_at_the_end(alone, weights, says):
    with pytest.raises(EngineError, match=f"the weights could not be sent: .*{says}"):  # noqa: SIM117
        with offered(weights, HERE) as port:
            assert all(isinstance(found, ChannelError) for found in taken(port, patience=5.0))


class Hooked(list):
    """Weights that call a function when the second one is sent: nobody has all of them then."""

    def __init__(self, weights, at_second):
        super().__init__(weights)
        self.at_second, self.read = at_second, 0

    def __iter__(self):
        self.read += 1
        for number, named in enumerate(super().__iter__()):
            if number == 1 and self.read == 2:  # after names and shapes
                self.at_second()
            yield named


class Disturbed(Trainer):
    """Sends a signal to a process while its next weights are sent."""

    signal = None

    def fresh(self, *signal):
        """Other weights; what they sample."""
        other = Trainer(self.offers + 1)
        self.model, self.version, self.signal = other.model, other.version, signal
        return [each.token_ids for each in TransformersEngine(other.model, STOP).generate(REQUESTS)]

    def weights(self):
        signal, self.signal = self.signal, None
        named = super().weights()
        return Hooked(named, lambda: os.kill(*signal)) if signal else named


SMALL = Share(cpus=0.25, threads=1)  # beside the processes that other tests keep


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sign", "timeout_s"), [(signal.SIGKILL, 600.0), (signal.SIGSTOP, 30.0)])
def test_none_is_replaced_for_the_loss_of_another(cluster, sign, timeout_s):
    source = Disturbed()
    with SamplerGroup(4, load, source, share=SMALL, timeout_s=timeout_s) as engine:
        expected = source.fresh()
        assert [each.token_ids for each in engine.generate(REQUESTS)] == expected and source.offers == 1
        expected = source.fresh(pids(engine)[0], sign)
        assert [each.token_ids for each in engine.generate(REQUESTS)] == expected
        # to all, to the others again, and to the one that takes its place
        assert engine.replaced == 1 and source.offers == 1 + 3
        expected = source.fresh()
        assert [each.token_ids for each in engine.generate(REQUESTS)] == expected
        assert engine.replaced == 1 and source.offers == 1 + 3 + 1
