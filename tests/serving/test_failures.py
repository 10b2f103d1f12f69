"""What is told as failed has no effect: neither now, nor on what the next server computes again."""

import errno
import os
import threading
import time
from itertools import count

import pytest

pytest.importorskip("tinker", reason="needs the extra server")

from posttrain.serving import runs, trainer
from posttrain.serving.run import Run
from posttrain.training.local_learner import LocalLearner
from posttrain.training.optimizer import MasterAdamW
from tests.serving.plain_client import ADAM, Client, same, weights
from tests.serving.serving import serving

SERVER = {"error": "the server failed; its operator sees why", "category": "server"}


def full(*words, **settings):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def memory(*words, **settings):
    raise RuntimeError("out of memory")


def when(monkeypatch, owner, name, condition, failing=full):
    """Let a function fail while `condition` holds of its arguments."""
    real = getattr(owner, name)

    def instead(*words, **settings):
        return (failing if condition(*words) else real)(*words, **settings)

    monkeypatch.setattr(owner, name, instead)


def ask(client, model, seq, kind):
    return client.step(model, seq) if kind == "step" else client.gradient(model, seq, **kind)


def trained(base, store, asked, *, failing=(), stop=None, save_every=10):
    """Weights after requests, of which those in `failing` are told as failed; another server goes on after `stop`."""
    parts = [asked[:stop], asked[stop:]] if stop else [asked]
    model, seq = "", 0
    for part in parts:
        with serving(base, store, save_every=save_every) as (url, services):
            client = Client(url)
            model = model or client.create()
            for number in failing:
                if number <= seq:
                    assert client.raw(f"{model}:{number}") == SERVER
            for kind in part:
                seq += 1
                request_id = ask(client, model, seq, kind)
                if seq in failing:
                    assert client.raw(request_id) == SERVER
                else:
                    client.result(request_id)
            if part is parts[-1]:
                return weights(services, client.result(client.save(model, seq + 1, "end"))["path"])
    raise AssertionError


ONE, TWO = {"shift": 0}, {"shift": 3}
EXPECTED = [ONE, TWO, "step", ONE, "step"]


@pytest.fixture(scope="module")
def expected(base, tmp_path_factory):
    """Weights where nothing fails."""
    return trained(base, tmp_path_factory.mktemp("expected"), EXPECTED)


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr("posttrain.serving.app.HOLD_SECONDS", 0.3)


@pytest.mark.parametrize("stop", [None, 2, 3, 5])
def test_a_gradient_whose_result_could_not_be_written_is_not_there_when_it_is_sent_again(
    base, tmp_path, monkeypatch, expected, stop
):
    when(monkeypatch, Run, "finish", lambda journal, seq, result: seq == 2)
    found = trained(base, tmp_path, [ONE, TWO, TWO, "step", ONE, "step"], failing=[2], stop=stop)
    assert same(found, expected)


@pytest.mark.parametrize("stop", [None, 3])
def test_a_request_that_cannot_be_read_again_is_told_as_failed(base, tmp_path, monkeypatch, expected, stop):
    """Bodies are on the disk alone until they are done."""
    when(monkeypatch, Run, "request", lambda journal, seq: seq == 2)
    found = trained(base, tmp_path, [ONE, TWO, TWO, "step", ONE, "step"], failing=[2], stop=stop)
    assert same(found, expected)


@pytest.mark.parametrize("stop", [None, 3, 4])
@pytest.mark.parametrize("save_every", [1, 10])
def test_nor_is_a_step_whose_state_or_result_could_not_be_written(
    base, tmp_path, monkeypatch, expected, stop, save_every
):
    asked, saves = [ONE, TWO, "step", "step", ONE, "step"], count()
    if save_every == 1:
        when(monkeypatch, LocalLearner, "save", lambda learner, folder: next(saves) == 0)
    else:
        when(monkeypatch, Run, "finish", lambda journal, seq, result: seq == 3)
    found = trained(base, tmp_path, asked, failing=[3], stop=stop, save_every=save_every)
    assert same(found, expected)


@pytest.mark.parametrize("stop", [None, 3])
def test_a_step_whose_state_is_saved_is_told_as_done_though_its_result_could_not_be_written(
    base, tmp_path, monkeypatch, expected, stop
):
    steps = count()
    when(monkeypatch, Run, "finish", lambda journal, seq, result: seq == 3 and next(steps) == 0)
    assert same(trained(base, tmp_path, EXPECTED, stop=stop, save_every=1), expected)


@pytest.mark.parametrize("stop", [None, 2, 3])
def test_a_batch_that_fails_for_the_machine_is_not_done_again(base, tmp_path, monkeypatch, expected, stop):
    """Out of memory, say: the next server has more, and computes what went well alone."""
    calls = count()
    when(monkeypatch, trainer, "place_targets", lambda row, data: next(calls) == 1, failing=memory)
    found = trained(base, tmp_path, [ONE, TWO, TWO, "step", ONE, "step"], failing=[2], stop=stop)
    assert same(found, expected)


@pytest.mark.parametrize("stop", [None, 2])
def test_a_step_that_fails_after_it_has_changed_weights_is_taken_back(base, tmp_path, monkeypatch, expected, stop):
    calls = count()
    when(monkeypatch, MasterAdamW, "publish", lambda optimizer: next(calls) == 0, failing=memory)
    found = trained(base, tmp_path, [ONE, "step", TWO, "step", ONE, "step"], failing=[2], stop=stop)
    assert same(found, expected)


@pytest.mark.parametrize("restart", [False, True])
def test_a_step_without_a_finite_gradient_discards_it_now_and_when_it_is_computed_again(
    base, tmp_path, expected, restart
):
    model, seq = "", 0
    parts = [[{"weight": 1e36}, "step"], EXPECTED] if restart else [[{"weight": 1e36}, "step", *EXPECTED]]
    for part in parts:
        with serving(base, tmp_path, save_every=10) as (url, services):
            client = Client(url)
            model = model or client.create()
            for kind in part:
                seq += 1
                found = client.raw(ask(client, model, seq, kind))
                assert (b"error" in found if isinstance(found, bytes) else "error" in found) == (seq == 2), found
            if part is parts[-1]:
                path = client.result(client.save(model, seq + 1, "end"))["path"]
                assert same(weights(services, path), expected)


def test_a_full_disk_is_no_mistake_of_the_clients_and_a_named_save_may_be_tried_again(base, tmp_path, monkeypatch):
    said = []
    with serving(base, tmp_path, report=said.append) as (url, _):
        client = Client(url)
        model = client.create()
        with monkeypatch.context() as patch:
            patch.setattr(LocalLearner, "save", full)
            assert client.raw(client.save(model, 1, "a")) == SERVER
        assert "no space left" in said[0]
        when(monkeypatch, Run, "finish", lambda journal, seq, result: True)
        path = client.result(client.save(model, 2, "a"))["path"]  # it is on the disk, whatever is told
        assert path.endswith("/a") and len(said) == 2


def test_a_session_whose_end_could_not_be_written_is_reported_and_the_server_goes_on(base, tmp_path, monkeypatch):
    said = []
    with serving(base, tmp_path, report=said.append) as (url, _):
        client = Client(url)
        model = client.create()
        with monkeypatch.context() as patch:
            patch.setattr(runs, "write_json", full)
            client.post(f"sessions/{model.split(':')[0]}/finish")
            client.result(client.gradient(model, 1))
        assert f"{model} was not ended with its session: OSError" in said[0] and len(said) == 1
        client.post(f"sessions/{model.split(':')[0]}/finish")
        other = client.create()
        client.result(client.gradient(other, 1))
        assert client.http.post("get_info", json={"model_id": model}).status_code == 400


# The end of a model


def unload(client, model):
    return client.post("unload_model", model_id=model)["request_id"]


def test_the_result_of_unload_model_is_there_after_the_model_has_ended(base, tmp_path):
    """Also for the next server; another key, and other requests of the model, find nothing."""
    with serving(base, tmp_path) as (url, services):
        client = Client(url)
        model = client.create()
        request_id = unload(client, model)
        deadline = time.monotonic() + 30
        while model in services.runs._runs and time.monotonic() < deadline:
            time.sleep(0.01)
        expected = {"type": "unload_model", "model_id": model}
        assert client.result(request_id) == expected
        assert client.http.post("get_info", json={"model_id": model}).status_code == 400
    with serving(base, tmp_path) as (url, services):
        client = Client(url)
        assert client.result(request_id) == expected
        assert client.http.post("retrieve_future", json={"request_id": f"{model}:0"}).status_code == 410
        key = services.keys.add("bob")
        answer = client.http.post("retrieve_future", json={"request_id": request_id}, headers={"X-API-Key": key})
        assert answer.status_code == 400


def test_requests_of_a_model_that_has_ended_are_told_so(base, tmp_path):
    """One that follows at once, and one that an earlier one was missing for."""
    with serving(base, tmp_path) as (url, services):
        client = Client(url)
        model, held = client.create(), threading.Event()
        services.worker.submit(lambda: held.wait(30) and None)
        late = client.gradient(model, 5)
        first = client.gradient(model, 1)
        ended = unload(client, model)
        assert unload(client, model) == ended != first  # beside a gradient it has an answer of its own
        after = client.http.post("optim_step", json={"model_id": model, "seq_id": 2, "adam_params": ADAM})
        assert after.status_code == 400 and "it was ended" in after.text
        assert client.gradient(model, 1) == first  # which comes again, and was accepted before
        held.set()
        assert isinstance(client.result(first), bytes) and client.result(ended)["type"] == "unload_model"
        assert "it was ended" in client.raw(late)["error"]


@pytest.mark.parametrize("stop", [False, True])
def test_an_end_that_could_not_be_written_is_told_as_failed_and_the_model_goes_on(base, tmp_path, monkeypatch, stop):
    with serving(base, tmp_path) as (url, _):
        client = Client(url)
        model = client.create()
        with monkeypatch.context() as patch:
            patch.setattr(runs, "write_json", full)
            assert client.raw(unload(client, model)) == SERVER
        if not stop:
            client.result(client.gradient(model, 2))
            assert client.result(unload(client, model))["model_id"] == model
    if stop:
        with serving(base, tmp_path) as (url, _):
            client = Client(url)
            client.result(client.gradient(model, 2))


def test_a_model_whose_state_is_damaged_ends(base, tmp_path):
    with serving(base, tmp_path) as (url, services):
        client = Client(url)
        model = client.create()
        client.gradient(model, 1)
        client.result(client.step(model, 2))
        run = services.runs.get("", model)
        next((run.folder / "state").glob("step-*/*.safetensors")).write_bytes(b"")
        run.trainer = None
        assert "damaged" in client.raw(client.step(model, 3))["error"]
        assert client.result(unload(client, model))["model_id"] == model
