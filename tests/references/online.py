"""Online objectives of a whole batch in plain floats: rewards and logprobs in, one number out.

A batch has one list per prompt, of completions: a dict with `reward` and `tokens`, a list of (logprob, old, reference).
What is sampled is sampled from `old`. Shares no code with `posttrain`.
"""

import math
from itertools import chain
from statistics import mean, stdev


def clipped(ratio, advantage, low, high):
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def ratio(token):
    return math.exp(token[0]) / math.exp(token[1])


def whole_ratio(completion):
    product = 1.0
    for token in completion["tokens"]:
        product *= ratio(token)
    return product


def kl(completion):
    """log(old / reference) of the whole completion."""
    return sum(math.log(math.exp(old) / math.exp(reference)) for _, old, reference in completion["tokens"])


def completions(batch):
    return list(chain.from_iterable(batch))


def dr_grpo(batch, *, longest, low=0.2, high=0.2):
    total = 0.0
    for group in batch:
        usual = mean(c["reward"] for c in group)
        for c in group:
            total += sum(clipped(ratio(t), c["reward"] - usual, low, high) for t in c["tokens"])
    return -total / (len(completions(batch)) * longest)


def dapo(batch, *, longest, share, low=0.2, high=0.28, epsilon=1e-4):
    buffer = round(share * longest)

    def punished(c):
        over = len(c["tokens"]) - (longest - buffer)
        return c["reward"] + (-min(1.0, over / buffer) if buffer and over > 0 else 0.0)

    total = 0.0
    for group in batch:
        rewards = [punished(c) for c in group]
        for c, reward in zip(group, rewards, strict=True):
            spread = stdev(rewards)
            advantage = (reward - mean(rewards)) / (spread + epsilon) if spread else 0.0
            total += sum(clipped(ratio(t), advantage, low, high) for t in c["tokens"])
    return -total / sum(len(c["tokens"]) for c in completions(batch))


def gspo(batch, *, low, high, epsilon=1e-4):
    total = 0.0
    for group in batch:
        rewards = [c["reward"] for c in group]
        for c in group:
            spread = stdev(rewards)
            advantage = (c["reward"] - mean(rewards)) / (spread + epsilon) if spread else 0.0
            total += clipped(whole_ratio(c) ** (1 / len(c["tokens"])), advantage, low, high)
    return -total / len(completions(batch))


def bucketed(batch, kinds, *, low=0.2, high=0.2, epsilon=1e-4):
    total = 0.0
    for group, kind in zip(batch, kinds, strict=True):
        rewards = [c["reward"] for other, members in zip(kinds, batch, strict=True) if other == kind for c in members]
        for c in group:
            spread = stdev(rewards) if len(rewards) > 1 else 0.0
            advantage = (c["reward"] - mean(rewards)) / (spread + epsilon) if spread else 0.0
            total += mean(clipped(ratio(t), advantage, low, high) for t in c["tokens"])
    return -total / len(completions(batch))


def reinforce(batch, *, beta):
    earned = [c["reward"] - beta * kl(c) for c in completions(batch)]
    usual = mean(earned)
    pairs = zip(completions(batch), earned, strict=True)
    return -mean(whole_ratio(c) * (reward - usual) for c, reward in pairs)


def rloo(batch, *, beta, clip=0.2):
    values = []
    for group in batch:
        earned = [c["reward"] - beta * kl(c) for c in group]
        for i, c in enumerate(group):
            others = [reward for j, reward in enumerate(earned) if j != i]
            values.append(clipped(whole_ratio(c), earned[i] - mean(others), clip, clip))
    return -mean(values)


def remax(batch, greedy, *, beta):
    values = []
    for group, baseline in zip(batch, greedy, strict=True):
        values += [whole_ratio(c) * (c["reward"] - beta * kl(c) - baseline) for c in group]
    return -mean(values)


def reinforce_pp(batch, *, beta, clip=0.2):
    ahead, tokens = [], []
    for c in completions(batch):
        for t in range(len(c["tokens"])):
            ahead.append(c["reward"] - beta * kl({"tokens": c["tokens"][t:]}))
            tokens.append(c["tokens"][t])
    usual, spread = mean(ahead), stdev(ahead)
    return -mean(
        clipped(ratio(t), (a - usual) / (spread + 1e-4), clip, clip) for t, a in zip(tokens, ahead, strict=True)
    )
