"""Reinforcement learning with every online algorithm, on a model and a task that take no time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain import algorithms
from posttrain.errors import UserError
from posttrain.monitoring import read_run
from posttrain.recipes import rl
from posttrain.recipes.rl import RL
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder

SCORER = '''
def score(completion: str) -> float:
    """The share of its letters that come early in the alphabet."""
    return sum(letter.lower() in "abcdefghijklm" for letter in completion) / max(1, len(completion))
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("rl")
    model_folder(where / "model")
    (where / "scorer.py").write_text(SCORER)
    rows = [{"prompt": f"{i}?", "answer": "", "kind": "even" if i % 2 == 0 else "odd"} for i in range(8)]
    (where / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return where


def config(folder: Path, **changes: Any) -> RL:
    common = {"prompts_per_step": 4, "completions_per_prompt": 4, "steps": 12, "max_new_tokens": 8}
    common |= {"lr": 1e-2, "warmup_steps": 0, "precision": "float32", "reward": f"{folder / 'scorer.py'}:score"}
    return RL(dataset=str(folder / "tasks.jsonl"), model=str(folder / "model"), **(common | changes))


def train(options: RL, knobs: dict[str, Any] | None = None, **where: Any) -> Any:
    return rl.run(options, algorithms.online(options.algorithm)(**(knobs or {})), **{"quiet": True, **where})


def rows(run: Path) -> list[dict[str, Any]]:
    return read_run(run).metrics


@pytest.mark.parametrize("name", algorithms.ONLINE)
def test_every_algorithm_learns_to_please(name, folder, tmp_path):
    # a KL in the reward is paid for in nats of a whole completion, which outweigh this reward
    knobs = {"kl_coefficient": 0.0} if name in ("rloo", "remax") else {}
    result = train(config(folder, algorithm=name, steps=15), knobs, output=tmp_path / "run")
    rewards = [row["reward/mean"] for row in rows(result.run)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:2]) / 2 + 0.1  # 0.26 to 0.91 over three seeds


@pytest.mark.parametrize("name", ["dapo", "rloo"])
def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(name, folder, tmp_path):
    options = config(folder, algorithm=name, steps=4, save_every=1, keep_last=9)
    whole = train(options, output=tmp_path / "whole").run
    part = train(replace(options, steps=2), output=tmp_path / "part").run
    train(options, resume=part)
    timed = ("seconds/", "tokens_per_second", "memory_gb")
    curves = [[{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows(run)] for run in (whole, part)]
    assert curves[0] == curves[1] and len(curves[0]) == 4
    states = [checkpoint.latest(run / "checkpoints") for run in (whole, part)]
    first, second = (checkpoint.load_tensors(found.path / "masters.safetensors") for found in states)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert states[0].state == states[1].state


def test_groups_that_teach_nothing_are_thrown_away_and_drawn_again(folder, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        type(algorithms.online("dapo")()), "accepts", lambda self, rewards: seen.append(rewards) or len(seen) % 2 == 0
    )
    result = train(config(folder, algorithm="dapo", steps=2), output=tmp_path / "run")
    assert [row["groups/thrown_away"] for row in rows(result.run)] == [4, 4] and len(seen) == 16
    assert checkpoint.latest(result.run / "checkpoints").state == {"draws": 4}
    seen.clear()
    monkeypatch.setattr(type(algorithms.online("dapo")()), "accepts", lambda self, rewards: False)
    result = train(config(folder, algorithm="dapo", steps=1, max_refills=2), output=tmp_path / "none")
    first = rows(result.run)[0]
    assert (first["groups/thrown_away"], first["groups/kept"], first["grad_norm"]) == (12, 0, 0.0)
    assert checkpoint.latest(result.run / "checkpoints").state == {"draws": 3}


def test_the_kl_in_the_reward_is_that_of_the_policy_before_training(folder, tmp_path):
    options = config(folder, algorithm="rloo", steps=3)
    found = [row["groups/kl"] for row in rows(train(options, {"kl_coefficient": 0.1}, output=tmp_path / "a").run)]
    assert found[0] == pytest.approx(0.0, abs=1e-4) and found[-1] > 0.01
    free = rows(train(options, {"kl_coefficient": 0.0}, output=tmp_path / "b").run)
    assert "groups/kl" not in free[0]


def test_a_kind_of_prompt_is_a_field_of_the_task(folder, tmp_path):
    found = rows(train(config(folder, algorithm="grpo-bucketed", steps=1), output=tmp_path / "run").run)
    assert found[0]["groups/kinds"] == 2.0


def test_a_group_of_one_is_enough_where_nothing_is_compared_within_it(folder, tmp_path):
    for name in ("reinforce", "remax", "reinforce++", "grpo-bucketed"):
        options = config(folder, algorithm=name, steps=1, completions_per_prompt=1)
        assert train(options, output=tmp_path / name.replace("+", "p")).steps == 1
    for name in ("rloo", "grpo", "dr-grpo", "dapo", "gspo"):
        with pytest.raises(UserError, match="needs 2 or more of them; got 1"):
            train(config(folder, algorithm=name, completions_per_prompt=1), output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
