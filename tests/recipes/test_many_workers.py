"""The recipe of one process with two samplers and two trainers handed to it: the run is the same one.

Scripted: the workers are objects in this process, each with weights of its own. What crosses between them is what would
cross between processes: requests and completions, batches and losses, gradients, weights.
"""

import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from posttrain import algorithms
from posttrain.bindings import backend
from posttrain.data.packing import pack
from posttrain.engine.engine import finish_all
from posttrain.engine.policy import Policy
from posttrain.engine.transformers import TransformersEngine
from posttrain.recipes import rl
from posttrain.training.learner import POLICY
from posttrain.training.local_learner import learner_for
from tests.recipes.test_rl import config, rows

MICROBATCH = 320


@dataclass
class TwoSamplers:
    """An engine: each sampler has a copy of the weights, renewed when it is opened, and half of the requests."""

    source: Any  # the model of the first trainer
    samplers: list[TransformersEngine]
    models: list[Any]
    sampled: list[int]

    @contextlib.contextmanager
    def open(self, on_tokens=None, *, turns=False):
        for model in self.models:
            model.network.load_state_dict(self.source.network.state_dict())
        with contextlib.ExitStack() as stack:
            self.halves = [stack.enter_context(each.open(on_tokens, turns=turns)) for each in self.samplers]
            self.waiting = [0, 0]
            yield self

    def add(self, number, request):
        self.sampled[number % 2] += 1
        self.waiting[number % 2] += 1
        self.halves[number % 2].add(number, request)

    def cancel(self, number):
        self.halves[number % 2].cancel(number)

    def step(self):
        found = {}
        for half, decoding in enumerate(self.halves):
            done = decoding.step() if self.waiting[half] else {}
            self.waiting[half] -= len(done)
            found |= done
        return found

    def generate(self, requests, on_tokens=None):
        with self.open(on_tokens) as decoding:
            return finish_all(decoding, requests)


@dataclass
class TwoTrainers:
    """A learner: each trainer has every second micro-batch; gradients are added up before each takes the same step."""

    ranks: list[Any]
    models: list[Any]
    trained: list[int]
    rows: int = 0  # of a batch, at most: with two of them the sum of gradients has one order

    def forward_backward(self, batch, loss):
        packed = pack(batch.examples, MICROBATCH, together=batch.together)
        parts = [[number for row in packed[rank::2] for number in row.examples] for rank in range(2)]
        batches = [replace(batch.chosen(part), key=f"{batch.key} {rank}") for rank, part in enumerate(parts)]
        with ThreadPoolExecutor(2) as pool:
            told = list(pool.map(lambda rank: self.ranks[rank].forward_backward(batches[rank], loss), range(2)))
        self.trained = [had + len(part) for had, part in zip(self.trained, parts, strict=True)]
        self.rows = max(self.rows, len(packed))
        return told[0] | {"loss": told[0]["loss"] + told[1]["loss"]}  # the other metrics are of the first trainer

    def optim_step(self, rates):
        for ours, theirs in zip(self.models[0].network.parameters(), self.models[1].network.parameters(), strict=True):
            grads = [each.grad for each in (ours, theirs) if each.grad is not None]
            if grads:  # one whose trainer had no examples takes part with nothing
                ours.grad, theirs.grad = sum(grads), sum(grads)
        norms, _ = [rank.optim_step(rates) for rank in self.ranks]
        return norms

    def logprobs(self, examples, model=POLICY, **how):
        found = [rank.logprobs(examples[half::2], model, **how) for half, rank in enumerate(self.ranks)]
        return [found[number % 2][number // 2] for number in range(len(examples))]

    def save(self, folder):
        self.ranks[0].save(folder)

    def restore(self, folder):
        for rank in self.ranks:
            rank.restore(folder)


@pytest.fixture
def workers(monkeypatch):
    """The same recipe, with other workers handed to it; what they have done."""
    made: dict[str, Any] = {}

    def policy_with_two_samplers(options, where, **sampling):
        policy = made["load"](options, where, **sampling)
        models = [copy.deepcopy(policy.model) for _ in range(2)]
        samplers = [TransformersEngine(model, policy.chat.stop_ids) for model in models]
        made["engine"] = TwoSamplers(policy.model, samplers, models, [0, 0])
        return Policy(policy.model, policy.chat, made["engine"])

    def two_trainers(options, model, save, **parts):
        models = [model, copy.deepcopy(model)]
        ranks = [learner_for(options, each, save) for each in models]
        made["learner"] = TwoTrainers(ranks, models, [0, 0])
        return made["learner"]

    made["load"] = backend.trained_policy
    monkeypatch.setattr(backend, "trained_policy", policy_with_two_samplers)
    monkeypatch.setattr(rl, "learner_for", two_trainers)
    return made


def run(folder, output):
    options = config(folder, steps=4, algorithm="rloo", microbatch_tokens=MICROBATCH, save_every=4)
    return rl.run(options, algorithms.online("rloo")(kl_coefficient=0.0), output=output, quiet=True).run


def test_two_samplers_and_two_trainers_are_the_run_of_one_process(folder, tmp_path, request):
    one = run(folder, tmp_path / "one")
    workers = request.getfixturevalue("workers")
    two = run(folder, tmp_path / "two")
    assert workers["learner"].rows == 2
    assert min(workers["engine"].sampled) == 32 and min(workers["learner"].trained) > 16
    weights = [load_file(each / "checkpoints/step-000004/masters.safetensors") for each in (one, two)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    for ours, theirs in zip(rows(one), rows(two), strict=True):
        same = [name for name in ours if name.startswith(("reward/", "length", "grad_norm"))]
        assert same and [ours[name] for name in same] == [theirs[name] for name in same]
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-6)
