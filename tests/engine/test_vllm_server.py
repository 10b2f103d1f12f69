"""A vLLM server as engine, played by the embedded engine behind vLLM's routes (the real one: `make test-vllm`)."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from posttrain.engine import vllm_server
from posttrain.engine.engine import Subject, check_engine
from posttrain.engine.policy import load_policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.engine.vllm_server import VLLMServer
from posttrain.engine.weight_channel import received
from posttrain.errors import EngineError, UserError
from posttrain.types import Request, Sampling, StopReason
from tests.engine.test_transformers import PROMPTS, decode, own_logprobs
from tests.tiny import CONTEXT, STOP, tiny_llama


class Played:
    """What vLLM's server does, on weights that it has been sent."""

    def __init__(self) -> None:
        self.model = tiny_llama(seed=7)
        self.engine, self.lock = TransformersEngine(self.model, STOP), threading.Lock()
        self.version, self.taken, self.mode = "none", 0, "processed_logprobs"
        self.held: dict[int, threading.Event] = {}  # by the request's seed: answers wait for it
        self.asked: list[int] = []
        self.under_way = 0
        self.drip_s = 0.0  # between two bytes of an answer

    def answer(self, path, body):
        if path.startswith("/server_info"):
            about = {"logprobs_mode": self.mode, "dtype": "torch.float32", "max_model_len": CONTEXT}
            return {"vllm_config": {"model_config": about}}
        if path == "/collective_rpc":
            host, port, key = body["args"]
            with torch.no_grad():
                own, count = dict(self.model.weights()), 0
                for name, weight in received(host, int(port), key):
                    own[name].copy_(weight)
                    count += 1
            self.taken += 1
            return {"results": [{"weights": count}]}
        if path == "/reset_prefix_cache":
            return {"success": not self.under_way}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        return self.sampled(body) if path == "/inference/v1/generate" else {}

    def sampled(self, body):
        settings = body["sampling_params"]
        self.asked.append(settings["seed"])
        self.under_way += 1
        if wait := self.held.get(settings["seed"]):
            assert wait.wait(60)
        words = {name: settings[name] for name in ("temperature", "top_k", "top_p")}
        ids = tuple(body["token_ids"])
        request = Request(ids, Sampling(settings["max_tokens"], **words), settings["seed"])
        places = None
        with self.lock:
            (said,) = self.engine.generate([request])
            if settings["prompt_logprobs"] and len(ids) > 1:
                (own,) = self.engine.generate([replace(request, scored_from=1)])
                places = [None, *({str(t): {"logprob": v}} for t, v in zip(ids[1:], own.scored, strict=True))]
            self.under_way -= 1
        content = [{"logprob": logprob} for logprob in said.logprobs]
        versions = [{"version": self.version}]
        choice = {"token_ids": said.token_ids, "logprobs": {"content": content}, "weight_versions": versions}
        return {"choices": [choice], "prompt_logprobs": places}


@pytest.fixture
def played() -> Iterator[Played]:
    found = Played()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/moved"):
                self.send_response(301)
                self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}{self.path[6:]}")
                self.end_headers()
                return
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            said = json.dumps(found.answer(self.path, body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            for at in range(0, len(said), 1 if found.drip_s else len(said)):
                self.wfile.write(said[at : at + (1 if found.drip_s else len(said))])
                time.sleep(found.drip_s)

        do_POST = do_GET

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256  # as many as ask at the same time

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()


@pytest.fixture
def made(played):
    return partial(VLLMServer, stop_ids=STOP, url=played.url)


def test_it_keeps_to_the_kit(made):
    model = tiny_llama()
    engine = made(model, decode=decode)
    assert check_engine(Subject(engine, own_logprobs(model), STOP, CONTEXT, PROMPTS, decode=decode)) == []


def test_requests_with_a_stop_string_are_sampled_in_slices(played, made, monkeypatch):
    """A server of tokens alone knows no stop strings; what comes after one is sampled to the end of its slice."""
    monkeypatch.setattr(vllm_server, "SLICE", 3)
    engine = made(tiny_llama(seed=7), decode=decode)
    (whole,) = engine.generate([Request(PROMPTS[0], Sampling(12, temperature=3.0, stop=("never",)), 0)])
    assert played.asked[0] == 0 and len(set(played.asked)) == len(played.asked) == 4 and len(whole.token_ids) == 12
    played.asked.clear()
    stop = decode(whole.token_ids[2:5])[1:-1]
    (found,) = engine.generate([Request(PROMPTS[0], Sampling(12, temperature=3.0, stop=(stop,)), 0)])
    assert (found.token_ids, found.logprobs) == (whole.token_ids[:5], whole.logprobs[:5]) and len(played.asked) == 2
    assert (found.stop_reason, whole.stop_reason) == (StopReason.STOP, StopReason.LENGTH)
    (full,) = engine.generate([Request((7,) * (CONTEXT - 4), Sampling(12, temperature=3.0, stop=("never",)), 0)])
    assert len(full.token_ids) == 4 and full.stop_reason is StopReason.CONTEXT


def test_weights_are_sent_when_they_have_changed_and_only_then(made, played):
    model = tiny_llama()
    engine, requests = made(model), [Request(PROMPTS[0], Sampling(8), seed) for seed in range(3)]
    assert [c.token_ids for c in engine.generate(requests)] == [
        c.token_ids for c in TransformersEngine(model, STOP).generate(requests)
    ]
    before = played.version
    engine.generate(requests)
    assert (played.taken, played.version) == (1, before)
    with torch.no_grad():
        model.head.mul_(1.5)
    engine.generate(requests)
    assert played.taken == 2 and played.version != before


def ends(decoding, *numbers):
    """What ends next, these alone."""
    found = {}
    while len(found) < len(numbers):
        found |= decoding.step()
    assert set(found) == set(numbers)
    return found


def test_requests_join_leave_and_are_cancelled_while_others_are_sampled(made, played):
    tokens: list[int] = []
    played.held = {1: threading.Event(), 2: threading.Event()}
    with made(tiny_llama()).open(tokens.append) as decoding:
        for number in range(3):
            decoding.add(number, Request(PROMPTS[0], Sampling(4), number))
        first = ends(decoding, 0)[0]
        assert decoding.step() == {}  # the others are still under way
        decoding.cancel(2)
        decoding.add(3, Request(PROMPTS[1], Sampling(4), 3))
        third = ends(decoding, 3)[3]
        played.held[1].set()
        second = ends(decoding, 1)[1]
        played.held[2].set()
        assert decoding.step() == {}
    assert sum(tokens) == sum(len(each.token_ids) for each in (first, second, third))


def test_what_waits_for_a_thread_is_never_asked_once_it_is_cancelled(made, played):
    played.held = {0: threading.Event()}
    engine = made(tiny_llama(), max_sequences=1)
    with engine.open() as decoding:
        decoding.add(0, Request(PROMPTS[0], Sampling(4), 0))
        decoding.add(1, Request(PROMPTS[0], Sampling(4), 1))
    played.held[0].set()
    engine.generate([Request(PROMPTS[0], Sampling(4), 2)])
    assert played.asked == [0, 2]


def test_no_weights_are_sent_while_the_server_samples_what_was_cancelled(made, played):
    """It would keep the keys of the old weights, and take them for those of the new."""
    model = tiny_llama()
    engine, held = made(model), threading.Event()
    played.held = {0: held}
    with engine.open() as decoding:
        decoding.add(0, Request(PROMPTS[0], Sampling(4), 0))
        while not played.under_way:
            decoding.step()
    with torch.no_grad():
        model.head.mul_(1.5)
    later = threading.Timer(0.5, held.set)
    later.start()
    with engine.open():
        assert held.is_set() and played.taken == 2
    played.under_way = 1
    engine._pushed = ()
    with pytest.raises(EngineError, match="samples for somebody else"):
        engine.generate([Request(PROMPTS[0], Sampling(4), 1)])


def test_answers_from_other_weights_and_unknown_requests_are_errors(made, played):
    one, other = made(tiny_llama()), made(tiny_llama(seed=3))
    request = Request(PROMPTS[0], Sampling(4))
    one.generate([request])
    other.generate([request])
    with pytest.raises(EngineError, match="does somebody else train with it"):
        one.generate([request])
    with one.open() as decoding, pytest.raises(UserError, match="empty prompt"):
        decoding.add(0, Request((), Sampling(4)))


def test_a_server_that_computes_something_else_is_refused(made, played):
    with pytest.raises(UserError, match="in float32 and the policy in bfloat16"):
        made(tiny_llama(dtype=torch.bfloat16))
    played.mode = "raw_logprobs"
    with pytest.raises(UserError, match="leave out the temperature"):
        made(tiny_llama())


def test_a_server_that_redirects_is_refused_and_says_where_to(played):
    where = rf"{played.url}/moved redirects to {played.url}/server_info; .* `engine=URL`$"
    with pytest.raises(EngineError, match=where):
        VLLMServer(tiny_llama(), STOP, url=f"{played.url}/moved")


def test_the_time_limit_is_that_of_the_whole_answer(made, played, monkeypatch):
    model = tiny_llama()
    engine = made(model)
    monkeypatch.setattr(vllm_server, "TIMEOUT", 0.5)
    played.drip_s = 0.1
    with pytest.raises(EngineError, match=r"has not answered /\S+ within 0.5 s"), engine.open():
        pass


def test_a_server_that_is_gone_is_an_error_that_says_how_to_start_one(made, played, monkeypatch):
    engine = made(tiny_llama())

    def refused(*given, **more):
        raise ConnectionRefusedError("refused")

    with engine.open() as decoding:
        monkeypatch.setattr("urllib.request.urlopen", refused)
        decoding.add(0, Request(PROMPTS[0], Sampling(4)))
        with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1 vllm serve"):
            ends(decoding, 0)


def test_one_process_has_one_server():
    with pytest.raises(UserError, match="`engine` names 2 servers, and one process has one"):
        load_policy("", engine="http://a:1 http://b:1")
