"""Reward shaping: length penalties, and what the steps of a completion earn.

Shape legend: P groups of G rows each; one group `[G]` and a batch of groups `[P, G]` are treated alike. R rows; N
tokens of all rows, flat; those of a row are next to each other, in order. `row_N` says which row a token belongs to. A
step ends at a token, at which its reward is paid.
"""

from jaxtyping import Float, Int
from torch import Tensor

from posttrain.objectives.reduce import sequence_sum
from posttrain.objectives.values import returns

DECIMALS = 12  # of a remainder: a sum that is taken off again leaves rounding


def soft_overlong(lengths: Int[Tensor, "..."], longest: int, buffer: int) -> Float[Tensor, "..."]:
    """A penalty that grows from 0 to -1 over the last `buffer` tokens that a completion may have.

        R = 0                                        for |y| <= longest - buffer
        R = ((longest - buffer) - |y|) / buffer      up to longest
        R = -1                                       beyond

    DAPO's soft overlong punishment, Yu et al. 2025, eq. 13 (https://arxiv.org/abs/2503.14476). A completion that was
    cut at its longest gets -1. Raises `ValueError` for a buffer that is not between 1 and `longest`.

    Example:
        >>> import torch
        >>> soft_overlong(torch.tensor([10, 15, 20]), longest=20, buffer=10)
        tensor([-0.0000, -0.5000, -1.0000], dtype=torch.float64)
    """
    if not 1 <= buffer <= longest:
        raise ValueError(f"a buffer is 1 to {longest} tokens, the longest completion; got {buffer}")
    return -((lengths.double() - (longest - buffer)) / buffer).clamp(0.0, 1.0)


def adaptive_length_penalty(
    rewards_PG: Float[Tensor, "*P G"], lengths_PG: Int[Tensor, "*P G"], longest: int
) -> Float[Tensor, "*P G"]:
    """A penalty on length that weighs most where a prompt is easy: the share of the longest that a completion takes.

        R_i = |y_i| / longest * max(p, 1/G),   p = the share of the prompt's completions that earned something

    Xiang et al. 2025, adaptive length penalties (https://arxiv.org/abs/2506.05256), here with lengths as shares. A
    prompt that is hardly ever solved may be thought about for long; one that is always solved should be answered
    shortly. In [0, 1]; it is to be weighted and taken off the reward. Raises `ValueError` for a `longest` below 1.

    Example:
        >>> import torch
        >>> adaptive_length_penalty(torch.tensor([[1.0, 0.0]]), torch.tensor([[5, 10]]), longest=10)
        tensor([[0.2500, 0.5000]], dtype=torch.float64)
    """
    if longest < 1:
        raise ValueError(f"the longest completion has 1 token or more; got {longest}")
    solved_P1 = (rewards_PG > 0).double().mean(dim=-1, keepdim=True).clamp(min=1 / rewards_PG.shape[-1])
    return lengths_PG.double() / longest * solved_P1


def outcome_rewards(
    rewards_R: Float[Tensor, "R"], step_rewards_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"]
) -> Float[Tensor, "R"]:
    """What a row earns besides its steps.

        o_i = r_i - sum_t s_it

    r_i is all that it earns and s_it what is paid at its token t. Rounded to 12 decimals, in float64, where anything is
    taken off: with nothing but steps it is 0, and not a rounding error.

    Example:
        >>> import torch
        >>> outcome_rewards(torch.tensor([1.5, 1.0]), torch.tensor([0.25, 0.25, 0.0]), torch.tensor([0, 0, 1]))
        tensor([1., 1.])
    """
    paid_R = sequence_sum(step_rewards_N, row_N, len(rewards_R))
    return rewards_R.where(paid_R == 0, (rewards_R - paid_R).double().round(decimals=DECIMALS).to(rewards_R.dtype))


def process_advantages(normalised_N: Float[Tensor, "N"], row_N: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """Add up, for each token, the normalised rewards of the steps that end at it or after it.

        A_it = sum_{j : index(j) >= t} r~_ij

    GRPO with process supervision, Shao et al. 2024, section 4.1.3 (https://arxiv.org/abs/2402.03300). index(j) is the
    token that step j of row i ends at, where `normalised_N` has r~_ij, its reward compared with those of all steps of
    the group; it is 0 at other tokens.

    Example:
        >>> import torch
        >>> process_advantages(torch.tensor([0.0, 1.0, 0.0, -0.5, 2.0]), torch.tensor([0, 0, 0, 0, 1]))
        tensor([ 0.5000,  0.5000, -0.5000, -0.5000,  2.0000])
    """
    return returns(normalised_N, row_N)
