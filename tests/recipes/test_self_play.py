"""Self-play of two seats by one policy, with the moving averages of RAE: what each seat usually earns is kept."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.algorithms import inputs
from posttrain.algorithms.rae import RAE
from posttrain.errors import RewardError
from posttrain.recipes import rl
from posttrain.recipes.rl import RL
from posttrain.runs import read_run
from posttrain.training import checkpoint
from tests.recipes.folders import model_folder

DUEL = '''
from posttrain.environments import Environment
from posttrain.types import Message, Outcome, Task


class Duel(Environment):
    """More early letters win; the first seat wins a draw."""

    seats = trained = ("first", "second")

    def tasks(self, split, seed):
        return [Task((Message("user", f"{n}?"),), id=str(n)) for n in range(4)]

    async def play(self, task, seats, seed):
        said = [(await seats[name].turn(task.prompt)).text for name in self.seats]
        first, second = (sum(letter in "abcdefghijklm" for letter in one) for one in said)
        won = 1.0 if first >= second else -1.0
        return Outcome({"first": won, "second": -won})
'''
TIMED = ("seconds/", "tokens_per_second", "memory_gb")


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> RL:
    folder = tmp_path_factory.mktemp("self-play")
    model = model_folder(folder / "model")
    (folder / "duel.py").write_text(DUEL)
    return RL(
        environment=f"{folder / 'duel.py'}:Duel",
        model=str(model),
        algorithm="rae",
        prompts_per_step=4,
        completions_per_prompt=2,
        max_new_tokens=4,
        steps=4,
        save_every=1,
        keep_last=9,
        lr=1e-2,
        precision="float32",
    )


def found_in(run: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, torch.Tensor]]:
    """Metrics that do not depend on the clock, and the last checkpoint's state and weights."""
    rows = [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in read_run(run).metrics]
    last = checkpoint.latest(run / "checkpoints")
    return rows, dict(last.state), checkpoint.load_tensors(last.path / "model.safetensors")


def test_averages_go_on_from_step_to_step_and_in_a_resumed_run_to_the_last_bit(options, tmp_path, monkeypatch):
    moving, begun, left = inputs.moving_baselines, [], []

    def watched(returns_R, keys, before, *, decay):
        found = moving(returns_R, keys, before, decay=decay)
        begun.append(dict(before))
        left.append(dict(found[1]))
        return found

    monkeypatch.setattr(inputs, "moving_baselines", watched)
    whole = rl.run(options, RAE(), output=tmp_path / "whole", quiet=True).run
    part = rl.run(replace(options, steps=2), RAE(), output=tmp_path / "part", quiet=True).run
    between = checkpoint.latest(part / "checkpoints").state["inputs"]
    rl.run(options, RAE(), resume=part, quiet=True)
    (rows, state, weights), (others, its, theirs) = found_in(whole), found_in(part)
    assert rows == others and len(rows) == 4 and state == its
    assert weights.keys() == theirs.keys() and all(torch.equal(weights[name], theirs[name]) for name in weights)
    averages = state["inputs"]["seat_baselines"]
    assert averages.keys() == {" first", " second"} and averages[" first"] == -averages[" second"] != 0
    assert begun[0] == begun[4] == {} and begun[1:4] == left[:3] == begun[5:] and begun[1:4] != [{}] * 3
    assert between["seat_baselines"] == left[1] != averages


def test_a_step_that_fails_after_its_batch_was_made(options, tmp_path, monkeypatch):
    """The averages of that batch are not saved: a resumed run makes it again."""
    made, calls = rl.policy_batch, []

    def fails(*words, **more):
        found = made(*words, **more)
        calls.append(words)
        if len(calls) == 3:
            raise RewardError("no more")
        return found

    reached = rl.run(replace(options, steps=2), RAE(), output=tmp_path / "two", quiet=True).run
    monkeypatch.setattr(rl, "policy_batch", fails)
    with pytest.raises(RewardError, match="no more"):
        rl.run(replace(options, save_every=99), RAE(), output=tmp_path / "failed", quiet=True)
    assert found_in(tmp_path / "failed")[1] == found_in(reached)[1]


def test_an_environment_that_does_not_say_what_is_solved_is_evaluated_by_its_rewards(options, tmp_path):
    """Both seats' rewards sum to 0 in every episode."""
    done = rl.run(replace(options, steps=1, eval_every=1, eval_samples=2), RAE(), output=tmp_path / "run", quiet=True)
    evaluated = [row for row in read_run(done.run).metrics if "evaluation/reward" in row]
    assert len(evaluated) == 2 and all(row["evaluation/reward"] == 0 for row in evaluated)
    assert not any("accuracy" in name for row in read_run(done.run).metrics for name in row)
    assert done.after.reward == 0
