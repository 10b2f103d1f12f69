"""Do Adam's moments in 8 bits learn what they learn in 32? Two tasks, three seeds, both optimisers; a Markdown table.

    python benchmarks/moments.py --data DATA --output runs/moments

sft     A Llama of two layers with random weights, which reads bytes, learns GSM8K's solutions (DATA has gsm8k/); the
        held-out loss in nats per byte after the last step.
grpo    The same kind of model learns to count, as in learn.py; the mean reward of the last ten steps.

Both runs of a seed begin with the same weights and see the same batches. Of 86 to 88% of the parameters the moments are
in 8 bits; the rest are embedding, norms and matrices below 4,096 numbers. A finished run is not run again.
"""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import torch
from learn import online_jobs, train
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posttrain.recipes import sft
from posttrain.runs import read_run

OPTIMIZERS = ("adamw", "adamw-8bit")
SPECIAL = ["<|im_start|>", "<|im_end|>"]


def reader_of_bytes(folder: Path, seed: int) -> Path:
    """A random Llama of two layers with a vocabulary of bytes."""
    if (folder / "config.json").exists():
        return folder
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=SPECIAL[0], eos_token=SPECIAL[1])
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "max_position_embeddings": 512}
    config = LlamaConfig(
        **shape,
        vocab_size=len(fast),
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        bos_token_id=len(fast) - 2,
        eos_token_id=len(fast) - 1,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder))
    fast.save_pretrained(str(folder))
    return folder


def sft_losses(data: Path, output: Path, optim: str, seeds: list[int], steps: int) -> list[float]:
    """The held-out loss of each seed's run."""
    found: list[float] = []
    for seed in seeds:
        folder = output / f"sft-{optim}-{seed}"
        config = sft.SFT(
            dataset=str(data / "gsm8k" / "train.jsonl.gz"),
            model=str(reader_of_bytes(output / f"bytes-{seed}", seed)),
            limit=2000,
            max_tokens=448,
            steps=steps,
            examples_per_step=4,
            eval_share=0.05,
            eval_limit=60,
            lr=3e-3,
            weight_decay=0.1,
            precision="float32",
            optim=optim,
            seed=seed,
            save_every=10**6,
            keep_last=1,
        )
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
            sft.run(config, output=folder, quiet=True)
            (folder / "done").touch()
        found.append([row["evaluation/loss"] for row in read_run(folder).metrics if "evaluation/loss" in row][-1])
        print(f"sft {optim} {seed}: {found[-1]:.4f}", flush=True)
    return found


def grpo_rewards(output: Path, optim: str, seeds: list[int]) -> list[float]:
    """The mean reward of the last ten steps of each seed's run."""
    found: list[float] = []
    for job in online_jobs(["grpo"], seeds, output / f"counting-{optim}"):
        train(replace(job, options=replace(job.options, optim=optim)), torch.get_num_threads())
        found.append(fmean(row["reward/mean"] for row in read_run(job.folder).metrics[-10:]))
        print(f"grpo {optim} {job.seed}: {found[-1]:.4f}", flush=True)
    return found


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/moments"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150, help="of sft")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    tasks = {
        "sft, held-out nats per byte": {
            optim: sft_losses(args.data, args.output, optim, args.seeds, args.steps) for optim in OPTIMIZERS
        },
        "grpo, reward of the last ten steps": {
            optim: grpo_rewards(args.output, optim, args.seeds) for optim in OPTIMIZERS
        },
    }
    print(
        "| task | adamw, by seed | adamw-8bit, by seed | 8 less 32 bits, mean (spread over seeds) |\n|---|---|---|---|"
    )
    for name, found in tasks.items():
        plain, lean = (found[optim] for optim in OPTIMIZERS)
        apart = [b - a for a, b in zip(plain, lean, strict=True)]
        cells = [", ".join(f"{value:.4f}" for value in values) for values in (plain, lean)]
        print(f"| {name} | {' | '.join(cells)} | {fmean(apart):+.4f} ({stdev(apart):.4f}) |")


if __name__ == "__main__":
    main()
