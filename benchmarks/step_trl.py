"""TRL's side of step.py: the same work, the same line at the end.

    pip install trl        # in an environment of its own, or beside posttrain
    python benchmarks/step_trl.py grpo --model DIR --data DATA --steps 4

TRL's fastest setting on most CPUs: weights in bfloat16 (so small changes are lost), no checkpointing of activations.
Where float32 is faster, --dtype float32.
"""

import argparse
import gzip
import json
import os
import resource
import time
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import trl
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback


class Clock(TrainerCallback):
    """Notes how long each step takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start."""
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stop."""
        self.seconds.append(round(time.perf_counter() - self._began, 2))


def read(path: Path, limit: int) -> list[dict[str, str]]:
    """The first rows of a gzipped jsonl file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, limit)]


def questions(data: Path) -> list[dict[str, Any]]:
    """GSM8K as TRL wants it."""
    rows = read(data / "gsm8k" / "train.jsonl.gz", 400)
    return [
        {
            "prompt": [{"role": "user", "content": row["question"]}],
            "completion": [{"role": "assistant", "content": row["answer"]}],
            "answer": row["answer"].split("####")[1].strip(),
        }
        for row in rows
    ]


def pairs(data: Path) -> list[dict[str, Any]]:
    """HH-RLHF's pairs as text, cut at the last assistant turn."""
    turn, found = "\n\nAssistant:", list[dict[str, Any]]()
    for row in read(data / "hh-rlhf" / "harmless-base.train1500.jsonl.gz", 200):
        (prompt, _, chosen), (other, _, rejected) = (row[key].rpartition(turn) for key in ("chosen", "rejected"))
        if prompt == other:
            found.append({"prompt": prompt + turn, "chosen": chosen, "rejected": rejected})
    return found


def reward(completions: Any, answer: Any, **_: Any) -> list[float]:
    """As in step.py."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(a in text) + 0.001 * len(text) for text, a in zip(texts, answer, strict=True)]


def main() -> None:
    """Read the command line, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["grpo", "sft", "dpo", "reward"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    stages: dict[str, tuple[Any, Any, dict[str, Any], list[str]]] = {
        "grpo": (
            trl.GRPOTrainer,
            trl.GRPOConfig,
            {"per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 64, "beta": 0.0},
            ["prompt", "answer"],
        ),
        "sft": (
            trl.SFTTrainer,
            trl.SFTConfig,
            {"per_device_train_batch_size": 16, "max_length": 512},
            ["prompt", "completion"],
        ),
        "dpo": (trl.DPOTrainer, trl.DPOConfig, {"per_device_train_batch_size": 8, "max_length": 512}, []),
        "reward": (trl.RewardTrainer, trl.RewardConfig, {"per_device_train_batch_size": 8, "max_length": 512}, []),
    }
    trainer_of, config_of, knobs, columns = stages[args.stage]
    rows = [{name: row[name] for name in columns} for row in questions(args.data)] if columns else pairs(args.data)
    config = config_of(
        output_dir="trl-out",
        max_steps=args.steps,
        logging_steps=1,
        learning_rate=1e-6,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        model_init_kwargs={"dtype": args.dtype},
        save_strategy="no",
        gradient_checkpointing=False,
        **knobs,
    )
    clock = Clock()
    trainer = trainer_of(
        args.model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(
            args.model, padding_side="left" if args.stage == "grpo" else "right"
        ),
        callbacks=[clock],
        **({"reward_funcs": reward} if args.stage == "grpo" else {}),
    )
    trainer.train()
    on_gpu = torch.cuda.is_available()
    peak = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"peer": "trl", "stage": args.stage, "seconds": clock.seconds, "peak_gb": round(peak / 1e9, 2)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
