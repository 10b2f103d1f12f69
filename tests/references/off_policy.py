"""Literal readings of the losses of samples of another policy, one Python float at a time, with their derivatives.

Each gives the loss and d loss / d logprob of one token. They share no code with `posttrain.objectives`.
"""

import math


def importance(p, q, advantage):
    """-r A; its derivative is the loss itself, for dr/dlogp = r."""
    ratio = math.exp(p - q)
    return -ratio * advantage, -ratio * advantage


def clipped(p, q, advantage, low, high):
    """PPO: flat where the clipped term is the lesser one and the clip has changed it."""
    ratio = math.exp(p - q)
    inside = min(max(ratio, low), high)
    if ratio * advantage <= inside * advantage:
        return -ratio * advantage, -ratio * advantage
    return -inside * advantage, 0.0


def cispo(p, q, advantage, low, high):
    weight = min(max(math.exp(p - q), low), high)
    return -weight * advantage * p, -weight * advantage


def dro(p, q, advantage, beta):
    return -(p * advantage - beta / 2 * (p - q) ** 2), -advantage + beta * (p - q)


def gspo(ps, qs, advantages, counted, low, high):
    """Of one sequence: losses and derivatives of its tokens."""
    logs = [p - q for p, q, mask in zip(ps, qs, counted, strict=True) if mask != 0]
    s = math.exp(sum(logs) / len(logs)) if logs else 1.0
    return [clipped(math.log(s), 0.0, advantage, low, high) for advantage in advantages]
