"""Samplers of several processes keep to the kit of engines, sample from the right weights, and survive losses."""

import contextlib
import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from posttrain.engine.engine import check_engine
from posttrain.engine.policy import Policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import EngineError, UserError
from posttrain.types import Request, Sampling
from tests.distributed.fakes import pids
from tests.engine.test_transformers import PROMPTS, decode, own_logprobs, subject
from tests.tiny import STOP, tiny_llama

pytest.importorskip("ray")

from posttrain.distributed.broadcast import Offer, offered
from posttrain.distributed.samplers import SamplerGroup, load_weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Chat:
    """What a sampler reads of a chat format."""

    stop_ids = STOP


def load():
    """A policy of other weights than the trainer's."""
    model = tiny_llama(seed=7)
    return Policy(model, Chat(), TransformersEngine(model, STOP, decode=decode))


class Trainer:
    """Has weights of a version, and counts how often they are asked for."""

    def __init__(self, seed=0):
        self.check = lambda: None
        self.model, self.version, self.offers = tiny_llama(seed=seed), f"seed {seed}", 0

    @contextlib.contextmanager
    def offered(self):
        self.offers += 1
        with offered(self.weights(), "127.0.0.1") as port:
            yield Offer(self.version, "127.0.0.1", port)

    def weights(self):
        return list(self.model.trainable())


@pytest.fixture(scope="module")
def trainer():
    return Trainer()


@pytest.fixture(params=[1, 2])
def group(shared_processes, request, trainer):
    with SamplerGroup(request.param, load, trainer) as engine:
        yield engine


REQUESTS = [Request(prompt, Sampling(12), seed) for prompt in PROMPTS for seed in range(4)]


def test_the_group_keeps_to_the_kit(group, trainer):
    here = subject(trainer.model)
    assert check_engine(replace(here, engine=group, own_logprobs=own_logprobs(trainer.model))) == []


def test_one_sampler_answers_with_the_bits_of_an_engine_in_this_process(group, trainer):
    here = TransformersEngine(trainer.model, STOP).generate(REQUESTS)
    there = group.generate(REQUESTS)
    assert all(each.versions == ((0, trainer.version),) for each in there)
    there = [replace(each, versions=()) for each in there]
    assert [c.token_ids for c in there] == [c.token_ids for c in here]
    if group.size == 1:
        assert there == here


def test_new_weights_are_sent_once_and_sampled_from(shared_processes):
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
        found = engine.metrics()
        assert found["cluster/sync_bytes"] == sum(p.numel() * 4 for _, p in source.model.trainable())
        assert found["cluster/sync_seconds"] > 0
        nothing = engine.metrics()
        assert (nothing["cluster/sync_bytes"], nothing["cluster/sync_seconds"]) == (0, 0)


class Slow(TransformersEngine):
    """Takes long enough for a token to be disturbed."""

    @contextlib.contextmanager
    def open(self, on_tokens=None, *, turns=False):
        def slowly(tokens):
            time.sleep(0.03)
            on_tokens(tokens)

        with super().open(slowly, turns=turns) as decoding:
            yield decoding


def load_slow():
    model = tiny_llama(seed=7)
    return Policy(model, Chat(), Slow(model, STOP))


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_what_a_lost_sampler_had_is_sampled_again_to_the_same_bits(shared_processes, trainer, sign):
    with SamplerGroup(2, load_slow, trainer, timeout_s=15.0 if sign == signal.SIGSTOP else 60.0) as engine:

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


def test_a_sampler_that_is_lost_between_two_batches_is_replaced(shared_processes, trainer):
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


def test_what_fails_when_an_engine_is_opened_is_said(shared_processes, trainer):
    with SamplerGroup(1, load_unopened, trainer) as engine, pytest.raises(MemoryError, match="no room for the cache"):
        engine.generate(REQUESTS)


def test_what_a_request_gets_wrong_is_raised_as_it_is(group):
    with pytest.raises(UserError, match="empty prompt"):
        group.generate([Request((), Sampling(3))])


def test_a_sampler_refuses_another_version_than_it_has(group):
    group.generate(REQUESTS[:1])
    group.call(0, "begin", False)
    with pytest.raises(EngineError, match="this sampler has weights of version 'seed 0', not 'another'"):
        group.ask(0, "exchange", "another", [(1, REQUESTS[0])], [])


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
        (lambda named: named[1:], "left out 1 weights of the sampler, such as 'model.embed_tokens.weight'"),
        (
            lambda named: [*named, ("more", torch.zeros(2))],
            r"'more', \[2\] in torch.float32; the sampler has none of that name",
        ),
        (lambda named: [(n, w[:1]) for n, w in named], r"the sampler has \[\d+, \d+\] in torch.float32"),
        (lambda named: [(n, w.double()) for n, w in named], "in torch.float64; the sampler has .* in torch.float32"),
    ],
    ids=["one is missing", "one too many", "other shapes", "another format"],
)
def test_weights_that_are_not_the_models_are_refused(change, says):
    model = tiny_llama()
    named = [(name, weight.detach().clone()) for name, weight in tiny_llama(seed=1).trainable()]
    with pytest.raises(EngineError, match=says):
        load_weights(model, iter(change(named)))
