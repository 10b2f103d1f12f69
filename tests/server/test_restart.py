"""What a server that was killed leaves, and what the next one makes of it: the bits of one that was not."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the extra server")

import httpx
import torch
from tinker.proto import tinker_public_pb2 as pb

from posttrain.server import checkpoints
from posttrain.server.services import open_services
from posttrain.server.trainer import WEIGHTS
from posttrain.training.checkpoint import load_tensors
from tests.server.serving import KEY, NAME, serving

ADAM = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0, "grad_clip_norm": 0.0}


def batch(model_id, seq, *, shift=0, forward_only=False):
    """A request of two sequences."""
    message = pb.ForwardBackwardRequest(model_id=model_id, seq_id=seq, loss_fn="cross_entropy")
    message.forward_only = forward_only
    for first in (5 + shift, 20 + shift):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.arange(first, first + 4, dtype=np.int32).tobytes()
        targets = datum.loss_fn_inputs["target_tokens"]
        targets.dtype, targets.dense = pb.DTYPE_INT64, np.arange(first + 1, first + 5, dtype=np.int64).tobytes()
        targets.shape.append(4)
    return message.SerializeToString()


class Client:
    """Plain requests, whose order and moments a test decides."""

    def __init__(self, url):
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-Key": KEY}, timeout=60)

    def post(self, route, **body):
        answer = self.http.post(route, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create(self, *, rank=4, seed=1, session=None, number=0):
        session = session or self.post("create_session")["session_id"]
        lora = {"rank": rank, "seed": seed}
        asked = self.post("create_model", session_id=session, model_seq_id=number, base_model=NAME, lora_config=lora)
        return self.result(asked["request_id"])["model_id"]

    def gradient(self, model, seq, **settings):
        body = batch(model, seq, **settings)
        answer = self.http.post("forward_backward", content=body, headers={"Content-Type": "application/x-protobuf"})
        assert answer.status_code == 200, answer.text
        return answer.json()["request_id"]

    def step(self, model, seq):
        return self.post("optim_step", model_id=model, seq_id=seq, adam_params=ADAM)["request_id"]

    def save(self, model, seq, name):
        return self.post("save_weights", model_id=model, seq_id=seq, path=name)["request_id"]

    def raw(self, request_id):
        while True:
            answer = self.http.post("retrieve_future", json={"request_id": request_id})
            assert answer.status_code == 200, answer.text
            if "protobuf" in answer.headers["content-type"]:
                return answer.content
            if answer.json().get("type") != "try_again":
                return answer.json()

    def result(self, request_id):
        found = self.raw(request_id)
        assert isinstance(found, bytes) or "error" not in found, found
        return found


def uninterrupted(base, store, steps=4):
    """Weights after some steps, the third of which is on two batches."""
    with serving(base, store) as (url, services):
        client = Client(url)
        model, seq = client.create(), 0
        for step in range(steps):
            for shift in (0, 3) if step == 2 else (step,):
                seq += 1
                client.gradient(model, seq, shift=shift)
            seq += 1
            client.step(model, seq)
        path = client.result(client.save(model, seq + 1, "end"))["path"]
        return weights(services, path)


def weights(services, path):
    saved = checkpoints.read(checkpoints.Address.of(path).folder(services.context.models))
    return load_tensors(saved.folder / WEIGHTS)


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("save_every", [1, 2, 10])
def test_a_client_goes_on_with_the_next_server_and_gets_the_same_bits(base, tmp_path, save_every):
    """The first ends with a gradient that no step has used; the state may be some steps old."""
    expected = uninterrupted(base, tmp_path / "whole")
    with serving(base, tmp_path / "cut", save_every=save_every) as (url, _):
        client = Client(url)
        model = client.create()
        for seq in (1, 3):
            client.gradient(model, seq, shift=seq // 2)
            client.step(model, seq + 1)
        first = client.result(client.gradient(model, 5, shift=0))
    with serving(base, tmp_path / "cut", save_every=save_every) as (url, services):
        client = Client(url)
        assert client.result(f"{model}:5") == first  # kept on disk
        client.gradient(model, 6, shift=3)
        client.step(model, 7)
        client.gradient(model, 8, shift=3)
        client.step(model, 9)
        found = weights(services, client.result(client.save(model, 10, "end"))["path"])
    assert same(found, expected)


def test_what_was_accepted_and_not_done_is_done_by_the_next_server(base, tmp_path):
    """The first server accepts requests and never computes, as if it had been killed at once."""
    expected = uninterrupted(base, tmp_path / "whole", steps=2)
    services = open_services(tmp_path / "cut", base)  # its worker is not started
    session = services.sessions.create("")
    model = f"{session}:train:0"
    from posttrain.server.base import Adapter
    from posttrain.server.journal import Entry

    services.runs.create(model, "", Adapter(4, 1), Entry("create", b"{}"))
    run = services.runs.get("", model)
    for seq, entry in [
        (3, Entry("forward_backward", batch(model, 3, shift=1))),  # out of order
        (1, Entry("forward_backward", batch(model, 1))),
        (2, Entry("optim_step", json.dumps(ADAM).encode())),
        (4, Entry("optim_step", json.dumps(ADAM).encode())),
    ]:
        services.runs.accept(run, seq, entry)
    services.lock.release()
    with serving(base, tmp_path / "cut") as (url, services):
        client = Client(url)
        assert client.result(f"{model}:4")["metrics"]
        found = weights(services, client.result(client.save(model, 5, "end"))["path"])
    assert same(found, expected)


def test_a_request_that_comes_twice_is_done_once(base, tmp_path):
    with serving(base, tmp_path) as (url, _):
        client = Client(url)
        models = [client.create(), client.create()]
        for number, model in enumerate(models):
            for _ in range(1 + number):
                client.gradient(model, 1)
            for _ in range(1 + number):
                client.step(model, 2)
        one, two = (client.result(client.gradient(model, 3, forward_only=True)) for model in models)
        assert one == two and one != client.result(f"{models[0]}:1")


def test_requests_are_done_in_the_order_of_their_numbers(base, tmp_path):
    with serving(base, tmp_path) as (url, _):
        client = Client(url)
        ordered, mixed = client.create(), client.create()
        client.gradient(ordered, 1)
        client.step(ordered, 2)
        client.gradient(ordered, 3, forward_only=True)
        client.gradient(mixed, 3, forward_only=True)
        client.step(mixed, 2)
        assert client.post("retrieve_future", request_id=f"{mixed}:2", hold=0)["type"] == "try_again"
        client.gradient(mixed, 1)
        assert client.result(f"{mixed}:3") == client.result(f"{ordered}:3")


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    """So that a request for a result that waits for another is answered soon."""
    monkeypatch.setattr("posttrain.server.app.HOLD_SECONDS", 0.3)


def test_a_poll_is_held_until_the_result_is_there(base, tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.server.app.HOLD_SECONDS", 20.0)
    with serving(base, tmp_path) as (url, _):
        client = Client(url)
        model = client.create()
        client.gradient(model, 2)
        import threading

        threading.Timer(1.0, lambda: Client(url).gradient(model, 1)).start()
        began = time.monotonic()
        assert isinstance(client.raw(f"{model}:2"), bytes)
        assert 0.9 < time.monotonic() - began < 10


def test_adapters_beyond_those_in_memory_come_back_from_disk_with_their_gradients(base, tmp_path):
    expected = {}
    for memory in (8, 1):
        with serving(base, tmp_path / str(memory), models_in_memory=memory) as (url, services):
            client = Client(url)
            models = [client.create(seed=seed) for seed in (1, 2, 3)]
            for seq in (1, 3):
                for shift, model in enumerate(models):
                    client.gradient(model, seq, shift=shift)
                for model in models:
                    client.step(model, seq + 1)
            paths = [client.result(client.save(model, 5, "end"))["path"] for model in models]
            for seed, path in enumerate(paths):
                found = weights(services, path)
                assert same(found, expected.setdefault(seed, found))
            in_memory = [run for run in services.runs._runs.values() if run.trainer is not None]
            assert len(in_memory) == min(memory, 3)


def test_a_damaged_checkpoint_is_refused_and_the_model_goes_on(base, tmp_path):
    with serving(base, tmp_path) as (url, services):
        client = Client(url)
        model = client.create()
        path = client.result(client.save(model, 1, "a"))["path"]
        file = checkpoints.read(checkpoints.Address.of(path).folder(services.context.models)).folder / WEIGHTS
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        asked = client.post("load_weights", model_id=model, seq_id=2, path=path, optimizer=True)
        assert "damaged" in client.raw(asked["request_id"])["error"]
        client.result(client.gradient(model, 3))


def test_two_servers_do_not_share_a_folder(base, tmp_path):
    from posttrain.errors import UserError

    with serving(base, tmp_path), pytest.raises(UserError, match="another server"):
        open_services(tmp_path, base)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder, store, port):
    """The command itself, in a process of its own."""
    words = ["server", "--model", str(folder), "--served-name", NAME, "--precision", "float32", "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "posttrain", *words, "--store", str(store)], env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", headers={"X-API-Key": KEY})
            return process
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_a_server_that_is_killed_at_any_moment_leaves_what_the_next_one_goes_on_from(base, folder, tmp_path):
    """SIGKILL after 0.05 to 0.4 s of requests, three times; the client sends again what it got no result of."""
    expected = uninterrupted(base, tmp_path / "whole")
    steps = [(0,), (1,), (0, 3), (3,)]
    asked = [kind for shifts in steps for kind in (*[("gradient", shift) for shift in shifts], ("step", 0))]
    port, model, done = free_port(), "", 0
    delays = iter([0.05, 0.2, 0.4])
    while True:
        process = start(folder, tmp_path / "cut", port)
        delay = next(delays, None)
        try:
            client = Client(f"http://127.0.0.1:{port}")
            model = model or client.create()
            if delay is not None:
                import threading

                threading.Timer(delay, lambda pid=process.pid: os.kill(pid, signal.SIGKILL)).start()
            for seq in range(done + 1, len(asked) + 1):  # all at once, as the SDK does
                kind, shift = asked[seq - 1]
                client.gradient(model, seq, shift=shift) if kind == "gradient" else client.step(model, seq)
            for seq in range(done + 1, len(asked) + 1):
                client.result(f"{model}:{seq}")
                done = seq
                if delay is not None:
                    time.sleep(0.03)
            if delay is None:
                path = client.result(client.save(model, len(asked) + 1, "end"))["path"]
                break
        except httpx.TransportError:
            pass
        finally:
            process.kill()
            process.wait()
    saved = checkpoints.read(checkpoints.Address.of(path).folder(tmp_path / "cut" / "models"))
    assert same(load_tensors(saved.folder / WEIGHTS), expected)
