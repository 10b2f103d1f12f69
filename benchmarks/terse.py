"""A dense reward that a small model learns within minutes: few words. For benchmarks/staleness.py."""


def terse(completion: str) -> float:
    """1 for an answer of up to 8 words, less for each word beyond, 0 from 28 on."""
    return min(1.0, max(0.0, (28 - len(completion.split())) / 20))
