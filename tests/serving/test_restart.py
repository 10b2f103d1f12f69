"""What a server that was killed leaves, and what the next one makes of it: the bits of one that was not."""

import json
import threading
import time

import pytest

pytest.importorskip("tinker", reason="needs the extra server")

from posttrain.errors import UserError
from posttrain.serving import checkpoints
from posttrain.serving.access import Limits
from posttrain.serving.base import Adapter
from posttrain.serving.run import Entry, Run
from posttrain.serving.services import Services
from posttrain.training.local_learner import MASTERS
from tests.serving.plain_client import ADAM, Client, batch, same, uninterrupted, weights
from tests.serving.serving import serving


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


def test_what_a_saved_state_contains_is_not_done_again(base, tmp_path, monkeypatch):
    """As SIGKILL leaves it after a save, before the requests that it contains are forgotten."""
    expected = uninterrupted(base, tmp_path / "whole", steps=2)
    with monkeypatch.context() as patch, serving(base, tmp_path / "cut") as (url, _):
        patch.setattr(Run, "prune", lambda journal, saved: None)
        client = Client(url)
        model = client.create()
        client.gradient(model, 1)
        client.result(client.step(model, 2))
    with serving(base, tmp_path / "cut") as (url, services):
        client = Client(url)
        client.gradient(model, 3, shift=1)
        client.step(model, 4)
        found = weights(services, client.result(client.save(model, 5, "end"))["path"])
    assert same(found, expected)


def test_what_was_accepted_and_not_done_is_done_by_the_next_server(base, tmp_path):
    """The first server accepts requests and never computes, as if it had been killed at once."""
    expected = uninterrupted(base, tmp_path / "whole", steps=2)
    services = Services(tmp_path / "cut", base)  # its worker is not started
    session = services.sessions.create("")
    model = f"{session}:train:0"
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
    said = []
    with serving(base, tmp_path / "cut", report=said.append) as (url, services):
        client = Client(url)
        assert client.result(f"{model}:4")["metrics"]
        assert said == []
        found = weights(services, client.result(client.save(model, 5, "end"))["path"])
    assert same(found, expected)


@pytest.mark.parametrize(
    ("route", "kind", "asked"),
    [
        ("save_weights", "weights", {}),
        ("save_weights", "weights", {"overwrite": True}),
        ("save_weights_for_sampler", "sampler_weights", {}),
    ],
)
def test_a_named_save_whose_result_was_not_kept_is_done_again(base, tmp_path, route, kind, asked):
    """As SIGKILL leaves it between the two. The model has as many checkpoints as it may."""
    limits = Limits(checkpoints_per_model=1)
    with serving(base, tmp_path, limits=limits) as (url, services):
        client = Client(url)
        model = client.create()
        client.result(client.post(route, model_id=model, seq_id=1, path="mine", **asked)["request_id"])
        folder = services.runs.get("", model).folder
    before = checkpoints.read(folder / kind / "mine")
    interrupted = folder / kind / "begun"
    (interrupted / ".saving-000000-1").mkdir(parents=True)
    (folder / "results" / f"{1:09d}").unlink()
    with serving(base, tmp_path, limits=limits) as (url, _):
        assert not interrupted.exists()
        client = Client(url)
        assert client.result(f"{model}:1")["path"] == f"tinker://{model}/{kind}/mine"
        assert (checkpoints.read(folder / kind / "mine") == before) == (not asked)
        again = client.post(route, model_id=model, seq_id=2, path="mine")
        assert "already" in client.raw(again["request_id"])["error"]
        other = client.post(route, model_id=model, seq_id=3, path="other")
        assert "1 checkpoints" in client.raw(other["request_id"])["error"]


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


def test_what_comes_a_second_time_with_another_content_changes_nothing(base, tmp_path):
    """Neither at once nor in what the next server computes again."""
    found = []
    for name in ("once", "twice"):
        with serving(base, tmp_path / name) as (url, _):
            client = Client(url)
            model = client.create()
            client.result(client.gradient(model, 1))
            if name == "twice":
                client.result(client.gradient(model, 1, shift=5))
        with serving(base, tmp_path / name) as (url, services):
            client = Client(url)
            client.step(model, 2)
            found.append(weights(services, client.result(client.save(model, 3, "end"))["path"]))
    assert same(*found)


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
    monkeypatch.setattr("posttrain.serving.app.HOLD_SECONDS", 0.3)


def test_a_poll_is_held_until_the_result_is_there(base, tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.serving.app.HOLD_SECONDS", 20.0)
    with serving(base, tmp_path) as (url, _):
        client = Client(url)
        model = client.create()
        client.gradient(model, 2)
        began = time.monotonic()
        threading.Timer(1.0, lambda: Client(url).gradient(model, 1)).start()
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
        file = checkpoints.read(checkpoints.Address.of(path).folder(services.models)).path / MASTERS
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        asked = client.post("load_weights", model_id=model, seq_id=2, path=path, optimizer=True)
        assert "damaged" in client.raw(asked["request_id"])["error"]
        client.result(client.gradient(model, 3))


def test_two_servers_do_not_share_a_folder(base, tmp_path):
    with serving(base, tmp_path), pytest.raises(UserError, match="another server"):
        Services(tmp_path, base)


def test_a_model_of_another_version_keeps_no_server_from_starting(base, tmp_path):
    """Its adapter has a field that this version does not know; its folder stays."""
    with serving(base, tmp_path) as (url, services):
        model = Client(url).create()
        about = services.runs.get("", model).folder / "model.json"
        record = json.loads(about.read_text())
    about.write_text(json.dumps(record | {"adapter": record["adapter"] | {"dora": True}}))
    with serving(base, tmp_path) as (url, services):
        with pytest.raises(UserError, match="there is no model"):
            services.runs.record("", model)
        assert Client(url).create() != model and about.exists()
