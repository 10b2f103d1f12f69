"""Group-relative advantages in plain floats. Shares no code with `posttrain.objectives`."""

import math


def mean_centred(rewards):
    """Liu et al. 2025 (2503.20783): the reward minus the group's mean."""
    return [reward - math.fsum(rewards) / len(rewards) for reward in rewards]


def leave_one_out(rewards):
    """Ahmadian et al. 2024 (2402.14740): the reward minus the mean of the others, literally."""
    out = []
    for i, reward in enumerate(rewards):
        others = rewards[:i] + rewards[i + 1 :]
        out.append(reward - math.fsum(others) / len(others))
    return out


def moving(returns, keys, decay):
    """Liu et al. 2025 (2506.24119), eq. 2, in closed form: the j-th return of a key from its last counts decay^j."""
    out = []
    for i, key in enumerate(keys):
        own = [returns[j] for j in range(i + 1) if keys[j] == key][::-1]
        out.append(math.fsum((1 - decay) * decay**j * earned for j, earned in enumerate(own)))
    return out


def group_normalised(rewards, epsilon, ddof):
    """Shao et al. 2024 (2402.03300), section 4.1.2; a group of equal rewards has no advantage."""
    if len(set(rewards)) == 1:
        return [0.0 for _ in rewards]
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof)
    return [(reward - mean) / (math.sqrt(variance) + epsilon) for reward in rewards]
