"""The SDK as it is, against a server in this process."""

import threading

import numpy as np
import pytest

pytest.importorskip("tinker", reason="needs the extra server")

import tinker
import torch
from tinker import types

from posttrain.models.language_model import with_shared_weights
from posttrain.models.lora import add_lora
from posttrain.serving.access import Limits
from tests.serving.serving import KEY, NAME, serving

WORDS, NEXT = [5, 6, 7, 8, 9], [6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def server(base, tmp_path_factory):
    with serving(base, tmp_path_factory.mktemp("store"), limits=Limits(models_per_key=200)) as (url, services):
        yield url, services


@pytest.fixture
def client(server):
    return tinker.ServiceClient(base_url=server[0], api_key=KEY)


def datum(tokens=WORDS, targets=NEXT, **columns):
    inputs = {"target_tokens": np.array(targets)} | {k: np.array(v, dtype=np.float32) for k, v in columns.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(list(tokens)), loss_fn_inputs=inputs)


def prompt(*tokens):
    return types.ModelInput.from_ints(list(tokens))


def trained(client, *, rank=4, seed=1, steps=3, rate=3e-2):
    model = client.create_lora_training_client(base_model=NAME, rank=rank, seed=seed).result()
    for _ in range(steps):
        model.forward_backward([datum()], "cross_entropy")
        model.optim_step(types.AdamParams(learning_rate=rate)).result()
    return model


def logprobs(model):
    return np.array(model.forward([datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].data)


def test_requests_that_come_during_a_step_begin_together(client, server, monkeypatch):
    decoder, came, all_came = server[1].decoder, [], threading.Event()
    add, step = decoder.add, decoder.step

    def counted(job):
        add(job)
        came.append(job)
        if len(came) == 8:
            all_came.set()

    monkeypatch.setattr(decoder, "add", counted)
    monkeypatch.setattr(decoder, "step", lambda: (all_came.wait(20), step()))
    sampler = client.create_sampling_client(base_model=NAME)
    asked = [sampler.sample(prompt(*WORDS), 1, types.SamplingParams(max_tokens=2, seed=i)) for i in range(8)]
    assert all_came.wait(10), f"{len(came)} of 8 requests had come"
    assert all(len(each.result().sequences) == 1 for each in asked)


def test_a_model_is_made_trained_and_sampled_from(client):
    model = client.create_lora_training_client(base_model=NAME, rank=4, seed=1).result()
    info = model.get_info()
    assert (info.model_data.model_name, info.lora_rank, info.is_lora) == (NAME, 4, True)
    losses = []
    for _ in range(4):
        found = model.forward_backward([datum(), datum()], "cross_entropy")
        stepped = model.optim_step(types.AdamParams(learning_rate=2e-2))
        losses.append(found.result().metrics["loss:sum"])
        assert stepped.result().metrics["grad_norm:mean"] > 0
    assert losses[-1] < losses[0] / 2
    sampler = model.save_weights_and_get_sampling_client().result()
    sampled = sampler.sample(prompt(5), 3, types.SamplingParams(max_tokens=4, temperature=0.0)).result()
    assert [len(each.tokens) for each in sampled.sequences] == [4] * 3


def test_logprobs_of_samples_are_those_that_training_computes(client):
    model = trained(client)
    sampler = model.save_weights_and_get_sampling_client().result()
    (sampled,) = sampler.sample(prompt(5, 6), 1, types.SamplingParams(max_tokens=6, seed=3)).result().sequences
    tokens = [5, 6, *sampled.tokens]
    found = model.forward([datum(tokens[:-1], tokens[1:])], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    np.testing.assert_allclose(sampled.logprobs, found.data[1:], atol=1e-4)
    computed = sampler.compute_logprobs(prompt(*tokens)).result()
    assert computed[0] is None
    np.testing.assert_allclose(computed[1:], found.data, atol=1e-4)


def test_two_clients_sample_each_from_their_own_weights(client, server, base):
    other = tinker.ServiceClient(base_url=server[0], api_key=KEY)
    models = trained(client, seed=1, rate=5e-2), trained(other, rank=2, seed=2, rate=-0.0 + 1e-1)
    samplers = [model.save_weights_and_get_sampling_client().result() for model in models]
    plain = other.create_sampling_client(base_model=NAME).result()
    tokens = [5, 6, 7, 8, 9, 10, 11]
    asked = [each.compute_logprobs(prompt(*tokens)) for each in (*samplers, plain) * 3]  # in turn, all at once
    found = np.array([each.result()[1:] for each in asked], dtype=np.float64).reshape(3, 3, -1)
    for number, model in enumerate(models):
        own = model.forward([datum(tokens[:-1], tokens[1:])], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
        np.testing.assert_allclose(found[:, number], np.tile(own.data, (3, 1)), atol=1e-4)
    assert np.abs(found[0, 0] - found[0, 1]).max() > 0.1 and np.abs(found[0, 0] - found[0, 2]).max() > 0.1


def test_a_sampler_keeps_the_weights_that_it_was_made_with(client):
    model = trained(client)
    sampler = model.save_weights_and_get_sampling_client().result()
    before = sampler.compute_logprobs(prompt(*WORDS)).result()[1:]
    model.forward_backward([datum()], "cross_entropy")
    model.optim_step(types.AdamParams(learning_rate=0.1)).result()
    assert sampler.compute_logprobs(prompt(*WORDS)).result()[1:] == before


def test_a_seed_gives_the_same_samples_and_no_seed_others(client):
    sampler = client.create_sampling_client(base_model=NAME).result()

    def sample(seed):
        params = types.SamplingParams(max_tokens=8, seed=seed)
        return [each.tokens for each in sampler.sample(prompt(5), 3, params).result().sequences]

    assert sample(7) == sample(7) != sample(8)
    assert len({tuple(tokens) for tokens in sample(7)}) == 3
    assert sample(None) != sample(None)


def test_sampling_stops_at_a_token_or_at_a_string(client, base):
    sampler = client.create_sampling_client(base_model=NAME).result()

    def sample(**settings):
        params = types.SamplingParams(max_tokens=24, seed=4, **settings)
        return sampler.sample(prompt(5, 9), 1, params).result().sequences[0]

    whole = sample()
    assert whole.stop_reason == "length" and len(whole.tokens) == 24
    texts = [base.tokenizer.decode([token]) for token in whole.tokens]
    place = next(i for i in range(3, 24) if texts[i].isascii() and texts[i] not in texts[:i])
    by_token = sample(stop=[whole.tokens[place]])
    assert by_token.tokens == whole.tokens[: place + 1] and by_token.stop_reason == "stop"
    text = texts[place]
    by_string = sample(stop=[text])
    assert by_string.stop_reason == "stop" and len(by_string.tokens) == len(by_string.logprobs)
    assert text in base.tokenizer.decode(by_string.tokens)
    assert text not in base.tokenizer.decode(by_string.tokens[:-1])


def test_the_most_likely_tokens_of_a_prompt_are_the_bases(client, base):
    sampler = client.create_sampling_client(base_model=NAME).result()
    params = types.SamplingParams(max_tokens=1)
    found = sampler.sample(prompt(*WORDS), 1, params, topk_prompt_logprobs=3).result().topk_prompt_logprobs
    assert found[0] is None and [len(each) for each in found[1:]] == [3] * 4
    base.model.network.requires_grad_(False)
    own = sampler.sample(prompt(*WORDS), 1, params, include_prompt_logprobs=True).result().prompt_logprobs
    for token, logprob, most in zip(WORDS[1:], own[1:], found[1:], strict=True):
        assert [value for _, value in most] == sorted((value for _, value in most), reverse=True)
        assert dict(most).get(token, logprob) == pytest.approx(logprob, abs=1e-5)


def test_a_custom_loss_of_the_client_has_the_gradient_of_its_own(client):
    """C = sum of squared logprobs, once by the server's passes and once by autograd through cross-entropy's weights."""

    def squares(data, found):
        return sum((each**2).sum() for each in found), {"mine": 1.0}

    one, two = (client.create_lora_training_client(base_model=NAME, rank=4, seed=1).result() for _ in range(2))
    assert one.forward_backward_custom([datum()], squares).result().metrics["mine"] == 1.0
    two.forward_backward([datum(weights=-2 * logprobs(two))], "cross_entropy").result()
    norms = [
        each.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics["grad_norm:mean"] for each in (one, two)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    np.testing.assert_allclose(logprobs(one), logprobs(two), atol=1e-5)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_losses_of_samples_train(client, loss):
    model = client.create_lora_training_client(base_model=NAME, rank=4, seed=1).result()
    before = logprobs(model)
    columns = {"logprobs": before, "advantages": [0, 0, 1, 1, 1]}
    columns |= {"sequence_ratio_mask": [0, 0, 1, 1, 1]} if loss == "gspo" else {}
    result = model.forward_backward([datum(**columns)], loss).result()
    expected = {"cispo": -before[2:].sum(), "dro": -before[2:].sum()}.get(loss, -3.0)
    assert result.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)
    model.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    assert logprobs(model)[2:].sum() > before[2:].sum()


def test_checkpoints_load_in_all_three_ways_with_and_without_moments(client):
    model = trained(client)
    path = model.save_state("a").result().path
    assert path == f"tinker://{model.model_id}/weights/a"
    step = types.AdamParams(learning_rate=1e-2)

    def go_on(each):
        each.forward_backward([datum()], "cross_entropy")
        each.optim_step(step).result()
        return logprobs(each)

    with_moments = client.create_training_client_from_state_with_optimizer(path).result()
    without = client.create_training_client_from_state(path).result()
    onto = client.create_lora_training_client(base_model=NAME, rank=4, seed=9).result()
    onto.load_state_with_optimizer(path).result()
    assert with_moments.get_info().lora_rank == 4
    saved = logprobs(model)
    for each in (with_moments, without, onto):
        np.testing.assert_array_equal(logprobs(each), saved)
    expected = go_on(model)
    np.testing.assert_array_equal(go_on(with_moments), expected)
    np.testing.assert_array_equal(go_on(onto), expected)
    assert np.abs(go_on(without) - expected).max() > 1e-6


def test_named_sampler_weights_are_sampled_from_and_are_a_peft_folder(client, server, folder):
    model = trained(client)
    path = model.save_weights_for_sampler("for-sampling").result().path
    sampler = client.create_sampling_client(model_path=path).result()
    found = sampler.compute_logprobs(prompt(*WORDS, 10)).result()[1:]
    np.testing.assert_allclose(found, logprobs(model), atol=1e-4)
    where = server[1].models / model.model_id.replace(":", ".") / "sampler_weights/for-sampling/step-000000"
    assert (where / "adapter_model.safetensors").is_file() and (where / "adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda m: m.forward_backward([datum([5, 10**6], [6, 7])], "cross_entropy"), "token 1000000"),
        (lambda m: m.forward_backward([datum([5] * 65, [6] * 65)], "cross_entropy"), "65 tokens"),
        (lambda m: m.forward_backward([datum(weights=[1.0])], "cross_entropy"), "weights has shape"),
        (lambda m: m.forward_backward([datum()], "ppo"), "needs logprobs, advantages"),
        (lambda m: m.forward_backward([datum()], "nothing"), "no loss 'nothing'|unknown loss"),
        (lambda m: m.load_state("tinker://x/weights/a"), "no model 'x'"),
        (lambda m: m.load_state(f"tinker://{m.model_id}/weights/none"), "no checkpoint"),
        (lambda m: m.save_state("../a"), "the name of a checkpoint"),
        (lambda m: m.optim_step(types.AdamParams(learning_rate=-1.0)), "not negative"),
    ],
)
def test_errors_of_the_client_come_through_the_future_and_the_model_goes_on(client, act, reason):
    model = client.create_lora_training_client(base_model=NAME, rank=2, seed=1).result()
    with pytest.raises((tinker.RequestFailedError, tinker.BadRequestError), match=reason) as raised:
        act(model).result()
    if isinstance(raised.value, tinker.RequestFailedError):
        assert raised.value.category == tinker.types.RequestErrorCategory.User


def test_a_model_goes_on_after_an_error(client):
    model = client.create_lora_training_client(base_model=NAME, rank=2, seed=1).result()
    failed = model.forward_backward([datum([5, 10**6], [6, 7])], "cross_entropy")
    after = model.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.RequestFailedError):
        failed.result()
    assert after.result().metrics["loss:sum"] > 0


def test_a_name_is_taken_once_unless_overwritten(client):
    model = trained(client, steps=1)
    model.save_state("once").result()
    with pytest.raises(tinker.RequestFailedError, match="already"):
        model.save_state("once").result()
    model.save_state("once", overwrite=True).result()


def test_large_batches_come_in_chunks_whose_gradients_add_up(client, monkeypatch):
    one, two = (client.create_lora_training_client(base_model=NAME, rank=4, seed=1).result() for _ in range(2))
    batch = [datum([5 + i, 6, 7], [6, 7, 8]) for i in range(7)]
    whole = one.forward_backward(batch, "cross_entropy").result()
    small = two.holder._client_config.model_copy(update={"fwdbwd_max_chunk_len": 2})
    monkeypatch.setattr(two.holder, "_client_config", small)
    parts = two.forward_backward(batch, "cross_entropy").result()
    assert parts.metrics["loss:sum"] == pytest.approx(whole.metrics["loss:sum"], rel=1e-5)
    for ours, theirs in zip(parts.loss_fn_outputs, whole.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(ours["logprobs"].data, theirs["logprobs"].data, atol=1e-5)
    norms = [
        each.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics["grad_norm:mean"] for each in (one, two)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_the_adapter_is_the_one_that_its_seed_and_alpha_say(client, base):
    """A fresh adapter of seed 5, trained one step by hand."""
    model = client.create_lora_training_client(base_model=NAME, rank=4, seed=5).result()
    model.forward_backward([datum()], "cross_entropy")
    model.optim_step(types.AdamParams(learning_rate=1e-2, eps=1e-8)).result()
    own = add_lora(with_shared_weights(base.model), 4, alpha=32.0, seed=5)
    adam = torch.optim.AdamW([p for _, p in own.trainable()], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    from posttrain.data.packing import Example, pack

    row = pack([Example.whole([*WORDS, 10], [False, *[True] * 5])], 64)[0]
    (-own.logprobs(row).logprobs.sum()).backward()
    adam.step()
    np.testing.assert_allclose(logprobs(model), own.logprobs(row).logprobs.detach().numpy(), atol=1e-4)


def test_a_checkpoint_of_another_rank_is_refused_with_what_to_do(client):
    path = trained(client, rank=4, steps=1).save_state("a").result().path
    other = client.create_lora_training_client(base_model=NAME, rank=2, seed=1).result()
    with pytest.raises(tinker.RequestFailedError, match="make a model of the checkpoint's rank"):
        other.load_state(path).result()


def test_adapters_are_on_the_layers_that_are_asked_for(client, server):
    found = {}
    for name, parts in (("attn", {"train_mlp": False}), ("mlp", {"train_attn": False}), ("both", {})):
        model = client.create_lora_training_client(base_model=NAME, rank=2, seed=1, **parts).result()
        path = model.save_state(name).result().path
        info = client.create_rest_client().get_weights_info_by_tinker_path(path).result()
        assert (info.train_mlp, info.train_attn, info.lora_rank) == (name != "attn", name != "mlp", 2)
        run = server[1].runs.get("", model.model_id)
        found[name] = {weight.split(".lora_")[0].rpartition(".")[2] for weight in run.trainer.weights()}
    assert found["attn"] == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert found["mlp"] == {"gate_proj", "up_proj", "down_proj"}
    assert found["both"] == found["attn"] | found["mlp"]
