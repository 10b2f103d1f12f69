"""What is added to a reward before it is compared: penalties on length.

Shape legend: P prompts, G completions per prompt.
"""

from jaxtyping import Float, Int
from torch import Tensor


def soft_overlong(lengths_PG: Int[Tensor, "..."], longest: int, buffer: int) -> Float[Tensor, "..."]:
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
    return -((lengths_PG.double() - (longest - buffer)) / buffer).clamp(0.0, 1.0)
