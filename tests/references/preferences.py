"""Preference losses of one pair (or response) in plain floats. Shares no code with `posttrain`.

A response is a dict: `tokens`, a list of (logprob, reference logprob), and `divergence`, how far it is from the
reference in nats. Logarithms are of probabilities that were multiplied out before, so that nothing here is a difference
of sums.
"""

import math


def probability(response, column, power=1.0):
    product = 1.0
    for token in response["tokens"]:
        product *= math.exp(token[column]) ** power
    return product


def ratio(response):
    """pi(y | x) / pi_ref(y | x)."""
    return probability(response, 0) / probability(response, 1)


def geometric_mean(response):
    return probability(response, 0) ** (1 / len(response["tokens"]))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def dpo(won, lost, *, beta=0.1, label_smoothing=0.0):
    odds = (ratio(won) / ratio(lost)) ** beta
    return -(1 - label_smoothing) * math.log(odds / (1 + odds)) - label_smoothing * math.log(1 / (1 + odds))


def dpo_without_reference(won, lost, *, beta=0.1):
    odds = (probability(won, 0) / probability(lost, 0)) ** beta
    return -math.log(odds / (1 + odds))


def ipo(won, lost, *, beta=0.1):
    return (math.log(ratio(won) / ratio(lost)) - 1 / (2 * beta)) ** 2


def ipo_by_length(won, lost, *, beta=0.1):
    by_token = ratio(won) ** (1 / len(won["tokens"])) / ratio(lost) ** (1 / len(lost["tokens"]))
    return (math.log(by_token) - 1 / (2 * beta)) ** 2


def simpo(won, lost, *, beta=2.0, gamma=1.0):
    return -math.log(sigmoid(beta * math.log(geometric_mean(won) / geometric_mean(lost)) - gamma))


def orpo(won, lost, *, odds_weight=0.1):
    odds = [p / (1 - p) for p in map(geometric_mean, (won, lost))]
    return -math.log(geometric_mean(won)) - odds_weight * math.log(sigmoid(math.log(odds[0] / odds[1])))


def dpop(won, lost, *, beta=0.3, penalty=50.0):
    inside = math.log(ratio(won) / ratio(lost)) - penalty * max(0.0, math.log(1 / ratio(won)))
    return math.log1p(math.exp(-beta * inside))


def tdpo2(won, lost, *, beta=0.1, alpha=0.5, fixed=None):
    """`fixed`: the chosen response's divergence where it is not to be differentiated."""
    kept = won["divergence"] if fixed is None else fixed
    return math.log1p(math.exp(-beta * (math.log(ratio(won) / ratio(lost)) - alpha * (lost["divergence"] - kept))))


def tdpo1(won, lost, *, beta=0.1):
    return math.log1p(math.exp(-beta * (math.log(ratio(won) / ratio(lost)) - (lost["divergence"] - won["divergence"]))))


def irpo(won, lost, *, beta=0.1, alpha=1.0):
    return dpo(won, lost, beta=beta) - alpha * math.log(geometric_mean(won))


def sppo(won, lost, *, eta=1000.0):
    return (math.log(ratio(won)) - eta * (1 - 0.5)) ** 2 + (math.log(ratio(lost)) - eta * (0 - 0.5)) ** 2


def kto(response, good, divergence, *, beta=0.1, good_weight=1.0, bad_weight=1.0):
    gain = ratio(response) ** beta / math.exp(beta * divergence)
    value = gain / (1 + gain) if good else 1 / (1 + gain)
    weight = good_weight if good else bad_weight
    return weight - weight * value
