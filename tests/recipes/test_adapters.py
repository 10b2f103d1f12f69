"""Every recipe that trains, with every option of an adapter: resumed, trained on, refused."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain import algorithms, cli
from posttrain.models import lora
from posttrain.recipes import online_preference, preference, reward_model, rl, sft
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.recipes.preference import Preferences
from posttrain.recipes.reward_model import Scoring
from posttrain.recipes.rl import RL
from posttrain.recipes.sft import SFT
from posttrain.runs import read_run
from posttrain.training import checkpoint

pytest.importorskip("peft")

ADAPTER: dict[str, Any] = {
    "lora_rank": 2,
    "lora_alpha": 3.0,
    "lora_dropout": 0.3,
    "lora_targets": "q_proj down_proj",
    "lora_rslora": True,
    "lora_dora": True,
    "lora_modules_to_save": "norm",
}
COMMON = {"lr": 1e-2, "warmup_steps": 0, "precision": "float32", "decay": "constant"}


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, tuple[Any, Any, str]]:
    """Options, the function that runs them, and the option that says how many steps, by command."""
    dpo, grpo = algorithms.preference("dpo")(), algorithms.online("grpo")()
    pairs, said = folder / "pairs.jsonl", folder / "said.jsonl"
    rows = [{"prompt": f"{i}+{i}", "chosen": str(2 * i), "rejected": f"it is {2 * i + 1}"} for i in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said.write_text("".join(json.dumps({"prompt": r["prompt"], "completion": r["chosen"]}) + "\n" for r in rows))
    model = str(folder / "model")
    sampled = {"model": model, "reward": f"{folder / 'scorer.py'}:score", "max_new_tokens": 6, "prompts_per_step": 2}
    sampled |= {"dataset": str(folder / "tasks.jsonl"), "completions_per_prompt": 4}
    learned = {"dataset": str(pairs), "model": model, "pairs_per_step": 3}
    return {
        "sft": (SFT(dataset=str(said), model=model, examples_per_step=3, **COMMON), sft.run, "steps"),
        "rl": (
            RL(**sampled, updates_per_step=2, **COMMON),
            partial(rl.run, algorithm=grpo),
            "steps",
        ),
        "preference": (Preferences(**learned, **COMMON), partial(preference.run, algorithm=dpo), "steps"),
        "online-preference": (
            OnlinePreference(**sampled, updates_per_round=2, **COMMON),
            partial(online_preference.run, algorithm=dpo),
            "rounds",
        ),
        "reward-model": (Scoring(**learned, length_debias=1.0, **COMMON), reward_model.run, "steps"),
    }


NAMES = ("sft", "rl", "preference", "online-preference", "reward-model")


def masters(run: Path) -> dict[str, torch.Tensor]:
    found = checkpoint.latest(run / "checkpoints")
    assert found is not None
    return checkpoint.load_tensors(found.path / "masters.safetensors")


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_dropout_that_is_resumed_equals_one_that_was_not_interrupted(name, runs, tmp_path):
    options, run, steps = runs[name]
    options = replace(options, **ADAPTER, seed=3)
    whole = run(replace(options, **{steps: 4}), output=tmp_path / "whole", quiet=True)
    part = run(replace(options, **{steps: 2}), output=tmp_path / "part", quiet=True)
    run(replace(options, **{steps: 4}), resume=part.run, quiet=True)
    expected, found = masters(whole.run), masters(part.run)
    parts = {part for key in expected for part in key.split(".")}
    assert parts >= {"lora_A", "lora_B", "lora_magnitude_vector", "modules_to_save"}
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(tensor, found[key]), key
    other = run(replace(options, lora_dropout=0.0, **{steps: 4}), output=tmp_path / "other", quiet=True)
    assert any(not torch.equal(tensor, expected[key]) for key, tensor in masters(other.run).items())


@pytest.mark.parametrize("name", ["sft", "rl", "preference"])
def test_an_adapter_is_trained_on_with_its_own_options(name, runs, tmp_path):
    options, run, steps = runs[name]
    first = run(replace(options, **ADAPTER, **{steps: 2}), output=tmp_path / "first", quiet=True)
    second = run(replace(options, model=str(first.run), lr=0.0, **{steps: 1}), output=tmp_path / "second", quiet=True)
    before, after = masters(first.run), masters(second.run)
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    folders = [checkpoint.latest(each.run / "checkpoints").path for each in (first, second)]
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in folders]
    assert configs[0] == configs[1] and configs[0]["lora_dropout"] == 0.3 and configs[0]["lora_alpha"] == 3.0
    if name == "rl":  # the ratio is still 1 on the first update, and the gap is that of the sampler, not of dropout
        row = read_run(second.run).metrics[-1]
        assert row["ratio/mean"] == row["ratio/max"] == 1.0 and row["logprob_gap/max"] < 1e-4


@pytest.mark.parametrize("name", ["sft", "rl", "preference", "reward-model"])
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            ["--lora-alpha", "16"],
            "--lora-alpha needs a new adapter: pass --lora-rank too, such as 16",
        ),
        (["--lora-rank", "4", "--lora-dropout", "1"], "--lora-dropout must be 0 to below 1; got 1.0"),
        (["--lora-rank", "4", "--lora-targets", "q_porj"], "'q_porj'; did you mean 'q_proj'? There are: down_proj, "),
        (["--lora-rank", "4", "--lora-modules-to-save", "norn"], "'norn'; did you mean 'norm'?"),
    ],
)
def test_mistakes_are_one_line(name, typed, says, runs, capsys, tmp_path):
    options, _, _ = runs[name]
    words = [name, "--model", options.model, "--dataset", options.dataset, "--output", str(tmp_path / "run"), *typed]
    words += ["--reward", options.reward] if name == "rl" else []
    assert cli.main(words) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", NAMES)
def test_without_peft_nothing_is_loaded(name, runs, tmp_path, monkeypatch):
    options, run, _ = runs[name]
    monkeypatch.setattr(lora, "peft", None)
    with pytest.raises(lora.UserError, match=r"pip install 'posttrain\[lora\]'"):
        run(replace(options, lora_rank=4, model=str(tmp_path / "no model")), output=tmp_path / "run", quiet=True)
