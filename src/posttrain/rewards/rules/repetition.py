"""Repetition of word n-grams."""

from dataclasses import dataclass
from typing import ClassVar

from posttrain.errors import UserError
from posttrain.rewards.reward import EpisodeReward
from posttrain.types import Episode, Score


@dataclass(frozen=True)
class Repetition(EpisodeReward):
    """Minus the share of the completion's n-grams that it has already said, from -1 (exclusive) to 0.

        value = -(1 - distinct n-grams / all n-grams)

    which is minus the seq-rep-n of Welleck et al. 2019 (arXiv 1908.04319, section 6). Words are what stands between
    white space, in lower case. Fewer than n words cannot repeat an n-gram: 0.
    """

    n: int = 4
    name: str = "repetition"
    bounds: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"repetition needs n-grams of at least one word; got n={self.n}")

    def _score_one(self, episode: Episode) -> Score:
        share = repeated_share(episode.completion, self.n)
        return Score(-share if share else 0.0)


def repeated_share(text: str, n: int) -> float:
    """The share of word n-grams in `text` that occurred before.

    Example:
        >>> repeated_share("so it is so it is so", 2)  # so it, it is, is so, so it, it is, is so: 3 distinct of 6
        0.5
    """
    words = text.lower().split()
    ngrams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1.0 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
