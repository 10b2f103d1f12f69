"""`--batch-gradients`: what waits at the same time is computed in one pass, and told as if each were alone."""

import contextlib
import threading
from collections import defaultdict

import pytest
import torch

pytest.importorskip("tinker", reason="needs the extra server")

from tinker.proto import tinker_public_pb2 as pb

from posttrain.serving import together
from posttrain.serving.run import Run
from tests.serving.plain_client import Client, weights
from tests.serving.serving import serving
from tests.serving.test_failures import SERVER, when

AGREE = 1e-5  # of the norm of what the client gets alone
RANKS = (2, 4, 8)


@pytest.fixture(autouse=True)
def short_polls(monkeypatch):
    monkeypatch.setattr("posttrain.serving.app.HOLD_SECONDS", 0.3)


@pytest.fixture
def passes(monkeypatch):
    """The number of members of every joint pass that was begun."""
    found, real = [], together.forward_backward_together

    def counting(model, members, **settings):
        found.append(len(members))
        return real(model, members, **settings)

    monkeypatch.setattr(together, "forward_backward_together", counting)
    return found


@contextlib.contextmanager
def held(services):
    """While the block runs nothing is computed, so that requests wait."""
    release = threading.Event()
    services.worker.submit(lambda: release.wait(30) and None)
    try:
        yield
    finally:
        release.set()


def models_of(client, count):
    return [client.create(rank=rank, seed=rank) for rank in RANKS[:count]]


def output(raw):
    """The loss, and the logprobs as one tensor, of an answer."""
    message = pb.ForwardBackwardOutput.FromString(raw)
    parts = [record.fields["logprobs"].data for record in message.loss_fn_outputs]
    return message.metrics["loss:sum"], torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.float32)


def gradient(services, model):
    """Of all weights, as one tensor; None if there is none."""
    masters = services.runs.get("", model).trainer.optimizer.masters
    return torch.cat([m.grad.flatten() for m in masters]) if masters[0].grad is not None else None


def gap(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def asked(client, models, requests):
    """The answers to requests, each a model's number, its seq_id and what it is, that all wait at the same time."""
    ids = []
    for number, seq, kind in requests:
        model = models[number]
        ids.append(client.step(model, seq) if kind == "step" else client.gradient(model, seq, **kind))
    return ids


def alone(base, store, requests, count):
    """Answers and gradients where each request waits for the one before."""
    with serving(base, store) as (url, services):
        client = Client(url)
        models = models_of(client, count)
        answers = [client.raw(*asked(client, models, [each])) for each in requests]
        return answers, [gradient(services, model) for model in models]


def agree(found, expected):
    (loss, logprobs), (other_loss, others) = output(found), output(expected)
    assert loss == pytest.approx(other_loss, rel=AGREE) and gap(logprobs, others) <= AGREE


FIRST, SECOND, THIRD = {"shift": 0, "weight": 2.0}, {"shift": 3}, {"shift": 6, "weight": 0.5}


def test_requests_of_three_clients_that_wait_are_computed_in_one_pass(base, tmp_path, passes):
    requests = [(0, 1, FIRST), (1, 1, SECOND), (2, 1, {**THIRD, "forward_only": True}), (1, 2, THIRD)]
    answers, expected = alone(base, tmp_path / "alone", requests, 3)
    assert passes == []
    said = []
    with serving(base, tmp_path / "joint", batch_gradients=True, report=said.append) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        with held(services):
            ids = asked(client, models, requests)
        for request_id, each in zip(ids, answers, strict=True):
            agree(client.result(request_id), each)
        assert passes == [3]  # and the second request of one of them by itself
        for model, other in zip(models, expected, strict=True):
            found = gradient(services, model)
            assert (found is None) == (other is None) and (found is None or gap(found, other) <= AGREE)
        assert not any(services.runs.get("", model).pending for model in models)
        assert services.runs._backlog._waiting == {"": 0}
        client.result(client.step(models[0], 2))  # behind all others
    assert said == []


def test_what_comes_for_one_client_alone_has_the_bits_that_it_has_without_the_option(base, tmp_path, passes):
    found = []
    for number, option in enumerate((False, True)):
        with serving(base, tmp_path / str(number), batch_gradients=option) as (url, services):
            client = Client(url)
            (model,) = models_of(client, 1)
            with held(services):
                ids = asked(client, [model], [(0, 1, FIRST), (0, 2, "step"), (0, 3, SECOND)])
            answers = [client.result(request_id) for request_id in ids]
            found.append((answers, gradient(services, model)))
    assert passes == [] and found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


def test_of_a_model_only_the_next_request_is_taken_and_its_order_is_kept(base, tmp_path, passes, monkeypatch):
    requests = [(0, 1, FIRST), (1, 1, "step"), (1, 2, SECOND), (0, 2, "step"), (2, 1, THIRD), (0, 3, THIRD)]
    answers, expected = alone(base, tmp_path / "alone", requests, 3)
    order, finish = defaultdict(list), Run.finish

    def noted(journal, seq, result):
        order[journal.folder.name].append(seq)
        return finish(journal, seq, result)

    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        monkeypatch.setattr(Run, "finish", noted)
        with held(services):
            ids = asked(client, models, requests)
        found = [client.result(request_id) for request_id in ids]
        # the third model's with the first; the second one's gradient, behind its step, with the first one's next
        assert passes == [2, 2]
        assert sorted(order.values()) == [[1], [1, 2], [1, 2, 3]]
        for ours, theirs in zip(found, answers, strict=True):
            if isinstance(theirs, bytes):
                agree(ours, theirs)
            else:
                assert ours["metrics"]["grad_norm:mean"] == pytest.approx(theirs["metrics"]["grad_norm:mean"], rel=1e-4)
        for model, other in zip(models, expected, strict=True):
            assert gap(gradient(services, model), other) <= 1e-4  # behind a step of Adam


def test_a_request_that_is_not_valid_is_refused_to_its_client_alone(base, tmp_path, passes):
    requests = [(0, 1, FIRST), (2, 1, THIRD)]
    answers, expected = alone(base, tmp_path / "alone", requests, 3)
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        with held(services):
            ids = asked(client, models, [requests[0], (1, 1, {"shift": 10**6}), requests[1]])
        refused = client.raw(ids[1])
        assert refused["category"] == "user" and "vocabulary" in refused["error"]
        for request_id, each in zip((ids[0], ids[2]), answers, strict=True):
            agree(client.result(request_id), each)
        assert passes == [2] and gradient(services, models[1]) is None
        for number in (0, 2):
            assert gap(gradient(services, models[number]), expected[number]) <= AGREE


@pytest.mark.parametrize("first", [0, 1])
def test_a_loss_that_is_not_finite_is_told_to_its_client_alone_and_the_others_get_their_bits(
    base, tmp_path, passes, first
):
    """All are then computed apart."""
    requests = [(0, 1, FIRST), (2, 1, THIRD)]
    answers, expected = alone(base, tmp_path / "alone", requests, 3)
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        wrong = (1, 1, {"shift": 3, "weight": 3e38})
        with held(services):
            ids = asked(client, models, [wrong, *requests] if first else [*requests, wrong])
        if not first:
            ids = [ids[2], *ids[:2]]
        assert "the loss is" in client.raw(ids[0])["error"]
        assert [client.result(request_id) for request_id in ids[1:]] == answers
        assert passes == [3] and gradient(services, models[1]) is None
        assert all(torch.equal(gradient(services, models[number]), expected[number]) for number in (0, 2))


def test_if_the_joint_pass_fails_each_is_computed_alone(base, tmp_path, passes, monkeypatch):
    requests = [(0, 1, FIRST), (1, 1, SECOND), (2, 1, THIRD)]
    answers, expected = alone(base, tmp_path / "alone", requests, 3)
    said = []
    with serving(base, tmp_path / "joint", batch_gradients=True, report=said.append) as (url, services):
        client = Client(url)
        models = models_of(client, 3)

        def failing(output):
            raise RuntimeError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(together, "answer_of", failing)  # when all gradients are there
            with held(services):
                ids = asked(client, models, requests)
            assert [client.result(request_id) for request_id in ids] == answers
        assert passes == [3] and len(said) == 1 and "out of memory; each is computed alone" in said[0]
        for model, each in zip(models, expected, strict=True):
            assert torch.equal(gradient(services, model), each)


def test_a_result_that_could_not_be_written_is_told_as_failed_to_its_client_alone(base, tmp_path, passes, monkeypatch):
    requests = [(0, 1, FIRST), (1, 1, SECOND), (2, 1, THIRD)]
    answers, expected = alone(base, tmp_path / "alone", requests, 3)
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        folder = services.runs.get("", models[1]).folder
        when(monkeypatch, Run, "finish", lambda journal, seq, result: journal.folder == folder)
        with held(services):
            ids = asked(client, models, requests)
        assert client.raw(ids[1]) == SERVER
        for number in (0, 2):
            agree(client.result(ids[number]), answers[number])
            assert gap(gradient(services, models[number]), expected[number]) <= AGREE
        monkeypatch.undo()
        agree(client.result(client.gradient(models[1], 2, **SECOND)), answers[1])
        assert passes == [3] and gap(gradient(services, models[1]), expected[1]) <= AGREE


def test_an_error_outside_the_journal_does_not_keep_the_others_from_being_told(base, tmp_path, passes, monkeypatch):
    """Their gradients are there, and their requests are not to be done again."""
    requests = [(0, 1, FIRST), (1, 1, SECOND), (2, 1, THIRD)]
    _, expected = alone(base, tmp_path / "alone", requests, 3)
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        folder = services.runs.get("", models[0]).folder
        for name in ("finish", "fail"):
            when(monkeypatch, Run, name, lambda journal, *words: journal.folder == folder)
        with held(services):
            ids = asked(client, models, requests)
        for number in (1, 2):
            client.result(ids[number])
            assert gap(gradient(services, models[number]), expected[number]) <= AGREE
        assert passes == [3] and services.runs.get("", models[0]).trainer is None


@pytest.mark.parametrize(("in_memory", "sizes"), [(1, []), (2, [2]), (3, [3])])
def test_a_batch_is_of_models_in_memory_and_none_is_loaded_or_leaves_for_it(base, tmp_path, passes, in_memory, sizes):
    requests = [(0, 1, FIRST), (1, 1, SECOND), (2, 1, THIRD)]  # the first was not used for longest
    answers, _ = alone(base, tmp_path / "alone", requests, 3)
    with serving(base, tmp_path / "joint", batch_gradients=True, models_in_memory=in_memory) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        with held(services):
            ids = asked(client, models, requests)
        for request_id, each in zip(ids, answers, strict=True):
            agree(client.result(request_id), each)
        assert passes == sizes


@pytest.mark.parametrize(("tokens", "sizes"), [(8, []), (23, [2]), (24, [3])])
def test_a_batch_has_a_limit_of_tokens(base, tmp_path, passes, tokens, sizes):
    """Each request has two sequences of four."""
    with serving(base, tmp_path, batch_gradients=True, microbatch_tokens=tokens) as (url, services):
        client = Client(url)
        models = models_of(client, 3)
        with held(services):
            ids = asked(client, models, [(number, 1, FIRST) for number in range(3)])
        assert [len(client.result(request_id)) > 0 for request_id in ids] == [True] * 3
        assert passes == sizes


def test_the_next_server_computes_again_what_no_step_has_used(base, tmp_path, passes):
    """By itself, so that it agrees, and a step that follows gives weights that do."""
    requests = [(0, 1, FIRST), (1, 1, SECOND)]
    _, expected = alone(base, tmp_path / "alone", requests, 2)
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 2)
        with held(services):
            ids = asked(client, models, requests)
        first = [client.result(request_id) for request_id in ids]
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        assert [client.result(request_id) for request_id in ids] == first  # kept on disk
        for number, model in enumerate(models):
            client.result(client.gradient(model, 2, shift=0, weight=0.0))
            assert torch.equal(gradient(services, model), expected[number])  # computed alone
    assert passes == [2]


def test_what_was_accepted_and_not_computed_is_done_by_the_next_server(base, tmp_path, passes):
    requests = [(0, 1, FIRST), (1, 1, SECOND), (0, 2, "step"), (1, 2, "step")]
    with serving(base, tmp_path / "alone") as (url, services):
        client = Client(url)
        models = models_of(client, 2)
        for each in requests:
            client.result(*asked(client, models, [each]))
        saved = [client.result(client.save(model, 3, "end"))["path"] for model in models]
        expected = [weights(services, path) for path in saved]
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 2)
        services.worker.close()  # accepts, and computes no more
        asked(client, models, requests)
    with serving(base, tmp_path / "joint", batch_gradients=True) as (url, services):
        client = Client(url)
        for number, model in enumerate(models):
            path = client.result(client.save(model, 3, "end"))["path"]
            assert weights(services, path).keys() == expected[number].keys()
            for name, weight in weights(services, path).items():
                torch.testing.assert_close(weight, expected[number][name], rtol=1e-3, atol=1e-4)


def test_a_client_at_fault_is_kept_out_until_what_it_computes_is_finite(base, tmp_path, passes):
    wrong, finite = {"shift": 3, "weight": 3e38}, {"shift": 3}
    with serving(base, tmp_path, batch_gradients=True) as (url, services):
        client = Client(url)
        models = models_of(client, 3)

        def together(seq, of_second):
            with held(services):
                ids = asked(client, models, [(0, seq, FIRST), (2, seq, THIRD), (1, seq, of_second)])
            return [client.raw(request_id) for request_id in ids]

        for seq in (1, 2):
            assert "the loss is" in together(seq, wrong)[2]["error"]
        assert passes == [3, 2]
        together(3, finite)
        assert passes == [3, 2, 2]
        together(4, finite)
        assert passes == [3, 2, 2, 3]
