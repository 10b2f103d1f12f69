"""Runs with a model that is trained beside the policy, and with another model that continues its completions."""

import json
from dataclasses import replace

import pytest
import torch

from posttrain import algorithms
from posttrain.bindings.cluster_options import ONE_PROCESS
from posttrain.cli import main
from posttrain.errors import UserError
from posttrain.planning.plan import plan_rl
from posttrain.recipes import rl
from posttrain.runs import read_run
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder
from tests.recipes.test_rl import config, rows, small, train

OWN = """
from dataclasses import dataclass

import posttrain as pt
from posttrain.algorithms.algorithm import TokenLoss
from posttrain.algorithms.inputs import TrainedModel


@dataclass(frozen=True)
class Odds(TrainedModel):
    title = "odds"
    columns = ("odds_N",)
    part = "odds"
    head = True

    def loss(self, algorithm, tokens):
        return TokenLoss((tokens.values_N - tokens.returns_N) ** 2, {"odds": tokens.values_N.detach()})


@dataclass(frozen=True)
class Foreseen(pt.GRPO):
    \"\"\"Rewards less what a head foresees.\"\"\"

    odds_lr: float = 0.05
    \"\"\"Learning rate of the head.\"\"\"

    @property
    def inputs(self):
        return (*super().inputs, Odds(lr=self.odds_lr, warmup_steps=1))

    def advantages(self, rollout):
        rewards_N = rollout.per_token(rollout.rewards_R)
        return super().advantages(rollout)._replace(
            advantages_N=rewards_N - rollout.more["odds_N"], returns_N=rewards_N
        )
"""
TIMED = ("seconds/", "tokens_per_second", "memory_gb")


def untimed(run):
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in rows(run)]


def test_an_algorithm_of_a_users_file_brings_a_model_of_its_own(folder, tmp_path, capsys):
    """Its rate, its warmup, its metrics and its files; a resumed run equals a whole one."""
    (tmp_path / "own.py").write_text(OWN)
    typed = (
        f"rl --algorithm {tmp_path}/own.py:Foreseen --model {folder}/model --dataset {folder}/tasks.jsonl "
        f"--reward {folder}/scorer.py:score --precision float32 --lr 1e-2 --warmup-steps 0 --prompts-per-step 4 "
        "--completions-per-prompt 4 --max-new-tokens 8 --save-every 1 --keep-last 9 --kl-coefficient 0 --quiet"
    )
    whole, part, slow = (tmp_path / name for name in ("whole", "part", "slow"))
    assert main([*typed.split(), "--steps", "4", "--output", str(whole)]) == 0
    assert main([*typed.split(), "--steps", "2", "--output", str(part)]) == 0
    assert main([*typed.split(), "--steps", "4", "--resume", str(part)]) == 0
    found = untimed(whole)
    assert found == untimed(part) and len(found) == 4
    assert "ratio/mean" not in found[0] and found[0]["loss"] > 0  # the first step is the head's alone
    assert all({"loss", "odds_loss", "odds_grad_norm", "ratio/mean", "grad_norm"} <= row.keys() for row in found[1:])
    assert found[-1]["odds_loss"] < found[1]["odds_loss"]
    at = [checkpoint.load_tensors(run / "checkpoints/step-000004/odds-masters.safetensors") for run in (whole, part)]
    assert sorted(at[0]) == ["head.bias", "head.weight"] and all(
        torch.equal(at[0][name], at[1][name]) for name in at[0]
    )
    assert main([*typed.split(), "--steps", "2", "--odds-lr", "1e-9", "--output", str(slow)]) == 0
    still = checkpoint.load_tensors(slow / "checkpoints/step-000002/odds-masters.safetensors")
    assert still["head.weight"].abs().max() < 1e-7 < at[0]["head.weight"].abs().max()
    assert main([*typed.split(), "--steps", "1", "--output", str(tmp_path / "none")]) == 2
    assert "odds warmup covers all 1 steps" in capsys.readouterr().err


def test_prime_trains_two_networks_and_exports_one(folder, tmp_path):
    result = train(small(folder, "prime", steps=3), {"prm_lr": 1e-2}, output=tmp_path / "run")
    found = rows(result.run)
    assert found[0]["groups/implicit_reward"] == pytest.approx(0.0, abs=1e-6)  # both are the policy
    assert found[0]["prm_loss"] == pytest.approx(0.6931, abs=1e-3) and found[-1]["groups/implicit_reward"] != 0.0
    last = checkpoint.latest(result.run / "checkpoints").path
    second, policy = (checkpoint.load_tensors(last / f"{name}masters.safetensors") for name in ("prm-", ""))
    assert second.keys() == policy.keys() and any(not torch.equal(second[name], policy[name]) for name in policy)
    assert main(["export", "hf", "--model", str(result.run), "--output", str(tmp_path / "out")]) == 0
    assert not [path.name for path in (tmp_path / "out").iterdir() if "masters" in path.name or "optim" in path.name]


@pytest.mark.parametrize(("name", "networks"), [("grpo", 1), ("prime", 2)])
def test_a_plan_counts_it(name, networks, folder):
    plan = plan_rl(small(folder, name), algorithms.online(name)(), measure=False)
    assert plan.training.networks == networks


def test_progress_is_measured_by_the_prover(folder, tmp_path):
    """Another prover, other values of states: the policy samples the same in the first step."""
    knobs, found = {"step_tokens": 3, "continuations": 2, "max_states": 3}, []
    for seed in (0, 1):
        prover = model_folder(tmp_path / f"prover-{seed}", seed=seed)
        options = replace(small(folder, "pav", steps=1), prover=str(prover))
        run = train(options, knobs, output=tmp_path / f"run-{seed}").run
        found.append(rows(run)[0])
        about = json.loads((run / "environment.json").read_text())
        assert about["judges"] == {str(prover): str(prover)}
    assert found[0]["reward/mean"] == found[1]["reward/mean"]
    assert found[0]["groups/value"] != found[1]["groups/value"] and found[0]["groups/progress"] > 0
    parts = rl._prepare(options, algorithms.online("pav")(**knobs), ONE_PROCESS, {})
    assert parts.notes[-1] == (
        f"the prover {prover} samples up to 72 continuations a step in this process, 4 for each completion; "
        "fewer `continuations` or "
        "`max_states`, or more `step_tokens`, cost less"  # 4 prompts x 2, and 16 completions x 2 later states x 2
    )
    plan, alone = (plan_rl(one, algorithms.online(one.algorithm)(), measure=False) for one in (options, config(folder)))
    assert plan.training.chat_models > 0 == alone.training.chat_models


def test_a_prover_that_cannot_read_the_policys_tokens_is_refused_before_weights_are_read(folder, tmp_path):
    short = model_folder(tmp_path / "short", context=16)
    with pytest.raises(UserError, match=r"the prover .* reads 16 tokens at most, .* or give another prover"):
        train(replace(small(folder, "pav"), prover=str(short)), output=tmp_path / "refused")
    (tmp_path / "short/tokenizer.json").write_text(
        (tmp_path / "short/tokenizer.json").read_text().replace('"a":', '"a a":')
    )
    with pytest.raises(UserError, match=r"the prover .* has another tokenizer than the policy: .* in the prover's"):
        train(replace(small(folder, "pav"), prover=str(short)), output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_run_of_before_has_no_prover(folder, tmp_path):
    run = train(config(folder, steps=1), output=tmp_path / "run").run
    text = (run / "config.toml").read_text()
    assert 'prover = ""\n' in text
    (run / "config.toml").write_text(text.replace('prover = ""\n', ""))
    train(config(folder, steps=2), resume=run)
    assert len(read_run(run).metrics) == 2
