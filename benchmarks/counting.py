"""The task of `learn.py online` and `recent.py`: go on counting. Shown 3, the best answer is 45, and then to stop."""

TERMS = 2


def score(completion: str, answer: str) -> float:
    """How near each digit is, around the clock of ten, averaged over the places of the longer one; 1.0 for the answer.

    A place that only one of the two has counts 0, so that to stop in time is learned too.
    """
    near = 0.0
    for said, wanted in zip(completion, answer, strict=False):
        apart = (int(said) - int(wanted)) % 10 if said.isdigit() else 5
        near += 1 - min(apart, 10 - apart) / 5
    return near / max(len(completion), len(answer))


def apart(said: str, wanted: str) -> int:
    """Steps between two digits around the clock; 10 for what is no digit."""
    steps = (int(said) - int(wanted)) % 10 if said.isdigit() else 10
    return min(steps, 10 - steps) if said.isdigit() else steps


def right(completion: str, answer: str) -> float:
    """1 if the first digit is right and the second at most one from it, else 0: 3 in 144 of random completions."""
    return float(completion[:1] == answer[0] and apart(completion[1:2], answer[1]) <= 1)


def brief(completion: str) -> float:
    """1 for two digits and a stop, else 0."""
    return float(len(completion) == TERMS and completion.isdigit())


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
