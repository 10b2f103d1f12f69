"""One cell of the matrix: a family is trained for three updates, resumed, and read again by plain transformers."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.grpo import GRPO
from posttrain.data.packing import pack
from posttrain.models.heads import load_reward_model
from posttrain.models.load import load_model
from posttrain.recipes import preference, reward_model, rl, sft
from posttrain.training.checkpoint import load_tensors
from tests.matrix.families import FAMILIES
from tests.matrix.numbers import BOUND, BRANCHES, EXAMPLES, PROMPT, plain_logprobs, said_logprobs

RECIPES = ("sft", "rl", "preference", "reward-model")
SCORER = """
def score(completion: str) -> float:
    return sum(map(ord, completion)) % 7
"""


class Cell(NamedTuple):
    """A family, what it is trained by, and whether with an adapter."""

    family: str
    recipe: str
    adapter: bool

    def __str__(self) -> str:
        return f"{self.family} {self.recipe} {'adapter' if self.adapter else 'all'}"


CELLS = [Cell(family, recipe, adapter) for family in FAMILIES for recipe in RECIPES for adapter in (False, True)]
# Every family, each recipe with all weights and with an adapter: a third, in which no two families have the same cells
# as their neighbours. The numbers of all families are compared in any case (test_numbers.py).
DAILY = frozenset(
    Cell(family, recipe, adapter)
    for number, family in enumerate(FAMILIES)
    for place, (recipe, adapter) in enumerate((r, a) for r in RECIPES for a in (False, True))
    if (number + place) % 3 == 0
)


def write_data(folder: Path) -> None:
    """Files to learn from."""
    rows = [
        {"prompt": f"{i}+{i}", "completion": str(2 * i), "chosen": str(2 * i), "rejected": f"{i}, is it?", "answer": ""}
        for i in range(1, 7)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "scorer.py").write_text(SCORER, encoding="utf-8")


def train(cell: Cell, model: Path, data: Path, *, output: Path | None = None, resume: Path | None = None) -> Path:
    """Three updates in float32 with a checkpoint after the second; returns the run."""
    options: dict[str, Any] = {
        "dataset": str(data / "rows.jsonl"),
        "model": str(model),
        "steps": 3,
        "lr": 1e-2,
        "warmup_steps": 0,
        "decay": "constant",
        "precision": "float32",
        "lora_rank": 2 if cell.adapter else 0,
        "save_every": 2,
    }
    where: dict[str, Any] = {"output": output, "resume": resume, "quiet": True}
    if cell.recipe == "sft":
        return sft.run(sft.SFT(**options, examples_per_step=2), **where).run
    if cell.recipe == "preference":
        return preference.run(preference.Preferences(**options, pairs_per_step=2), DPO(), **where).run
    if cell.recipe == "reward-model":
        return reward_model.run(reward_model.Scoring(**options, pairs_per_step=2), **where).run
    batch = {"prompts_per_step": 2, "completions_per_prompt": 4, "max_new_tokens": 8}
    config = rl.RL(**options, **batch, reward=f"{data / 'scorer.py'}:score")
    return rl.run(config, GRPO(kl_coefficient=0.1), **where).run


def masters(run: Path, step: int) -> dict[str, torch.Tensor]:
    """The float32 weights that were trained, after a step."""
    return load_tensors(run / "checkpoints" / f"step-{step:06d}" / "masters.safetensors")


def check(cell: Cell, model: Path, scratch: Path) -> None:
    """Raise `AssertionError` for what does not work."""
    write_data(scratch)
    run = train(cell, model, scratch, output=scratch / "run")
    before, after = masters(run, 2), masters(run, 3)
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert any(not torch.equal(before[name], weight) for name, weight in after.items()), "nothing was learned"

    other = shutil.copytree(run, scratch / "resumed")
    shutil.rmtree(other / "checkpoints" / "step-000003")
    train(cell, model, scratch, resume=other)
    again = masters(other, 3)
    assert all(torch.equal(again[name], weight) for name, weight in after.items()), "a resumed run ends elsewhere"

    saved = run / "checkpoints" / "step-000003"
    gap = _score_gap(saved) if cell.recipe == "reward-model" else _policy_gap(saved, model)
    assert gap < BOUND, f"plain transformers reads another model: {gap}"


@torch.no_grad()
def _policy_gap(saved: Path, base: Path) -> float:
    plain: Any
    if (saved / "adapter_config.json").exists():
        import peft

        plain = AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager", dtype=torch.float32)
        plain = peft.PeftModel.from_pretrained(plain, str(saved))
    else:
        plain = AutoModelForCausalLM.from_pretrained(saved, attn_implementation="eager", dtype=torch.float32)
    expected = [plain_logprobs(plain, PROMPT + branch)[len(PROMPT) - 1 :].tolist() for branch in BRANCHES]
    found = said_logprobs(load_model(str(saved), dtype=torch.float32), BRANCHES)
    return max(abs(a - b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True))


@torch.no_grad()
def _score_gap(saved: Path) -> float:
    plain: Any = AutoModelForSequenceClassification.from_pretrained(
        saved, attn_implementation="eager", dtype=torch.float32
    )
    ours = load_reward_model(str(saved), dtype=torch.float32, trained=True)
    (row,) = pack(EXAMPLES, 4096)
    expected = [plain(input_ids=torch.tensor([PROMPT + BRANCHES[i]])).logits[0, 0].item() for i in row.examples]
    return max(abs(a - b) for a, b in zip(ours.scores(row)[:, 0].tolist(), expected, strict=True))
