"""TRL's own trainer, with its rollouts written down and verified.

    python examples/trl_rollouts.py
    posttrain verify --import rollouts.jsonl

Four updates of `GRPOTrainer` on the packaged model, or on `--model FOLDER`: two batches, each in two micro-batches.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.models.load import locate
from posttrain.testing import record_rollouts

PROMPTS = ["Name a colour.", "Name a city.", "Name an animal.", "Name a fruit."]


def brief(completions, **_):
    """Short completions earn more."""
    return [-0.01 * len(text) for text in completions]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--output", type=Path, default=Path("rollouts.jsonl"))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="options of GRPOConfig, such as top_p=0.9"
    )
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = str(locate(options.model))
    said = {
        name: json.loads(value) if value[0].isdigit() else value
        for name, value in (one.split("=") for one in options.set)
    }
    config = trl.GRPOConfig(
        **{
            "output_dir": str(options.output.with_suffix("")),
            "max_steps": options.steps,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,  # a batch of rollouts is two updates
            "num_generations": 4,
            "max_completion_length": options.tokens,
            "learning_rate": 1e-5,
            "loss_type": "grpo",
            "report_to": [],
            "save_strategy": "no",
            "use_cpu": not torch.cuda.is_available(),
            "bf16": False,
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            **said,
        }
    )
    trainer = trl.GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS * 8]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        reward_funcs=brief,
    )
    record_rollouts(trainer, options.output, updates=options.steps)
    trainer.train()
    print(f"posttrain verify --import {options.output}")


if __name__ == "__main__":
    main()
