"""Online objectives of a whole batch in plain floats: rewards and logprobs in, one number out.

A batch has one list per task, of any length, of rows: a dict with `reward`, `seat`, `tokens`, a list of (logprob, old,
reference), and `cut`, after how many tokens its second branch begins. What is sampled is sampled from `old`. Shares no
code with `posttrain`.
"""

import math
from itertools import chain
from statistics import mean, stdev


def clipped(ratio, advantage, low, high):
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def ratio(token):
    return math.exp(token[0]) / math.exp(token[1])


def whole_ratio(tokens):
    product = 1.0
    for token in tokens:
        product *= ratio(token)
    return product


def branches(c):
    """The tokens of each branch of a row."""
    return [part for part in (c["tokens"][: c["cut"]], c["tokens"][c["cut"] :]) if part]


def kl(completion):
    """log(old / reference) of all tokens of a row."""
    return sum(math.log(math.exp(old) / math.exp(reference)) for _, old, reference in completion["tokens"])


def completions(batch):
    return list(chain.from_iterable(batch))


def compared(batch):
    """The rows of each task and seat."""
    for task in batch:
        for seat in sorted({c["seat"] for c in task}):
            yield [c for c in task if c["seat"] == seat]


def normalised(rewards, reward, epsilon):
    spread = stdev(rewards) if len(rewards) > 1 else 0.0
    return (reward - mean(rewards)) / (spread + epsilon) if spread else 0.0


def dr_grpo(batch, *, longest, low=0.2, high=0.2):
    total = 0.0
    for group in compared(batch):
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
    for group in compared(batch):
        rewards = [punished(c) for c in group]
        for c, reward in zip(group, rewards, strict=True):
            advantage = normalised(rewards, reward, epsilon)
            total += sum(clipped(ratio(t), advantage, low, high) for t in c["tokens"])
    return -total / sum(len(c["tokens"]) for c in completions(batch))


def gspo(batch, *, low, high, epsilon=1e-4):
    total = 0.0
    for group in compared(batch):
        rewards = [c["reward"] for c in group]
        for c in group:
            advantage = normalised(rewards, c["reward"], epsilon)
            for part in branches(c):  # each weighs as much as it has of the row's tokens
                share = len(part) / len(c["tokens"])
                total += share * clipped(whole_ratio(part) ** (1 / len(part)), advantage, low, high)
    return -total / len(completions(batch))


def bucketed(batch, kinds, *, low=0.2, high=0.2, epsilon=1e-4):
    total = 0.0
    rows = [(kind, c) for kind, task in zip(kinds, batch, strict=True) for c in task]
    for kind, c in rows:
        rewards = [other["reward"] for of, other in rows if (of, other["seat"]) == (kind, c["seat"])]
        advantage = normalised(rewards, c["reward"], epsilon)
        total += mean(clipped(ratio(t), advantage, low, high) for t in c["tokens"])
    return -total / len(completions(batch))


def reinforce(batch, *, beta):
    earned = [c["reward"] - beta * kl(c) for c in completions(batch)]
    usual = mean(earned)
    pairs = zip(completions(batch), earned, strict=True)
    return -mean(sum(whole_ratio(part) for part in branches(c)) * (reward - usual) for c, reward in pairs)


def rloo(batch, *, beta, clip=0.2):
    values = []
    for group in compared(batch):
        earned = [c["reward"] - beta * kl(c) for c in group]
        for i, c in enumerate(group):
            others = [reward for j, reward in enumerate(earned) if j != i]
            advantage = earned[i] - mean(others)
            values.append(sum(clipped(whole_ratio(part), advantage, clip, clip) for part in branches(c)))
    return -mean(values)


def remax(batch, greedy, *, beta):
    values = []
    for task, baselines in zip(batch, greedy, strict=True):
        for c in task:
            advantage = c["reward"] - beta * kl(c) - baselines[c["seat"]]
            values.append(sum(whole_ratio(part) for part in branches(c)) * advantage)
    return -mean(values)


def rae(batch, *, alpha):
    usual, values = {}, []
    for c in completions(batch):
        seat = c["seat"]
        usual[seat] = alpha * usual.get(seat, 0.0) + (1 - alpha) * c["reward"]
        values.append(sum(whole_ratio(part) for part in branches(c)) * (c["reward"] - usual[seat]))
    return -mean(values)


def gkd(batch, *, c_reward, clip):
    values = []
    for group in compared(batch):
        for i, c in enumerate(group):
            others = [other["reward"] for j, other in enumerate(group) if j != i]
            for token, apart in zip(c["tokens"], c["divergence"], strict=True):
                advantage = c_reward * (c["reward"] - mean(others)) if c_reward else 0.0
                values.append(apart - clipped(ratio(token), advantage, clip, clip))
    return mean(values)


def opd(batch, *, c_reward, clip):
    values = []
    for group in compared(batch):
        for i, c in enumerate(group):
            others = [other["reward"] for j, other in enumerate(group) if j != i]
            for token, taught in zip(c["tokens"], c["teacher"], strict=True):
                advantage = taught - token[1] + c_reward * (c["reward"] - mean(others))
                values.append(clipped(ratio(token), advantage, clip, clip))
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


def gae(c, rewards, gamma, lam):
    """One advantage per token of a completion, whose `values` are what was expected before each."""
    values = [*c["values"], 0.0]
    deltas = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


def ppo_parts(batch, *, beta, gamma, lam_of, target_lam, low, high, value_clip, c1, c2):
    """The surrogate, the critic's error and the entropy, one number per token each, all in the loss."""
    advantages, targets = [], []
    for c in completions(batch):
        rewards = [-beta * kl({"tokens": [t]}) for t in c["tokens"]]
        rewards[-1] += c["reward"]
        advantages += gae(c, rewards, gamma, lam_of(c))
        targets += [a + v for a, v in zip(gae(c, rewards, gamma, target_lam), c["values"], strict=True)]
    usual, spread = mean(advantages), stdev(advantages)
    tokens = [(t, v, n, e) for c in completions(batch) for t, v, n, e in zip(
        c["tokens"], c["values"], c["now"], c["entropy"], strict=True)]  # fmt: skip
    found = []
    for (token, before, now, entropy), advantage, target in zip(tokens, advantages, targets, strict=True):
        near = min(max(now, before - value_clip), before + value_clip)
        error = max((now - target) ** 2, (near - target) ** 2) / 2
        surrogate = clipped(ratio(token), (advantage - usual) / (spread + 1e-4), low, high)
        found.append(-surrogate + c1 * error - c2 * entropy)
    return found


def ppo(batch, *, beta, gamma=1.0, lam=0.95, clip=0.2, value_clip=0.2, c1=0.1, c2=0.0):
    return mean(
        ppo_parts(batch, beta=beta, gamma=gamma, lam_of=lambda c: lam, target_lam=lam, low=clip, high=clip,
                  value_clip=value_clip, c1=c1, c2=c2)
    )  # fmt: skip


def vapo(batch, *, alpha, mu, gamma=1.0):
    parts = ppo_parts(
        batch, beta=0.0, gamma=gamma, lam_of=lambda c: max(0.0, 1 - 1 / (alpha * len(c["tokens"]))), target_lam=1.0,
        low=0.2, high=0.28, value_clip=0.2, c1=0.1, c2=0.0,
    )  # fmt: skip
    good = [t[0] for c in completions(batch) if c["reward"] > 0 for t in c["tokens"]]
    return mean(parts) - (mu * mean(good) if good else 0.0)


def vineppo(batch, *, clip=0.2):
    gains, tokens = [], []
    for c in completions(batch):
        for t, step in enumerate(c["steps"]):
            later = [v for v, s in zip(c["worth"], c["steps"], strict=True) if s > step]
            gains.append((later[0] if later else c["reward"]) - c["worth"][t])
            tokens.append(c["tokens"][t])
    usual, spread = mean(gains), stdev(gains)
    return -mean(
        clipped(ratio(t), (g - usual) / (spread + 1e-4), clip, clip) for t, g in zip(tokens, gains, strict=True)
    )
