"""The probability of the reference answer as a reward, beside a verifier: GSM8K, the packaged model, one seed.

    python benchmarks/rlpr.py --data DATA --output runs/rlpr

DATA is the file of GSM8K's training set, beside which is test-first500.jsonl.gz. Two runs of GRPO on the same rows with
the same draws, of 20 steps x 4 prompts x 8 completions of 128 tokens: one goes by `rlpr?before=####` with its filter,
one by the verifier `numbers`. The verifier reads both on the same held-out rows, before and after. A run that is
finished is not run again. Prints a table in Markdown.
"""

import argparse
from pathlib import Path

import posttrain as pt

REWARDS = {
    "rlpr": {"reward": "rlpr?before=####", "min_reward_std": 0.02},
    "numbers": {"reward": "numbers"},
}


def trained(name: str, data: str, output: Path, steps: int) -> pt.RunResult:
    """One run, or what is there of it."""
    form = pt.RL(
        dataset=data,
        limit=400,
        eval_dataset=data.replace("train", "test-first500"),
        eval_limit=64,
        eval_samples=1,
        eval_every=steps,
        gold="numbers",
        prompts_per_step=4,
        completions_per_prompt=8,
        max_new_tokens=128,
        max_refills=0,
        steps=steps,
        lr=1e-5,
        algorithm=pt.GRPO(kl_coefficient=0),
        prompt_template="{prompt}\nThink step by step, and write the answer behind ####.",
        **REWARDS[name],
    )
    where = output / name
    return pt.resume(where, steps=steps) if where.exists() else pt.run(form, output=where)


def main() -> None:
    """Run both, and print what they reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", type=Path, default=Path("runs/rlpr"))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    print("| reward | held-out accuracy before | after | reward, first 5 steps | last 5 | groups kept |")
    print("|---|---|---|---|---|---|")
    for name in REWARDS:
        run = trained(name, options.data, options.output, options.steps)
        held = run.metrics["evaluation/gold"]
        rewards, kept = run.metrics["reward/mean"], run.metrics["groups/kept"]
        print(
            f"| {name} | {held[0]:.3f} | {held[-1]:.3f} | {rewards[:5].mean():.3f} | {rewards[-5:].mean():.3f} "
            f"| {kept.sum():.0f} of {4 * options.steps} |"
        )


if __name__ == "__main__":
    main()
