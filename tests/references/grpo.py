"""GRPO as a whole in plain floats: rewards and logprobs in, one number out. Shares no code with `posttrain`."""

import math


def loss(groups, *, epsilon_low, epsilon_high, beta, std_epsilon):
    """Shao et al. 2024 (2402.03300), eq. 3 with the KL of eq. 4, negated, averaged over all completions.

    `groups` has one list per prompt, of any length, of completions `(reward, tokens)`; a token is `(logprob, old,
    reference)`. Where all groups are equally large, this is the mean over prompts of the mean over their completions.
    """
    total = 0.0
    for group in groups:
        rewards = [reward for reward, _ in group]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
        for reward, tokens in group:
            advantage = 0.0 if len(set(rewards)) == 1 else (reward - mean) / (std + std_epsilon)
            objective = 0.0
            for logprob, old, reference in tokens:
                ratio = math.exp(logprob) / math.exp(old)
                bounded = min(max(ratio, 1 - epsilon_low), 1 + epsilon_high)
                q_over_p = math.exp(reference) / math.exp(logprob)
                objective += min(ratio * advantage, bounded * advantage)
                objective -= beta * (q_over_p - math.log(q_over_p) - 1)
            total -= objective / len(tokens)
    return total / sum(map(len, groups))
