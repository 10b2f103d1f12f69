"""Options that save memory, in every command that trains: what they must not change, and where they are refused."""

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from posttrain import algorithms
from posttrain.errors import UserError
from posttrain.models import blockwise
from posttrain.recipes import online_preference, preference, reward_model, rl, sft
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.preference import Preferences
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT
from posttrain.runs import read_run
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder

ONCE = {"steps": 1, "lr": 3e-3, "warmup_steps": 0, "precision": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("data")
    model_folder(where / "model")
    sums = [{"prompt": f"{i}+{i}", "completion": str(2 * i), "answer": ""} for i in range(1, 7)]
    pairs = [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in sums]
    ratings = [{"prompt": row["prompt"], "completion": "x" * i, "ratings": {"help": i}} for i, row in enumerate(sums)]
    for name, rows in (("sums", sums), ("pairs", pairs), ("ratings", ratings)):
        (where / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (where / "scorer.py").write_text("def score(completion: str) -> float:\n    return float(len(set(completion)))\n")
    return where


def options(folder, name, **changes):
    """The smallest run of a command, and what runs it."""
    common: dict[str, Any] = {**ONCE, "model": str(folder / "model"), **changes}
    if name in ("rl", "online-preference"):
        common |= {"dataset": str(folder / "sums.jsonl"), "reward": f"{folder / 'scorer.py'}:score"}
        common |= {"prompts_per_step": 2, "completions_per_prompt": 3, "max_new_tokens": 6}
    if name == "rl":
        return RL(algorithm="ppo", **common), lambda config, **to: rl.run(config, algorithms.online("ppo")(), **to)
    dpo = algorithms.preference("dpo")()
    if name == "online-preference":
        common = {"rounds": common.pop("steps"), **common}
        return OnlinePreference(**common), lambda config, **to: online_preference.run(config, dpo, **to)
    if name == "sft":
        return SFT(dataset=str(folder / "sums.jsonl"), examples_per_step=6, **common), sft.run
    common["pairs_per_step"] = 4
    if name == "ratings":
        return Scoring(heads="attributes", ratings=str(folder / "ratings.jsonl"), **common), reward_model.run
    common["dataset"] = str(folder / "pairs.jsonl")
    if name == "preference":
        return Preferences(**common), lambda config, **to: preference.run(config, dpo, **to)
    return Scoring(**common), reward_model.run


def learned(run):
    found = checkpoint.latest(run / "checkpoints")
    return {
        f"{file}/{name}": tensor
        for file in found.path.glob("*masters.safetensors")
        for name, tensor in checkpoint.load_tensors(file).items()
    }


TIMES = ("seconds", "tokens_per_second", "memory")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sft", {}),
        ("sft", {"lora_rank": 2, "lora_dropout": 0.3}),
        ("rl", {}),
        ("rl", {"critic": "own"}),
        ("online-preference", {}),
        ("preference", {"lora_rank": 2}),
        ("reward-model", {}),
        ("ratings", {"lora_rank": 2}),
    ],
)
def test_with_gradient_checkpointing_every_command_learns_the_same_to_the_last_bit(
    name, changes, folder, tmp_path, monkeypatch
):
    if "lora_rank" in changes:
        pytest.importorskip("peft")
    runs = []
    recomputed = [0]
    again = torch.utils.checkpoint.checkpoint

    def counted(*args, **kwargs):
        recomputed[0] += 1
        return again(*args, **kwargs)

    monkeypatch.setattr("posttrain.models.fused.checkpoint", counted)
    for on in (False, True):
        config, run = options(folder, name, gradient_checkpointing=on, **changes)
        runs.append(run(config, output=tmp_path / str(on), quiet=True).run)
        assert (recomputed[0] > 0) == on
    plain, lean = (learned(run) for run in runs)
    assert plain and all(torch.equal(tensor, lean[name.replace("False", "True")]) for name, tensor in plain.items())
    rows = [
        [{k: v for k, v in row.items() if not any(t in k for t in TIMES)} for row in read_run(r).metrics] for r in runs
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["sft", "rl", "online-preference", "preference", "reward-model", "ratings"])
def test_moments_in_8_bits_are_refused_where_no_matrix_is_large_enough(name, folder, tmp_path):
    config, run = options(folder, name, optim="adamw-8bit")  # the largest have 32 x 48 numbers
    with pytest.raises(UserError, match=r'^`optim="adamw-8bit"` would change nothing'):
        run(config, output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "changes"), [("sft", {}), ("rl", {"critic": "own"})])
def test_a_run_in_8_bits_that_is_resumed_equals_one_that_was_not_stopped(name, changes, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(blockwise, "LEAST", 256)
    config, run = options(folder, name, optim="adamw-8bit", gradient_checkpointing=True, **changes)
    config = replace(config, save_every=1, keep_last=9, steps=2, decay="constant")
    whole = run(config, output=tmp_path / "whole", quiet=True).run
    part = run(config, output=tmp_path / "part", quiet=True).run
    shutil.rmtree(part / "checkpoints" / "step-000002")
    run(config, resume=part, quiet=True)
    ours, theirs = learned(whole), learned(part)
    assert ours and all(torch.equal(t, theirs[name.replace("/whole/", "/part/")]) for name, t in ours.items())
    found = checkpoint.latest(part / "checkpoints")
    for file in found.path.glob("*optimizer.safetensors"):
        kinds = {t.dtype for name, t in checkpoint.load_tensors(file).items() if name.endswith("exp_avg")}
        assert torch.uint8 in kinds
