"""Acquisition functions: the comparisons that inform a reward-model ensemble most.

Labels cost annotators' time, and many pairs are redundant. If members disagree, a label decides between them; if all
find a pair even, it does not. The value depends on the diversity of the members: with one trunk and few pairs they may
err together.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, pvariance
from types import MappingProxyType

from posttrain.statistics import sigmoid


def disagreement(margins: Sequence[float]) -> float:
    """Disagreement on a pair: the variance over members of the probability that a is preferred.

        1/H sum_h (p_h - mean p)^2,   p_h = 1 / (1 + exp(-m_h)),   m_h = s_h(a) - s_h(b)

    Christiano et al. 2017 (https://arxiv.org/abs/1706.03741), section 2.2.4.
    """
    return pvariance([sigmoid(margin) for margin in margins])


def information(margins: Sequence[float]) -> float:
    """Expected information gain of a label about the members (BALD), in nats.

        I = H(1/H sum_h p_h) - 1/H sum_h H(p_h),   p_h = 1 / (1 + exp(-m_h)),   H(p) = -p log p - (1 - p) log(1 - p)

    Houlsby et al. 2011 (https://arxiv.org/abs/1112.5745), equation 2.
    """
    probs = [sigmoid(margin) for margin in margins]
    return _entropy(fmean(probs)) - fmean(_entropy(p) for p in probs)


WORTH: Mapping[str, Callable[[Sequence[float]], float]] = MappingProxyType(
    {"disagreement": disagreement, "information": information}
)
"""An acquisition function: from the members' margins on a pair, in log-odds, to its value."""


def worth(scores: Sequence[Sequence[float]], by: str) -> float:
    """Acquisition value of a prompt, by a name in `WORTH`: the mean over pairs of answers, scored by each member."""
    pairs = list(combinations(scores, 2))
    return fmean(WORTH[by]([a - b for a, b in zip(*pair, strict=True)]) for pair in pairs) if pairs else 0.0


def choose(worths: Sequence[float], count: int, *, seed: int = 0) -> list[int]:
    """Indices of at most `count` items, the highest values first; `seed` orders those that are worth the same."""
    order = random.Random(seed).sample(range(len(worths)), len(worths))
    return sorted(order, key=lambda place: -worths[place])[:count]


def _entropy(p: float) -> float:
    return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)
