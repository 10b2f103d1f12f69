"""Samplers of several processes keep to the kit of engines, sample from the right weights, and survive losses."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from posttrain.errors import EngineError, UserError
from posttrain.rollouts.engine import Batches, check_engine
from posttrain.rollouts.policy import Policy
from posttrain.rollouts.transformers import TransformersEngine
from posttrain.rollouts.weight_channel import offered
from posttrain.types import Request, Sampling
from tests.rollouts.test_transformers import PROMPTS, own_logprobs, subject
from tests.tiny import STOP, tiny_llama

pytest.importorskip("ray")

from posttrain.distributed import samplers
from posttrain.distributed.sampler import Offer, load_weights
from posttrain.distributed.samplers import SamplerGroup

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Chat:
    """What a sampler reads of a chat format."""

    stop_ids = STOP


def load():
    """A policy of other weights than the trainer's."""
    model = tiny_llama(seed=7)
    return Policy(model, Chat(), TransformersEngine(model, STOP))


class Trainer:
    """Has weights of a version, and counts how often they are asked for."""

    def __init__(self, seed=0):
        self.model, self.version, self.offers = tiny_llama(seed=seed), f"seed {seed}", 0

    @contextlib.contextmanager
    def offered(self):
        self.offers += 1
        with offered(self.model.trainable, "127.0.0.1") as (port, key):
            yield Offer(self.version, "127.0.0.1", port, key)


@pytest.fixture(scope="module")
def trainer():
    return Trainer()


@pytest.fixture(scope="module", params=[1, 2])
def group(cluster, request, trainer):
    with SamplerGroup(request.param, load, trainer) as engine:
        yield engine


REQUESTS = [Request(prompt, Sampling(12), seed) for prompt in PROMPTS for seed in range(4)]


def test_the_group_keeps_to_the_kit(group, trainer):
    here = subject(trainer.model)
    assert check_engine(replace(here, engine=group, own_logprobs=own_logprobs(trainer.model))) == []


def test_one_sampler_answers_with_the_bits_of_an_engine_in_this_process(group, trainer):
    here = TransformersEngine(trainer.model, STOP).generate(REQUESTS)
    there = group.generate(REQUESTS)
    assert [c.token_ids for c in there] == [c.token_ids for c in here]
    if len(group.actors) == 1:
        assert there == here


def test_new_weights_are_sent_once_and_sampled_from(cluster):
    source = Trainer()
    with SamplerGroup(2, load, source) as engine:
        for seed in (0, 3):
            fresh = Trainer(seed)
            source.model, source.version = fresh.model, fresh.version
            for _ in range(2):
                found = engine.generate(REQUESTS)
            expected = TransformersEngine(fresh.model, STOP).generate(REQUESTS)
            assert [c.token_ids for c in found] == [c.token_ids for c in expected]
        assert source.offers == 2
        assert engine.metrics()["cluster/sync_bytes"] == sum(p.numel() * 4 for _, p in source.model.trainable())


def pids(engine):
    return [where.pid for _, where in sorted(engine.actors.whereabouts().items())]


class Slow(TransformersEngine):
    """Takes long enough for a token to be disturbed."""

    @contextlib.contextmanager
    def open(self, on_tokens=None, *, turns=False):
        def slowly(tokens):
            time.sleep(0.06)
            on_tokens(tokens)

        with super().open(slowly, turns=turns) as decoding:
            yield decoding


def load_slow():
    model = tiny_llama(seed=7)
    return Policy(model, Chat(), Slow(model, STOP))


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_what_a_lost_sampler_had_is_sampled_again_to_the_same_bits(cluster, trainer, sign):
    with SamplerGroup(2, load_slow, trainer, timeout_s=10.0) as engine:

        def played(disturb):
            """Two turns of several conversations, as `lockstep` samples them."""
            said = []
            with engine.open(turns=True) as decoding:
                requests = dict(enumerate(REQUESTS))
                for turn in range(2):
                    for number, request in requests.items():
                        decoding.add(number, request)
                    done, steps = {}, 0
                    while len(done) < len(requests):
                        done |= decoding.step()
                        steps += 1
                        if disturb and turn == 1 and steps == 1:
                            os.kill(pids(engine)[1], sign)
                    said += [done[number] for number in sorted(done)]
                    requests = {
                        number + 100: replace(request, token_ids=(*request.token_ids, *done[number].token_ids, 5, 9))
                        for number, request in requests.items()
                    }
            return said

        undisturbed = played(False)
        assert played(True) == undisturbed and engine.replaced == 1
        assert played(False) == undisturbed and engine.replaced == 1


def test_a_sampler_that_is_lost_between_two_batches_is_replaced(cluster, trainer):
    with SamplerGroup(2, load, trainer) as engine:
        expected = engine.generate(REQUESTS)
        os.kill(pids(engine)[0], signal.SIGKILL)
        assert engine.generate(REQUESTS) == expected and engine.replaced == 1


class Unopened(TransformersEngine):
    def open(self, on_tokens=None, *, turns=False):
        raise MemoryError("no room for the cache")


def load_unopened():
    model = tiny_llama()
    return Policy(model, Chat(), Unopened(model, STOP))


def test_what_fails_when_an_engine_is_opened_is_said(cluster, trainer):
    with SamplerGroup(1, load_unopened, trainer) as engine, pytest.raises(MemoryError, match="no room for the cache"):
        engine.generate(REQUESTS)


class Short(TransformersEngine):
    """Answers with a logprob too few, once in each process."""

    def open(self, on_tokens=None, *, turns=False):
        def generate(requests, count):
            found = TransformersEngine(self._model, STOP).generate(requests, count)
            return [replace(c, logprobs=c.logprobs[1:]) for c in found]

        return contextlib.nullcontext(Batches(generate, on_tokens))


def load_short():
    model = tiny_llama()
    return Policy(model, Chat(), Short(model, STOP))


def test_a_sampler_that_answers_wrong_lengths_again_and_again_is_an_error(cluster, trainer, monkeypatch):
    monkeypatch.setattr(samplers, "LOSSES", 1)
    with (
        SamplerGroup(1, load_short, trainer) as engine,
        pytest.raises(EngineError, match=r"2 samplers were lost .*; the last: sampler 0 answered with \d+ tokens and"),
    ):
        engine.generate(REQUESTS)


def test_what_a_request_gets_wrong_is_raised_as_it_is(group):
    with pytest.raises(UserError, match="empty prompt"):
        group.generate([Request((), Sampling(3))])


def test_a_sampler_refuses_another_version_than_it_has(group):
    group.generate(REQUESTS[:1])
    group.actors.call(0, "begin", False)
    call = {0: group.actors.call(0, "exchange", "another", [(1, REQUESTS[0])], [])}
    with pytest.raises(EngineError, match="this sampler has the weights seed 0, not another"):
        group.actors.collect(call, 30)[0].result()


def test_after_the_end_there_is_nobody_to_ask(cluster, trainer):
    with SamplerGroup(1, load, trainer) as engine:
        (pid,) = pids(engine)
    with pytest.raises(EngineError, match="have been stopped"):
        engine.generate(REQUESTS)
    assert_gone(pid)


def assert_gone(pid):
    for _ in range(100):
        if not os.path.exists(f"/proc/{pid}"):
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} is still there")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda named: named[1:], "all but 1 weights, such as 'model.embed_tokens.weight'"),
        (lambda named: [*named, ("more", torch.zeros(2))], r"'more', \[2\] in torch.float32; here is no such weight"),
        (lambda named: [(n, w[:1]) for n, w in named], r"here is \[\d+, \d+\] in torch.float32"),
        (lambda named: [(n, w.double()) for n, w in named], "in torch.float64; here is .* in torch.float32"),
    ],
    ids=["one is missing", "one too many", "other shapes", "another format"],
)
def test_weights_that_are_not_the_models_are_refused(change, says):
    model = tiny_llama()
    named = [(name, weight.detach().clone()) for name, weight in tiny_llama(seed=1).trainable()]
    with pytest.raises(EngineError, match=says):
        load_weights(model, iter(change(named)))


def sockets(pid):
    """The ends of all TCP sockets of a process and those that it has started; of listening ones their own."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for socket in process.net_connections("tcp"):
                    found |= {end.ip for end in (socket.laddr, socket.raddr) if end}
    return found


def test_no_socket_of_a_local_cluster_can_be_reached_from_outside():
    """A cluster of its own, with all kinds of processes; nothing is asked of the outside either."""
    seen = set()
    run = subprocess.Popen([sys.executable, "-c", OWN_CLUSTER], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
    while run.poll() is None:
        seen |= sockets(run.pid)
        time.sleep(0.02)
    assert run.stdout.read().decode().split()[-1:] == ["sampled"]
    assert "127.0.0.1" in seen and seen <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


OWN_CLUSTER = """
import functools
from posttrain.distributed.cluster import connect
from posttrain.distributed.samplers import SamplerGroup
from posttrain.distributed.trainers import LearnerGroup, RankActors
from tests.distributed.test_learner_group import built
from tests.distributed.test_samplers import REQUESTS, load
connect(cpus=3)
with RankActors(2) as ranks:
    learner = LearnerGroup(ranks, functools.partial(built, tokens=12))
    with SamplerGroup(1, load, learner) as engine:
        engine.generate(REQUESTS)
        print("sampled")
"""
