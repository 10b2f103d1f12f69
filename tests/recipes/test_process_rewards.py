"""A learned process reward model, a classifier and rewards by row, as `rl`, `best-of-n` and `score` use them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain import algorithms
from posttrain.data import load_tokenizer
from posttrain.engine.scorer import load_scorer
from posttrain.errors import DataError, UserError
from posttrain.models.heads import load_reward_model, load_step_model
from posttrain.recipes import best_of_n, rl, score
from posttrain.recipes.best_of_n import BestOfN
from posttrain.recipes.rl import RL
from posttrain.recipes.score import ScoreCompletions
from posttrain.runs import read_run
from posttrain.types import Message, Reply, StopReason, Usage
from tests.models.test_text_classifier import classifier_folder
from tests.recipes.test_reward_model import write

OPTIONS = {
    **{"prompts_per_step": 4, "completions_per_prompt": 4, "steps": 1, "max_new_tokens": 8, "lr": 1e-2},
    **{"warmup_steps": 0, "precision": "float32", "seed": 1},
}


@pytest.fixture(scope="module")
def steps_model(tmp_path_factory, folder) -> str:
    """A process reward model with a head that was drawn and never trained."""
    where = tmp_path_factory.mktemp("steps")
    made = load_step_model(str(folder / "model"), dtype=torch.float32)
    torch.manual_seed(0)
    made.head.data.normal_(std=0.5)
    made.save(where, padding=0)
    load_tokenizer(str(folder / "model")).save_pretrained(where)
    return str(where)


@pytest.fixture
def config(folder: Path, steps_model: str) -> RL:
    return RL(dataset=str(folder / "tasks.jsonl"), model=str(folder / "model"), reward_model=steps_model, **OPTIONS)


def train(config: RL, algorithm: str = "grpo", output: Path | None = None, **knobs):
    made = algorithms.online(algorithm)(**knobs)
    return read_run(rl.run(replace(config, algorithm=algorithm), made, output=output, quiet=True).run).metrics[-1]


REPLIES = [
    {"prompt": "1?", "completion": text, "answer": "", "id": str(i)} for i, text in enumerate(["a\n\nb", "c", " \n"])
]


@pytest.mark.parametrize("aggregation", ["min", "product", "last", "mean"])
def test_a_response_is_scored_by_its_steps(aggregation, steps_model, tmp_path):
    data = write(tmp_path / "said.jsonl", REPLIES)
    words = {"reward_model": steps_model, "precision": "float32", "step_aggregation": aggregation}
    found = score.run(ScoreCompletions(data, output=str(tmp_path / "out.jsonl"), **words), quiet=True)
    scorer = load_scorer(steps_model, precision="float32")
    asked = [[Message("user", "1?"), Message("assistant", row["completion"])] for row in REPLIES[:2]]
    (first, second), (alone,) = [torch.tensor(logits).sigmoid().tolist() for logits in scorer(asked)]
    of_two = {"min": min(first, second), "product": first * second, "last": second, "mean": (first + second) / 2}
    assert [row.total for row in found.rows] == pytest.approx([of_two[aggregation], alone, 0.0], abs=1e-5)
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(span["start"], span["end"]) for span in written[0]["spans"]["reward_model"]] == [(0, 1), (3, 4)]


def test_rl_pays_each_step_with_process_rewards_and_the_whole_without(config, tmp_path):
    paid = train(config, output=tmp_path / "paid", process_rewards=True)
    whole = train(config, output=tmp_path / "whole")
    assert paid["groups/steps"] > 0 and "groups/steps" not in whole
    assert paid["reward/reward_model"] == pytest.approx(whole["reward/reward_model"], abs=1e-6)
    assert 0 <= paid["reward/mean"] <= 1 and paid["grad_norm"] != pytest.approx(whole["grad_norm"], rel=1e-3)
    assert train(config, "ppo", tmp_path / "ppo", process_rewards=True)["reward/mean"] == paid["reward/mean"]


def test_best_of_n_keeps_what_the_aggregate_ranks_first(config, folder, tmp_path):
    options = {"completions_per_prompt": 4, "max_new_tokens": 8, "limit": 3, "precision": "float32"}
    best = BestOfN(dataset=config.dataset, model=config.model, reward_model=config.reward_model, output="", **options)
    earned = {}
    for aggregation in ("min", "product"):
        out = str(tmp_path / f"{aggregation}.jsonl")
        found = best_of_n.run(replace(best, step_aggregation=aggregation, output=out), quiet=True)
        earned[aggregation] = [one.reward for one in found.earned]
    assert earned["min"] == sorted(earned["min"]) and earned["product"][0] < earned["min"][0]


def test_models_of_steps_and_of_responses_are_not_mixed(config, folder, tmp_path):
    made = load_reward_model(str(folder / "model"), dtype=torch.float32)
    made.save(tmp_path / "scores", padding=0)
    load_tokenizer(str(folder / "model")).save_pretrained(tmp_path / "scores")
    both = f"{config.reward_model} {tmp_path / 'scores'}"
    with pytest.raises(UserError, match=r"scores steps, and .* scores responses; give models of one kind"):
        train(replace(config, reward_model=both), output=tmp_path / "run")
    with pytest.raises(UserError, match="`step_aggregation` needs a process reward model"):
        train(replace(config, reward_model="", reward="tags", step_aggregation="mean"), output=tmp_path / "run")


def test_a_process_reward_model_is_gold(config, folder, tmp_path):
    gold = {"reward_model": "", "reward": f"{folder / 'scorer.py'}:score", "gold_model": config.reward_model}
    evaluated = {"eval_dataset": write(tmp_path / "h.jsonl", [{"prompt": "z?"}]), "eval_every": 1, "eval_samples": 2}
    row = train(replace(config, **gold, **evaluated), output=tmp_path / "run")
    assert 0 <= row["evaluation/gold"] <= 1


def test_a_classifier_is_a_reward_of_a_run(config, folder, tmp_path):
    where = classifier_folder(tmp_path / "sentiment")
    reward = f"classifier?model={where}&label=positive=1 classifier?model={where}&label=positive&avoid=true&name=bad=0"
    row = train(replace(config, reward_model="", reward=reward), output=tmp_path / "run")
    assert row["reward/mean"] == row["reward/classifier"] == pytest.approx(1 - row["reward/bad"])
    assert "accuracy" not in row
    weights = load_file(where / "model.safetensors")
    save_file({name: -one for name, one in weights.items()}, where / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="what `reward` reads changed since the run started"):
        rl.run(
            replace(config, reward_model="", reward=reward, steps=2),
            algorithms.online("grpo")(),
            resume=tmp_path / "run",
            quiet=True,
        )
    with pytest.raises(UserError, match="label of the classifier"):
        train(replace(config, reward_model="", reward=f"classifier?model={where}&label=kind"), output=tmp_path / "no")
    with pytest.raises(UserError, match="the reward 'classifier' needs the argument label"):
        train(replace(config, reward_model="", reward=f"classifier?model={where}"), output=tmp_path / "no")


MIXED = [
    *({"prompt": f"{i}+{i}?", "answer": str(2 * i), "rewards": ["numbers", "score"]} for i in range(4)),
    *({"prompt": f"{i}?\nA) a\nB) b", "answer": "A", "rewards": ["choice", "score"]} for i in range(2)),
    *({"prompt": f"be kind {i}", "rewards": "kind"} for i in range(2)),
]


def test_arithmetic_choice_and_judged_rows_mix_in_a_run(config, folder, tmp_path):
    class Kind:
        async def chat(self, messages, *, sampling, tools=(), seed=0):
            asked.append(messages[-1].content)
            return Reply(Message("assistant", "Score: 7"), StopReason.STOP, Usage(1, 1))

    asked: list[str] = []
    mixed = replace(
        config,
        dataset=write(tmp_path / "mixed.jsonl", MIXED),
        reward_model="",
        reward=f"numbers choice {folder / 'scorer.py'}:score=0.5",
        judge={"kind": Kind()},
        prompts_per_step=8,
    )
    row = train(mixed, output=tmp_path / "run")
    assert row["not_applicable/numbers"] == 0.5 and row["not_applicable/choice"] == row["not_applicable/kind"] == 0.75
    assert row["not_applicable/score"] == 0.25 and "lost" not in row
    assert len(asked) == 8 and all("be kind" in one for one in asked)  # a judge reads its rows alone
    parts = {"numbers": (1, 0.5), "choice": (1, 0.25), "kind": (1, 0.25), "score": (0.5, 0.75)}
    total = sum(weight * share * row[f"reward/{name}"] for name, (weight, share) in parts.items())
    assert row["reward/mean"] == pytest.approx(total)
    wrong = write(tmp_path / "wrong.jsonl", [*MIXED, {"prompt": "q", "answer": "1", "rewards": ["math"]}])
    with pytest.raises(DataError, match=r"wrong.jsonl:9 names the reward 'math' .* there are: choice, kind, numbers"):
        train(replace(mixed, dataset=wrong), output=tmp_path / "wrong")
    with pytest.raises(DataError, match="names the reward 'math'"):
        rl.dry_run(replace(mixed, dataset=wrong), algorithms.online("grpo")(), measure=False)
