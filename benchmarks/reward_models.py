"""Reward models on HH-RLHF: one score, an ensemble, length learned apart, an adapter, and TRL's trainer.

    pip install trl ".[lora]"
    python benchmarks/reward_models.py --data DATA --output runs/reward-models
    python benchmarks/reward_models.py --data DATA --output runs/reward-models --only single trl --seeds 0 1 2

The packaged model learns from the first --pairs pairs of harmless-base (DATA has hh-rlhf/) that have at most
--max-tokens tokens, once, 8 pairs an update, with the same schedule and learning rate (an adapter's is ten times it),
and judges the 300 held-out pairs by `posttrain evaluate-reward-model`; nothing is calibrated on them. What is
finished is not run again: give the same --output.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from posttrain.data import ChatFormat, load_preferences, load_tokenizer, pair_of
from posttrain.data.packing import size_of
from posttrain.models.load import locate
from posttrain.recipes import evaluate_reward, reward_model
from posttrain.recipes.evaluate_reward import EvaluateReward
from posttrain.recipes.reward_model import Scoring

BASE = "smollm2-135m-instruct"
FORMS: dict[str, dict[str, Any]] = {
    "single": {},
    "ensemble of 5": {"ensemble": 5},
    "length apart": {"length_debias": 1.0},
    "adapter of rank 16": {"lora_rank": 16},
}


def select(source: Path, path: Path, pairs: int, max_tokens: int) -> Path:
    """The pairs that all learn from, as conversations, which TRL reads too."""
    if path.exists():
        return path
    chat = ChatFormat(load_tokenizer(locate(BASE)))
    rows: list[dict[str, Any]] = []
    for one in load_preferences(str(source), limit=pairs).items:
        if max(map(size_of, pair_of(chat, one))) <= max_tokens:
            said = [{"role": m.role, "content": m.content} for m in one.prompt]
            rows.append(
                {side: [*said, {"role": "assistant", "content": getattr(one, side)}] for side in ("chosen", "rejected")}
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ours(folder: Path, train: Path, options: argparse.Namespace, seed: int, **form: Any) -> Path:
    """Train by `posttrain reward-model`."""
    config = Scoring(
        dataset=str(train),
        max_tokens=1024,
        pairs_per_step=8,
        lr=options.lr * (10 if "lora_rank" in form else 1),
        warmup_steps=5,
        decay="linear",
        save_every=10**6,
        keep_last=1,
        seed=seed,
    )
    reward_model.run(replace(config, **form), output=folder, quiet=True)
    return folder


def trl(folder: Path, train: Path, options: argparse.Namespace, seed: int) -> Path:
    """Train by TRL's RewardTrainer; in this process, which is one of its own."""
    import torch
    import trl as peer
    from datasets import Dataset
    from transformers import AutoTokenizer

    rows = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    where = locate(BASE)
    config = peer.RewardConfig(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=8,
        learning_rate=options.lr,
        warmup_steps=5,
        lr_scheduler_type="linear",
        max_length=1024,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        save_strategy="no",
        gradient_checkpointing=False,
        seed=seed,
    )
    trainer = peer.RewardTrainer(
        where, args=config, train_dataset=Dataset.from_list(rows), processing_class=AutoTokenizer.from_pretrained(where)
    )
    trainer.train()
    trainer.save_model(str(folder))
    return folder


def judge(model: Path, heldout: Path, output: Path) -> dict[str, Any]:
    """What `posttrain evaluate-reward-model` says of it."""
    config = EvaluateReward(dataset=str(heldout), model=str(model), max_tokens=1024)
    return evaluate_reward.run(config, output=output, quiet=True).summary()


def main() -> None:
    """Train and judge what has not been, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/reward-models"))
    parser.add_argument("--only", nargs="+", choices=[*FORMS, "trl"], default=[*FORMS, "trl"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--pairs", type=int, default=800)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--lr", type=float, default=4e-5)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # this process is TRL's
    options = parser.parse_args()
    source = options.data / "hh-rlhf"
    heldout = source / "harmless-base.dev300.jsonl.gz"
    options.output.mkdir(parents=True, exist_ok=True)
    name = f"pairs-{options.pairs}-{options.max_tokens}.jsonl"
    train = select(
        source / "harmless-base.train1500.jsonl.gz", options.output / name, options.pairs, options.max_tokens
    )
    if options.peer:
        trl(options.peer, train, options, options.seeds[0])
        return
    lines = [
        "| trained as | seed | accuracy (95%) | where the chosen is longer | shorter | correlation with length "
        "| calibration error | at the temperature of the other half | disagreement tells errors | minutes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for form in options.only:
        for seed in options.seeds:
            folder = options.output / f"{form.replace(' ', '-')}-{seed}"
            told = options.output / f"{folder.name}.json"
            if not told.exists():
                began = time.monotonic()
                if form == "trl":
                    command = [sys.executable, __file__, *sys.argv[1:], "--seeds", str(seed), "--peer", str(folder)]
                    subprocess.run(command, check=True)
                else:
                    ours(folder, train, options, seed, **FORMS[form])
                minutes = (time.monotonic() - began) / 60
                found = judge(folder, heldout, options.output / f"judged-{folder.name}")
                told.write_text(json.dumps(found | {"minutes": minutes}), encoding="utf-8")
            lines.append(row(form, seed, json.loads(told.read_text(encoding="utf-8"))))
            print(lines[-1], flush=True)
    print("\n".join(lines))


def row(form: str, seed: int, found: dict[str, Any]) -> str:
    """One of the table's."""
    low, high = found["ci95"]
    sides = [found["by_length"][side]["accuracy"] for side in ("longer", "shorter")]
    calibrated = found["calibration_error_at_temperature"]
    tells = "-" if found["disagreement_tells"] is None else f"{found['disagreement_tells']:.2f}"
    return (
        f"| {form} | {seed} | {found['accuracy']:.3f} ({low:.3f}-{high:.3f}) | {sides[0]:.3f} | {sides[1]:.3f} "
        f"| {found['length_correlation']:+.2f} | {found['calibration_error']:.3f} | {calibrated:.3f} | {tells} "
        f"| {found['minutes']:.0f} |"
    )


if __name__ == "__main__":
    main()
