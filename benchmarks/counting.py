"""The task of `learn.py online`: go on counting. Shown 3, the best answer is 456, and then to stop."""

TERMS = 3


def score(completion: str, answer: str) -> float:
    """The share of places that are right; 1.0 for the answer and nothing else."""
    right = sum(said == wanted for said, wanted in zip(completion, answer, strict=False))
    return right / max(len(completion), len(answer))


def tasks() -> list[dict[str, str]]:
    """One for each digit; odd and even ones are two kinds."""
    return [
        {
            "prompt": str(first),
            "answer": "".join(str((first + n) % 10) for n in range(1, TERMS + 1)),
            "kind": "odd" if first % 2 else "even",
        }
        for first in range(10)
    ]
