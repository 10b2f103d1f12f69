"""Group-relative advantages: how much better a completion did than the others of the same prompt.

Shape legend: P groups of G completions each (the group is always the last dimension); R rows, in groups of any size; N
tokens of a batch.
One group `[G]` and a batch of groups `[P, G]` are treated alike: a group never sees another group's rewards.

In every function a group whose rewards are all equal gets exactly 0: subtracting a rounded mean from equal rewards
can leave a residue, and dividing that by a tiny standard deviation would make an advantage out of rounding.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def mean_centred(rewards_PG: Float[Tensor, "*P G"]) -> Float[Tensor, "*P G"]:
    """Subtract the group's mean.

        A_i = r_i - mean(r)

    Dr. GRPO's advantage, Liu et al. 2025 (https://arxiv.org/abs/2503.20783). In the units of the reward.
    Raises `ValueError` for a group of one, which has nothing to be compared with.

    Example:
        >>> mean_centred(torch.tensor([1.0, 0.0, 0.0, 1.0]))
        tensor([ 0.5000, -0.5000, -0.5000,  0.5000])
    """
    if rewards_PG.shape[-1] < 2:
        raise ValueError(f"a group needs at least 2 completions; got rewards of shape {tuple(rewards_PG.shape)}")
    equal = (rewards_PG == rewards_PG[..., :1]).all(dim=-1, keepdim=True)
    return (rewards_PG - rewards_PG.mean(dim=-1, keepdim=True)).masked_fill(equal, 0.0)


def leave_one_out(rewards_PG: Float[Tensor, "*P G"]) -> Float[Tensor, "*P G"]:
    """Subtract the mean of the *other* completions of the group.

        A_i = r_i - 1/(G - 1) sum_{j != i} r_j  =  G/(G - 1) (r_i - mean(r))

    RLOO, Ahmadian et al. 2024 (https://arxiv.org/abs/2402.14740). Unlike the group's own mean, this baseline
    does not depend on completion i, so the policy gradient stays unbiased. In the units of the reward.
    Raises `ValueError` for a group of one.

    Example:
        >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0]))
        tensor([ 1.0000, -0.5000, -0.5000])
    """
    centred = mean_centred(rewards_PG)
    size = rewards_PG.shape[-1]
    return centred * (size / (size - 1))


def group_normalised(
    rewards_PG: Float[Tensor, "*P G"], *, epsilon: float = 1e-4, ddof: int = 1
) -> Float[Tensor, "*P G"]:
    """Subtract the group's mean and divide by the group's standard deviation.

        A_i = (r_i - mean(r)) / (std(r) + epsilon),   std(r)^2 = 1/(G - ddof) sum_i (r_i - mean(r))^2

    GRPO with outcome supervision, Shao et al. 2024, section 4.1.2 (https://arxiv.org/abs/2402.03300). The paper says
    neither which standard deviation it means nor how it avoids dividing by zero. `ddof=1`, the sample's, and the
    `epsilon` of 1e-4 are TRL's choice; verl also takes `ddof=1`, with 1e-6. Without a unit. `epsilon` is in the units
    of the reward, so rewards that differ by much less than it count as equal.
    Raises `ValueError` for a group of one.

    Example:
        >>> group_normalised(torch.tensor([1.0, 0.0]), epsilon=0.0)  # std = sqrt(1/2)
        tensor([ 0.7071, -0.7071])
    """
    centred = mean_centred(rewards_PG)
    std = (centred.square().sum(dim=-1, keepdim=True) / (rewards_PG.shape[-1] - ddof)).sqrt()
    # A divisor of 1 where the group's advantages are 0 already: 0/0 would be NaN if epsilon is 0.
    return centred / torch.where(std == 0, torch.ones_like(std), std + epsilon)


def bucket_normalised(
    rewards_R: Float[Tensor, "R"], buckets: Sequence[Hashable], *, epsilon: float = 1e-4
) -> Float[Tensor, "R"]:
    """Subtract the mean of all rows of the same bucket, and divide by their standard deviation.

        A_i = (r_i - mean(bucket)) / (std(bucket) + epsilon)

    As `group_normalised`, with a bucket, such as all groups of one kind, in the place of a group: a prompt that is
    solved every time still teaches, because others of its kind are not. A row that is alone in its bucket gets 0.
    Raises `ValueError` for another number of buckets than rows.

    Example:
        >>> bucket_normalised(torch.tensor([1.0, 1.0, 0.0, 0.0]), ["sum"] * 4, epsilon=0.0)
        tensor([ 0.8660,  0.8660, -0.8660, -0.8660])
    """
    if len(buckets) != len(rewards_R):
        raise ValueError(f"{len(rewards_R)} rows need as many buckets; got {len(buckets)}")
    found_R = torch.empty_like(rewards_R)
    for bucket in dict.fromkeys(buckets):
        here_R = torch.tensor([other == bucket for other in buckets], device=rewards_R.device)
        members = rewards_R[here_R]
        alone = len(members) == 1  # compared with nothing
        found_R[here_R] = 0.0 if alone else group_normalised(members, epsilon=epsilon)
    return found_R


def batch_normalised(values_N: Float[Tensor, "..."], *, epsilon: float = 1e-4) -> Float[Tensor, "..."]:
    """Subtract the mean of the whole batch and divide by its standard deviation.

        A_n = (a_n - mean(a)) / (std(a) + epsilon)

    REINFORCE++, Hu 2025 (https://arxiv.org/abs/2501.03262): of all tokens of the batch, so that long completions count
    for more. The standard deviation's divisor is their number less one. Equal values, and a single one, give
    0; none give none.

    Example:
        >>> batch_normalised(torch.tensor([1.0, 3.0]), epsilon=0.0)
        tensor([-0.7071,  0.7071])
    """
    if values_N.numel() < 2 or (values_N == values_N.flatten()[0]).all():
        return torch.zeros_like(values_N)
    return (values_N - values_N.mean()) / (values_N.std() + epsilon)


def moving_baselines(
    returns_R: Float[Tensor, "R"], keys: Sequence[str], before: Mapping[str, float], *, decay: float
) -> tuple[Float[Tensor, "R"], dict[str, float]]:
    """Follow the return of each key by an exponential moving average, row by row, from 0.

        b_k <- decay b_k + (1 - decay) R_i,   k the key of row i

    Role-conditioned advantage estimation, SPIRAL, Liu et al. 2025, eq. 2 (https://arxiv.org/abs/2506.24119), where a
    key is a game and a role. Returns the average of each row's key after the update by that row, as algorithm 1 there
    subtracts it, and the averages after all rows. In the units of the reward. Raises `ValueError` for other than a key
    of each row.

    Example:
        >>> moving_baselines(torch.tensor([1.0, -1.0, 1.0]), ["first", "second", "first"], {}, decay=0.5)
        (tensor([ 0.5000, -0.5000,  0.7500]), {'first': 0.75, 'second': -0.5})
    """
    plain: Any = returns_R
    after, baselines = dict(before), list[float]()
    for key, earned in zip(keys, plain.tolist(), strict=True):
        after[key] = decay * after.get(key, 0.0) + (1 - decay) * earned
        baselines.append(after[key])
    return returns_R.new_tensor(baselines), after


def applicable_normalised(rewards_PG: Float[Tensor, "*P G"], *, epsilon: float = 1e-4) -> Float[Tensor, "*P G"]:
    """As `group_normalised`, of the numbers that are not NaN: the others of a group do not count, and get 0.

    With fewer than two numbers a group has nothing to compare, and gets 0.

    Example:
        >>> applicable_normalised(torch.tensor([1.0, 0.0, float("nan")]), epsilon=0.0)
        tensor([ 0.7071, -0.7071,  0.0000])
    """
    here_PG = ~rewards_PG.isnan()
    count_P = here_PG.sum(dim=-1, keepdim=True)
    known_PG = rewards_PG.masked_fill(~here_PG, 0.0)
    centred_PG = (known_PG - known_PG.sum(dim=-1, keepdim=True) / count_P.clamp(min=1)).masked_fill(~here_PG, 0.0)
    least_P = known_PG.masked_fill(~here_PG, torch.inf).amin(dim=-1, keepdim=True)
    most_P = known_PG.masked_fill(~here_PG, -torch.inf).amax(dim=-1, keepdim=True)
    std_P = (centred_PG.square().sum(dim=-1, keepdim=True) / (count_P - 1).clamp(min=1)).sqrt()
    return (centred_PG / (std_P + epsilon)).masked_fill(least_P >= most_P, 0.0)


def by_success_rate(rewards_PG: Float[Tensor, "*P G"]) -> Float[Tensor, "*P G"]:
    """Subtract the group's mean and divide by it.

        A_i = (r_i - mean(r)) / mean(r)

    MaxRL, Tajwar et al. 2026 (https://arxiv.org/abs/2602.02710), of rewards 0 and 1, whose mean is the share of right
    completions. 0 where the mean is not above 0.

    Example:
        >>> by_success_rate(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        tensor([ 3., -1., -1., -1.])
    """
    centred_PG, mean_P = mean_centred(rewards_PG), rewards_PG.mean(dim=-1, keepdim=True)
    return torch.where(mean_P > 0, centred_PG / torch.where(mean_P > 0, mean_P, 1.0), 0.0)


def pass_at_k(right_PG: Bool[Tensor, "*P G"], k: int) -> Float[Tensor, "*P G"]:
    """The advantage of pass@k in closed form, over all sets of k completions of a group of G, of which W are wrong.

        R = 1 - C(W, k) / C(G, k),   std = sqrt(R (1 - R))
        A = (1 - R) / std for a right one,   (1 - R - C(W - 1, k - 1) / C(G - 1, k - 1)) / std for a wrong one

    Chen et al. 2025 (https://arxiv.org/abs/2508.10751). R is the group's pass@k; 0 where it is 0 or 1. Raises
    `ValueError` for k outside 1 to G.

    Example:
        >>> pass_at_k(torch.tensor([True, False, False, False]), 2)
        tensor([ 1.0000, -0.3333, -0.3333, -0.3333], dtype=torch.float64)
    """
    size = right_PG.shape[-1]
    if not 1 <= k <= size:
        raise ValueError(f"pass@k compares sets of k completions of a group of {size}, so k is 1 to {size}; got {k}")
    failed_W = torch.tensor(
        [math.comb(wrong, k) / math.comb(size, k) for wrong in range(size + 1)], dtype=torch.float64
    )
    others_W = torch.tensor(
        [0.0, *(math.comb(wrong - 1, k - 1) / math.comb(size - 1, k - 1) for wrong in range(1, size + 1))],
        dtype=torch.float64,
    )
    wrong_P = (~right_PG).sum(dim=-1, keepdim=True)
    failed_P, others_P = failed_W.to(right_PG.device)[wrong_P], others_W.to(right_PG.device)[wrong_P]
    std_P = (failed_P * (1 - failed_P)).sqrt()
    gain_PG = torch.where(right_PG, failed_P, failed_P - others_P)
    return torch.where(std_P > 0, gain_PG / torch.where(std_P > 0, std_P, 1.0), 0.0)


def covariance(advantages_N: Float[Tensor, "N"], logprobs_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Each token's share of the covariance of advantage and logprob over a batch, in nats.

        C_n = (A_n - mean(A)) (log p_n - mean(log p))

    Cui et al. 2025 (https://arxiv.org/abs/2505.22617): a likely token with a high advantage lowers the entropy.

    Example:
        >>> covariance(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, -3.0]))
        tensor([1., 1.])
    """
    return (advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())
