"""What one client does leaves room for others: turns, connections, bodies, results, keys, and what is kept on disk."""

import contextlib
import errno
import os
import socket
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("tinker", reason="needs the extra server")

import httpx
import zstandard
from starlette.exceptions import HTTPException

from posttrain.errors import UserError
from posttrain.serving import access, http_server, run, training_routes, wire
from posttrain.serving.access import Keys, Limits, Sessions
from posttrain.serving.app import create_app
from posttrain.serving.checkpoints import Sampler, Samplers
from posttrain.serving.guard import Pending
from posttrain.serving.http_server import LOG_LINES, Connections, Few
from posttrain.serving.run import Entry, Futures, Run
from posttrain.serving.services import Services, Worker
from tests.serving.plain_client import ADAM, Client, same, weights
from tests.serving.serving import KEY, NAME, serving
from tests.serving.test_guard import PROTOBUF, batch, http, model_of, post, wait


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr("posttrain.serving.app.HOLD_SECONDS", 0.3)


# Turns


def test_a_small_request_waits_for_one_slice_of_each_other_client():
    worker, done, ended = Worker(SimpleNamespace(busy=False), print), [], threading.Event()

    def long(name):
        for _ in range(5):
            done.append(name)
            yield

    worker.submit(lambda: long("a"), "a")
    worker.submit(lambda: done.append("a, next"), "a")
    worker.submit(lambda: long("b"), "b")
    worker.submit(lambda: done.append("small"), "c")
    worker.submit(lambda: done.append("second"), "c")
    worker.submit(ended.set, "c")
    worker.start()
    assert ended.wait(10)
    worker.close()
    assert done[:5] == ["a", "b", "small", "a", "b"] and done.index("second") <= 6


def test_gradients_in_slices_are_those_of_each_alone_and_others_come_between(base, tmp_path, monkeypatch):
    """One datum is a slice: of two clients that take turns each gets the bits that it gets alone."""
    expected, finish = [], Run.finish
    for number in range(2):
        with serving(base, tmp_path / str(number), microbatch_tokens=4) as (url, services):
            client = Client(url)
            model = client.create(seed=number)
            answer = client.result(client.gradient(model, 1, shift=number))
            client.result(client.step(model, 2))
            path = client.result(client.save(model, 3, "end"))["path"]
            expected.append((answer, weights(services, path)))
    with serving(base, tmp_path / "both", microbatch_tokens=4) as (url, services):
        client, held = Client(url), threading.Event()
        models = [client.create(seed=number) for number in range(2)]
        small = client.create(seed=5)
        slices, learners = [], [services.runs.get("", model).trainer.learner for model in models]
        for number, learner in enumerate(learners):
            real = learner.forward_backward
            monkeypatch.setattr(
                learner, "forward_backward", lambda *words, n=number, f=real: (slices.append(n), f(*words))[1]
            )
        monkeypatch.setattr(
            Run, "finish", lambda journal, *told: (slices.append(journal.folder.name[:4]), finish(journal, *told))
        )
        services.worker.submit(lambda: held.wait(30) and None)
        ids = [client.gradient(model, 1, shift=number) for number, model in enumerate(models)]
        asked = client.step(small, 1)
        steps = [client.step(model, 2) for model in models]
        held.set()
        found = [client.result(each) for each in ids]
        client.result(asked)
        [client.result(each) for each in steps]
        order = [each for each in slices if each in (0, 1, small[:4])]
        assert order[:5] == [0, 1, small[:4], 0, 1]
        for number, model in enumerate(models):
            path = client.result(client.save(model, 3, "end"))["path"]
            assert found[number] == expected[number][0] and same(weights(services, path), expected[number][1])


# Connections


class Line:
    """A connection, as the table sees it."""

    def __init__(self, peer, answering=False):
        self.peer, self.answering, self.owner, self.closed = peer, answering, None, False
        self.transport = SimpleNamespace(abort=lambda: setattr(self, "closed", True), is_closing=lambda: self.closed)


def test_idle_connections_without_a_key_make_room_and_those_with_one_do_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(http_server, "time", SimpleNamespace(monotonic=lambda: now[0]))
    table = Connections(16)  # 2 of a peer without a key, 8 of a key
    keyed = [Line("a") for _ in range(8)]
    assert all(table.admit(line) and table.belongs(line, "alice") for line in keyed)
    ninth = Line("a")
    assert table.admit(ninth) and not table.belongs(ninth, "alice") and table.belongs(ninth, "bob")
    hostile = [Line("h") for _ in range(7)]
    assert [table.admit(line) for line in hostile] == [True] * 7  # at first it is not known whose they are
    new = Line("b")
    assert not table.admit(new)
    now[0] += 2
    assert table.admit(new) and [line.closed for line in hostile] == [True] + [False] * 6
    again = Line("h")
    hostile[1].answering = True
    assert table.admit(again) and [line.closed for line in hostile[:4]] == [True, False, True, False]
    assert not any(line.closed for line in (*keyed, ninth))
    table.forget(keyed[0])
    assert table.admit(Line("c"))


@contextlib.contextmanager
def real_server(base, store, **settings):
    services = Services(store, base)
    listener = socket.create_server(("127.0.0.1", 0))
    server = http_server.http_server(create_app(services), listener, timeout_graceful_shutdown=1, **settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()
    server.should_exit = True
    thread.join(10)


def test_a_client_with_a_key_is_answered_beside_more_idle_connections_than_there_may_be(base, tmp_path, monkeypatch):
    with real_server(base, tmp_path, connections=16) as address:
        idle = [socket.create_connection(address) for _ in range(16)]
        refused = socket.create_connection(address)
        refused.settimeout(10)
        assert refused.recv(1000).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n")
        monkeypatch.setattr(http_server, "NEW_SECONDS", 0.0)
        client = httpx.Client(base_url=f"http://127.0.0.1:{address[1]}/api/v1", headers={"X-API-Key": KEY})
        assert [client.get("healthz").status_code for _ in range(3)] == [200] * 3
        for line in idle:
            line.close()


def test_lines_of_the_log_are_few_in_a_minute():
    few = Few()
    assert [few.filter(None) for _ in range(LOG_LINES + 3)] == [True] * LOG_LINES + [False] * 3


# Bodies


def test_a_small_frame_with_many_parts_is_refused_before_it_is_parsed(base, tmp_path):
    frame = zstandard.ZstdCompressor().compress(b"\x1a\x00" * 2**24)  # 2^24 datums, of nothing
    assert len(frame) < 4096
    with serving(base, tmp_path) as (url, _):
        answer = http(url).post("forward_backward", content=frame, headers=PROTOBUF | {"Content-Encoding": "zstd"})
        assert answer.status_code == 413 and "fields" in answer.text


@pytest.mark.parametrize("nested", [False, True])
def test_parts_are_counted_at_every_depth_and_numbers_of_lists(nested):
    message = batch("x", count=1)
    if nested:
        for _ in range(wire.MOST_PARTS):
            message.data[0].model_input.add()
    else:
        message.data[0].loss_fn_inputs["target_tokens"].shape.extend([1] * wire.MOST_PARTS)
    with pytest.raises(HTTPException, match=r"413: .*fields and sizes"):
        wire.read_forward_backward(message.SerializeToString())
    assert len(wire.read_forward_backward(batch("x", count=1024).SerializeToString()).data) == 1024


@pytest.mark.parametrize("body", [b"\x1a\xff", b"\x1a\x05\x00", b"\x0b", b"\xff" * 20])
def test_a_body_that_is_none_is_told_so(body):
    with pytest.raises(UserError, match="no ForwardBackwardRequest"):
        wire.read_forward_backward(body)


def test_of_each_client_one_body_at_a_time_is_read(base, tmp_path, monkeypatch):
    reading, most, both = 0, 0, threading.Barrier(2, timeout=60)

    def read(body):
        nonlocal reading, most
        reading, most = reading + 1, max(most, reading + 1)
        if body in (b"first", b"other"):  # each until the other client's is read, too
            both.wait()
        reading -= 1
        raise UserError("read")

    monkeypatch.setattr(training_routes, "read_forward_backward", read)
    with serving(base, tmp_path) as (url, services):
        keys = [services.keys.add("alice")] * 3 + [services.keys.add("bob")]
        bodies = [b"first", b"second", b"third", b"other"]

        def send(number):
            return http(url, keys[number]).post("forward_backward", content=bodies[number], headers=PROTOBUF).text

        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(send, range(4)))
    assert all("read" in text for text in told) and most == 2


def test_bodies_that_are_received_at_the_same_time_are_bounded(base, tmp_path):
    limits = Limits(bodies_per_key=10_000, bodies_bytes=15_000)
    with serving(base, tmp_path, limits=limits) as (url, services):
        alice, bob = (services.keys.add(name) for name in ("alice", "bob"))
        slow = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        head = f"POST /api/v1/forward_backward HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {alice}\r\n"
        slow.sendall((head + "Content-Type: application/x-protobuf\r\nContent-Length: 9000\r\n\r\nab").encode())
        time.sleep(0.3)
        body = b"x" * 7000
        for key, status in ((alice, 429), (bob, 503)):
            answer = http(url, key).post("forward_backward", content=body, headers=PROTOBUF)
            assert (answer.status_code, answer.headers["retry-after"]) == (status, "1")
        slow.close()
        until = time.monotonic() + 10
        while answer.status_code != 400 and time.monotonic() < until:
            answer = http(url, bob).post("forward_backward", content=body, headers=PROTOBUF)
        assert answer.status_code == 400  # it is read, and is nothing


def test_of_all_together_so_much_waits():
    pending = Pending(10, 15)
    pending.enter("a", 10)
    for owner, amount, status in (("a", 1, 429), ("b", 6, 503)):
        with pytest.raises(HTTPException) as refused:
            pending.enter(owner, amount)
        assert refused.value.status_code == status
    pending.enter("b", 5)
    pending.leave("a", 10)
    pending.enter("c", 10)


def test_a_body_in_json_may_be_smaller_than_one_in_protobuf(base, tmp_path):
    with serving(base, tmp_path, limits=Limits(json_bytes=1000)) as (url, _):
        client = http(url)
        assert client.post("create_session", content=b" " * 1001).status_code == 413
        assert client.post("forward_backward", content=b" " * 1001, headers=PROTOBUF).status_code == 400


# Results


def test_a_result_costs_no_look_at_all_others(monkeypatch):
    class Unread(OrderedDict):
        def items(self):
            raise AssertionError("all results were looked at")

        values = __iter__ = items

    monkeypatch.setattr(run, "KEPT_BYTES", 100 * 1024)
    found = Futures()
    found._done = Unread()
    for number in range(1000):
        found.finish(str(number), Entry("x", bytes(512)))
    assert len(found._done) == 100 and found.known("999") and not found.known("899")


# Keys and models


def test_keys_that_are_made_and_ended_at_the_same_time_are_all_there_or_gone(tmp_path):
    path = tmp_path / "keys.json"
    for number in range(5):
        before = [f"old{number}.{i}" for i in range(4)]
        for name in before:
            Keys(path).add(name)
        names = [f"new{number}.{i}" for i in range(4)]
        changes = [lambda n=name: Keys(path).add(n) for name in names]
        changes += [lambda n=name: Keys(path).remove(n) for name in before]
        threads = [threading.Thread(target=change) for change in changes]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert {name for name in Keys(path).owners() if str(number) in name.partition(".")[0]} == set(names)


def test_a_step_whose_weights_are_not_finite_is_refused_and_has_no_effect(base, tmp_path):
    found = []
    for wrong in (False, True):
        with serving(base, tmp_path / str(wrong)) as (url, services):
            client = Client(url)
            model, seq = client.create(), 1
            client.result(client.gradient(model, seq))
            client.result(client.step(model, seq := seq + 1))
            if wrong:
                client.gradient(model, seq := seq + 1)
                body = {"model_id": model, "seq_id": (seq := seq + 1), "adam_params": ADAM | {"learning_rate": 1e39}}
                told = client.raw(client.post("optim_step", **body)["request_id"])
                assert "not finite" in told["error"] and told["category"] == "user"
            client.gradient(model, seq := seq + 1, shift=3)
            client.result(client.step(model, seq := seq + 1))
            found.append(weights(services, client.result(client.save(model, seq + 1, "end"))["path"]))
    assert same(*found)


def test_a_full_disk_is_507_and_a_line(base, tmp_path, monkeypatch):
    said = []
    with serving(base, tmp_path, report=said.append) as (url, _):

        def full(path, content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(access, "write_json", full)
        answer = post(http(url), "create_session")
        assert answer.status_code == 507 and "disk is full" in answer.json()["error"]
    assert len(said) == 1 and said[0].startswith("/api/v1/create_session: ")


# What is kept


def test_sessions_are_bounded_and_those_whose_clients_are_gone_make_room(tmp_path, monkeypatch):
    kept = Sessions(tmp_path, 2)
    first, second, other = kept.create("a"), kept.create("a"), kept.create("b")
    with pytest.raises(UserError, match="may have 2 sessions"):
        kept.create("a")
    kept.hear(second, 0.0)  # it has ended
    third = kept.create("a")
    os.utime(tmp_path / f"{first}.json", (1, 1))
    again = Sessions(tmp_path, 2)
    assert again.check("a", third) and again.check("b", other) and again.check("a", first)
    again.create("a")
    for gone in (first, second):
        with pytest.raises(UserError, match="no session"):
            again.check("a", gone)
    assert len(os.listdir(tmp_path)) == 3


def test_the_latest_samplers_of_a_key_are_kept(tmp_path):
    kept = Samplers(tmp_path / "samplers", tmp_path, 2)
    for number in range(4):
        kept.add(Sampler(f"{'0' * 32}:sample:{number}", "a", "base"))
        os.utime(kept._path(f"{'0' * 32}:sample:{number}"), (number, number))
    for each in (kept, Samplers(tmp_path / "samplers", tmp_path, 2)):
        assert each.get("a", f"{'0' * 32}:sample:3") and each.get("a", f"{'0' * 32}:sample:2")
        with pytest.raises(UserError, match="no sampler"):
            each.get("a", f"{'0' * 32}:sample:1")
        with pytest.raises(UserError, match="no sampler"):
            each.get("b", f"{'0' * 32}:sample:3")
    assert len(os.listdir(tmp_path / "samplers")) == 2


def test_folders_of_models_that_have_ended_are_deleted_but_those_with_checkpoints(base, tmp_path):
    with serving(base, tmp_path, limits=Limits(ended_per_key=2)) as (url, services):
        client = http(url)
        models = []
        for number in range(4):
            models.append(model_of(client))
            if number == 0:
                wait(client, post(client, "save_weights", model_id=models[0], seq_id=1, path="a"))
            wait(client, post(client, "unload_model", model_id=models[-1]))
        assert len(os.listdir(services.models)) == 2
        assert post(client, "weights_info", tinker_path=f"tinker://{models[0]}/weights/a").status_code == 200
        assert client.get(f"training_runs/{models[1]}/checkpoints").status_code == 400
        session = post(client, "create_session").json()["session_id"]
        body = {"session_id": session, "base_model": NAME, "lora_config": {"rank": 2}}
        wait(client, post(client, "create_model", model_seq_id=0, **body))
        wait(client, post(client, "save_weights", model_id=f"{session}:train:0", seq_id=1, path="a"))
        wait(client, post(client, "unload_model", model_id=f"{session}:train:0"))
        refused = post(client, "create_model", model_seq_id=1, **body)
        assert refused.status_code == 400 and "checkpoints of 2 models that have ended" in refused.text
