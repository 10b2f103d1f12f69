"""Returns, GAE and value losses.

Shape legend: N tokens of all completions, flat; those of a completion are next to each other, in order. `row_N` says
which completion a token belongs to. A completion's end is the end: nothing is earned after it, also where it was cut.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain.objectives.shapes import require_one_shape


def last_of_rows(row_N: Int[Tensor, "N"]) -> Bool[Tensor, "N"]:
    """Which tokens are the last of their completion.

    Example:
        >>> last_of_rows(torch.tensor([0, 0, 1]))
        tensor([False,  True,  True])
    """
    last_N = torch.ones_like(row_N, dtype=torch.bool)
    last_N[:-1] = row_N[1:] != row_N[:-1]
    return last_N


def first_of_rows(row_N: Int[Tensor, "N"]) -> Bool[Tensor, "N"]:
    """Which tokens are the first of their completion.

    Example:
        >>> first_of_rows(torch.tensor([0, 0, 1]))
        tensor([ True, False,  True])
    """
    return last_of_rows(row_N.flip(0)).flip(0)


def returns(
    rewards_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"], *, discount: float | Float[Tensor, "N"] = 1.0
) -> Float[Tensor, "N"]:
    """What is still to come at each token: the discounted sum of the rewards from it to the end of its completion.

        R_t = r_t + discount_t R_{t+1},   R = 0 after the last;   with one discount, sum_{u >= t} discount^(u - t) r_u

    Example:
        >>> returns(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 0, 1]), discount=0.5)
        tensor([0.5000, 1.0000, 2.0000])
    """
    plain: tuple[Any, ...] = rewards_N, row_N, torch.as_tensor(discount, dtype=torch.float64).expand(rewards_N.shape)
    values: list[float] = plain[0].tolist()  # torch does not say what its lists hold
    rows: list[int] = plain[1].tolist()
    discounts: list[float] = plain[2].tolist()
    for n in range(len(values) - 2, -1, -1):
        if rows[n] == rows[n + 1]:
            values[n] += discounts[n] * values[n + 1]
    return torch.tensor(values, dtype=rewards_N.dtype, device=rewards_N.device)


def gae(
    rewards_N: Float[Tensor, "N"],
    values_N: Float[Tensor, "N"],
    row_N: Int[Tensor, "N"],
    *,
    discount: float = 1.0,
    lam: float | Float[Tensor, "N"] = 0.95,
) -> Float[Tensor, "N"]:
    """Generalised advantage estimation: how much more is earned than was expected, looking further ahead as lam grows.

        delta_t = r_t + gamma V_{t+1} - V_t,   V = 0 after the last
        A_t     = sum_{l >= 0} (gamma lam)^l delta_{t+l}

    Schulman et al. 2015, eq. 16 (https://arxiv.org/abs/1506.02438). `values_N[t]` is V before token t was drawn. lam 1
    gives the return less V_t, unbiased and noisy; lam 0 gives delta_t, as good as V is. `lam` may differ between
    completions, but not within one. A_t + V_t is what a critic is to learn: the lam-return.
    Raises `ValueError` for unequal shapes.

    Example:
        >>> rewards, values = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.75])
        >>> gae(rewards, values, torch.tensor([0, 0]), lam=1.0)
        tensor([0.5000, 0.2500])
    """
    require_one_shape("gae", rewards_N=rewards_N, values_N=values_N, row_N=row_N)
    ahead_N = values_N.roll(-1).masked_fill(last_of_rows(row_N), 0.0)
    return returns(rewards_N + discount * ahead_N - values_N, row_N, discount=discount * lam)


def length_adaptive_lambda(row_N: Int[Tensor, "N"], alpha: float) -> Float[Tensor, "N"]:
    """A lam for each token by the length of its completion, so that it looks ahead over a share of it.

        lam = 1 - 1/(alpha l),   at least 0

    VAPO, Yue et al. 2025, section 4.2 (https://arxiv.org/abs/2504.05118): the sum of the weights lam^k is then about
    alpha l. Completions of up to 1/alpha tokens get 0. Raises `ValueError` for an alpha not above 0.

    Example:
        >>> length_adaptive_lambda(torch.tensor([0, 0, 0, 0, 1]), alpha=0.5)
        tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    if not alpha > 0:
        raise ValueError(f"alpha must be above 0; got {alpha}")
    return (1 - 1 / (alpha * row_N.bincount()[row_N].double())).clamp(min=0.0)


def step_gains(
    values_N: Float[Tensor, "N"], step_N: Int[Tensor, "N"], row_N: Int[Tensor, "N"], rewards_N: Float[Tensor, "N"]
) -> Float[Tensor, "N"]:
    """What each step of a completion changed in what it was worth, for each token of the step.

        A_t = V(s_{k+1}) - V(s_k),   the completion's reward in the place of V after its last step

    VinePPO, Kazemnejad et al. 2024, section 4 (https://arxiv.org/abs/2410.01679), without a discount. `step_N` says
    which step a token belongs to, rising within a completion; `values_N` is the value of the state that its step began
    in, and `rewards_N` what its completion earned. Raises `ValueError` for unequal shapes.

    Example:
        >>> values, step = torch.tensor([0.5, 0.5, 0.25]), torch.tensor([0, 0, 1])
        >>> step_gains(values, step, torch.tensor([0, 0, 0]), torch.ones(3))
        tensor([-0.2500, -0.2500,  0.7500])
    """
    require_one_shape("step_gains", values_N=values_N, step_N=step_N, row_N=row_N, rewards_N=rewards_N)
    gains_N = torch.where(last_of_rows(row_N), rewards_N, values_N.roll(-1)) - values_N
    # where a step goes on, 0 is gained so far: what it gained comes with its last token
    within_N = step_N == step_N.roll(-1)  # of what comes after a completion's last token `returns` takes nothing
    return returns(gains_N, row_N, discount=within_N.double())


class ValueLoss(NamedTuple):
    """A critic's loss before reduction; `clipped` is 1.0 where the clip changed it, else 0.0."""

    loss: Float[Tensor, "..."]
    clipped: Float[Tensor, "..."]


def clipped_value_loss(
    values: Float[Tensor, "..."], old_values: Float[Tensor, "..."], returns: Float[Tensor, "..."], *, clip: float
) -> ValueLoss:
    """Half the squared error of a critic, which may come nearer to its target only within `clip` of where it was.

        L_t = 1/2 max( (V_t - R_t)^2, (clip(V_t, V_old - clip, V_old + clip) - R_t)^2 )

    It stands in OpenAI's implementation of PPO (Huang et al. 2022, "The 37 implementation details of proximal policy
    optimization", detail 9), not in the paper (https://arxiv.org/abs/1707.06347), whose loss is the first term, with
    `clip=inf`. In the units of the reward, squared. The gradient reaches `values` alone, and none where the clip holds.
    Raises `ValueError` for unequal shapes.

    Example:
        >>> values, old = torch.tensor([1.0]), torch.tensor([0.0])
        >>> clipped_value_loss(values, old, torch.tensor([1.0]), clip=0.25).loss  # (0.25 - 1)^2 / 2
        tensor([0.2812])
    """
    require_one_shape("clipped_value_loss", values=values, old_values=old_values, returns=returns)
    old, target = old_values.detach(), returns.detach()
    near = old + (values - old).clamp(-clip, clip)
    free, held = (values - target).square(), (near - target).square()
    beyond = (values.detach() - old).abs() > clip  # near is a rounding away from values where it is not
    return ValueLoss(0.5 * torch.maximum(free, held), ((held > free) & beyond).to(values.dtype))


def explained_variance(values: Float[Tensor, "..."], returns: Float[Tensor, "..."]) -> float:
    """How much of what was earned a critic foresaw: 1 all of it, 0 no more than its mean; below 0 it misleads.

        1 - var(R - V) / var(R)

    0 where all returns are equal, for there is nothing to explain.

    Example:
        >>> explained_variance(torch.tensor([0.0, 0.5]), torch.tensor([0.0, 1.0]))
        0.75
    """
    spread = returns.var(correction=0).item()
    return 1 - (returns - values).var(correction=0).item() / spread if spread > 1e-12 else 0.0
