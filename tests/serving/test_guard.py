"""Who may ask, from where, how much: all of it by plain requests, since the SDK asks for nothing wrong."""

import hashlib
import json
import os
import socket
import stat
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the extra server")

import httpx
import zstandard
from starlette.exceptions import HTTPException
from tinker.proto import tinker_public_pb2 as pb

from posttrain.errors import UserError
from posttrain.options.services import Server
from posttrain.recipes import server as serve
from posttrain.recipes.server import refuse_open_door, run
from posttrain.serving.access import OVERHEAD, Keys, Limits
from posttrain.serving.files import checked_name, read_json, write_json
from posttrain.serving.guard import Pending
from tests.serving.serving import KEY, NAME, serving

PROTOBUF = {"Content-Type": "application/x-protobuf"}
LIMITS = Limits(
    models_per_key=2,
    checkpoints_per_model=2,
    unnamed_per_model=2,
    body_bytes=20_000,
    tokens_per_request=150,
    data_per_request=3,
    pending_per_key=3,
    backlog_per_key=5 * OVERHEAD,
    max_rank=8,
    body_seconds=30.0,
)


@pytest.fixture
def server(base, tmp_path):
    with serving(base, tmp_path / "store", limits=LIMITS) as (url, services):
        yield url, services


def http(url, key=KEY, **headers):
    return httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-Key": key} | headers, timeout=30)


def post(client, route, **body):
    return client.post(route, json=body)


def model_of(client, **settings):
    session = post(client, "create_session").json()["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": NAME, "lora_config": {"rank": 2}} | settings
    answer = post(client, "create_model", **body)
    assert answer.status_code == 200, answer.text
    return wait(client, answer)["model_id"]


def wait(client, answer):
    assert answer.status_code == 200, answer.text
    for _ in range(9):
        found = post(client, "retrieve_future", request_id=answer.json()["request_id"])
        assert found.status_code == 200, found.text
        if "protobuf" in found.headers["content-type"]:
            return found.content
        if found.json().get("type") != "try_again":
            return found.json()
    raise AssertionError("no result")


def batch(model, seq=1, tokens=(5, 6), count=1, **fields):
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy", **fields)
    for _ in range(count):
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.array(tokens, dtype=np.int32).tobytes()
        targets = datum.loss_fn_inputs["target_tokens"]
        targets.dtype, targets.dense = pb.DTYPE_INT64, np.array(tokens, dtype=np.int64).tobytes()
    return message


# Keys


def test_a_key_is_kept_as_its_digest_alone_and_only_its_owner_reads_the_file(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    secret = keys.add("alice")
    assert secret.startswith("tml-") and len(secret) > 40
    kept = (tmp_path / "keys.json").read_text()
    assert secret not in kept and secret[4:] not in kept
    assert json.loads(kept) == {"alice": hashlib.sha256(secret.encode()).hexdigest()}
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600
    assert keys.owner(secret) == "alice" and keys.owner(secret[:-1]) is None and keys.owner(secret + "x") is None


def test_without_keys_all_that_look_like_one_are_taken_and_with_keys_no_other(tmp_path):
    keys = Keys(tmp_path / "keys.json")
    assert keys.owner("tml-x") == "" and keys.owner("x") is None and keys.owner("") is None
    keys.add("alice")
    assert keys.owner("tml-x") is None
    with pytest.raises(UserError, match="has a key"):
        keys.add("alice")
    keys.remove("alice")
    with pytest.raises(UserError, match="has no key"):
        keys.remove("alice")


def test_where_there_was_a_key_no_other_is_taken_when_the_last_is_removed(tmp_path):
    """By the server that runs, by the next one, and, as long as it runs, if the file is deleted."""
    keys = Keys(tmp_path / "keys.json")
    secret = keys.add("alice")
    assert keys.owner(secret) == "alice"
    Keys(keys.path).remove("alice")
    for each in (keys, Keys(keys.path)):
        assert each.owner("tml-x") is None and each.owner(secret) is None and each.needed
    keys.path.unlink()
    assert keys.owner("tml-x") is None and keys.needed
    assert not Keys(keys.path).needed


def test_a_server_whose_last_key_is_removed_refuses_everybody(server):
    url, services = server
    client = http(url, services.keys.add("alice"))
    assert post(client, "create_session").status_code == 200
    Keys(services.keys.path).remove("alice")
    for each in (client, http(url)):
        assert post(each, "create_session").status_code == 401
        assert each.get("healthz").status_code == 401


@pytest.mark.parametrize("name", ["", "a b", "../a", "a" * 65])
def test_a_name_of_a_key_is_a_word(tmp_path, name):
    with pytest.raises(UserError, match="name has"):
        Keys(tmp_path / "keys.json").add(name)


def test_the_command_makes_a_key_and_ends_it(tmp_path):
    store = str(tmp_path / "store")
    ((secret,), _) = run(Server(store=store, add_key="alice"))
    assert Keys(tmp_path / "store" / "keys.json").owner(secret) == "alice"
    run(Server(store=store, remove_key="alice"))
    assert Keys(tmp_path / "store" / "keys.json").owners() == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_server_that_others_reach_needs_keys(tmp_path, host):
    keys = Keys(tmp_path / "keys.json")
    with pytest.raises(UserError, match=r"open to others.* --add-key"):
        refuse_open_door(Server(host=host), keys)
    keys.add("alice")
    refuse_open_door(Server(host=host), keys)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_server_of_this_machine_needs_none_unless_it_had_some(tmp_path, host):
    keys = Keys(tmp_path / "keys.json")
    refuse_open_door(Server(host=host), keys)
    keys.add("alice")
    refuse_open_door(Server(host=host), keys)
    keys.remove("alice")
    with pytest.raises(UserError, match=r"the last key was removed.* --add-key NAME, or delete .*keys.json"):
        refuse_open_door(Server(host=host), keys)


def test_keys_that_are_removed_while_the_model_is_loaded_leave_the_server_closed(tmp_path, monkeypatch):
    store, served = tmp_path / "store", []
    run(Server(store=str(store), add_key="alice"))

    def opened(store, base, *, keys, **settings):
        keys.path.unlink()
        return SimpleNamespace(keys=keys, base=SimpleNamespace(name=NAME))

    monkeypatch.setattr(serve, "bound", lambda host, port: None)
    monkeypatch.setattr(serve, "in_temporary_thread", lambda load: None)
    monkeypatch.setattr(serve, "Services", opened)
    monkeypatch.setattr(serve, "create_app", lambda services, hosts: served.append((services.keys, hosts)))
    monkeypatch.setattr(serve, "http_server", lambda *words, **settings: SimpleNamespace(run=lambda: None))
    run(Server(store=str(store)))
    ((keys, hosts),) = served
    assert keys.owner("tml-x") is None and hosts is None


def test_every_route_needs_a_key(server):
    for key in ("", "wrong"):
        client = http(server[0], key)
        refused = client.get("get_server_capabilities")
        what = "this server does not know the key in X-API-Key" if key else "a request needs a key, in X-API-Key"
        assert (refused.status_code, refused.json()) == (401, {"error": f"{what}; keys begin with tml-"})
        for route in ("client/config", "create_session", "asample", "retrieve_future", "optim_step", "telemetry"):
            assert post(client, route).status_code == 401
            assert client.post(route, content=b"{").status_code == 401  # it is not read
        assert client.post("forward_backward", content=b"", headers=PROTOBUF).status_code == 401


@pytest.mark.parametrize("content", [b'{"base_model": "x"}', b"[1]"])
def test_a_body_that_is_not_read_as_json_says_what_to_send(server, content):
    answer = http(server[0]).post("create_model", content=content, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422
    assert answer.json() == {"error": "the body is not a JSON object; send one, with Content-Type: application/json"}


def test_a_key_reads_nothing_of_anothers(server):
    url, services = server
    alice, bob = (http(url, services.keys.add(name)) for name in ("alice", "bob"))
    model = model_of(alice)
    saved = wait(alice, post(alice, "save_weights", model_id=model, seq_id=1, path="a"))["path"]
    session, sampler = model.split(":")[0], f"{model.split(':')[0]}:sample:0"
    body = {"session_id": session, "sampling_session_seq_id": 0, "model_path": saved}
    assert post(alice, "create_sampling_session", **body).json()["sampling_session_id"] == sampler
    prompt = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [5]}]}, "sampling_params": {"max_tokens": 1}}
    theirs = post(bob, "create_session").json()["session_id"]
    refused = [
        post(bob, "get_info", model_id=model),
        post(bob, "optim_step", model_id=model, seq_id=2, adam_params={}),
        bob.post("forward_backward", content=batch(model, 2).SerializeToString(), headers=PROTOBUF),
        post(bob, "save_weights", model_id=model, seq_id=2, path="b"),
        post(bob, "unload_model", model_id=model),
        post(bob, "load_weights", session_id=theirs, model_seq_id=0, path=saved),
        post(bob, "weights_info", tinker_path=saved),
        post(bob, "create_sampling_session", session_id=theirs, sampling_session_seq_id=0, model_path=saved),
        post(bob, "create_sampling_session", session_id=session, sampling_session_seq_id=1, base_model=NAME),
        post(bob, "create_model", session_id=session, model_seq_id=1, base_model=NAME),
        bob.get(f"samplers/{sampler}"),
        post(bob, "asample", sampling_session_id=sampler, seq_id=0, **prompt),
        post(bob, "retrieve_future", request_id=f"{model}:1"),
        post(bob, "retrieve_future", request_id=f"{sampler}:0"),
        post(bob, f"sessions/{session}/finish"),
        bob.get(f"training_runs/{model}/checkpoints"),
        bob.delete(f"training_runs/{model}/checkpoints/weights/a"),
    ]
    assert [answer.status_code for answer in refused] == [400] * len(refused)
    assert alice.get(f"training_runs/{model}/checkpoints").json()["checkpoints"][0]["tinker_path"] == saved
    assert alice.delete(f"training_runs/{model}/checkpoints/weights/a").status_code == 204
    assert post(alice, "weights_info", tinker_path=saved).status_code == 400


# Where from


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost"])
def test_pages_in_a_browser_are_refused(server, origin):
    assert http(server[0], Origin=origin).get("healthz").status_code == 403


@pytest.mark.parametrize(
    ("host", "code"), [("evil.example", 421), ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("", 421)]
)
def test_a_host_name_that_is_not_ours_is_refused(server, host, code):
    assert http(server[0], Host=host).get("healthz").status_code == code


# How much


def test_a_body_that_is_too_large_is_refused_before_it_is_read_and_while(server):
    client = http(server[0])
    assert client.post("telemetry", content=b"x" * 20_001).status_code == 413
    parts = (b"x" * 5_000 for _ in range(5))  # without a length
    assert client.post("forward_backward", content=parts, headers=PROTOBUF).status_code == 413
    parts = (b" " * 5_000 for _ in range(5))
    assert client.post("get_info", content=parts, headers={"Content-Type": "application/json"}).status_code == 413


def test_a_frame_that_grows_too_large_is_refused(server):
    bomb = zstandard.ZstdCompressor().compress(bytes(10_000_000))
    assert len(bomb) < 20_000
    headers = PROTOBUF | {"Content-Encoding": "zstd"}
    answer = http(server[0]).post("forward_backward", content=bomb, headers=headers)
    assert answer.status_code == 413 and "20000 bytes" in answer.text
    assert http(server[0]).post("forward_backward", content=b"no frame", headers=headers).status_code == 400


def test_a_compressed_batch_is_read(server):
    client = http(server[0])
    body = zstandard.ZstdCompressor().compress(batch(model_of(client)).SerializeToString())
    headers = PROTOBUF | {"Content-Encoding": "zstd"}
    assert isinstance(wait(client, client.post("forward_backward", content=body, headers=headers)), bytes)


def test_a_body_that_does_not_come_is_given_up(base, tmp_path):
    with (
        serving(base, tmp_path, limits=Limits(body_seconds=0.3)) as (url, _),
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as slow,
    ):
        head = f"POST /api/v1/forward_backward HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\n"
        slow.sendall((head + "Content-Type: application/x-protobuf\r\nContent-Length: 100\r\n\r\nab").encode())
        slow.settimeout(30)
        assert b" 408 " in slow.recv(1000)


def test_batches_have_limits(server):
    client = http(server[0])
    model = model_of(client)

    def error(message):
        answer = client.post("forward_backward", content=message.SerializeToString(), headers=PROTOBUF)
        return wait(client, answer)["error"]

    assert "3 datums; this one has 4" in error(batch(model, 1, count=4))
    assert "150 tokens; this one has 192" in error(batch(model, 2, count=3, tokens=[5] * 64))
    fits = batch(model, 3, count=3, tokens=[5] * 50).SerializeToString()
    assert isinstance(wait(client, client.post("forward_backward", content=fits, headers=PROTOBUF)), bytes)


def test_models_ranks_and_checkpoints_have_limits(server):
    client = http(server[0])
    first, second = model_of(client), model_of(client)
    session = post(client, "create_session").json()["session_id"]
    body = {"session_id": session, "model_seq_id": 0, "base_model": NAME}
    assert "2 models" in post(client, "create_model", **body, lora_config={"rank": 2}).text
    wait(client, post(client, "unload_model", model_id=second))
    assert "rank of at most 8" in post(client, "create_model", **body, lora_config={"rank": 9}).text
    assert "got 'other'" in post(client, "create_model", **(body | {"base_model": "other"})).text
    model_of(client)
    for seq, name in ((1, "a"), (2, "b")):
        wait(client, post(client, "save_weights", model_id=first, seq_id=seq, path=name))
    assert "2 checkpoints" in wait(client, post(client, "save_weights", model_id=first, seq_id=3, path="c"))["error"]


def test_a_session_that_finishes_makes_room_and_its_checkpoints_stay(server):
    client = http(server[0])
    model = model_of(client)
    saved = wait(client, post(client, "save_weights", model_id=model, seq_id=1, path="a"))["path"]
    assert post(client, f"sessions/{model.split(':')[0]}/finish").status_code == 200
    model_of(client), model_of(client)
    assert post(client, "get_info", model_id=model).status_code == 400
    assert post(client, "weights_info", tinker_path=saved).json()["lora_rank"] == 2


def test_weights_without_a_name_are_kept_for_the_latest_samplers(server):
    client = http(server[0])
    model = model_of(client)
    samplers = [
        wait(client, post(client, "save_weights_for_sampler", model_id=model, seq_id=seq, sampling_session_seq_id=seq))
        for seq in (1, 2, 3)
    ]
    prompt = {"prompt": {"chunks": [{"type": "encoded_text", "tokens": [5]}]}, "sampling_params": {"max_tokens": 1}}
    found = [
        wait(client, post(client, "asample", sampling_session_id=each["sampling_session_id"], seq_id=0, **prompt))
        for each in samplers
    ]
    assert "are gone" in found[0]["error"] and all(isinstance(each, bytes) for each in found[1:])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"prompt": {"chunks": []}}, "got 0"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [5] * 64}]}}, "1 to 63"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [262]}]}}, "token 262"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-1]}]}}, "token -1"),
        ({"prompt": {"chunks": [{"type": "image", "data": "x"}]}}, "no text"),
        ({"num_samples": 20, "sampling_params": {"max_tokens": 60}}, "150 tokens"),
        ({"sampling_params": {"max_tokens": 1, "stop": [999]}}, "stop has token"),
        ({"sampling_params": {"max_tokens": 1, "stop": ["x" * 300]}}, "letters"),
        ({"sampling_params": {"max_tokens": 1, "stop": [5] * 65}}, "64 entries"),
        ({"record_stability_info": True}, "stable_reinforce"),
        ({"topk_sample_logprobs": 2}, "topk_sample_logprobs is not served"),
    ],
)
def test_what_cannot_be_sampled_is_an_error_of_the_client(server, changed, reason):
    client = http(server[0])
    session = post(client, "create_session").json()["session_id"]
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": NAME}
    sampler = post(client, "create_sampling_session", **body).json()["sampling_session_id"]
    asked = {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
        "sampling_params": {"max_tokens": 1},
        "sampling_session_id": sampler,
        "seq_id": 0,
    }
    found = wait(client, post(client, "asample", **(asked | changed)))
    assert reason in found["error"] and found["category"] == "user"


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 0},
        {"temperature": -1},
        {"temperature": 1e-40},
        {"temperature": 9e-5},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -2},
        {"temperature": "hot"},
    ],
)
def test_sampling_parameters_are_checked(server, params):
    answer = post(http(server[0]), "asample", prompt={"chunks": []}, sampling_params=params)
    assert answer.status_code == 422 and "sampling_params" in answer.json()["error"]


def test_samples_that_wait_have_a_limit():
    pending = Pending(4)

    def may(owner, samples):
        try:
            pending.enter(owner, samples)
        except HTTPException as refused:
            assert refused.status_code == 429
            return False
        return True

    assert [may("a", samples) for samples in (3, 2, 1, 1)] == [True, False, True, False]
    assert may("b", 9) and not may("b", 1)  # one request alone may have more
    pending.leave("a", 3)
    assert [may("a", samples) for samples in (4, 3, 1)] == [False, True, False]


def test_a_request_counts_as_many_times_as_it_has_samples(server):
    url, services = server
    client, held = http(url), threading.Event()
    session = post(client, "create_session").json()["session_id"]
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": NAME}
    sampler = post(client, "create_sampling_session", **body).json()["sampling_session_id"]
    services.worker.submit(lambda: held.wait(30) and None)

    def asked(seq, samples):
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}
        body = {"prompt": prompt, "sampling_params": {"max_tokens": 1}, "num_samples": samples, "seq_id": seq}
        return post(client, "asample", sampling_session_id=sampler, **body)

    first, second, third = asked(0, 2), asked(1, 2), asked(2, 1)
    assert second.status_code == 429 and "too many requests of this key" in second.text
    held.set()
    for answer in (first, third):
        assert isinstance(wait(client, answer), bytes)
    assert isinstance(wait(client, asked(3, 3)), bytes)


@pytest.mark.parametrize("name", ["", ".hidden", "../../x", "a/b", "a\\b", "a b", "x" * 129, "é"])
def test_names_that_would_leave_their_folder_are_refused(server, name):
    client = http(server[0])
    model = model_of(client)
    for kind in ("weights", "sampler_weights"):
        path = f"tinker://{model}/{kind}/{name}"
        assert post(client, "weights_info", tinker_path=path).status_code == 400
        assert client.delete(f"training_runs/{model}/checkpoints/{kind}/{name or '%2e%2e'}").status_code in (
            400,
            404,
            405,
        )


@pytest.mark.parametrize("model", ["", "../x", "x:train:0", f"{'0' * 32}:train:0", f"{'0' * 32}:train:x", "a" * 600])
def test_models_that_are_none_are_refused(server, model):
    assert post(http(server[0]), "get_info", model_id=model).status_code in (400, 422)


@pytest.mark.parametrize("request_id", ["", "x", "x:y", ":1", f"{'0' * 32}:sample:0:1", f"{'0' * 32}:train:0:1"])
def test_results_of_nothing_are_refused(server, request_id):
    assert post(http(server[0]), "retrieve_future", request_id=request_id).status_code == 400


def test_a_result_that_is_not_kept_is_gone(server):
    client = http(server[0])
    assert post(client, "retrieve_future", request_id=f"{model_of(client)}:7").status_code == 410


@pytest.mark.parametrize("seq", [0, 10**6])
def test_numbers_of_requests_are_near_each_other(server, seq):
    client = http(server[0])
    answer = post(client, "optim_step", model_id=model_of(client), seq_id=seq, adam_params={"learning_rate": 0.1})
    assert answer.status_code == 400 and "seq_id" in answer.text


def test_settings_of_adam_that_do_not_exist_are_refused(server):
    client = http(server[0])
    answer = post(client, "optim_step", model_id=model_of(client), seq_id=1, adam_params={"momentum": 0.9})
    assert answer.status_code == 400 and "no 'momentum'" in answer.text


def test_a_body_in_json_is_told_what_to_send(server):
    assert http(server[0]).post("forward_backward", json={}).status_code == 415


def test_with_keys_a_server_may_have_any_name(base, tmp_path):
    from posttrain.serving.app import create_app
    from posttrain.serving.services import Services

    services = Services(tmp_path, base)
    transport = httpx.ASGITransport(create_app(services, hosts=None))

    async def ask():
        async with httpx.AsyncClient(transport=transport, base_url="http://model.example") as client:
            return await client.get("/api/v1/healthz", headers={"X-API-Key": KEY})

    import asyncio

    assert asyncio.run(ask()).status_code == 200
    services.lock.release()


def test_training_requests_that_are_not_done_have_a_limit(server):
    """Of a key: neither memory nor disk is anybody's."""
    url, services = server
    alice, bob = (http(url, services.keys.add(name)) for name in ("alice", "bob"))
    models, held = [model_of(client) for client in (alice, bob)], threading.Event()
    services.worker.submit(lambda: held.wait(30) and None)

    def asked(client, model, seq):
        body = batch(model, seq).SerializeToString()
        return client.post("forward_backward", content=body, headers=PROTOBUF)

    first, second, *_, third = (asked(alice, models[0], seq) for seq in (1, 2, 3, 4, 5))
    assert third.status_code == 429 and "too many requests of this key" in third.text
    assert asked(alice, models[0], 2).status_code == 200  # which is there
    assert not (services.runs.get("alice", models[0]).folder / "requests" / f"{5:09d}").exists()
    other = asked(bob, models[1], 1)
    held.set()
    for client, answer in ((alice, first), (alice, second), (bob, other)):
        assert isinstance(wait(client, answer), bytes)
    assert isinstance(wait(alice, asked(alice, models[0], 5)), bytes)


def test_who_has_a_result_may_ask_for_as_much_again(server, monkeypatch):
    """A request counts until its result is told, and no longer."""
    url, services = server
    client, seen = http(url, services.keys.add("alice")), []
    model = model_of(client)
    finish, backlog = services.runs._futures.finish, services.runs._backlog
    monkeypatch.setattr(
        services.runs._futures, "finish", lambda *told: (seen.append(backlog._waiting["alice"]), finish(*told))
    )
    answer = client.post("forward_backward", content=batch(model, 1).SerializeToString(), headers=PROTOBUF)
    assert isinstance(wait(client, answer), bytes)
    answer = client.post("forward_backward", content=batch(model, 3).SerializeToString(), headers=PROTOBUF)
    assert answer.status_code == 200  # 2 is missing
    services.runs._end(services.runs.get("alice", model).record)
    assert seen == [0, 0]


def test_what_an_ended_model_was_asked_waits_no_more(server):
    url, services = server
    client, held = http(url), threading.Event()
    first, second = model_of(client), model_of(client)
    services.worker.submit(lambda: held.wait(30) and None)

    def asked(model, seq):
        body = batch(model, seq).SerializeToString()
        return client.post("forward_backward", content=body, headers=PROTOBUF)

    assert [asked(first, seq).status_code for seq in (3, 4)] == [200, 200]  # 1 and 2 are missing
    assert asked(first, 5).status_code == 429
    assert [asked(second, seq).status_code for seq in (1, 2, 3)] == [200, 200, 429]
    assert post(client, "unload_model", model_id=second).status_code == 200  # makes room
    services.runs._end(services.runs.get("", first).record)
    held.set()
    third = model_of(client)
    assert isinstance(wait(client, asked(third, 1)), bytes)


def test_requests_that_come_before_an_earlier_one_leave_it_room(server):
    """Else they would wait for ever for what is refused."""
    client = http(server[0])
    model = model_of(client)

    def asked(seq):
        return client.post("forward_backward", content=batch(model, seq).SerializeToString(), headers=PROTOBUF)

    later = [asked(seq) for seq in (4, 3, 2)]
    assert [answer.status_code for answer in later] == [200, 200, 429]
    for answer in (asked(1), asked(2), *later[:2]):
        assert isinstance(wait(client, answer), bytes)


def test_a_sequence_number_of_ten_digits_is_none(server):
    """Ids have nine."""
    url, _ = server
    client = http(url)
    session = post(client, "create_session").json()["session_id"]
    body = {"session_id": session, "base_model": NAME, "lora_config": {"rank": 2}}
    assert post(client, "create_model", model_seq_id=10**9, **body).status_code == 422
    assert post(client, "create_sampling_session", sampling_session_seq_id=10**9, **body).status_code == 422
    assert post(client, "create_model", model_seq_id=10**9 - 1, **body).status_code == 200


def test_a_session_ends_its_models_beside_one_of_another_base(base, tmp_path):
    with serving(base, tmp_path) as (url, services):
        model = model_of(http(url))
        session = model.split(":")[0]
        other = services.models / f"{session}.train.1"
        for part in ("requests", "results"):
            (other / part).mkdir(parents=True)
        record = json.loads((services.runs.get("", model).folder / "model.json").read_text())
    changed = record | {"model_id": f"{session}:train:1", "base_model": "another"}
    (other / "model.json").write_text(json.dumps(changed))
    os.utime(other / "model.json", (1, 1))  # the first in order
    with serving(base, tmp_path) as (url, services):
        client = http(url)
        assert post(client, f"sessions/{session}/finish").status_code == 200
        services.worker.submit((done := threading.Event()).set, session)
        assert done.wait(30) and post(client, "get_info", model_id=model).status_code == 400
        assert json.loads((other / "model.json").read_text())["ended"]


def test_checkpoints_of_both_kinds_count_and_a_damaged_one_is_left_out(server):
    url, services = server
    client = http(url)
    model = model_of(client)
    wait(client, post(client, "save_weights", model_id=model, seq_id=1, path="a"))
    wait(client, post(client, "save_weights_for_sampler", model_id=model, seq_id=2, path="b"))
    refused = wait(client, post(client, "save_weights", model_id=model, seq_id=3, path="c"))
    assert "may have 2 checkpoints" in refused["error"]
    folder = services.runs.get("", model).folder
    for file in (folder / "weights/a").rglob("*.safetensors"):
        file.write_bytes(b"torn")
    found = client.get(f"training_runs/{model}/checkpoints")
    assert [each["checkpoint_id"] for each in found.json()["checkpoints"]] == ["sampler_weights/b"]


def test_threads_that_write_one_file_leave_a_whole_one(tmp_path, monkeypatch):
    """The second begins while the first has its content on the disk, and not in place."""
    path, fsync, inner = tmp_path / "a.json", os.fsync, []

    def between(descriptor):
        fsync(descriptor)
        if not inner:
            inner.append(True)
            write_json(path, "second" * 1000)
            assert json.loads(path.read_text()) == "second" * 1000

    monkeypatch.setattr(os, "fsync", between)
    write_json(path, "first")
    assert json.loads(path.read_text()) == "first" and os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a\n", ".a", "a" * 129])
def test_names_of_checkpoints_are_names_of_folders(name):
    with pytest.raises(UserError, match="1 to 128 letters"):
        checked_name(name)


def test_what_a_killed_server_has_left_of_a_request_is_removed(base, tmp_path):
    with serving(base, tmp_path) as (url, services):
        model = model_of(http(url))
        left = services.runs.get("", model).folder / "requests" / ".000000009.abcd.new"
        left.write_bytes(b"half")
    with serving(base, tmp_path) as (url, services):
        assert services.runs.get("", model) and not left.exists()


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", 1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(tmp_path / "a.json", 2)
    assert os.listdir(tmp_path) == ["a.json"] and read_json(tmp_path / "a.json") == 1
