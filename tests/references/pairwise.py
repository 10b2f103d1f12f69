"""Losses of pairs in plain floats. Shares no code with `posttrain`."""

import math


def bradley_terry(chosen, rejected, margins, smoothing):
    """One value per pair: -(1-e) log s(h) - e log s(-h), s the logistic function, h the difference less the margin."""
    losses = []
    for better, worse, margin in zip(chosen, rejected, margins, strict=True):
        h = better - worse - margin
        won, lost = 1 / (1 + math.exp(-h)), 1 / (1 + math.exp(h))
        losses.append(-(1 - smoothing) * math.log(won) - smoothing * math.log(lost))
    return losses


def dpo(pairs, *, beta, smoothing):
    """Rafailov et al. 2023 (2305.18290), eq. 7, averaged over pairs.

    A pair is (chosen, rejected); a response is a list of tokens `(logprob, reference)`.
    """
    total = 0.0
    for chosen, rejected in pairs:
        odds = 1.0
        for tokens, sign in ((chosen, 1), (rejected, -1)):
            for logprob, reference in tokens:
                odds *= (math.exp(logprob) / math.exp(reference)) ** (sign * beta)
        probability = odds / (1 + odds)
        total -= (1 - smoothing) * math.log(probability) + smoothing * math.log(1 - probability)
    return total / len(pairs)
