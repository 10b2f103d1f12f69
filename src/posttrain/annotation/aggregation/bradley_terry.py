"""Bradley-Terry with annotator reliabilities, from pairwise comparisons.

Bradley and Terry 1952 (https://doi.org/10.2307/2334029), with ties as in Davidson 1970
(https://doi.org/10.1080/01621459.1970.10481082) and a weight for each annotator (`strengths`):

    d = a_w (s_i - s_j),   Z = e^(d/2) + e^(-d/2) + nu
    P(i > j) = e^(d/2) / Z,   P(neither) = nu / Z,   P(j > i) = e^(-d/2) / Z

nu, how readily people call two completions equal, is found as well, with one comparison of equals added that was a tie
and one that was not, so that it stays finite; without any tie it is 0. A ranking counts as all the comparisons in it,
as if they were independent.

crowd-kit's NoisyBradleyTerry has annotators' skills too. It is not used: in 1.4.2 the gradient of a skill is that of
the annotator's last comparison alone, and it has no ties.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from posttrain.annotation.aggregation.strengths import Array, Fitted, Likelihood, beliefs_of, fit
from posttrain.annotation.consensus import Belief, Odds
from posttrain.annotation.rankings import Vote
from posttrain.types import Ranking


def beliefs(rankings: Sequence[Ranking]) -> Mapping[str | int, Belief]:
    """The probabilities of the three outcomes for the average annotator, and strengths with their errors."""
    return beliefs_of(rankings, fitted, _odds)


def fitted(votes: Sequence[Vote]) -> Fitted:
    """Strengths and weights, and log nu as the one thing `extra` where there are ties."""
    completions = list(dict.fromkeys((vote.item, one) for vote in votes for one in (vote.first, vote.second)))
    annotators = list(dict.fromkeys(vote.annotator for vote in votes))
    number = {key: i for i, key in enumerate(completions)}
    first = np.array([number[vote.item, vote.first] for vote in votes])
    second = np.array([number[vote.item, vote.second] for vote in votes])
    person = np.array([annotators.index(vote.annotator) for vote in votes])
    outcome = np.array([vote.outcome for vote in votes], dtype=float)
    tied = int((outcome == 0).sum())

    def likelihood(s: Array, a: Array, extra: Array) -> Likelihood:
        gap = s[first] - s[second]
        d = a[person] * gap
        log_nu = extra[0] if tied else -math.inf
        log_z = np.logaddexp(np.logaddexp(d / 2, -d / 2), log_nu)
        value = float((outcome * d / 2 - log_z).sum())
        by_d = outcome / 2 - (np.exp(d / 2 - log_z) - np.exp(-d / 2 - log_z)) / 2
        by_strength = np.bincount(first, a[person] * by_d, len(s)) - np.bincount(second, a[person] * by_d, len(s))
        by_weight = np.bincount(person, gap * by_d, len(a))
        if not tied:
            return Likelihood(value, by_strength, by_weight, np.empty(0))
        log_equals = float(np.logaddexp(math.log(2), log_nu))  # Z of two that are equally strong
        value += tied * log_nu + log_nu - 2 * log_equals
        by_nu = tied - np.exp(log_nu - log_z).sum() + 1 - 2 * math.exp(log_nu - log_equals)
        return Likelihood(value, by_strength, by_weight, np.array([by_nu]))

    return fit(completions, annotators, likelihood, extra=(0.0,) if tied else ())


def _odds(gap: float, found: Fitted) -> Odds:
    nu = math.exp(found.extra[0]) if len(found.extra) else 0.0
    up, down = math.exp(gap / 2), math.exp(-gap / 2)
    total = up + down + nu
    return Odds(up / total, nu / total, down / total)
