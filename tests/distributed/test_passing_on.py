"""Samplers pass weights on, to the same bits, and one that is lost costs the others nothing but another try."""

import contextlib
import os
import signal
import threading
import time

import pytest

from posttrain.engine.transformers import TransformersEngine
from posttrain.engine.weight_channel import offered
from tests.tiny import STOP

pytest.importorskip("ray")

from posttrain.distributed.cluster import Share
from posttrain.distributed.sampler import Offer
from posttrain.distributed.samplers import SamplerGroup
from tests.distributed.test_samplers import REQUESTS, Trainer, load, pids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = Share(cpus=0.25, threads=1)  # beside the processes that other tests keep


class Counted(Trainer):
    """Counts how often its weights are read, and calls a function when the second one is."""

    def __init__(self):
        super().__init__()
        self.reads, self.at_second, self.counting = 0, lambda: None, threading.Lock()

    def weights(self):
        with self.counting:
            self.reads += 1
        for number, named in enumerate(self.model.trainable()):
            if number == 1:
                self.at_second()
            yield named

    @contextlib.contextmanager
    def offered(self):
        with offered(self.weights, "127.0.0.1") as (port, key):
            yield Offer(self.version, "127.0.0.1", port, key)


def signal_at_second(source, pid, number):
    """Sends a signal when both samplers that read from `source` have begun and neither has all of its weights.

    A sampler that had all of them when it got the signal would have passed them on already.
    """
    both, first, sent = source.reads + 2, threading.Lock(), threading.Event()

    def send():
        if first.acquire(blocking=False):
            while source.reads < both:
                time.sleep(0.01)
            os.kill(pid, number)
            sent.set()
        sent.wait()

    source.at_second = send


def fresh(source):
    """Other weights for a source; what they sample."""
    other = Trainer(source.model.network.config.hidden_size + source.reads)
    source.model, source.version = other.model, other.version
    return [each.token_ids for each in TransformersEngine(other.model, STOP).generate(REQUESTS)]


def test_samplers_pass_weights_on_and_none_is_replaced_for_the_loss_of_another(cluster):
    source = Counted()
    with SamplerGroup(6, load, source, share=SMALL) as engine:
        for reads in (2, 4):  # two samplers take them from the trainer, four from these
            expected = fresh(source)
            assert [each.token_ids for each in engine.generate(REQUESTS)] == expected
            assert source.reads == reads
        expected = fresh(source)
        signal_at_second(source, pids(engine)[0], signal.SIGKILL)
        assert [each.token_ids for each in engine.generate(REQUESTS)] == expected
        # its two, and the one that takes its place, take them from the trainer
        assert engine.replaced == 1 and source.reads == 4 + 2 + 2 + 1
        assert engine.metrics()["cluster/sync_retries"] == 0  # of the last transfer, to the one in its place
        expected = fresh(source)  # what it passes on now is what is taken now
        assert [each.token_ids for each in engine.generate(REQUESTS)] == expected
        assert engine.replaced == 1 and source.reads == 9 + 2


def test_those_that_wait_for_a_sampler_that_hangs_are_not_replaced_with_it(cluster):
    source = Counted()
    with SamplerGroup(4, load, source, share=SMALL, timeout_s=30.0) as engine:
        engine.generate(REQUESTS)
        expected = fresh(source)
        signal_at_second(source, pids(engine)[0], signal.SIGSTOP)
        assert [each.token_ids for each in engine.generate(REQUESTS)] == expected
        assert engine.replaced == 1
