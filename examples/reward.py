"""A reward of one's own: any function in any file.

    posttrain rl --dataset gym:chain_sum --reward "gym=1.0 examples/reward.py:brief=0.2"

The names of its parameters say what it wants; docs/rewards.md lists them. It returns a number, or a `Score` where it
also wants to say why. Raise an exception where something is wrong: it stops the run, and is never scored 0.
"""

from posttrain.types import Score

WORDS = 40  # that an answer may have for free


def brief(completion: str) -> Score:
    """Pay 1 for an answer of up to 40 words, and less for each word beyond, down to 0 at 80."""
    words = len(completion.split())
    return Score(min(1.0, max(0.0, 2.0 - words / WORDS)), explanation=f"{words} words")
