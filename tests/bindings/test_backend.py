"""What processes of a run load."""

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from posttrain.bindings import backend
from posttrain.bindings.cluster_options import AsyncOptions
from posttrain.distributed import trainers
from posttrain.recipes import rl
from posttrain.training.ranks import ALONE


class Loaded(Exception):
    """A trainer has loaded its policy."""


def test_a_trainer_has_no_engine_of_a_sampler(monkeypatch):
    """One of vLLM takes another copy of the weights, and its own keys and values. Models are loaded where ranks say."""
    settings, held = [], []
    ranks = SimpleNamespace(first=lambda method, asked: (asked, "given"))

    def learner_of_a_rank(ranks, make, **how):
        held.append(how)
        make(ALONE)
        make(SimpleNamespace(loads_on="cpu"))
        raise Loaded

    monkeypatch.setattr(backend, "trained_policy", lambda options, where, **sampling: settings.append(sampling))
    monkeypatch.setattr(backend, "connect", lambda cluster, stack: None)
    monkeypatch.setattr(trainers, "RankActors", lambda size, **share: contextlib.nullcontext(ranks))
    monkeypatch.setattr(trainers, "LearnerGroup", learner_of_a_rank)
    options = rl.RL(dataset="gym:chain_sum", reward="math", engine="vllm")
    with pytest.raises(Loaded):
        several = AsyncOptions(trainers=2, fsdp=True, fsdp_offload=True)
        backend.online_backend(options, "folder", lambda policy, ranks: None, several)
    assert settings == [{"device": "auto"}, {"device": "cpu"}]
    assert held == [{"shards": 2, "offload": True}]
