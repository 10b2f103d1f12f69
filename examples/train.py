"""Reinforcement learning in ten lines of Python, then an evaluation with its interval.

    python examples/train.py

Takes a few minutes on two CPU cores with the packaged model, which starts near 0 on these sums. A real gain needs more
steps than these; `posttrain quickstart` shows one.
"""

from pathlib import Path

from posttrain.algorithms.grpo import GRPO
from posttrain.recipes import evaluate, rl

MODEL = "smollm2-135m-instruct"
SUMS = "gym:chain_sum?min_terms=2&max_terms=3&min_digits=1&max_digits=1"


def main(model: str = MODEL, steps: int = 10, folder: Path = Path("runs"), **options: object) -> float:
    """Train, evaluate the result on held-out sums, and return its accuracy."""
    words = {"system": "Answer with the number in <answer></answer>.", "max_new_tokens": 32, **options}
    config = rl.RL(dataset=SUMS, model=model, steps=steps, **words)
    trained = rl.run(config, GRPO(kl_coefficient=0.0), output=folder / "train")
    found = evaluate.run(
        evaluate.Evaluate(dataset=SUMS, model=str(trained.run), baseline=model, limit=50, **words),
        output=folder / "evaluate",
    )
    print("\n".join(found.lines()))
    return found.model.headline.accuracy


if __name__ == "__main__":
    main()
