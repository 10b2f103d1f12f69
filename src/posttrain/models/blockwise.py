"""Block-wise dynamic 8-bit quantisation, one float32 scale per 256 values.

Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization" (https://arxiv.org/abs/2110.02861). For a block b
with numbers x_i:

    N_b = max_i |x_i|,   code_i = argmin_j |level_j - x_i / N_b|,   x_i is read back as level[code_i] N_b

The levels are those of the paper's dynamic quantisation: denser towards 0, by decades. The decade
(10^-(e+1), 10^-e], e = 0 ... 6, is cut into 2^(6-e) equal parts on either side of 0, or into 2^(7-e) where no number is
below 0; a level is the middle of a part. With 0 and 1 there are 256. The error of a number near its block's largest is
at most 0.7% of that (0.35% without a sign), and numbers down to a millionth of it are told from 0.

The paper's blocks have 2,048 numbers; 256, as in later releases of its code, cost 0.016 bytes per number more than
none at all and keep an outlier to fewer neighbours. One rule is ours: a number above 0 without a sign is never read
back as 0, for a second moment of 0 would divide the first by epsilon.

Shape letters: N numbers of a flat tensor, K blocks.
"""

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 256  # numbers that share a scale
LEAST = 4096  # numbers of a tensor; smaller ones are kept as they are, which costs little
DECADES = 7


def worth_quantizing(tensor: Tensor) -> bool:
    """Whether a tensor's moments are quantised: a matrix (no norm, no bias) of 4,096 numbers or more."""
    return tensor.dim() >= 2 and tensor.numel() >= LEAST and tensor.is_contiguous()


def blocks_of(numbers: int) -> int:
    """How many blocks there are, the last one perhaps not full."""
    return -(-numbers // BLOCK)


def quantize(x_N: Tensor, *, signed: bool) -> tuple[Tensor, Tensor]:
    """Codes [N] in uint8 and scales [K] in float32; a tie goes to the lower level.

    Example:
        >>> codes, scales = quantize(torch.tensor([0.0, 4.0, 1.0, -0.5]), signed=True)
        >>> codes.tolist(), scales.tolist()
        ([127, 255, 201, 62], [4.0])
        >>> dequantize(codes, scales, signed=True).tolist()
        [0.0, 4.0, 0.9906250238418579, -0.484375]
    """
    blocks = _in_blocks(x_N.float())
    largest = blocks.amax(1)  # with `amin` a tenth of the time that `abs` takes
    scales = torch.maximum(largest, -blocks.amin(1)) if signed else largest
    scales.clamp_min_(torch.finfo(torch.float32).tiny)
    share = (blocks / scales[:, None]).view(-1)[: len(x_N)]
    lower_of_bin, midpoints = _search(signed, x_N.device)
    # which of 2^16 bins a number is in, by its upper half: sign, exponent and 7 bits of the fraction
    lower = lower_of_bin.index_select(0, (share.view(torch.int32) >> 16).add_(2**15))
    return lower.add_(share > midpoints.index_select(0, lower.int())), scales


def dequantize(codes_N: Tensor, scales_K: Tensor, *, signed: bool) -> Tensor:
    """The numbers [N] that codes and scales stand for, in float32."""
    found = levels(signed, codes_N.device).index_select(0, codes_N.int())
    return _in_blocks(found).mul_(scales_K[:, None]).view(-1)[: len(found)]


def _in_blocks(x_N: Tensor) -> Tensor:
    """A row for each block; what lacks in the last one is 0."""
    lacking = -len(x_N) % BLOCK
    return (pad(x_N, (0, lacking)) if lacking else x_N).view(-1, BLOCK)


@cache
def levels(signed: bool, device: torch.device) -> Tensor:
    """The 256 levels in ascending order, float32; 1 is the last, and without a sign 0 is the first."""
    found = [0.0, 1.0]
    for decade in range(DECADES):
        parts = 2 ** (DECADES - 1 - decade) * (1 if signed else 2)
        middles = [10.0**-decade * (0.1 + 0.9 * (part + 0.5) / parts) for part in range(parts)]
        found += middles + [-middle for middle in middles if signed]
    return torch.tensor(sorted(found), dtype=torch.float32, device=device)


@cache
def _search(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each bin the code of its least number, and for each code the midpoint above which the next one is nearer.

    No bin has two midpoints in it, so one look-up and one comparison find the nearest level: a tenth of the time of a
    binary search on a CPU.
    """
    found = levels(signed, device)
    midpoints = (found[1:] + found[:-1]) / 2
    if not signed:
        midpoints[0] = 0.0  # what is above 0 stays so
    ends = (torch.arange(2**16, device=device, dtype=torch.int32) - 2**15) << 16
    ends = torch.stack([ends, ends + (2**16 - 1)]).view(torch.float32).nan_to_num(2.0, 2.0, 2.0)  # beyond all
    least, most = torch.bucketize(ends.amin(0), midpoints), torch.bucketize(ends.amax(0), midpoints)
    assert (most - least).max() <= 1, "a bin with two midpoints"
    return least.to(torch.uint8), torch.cat([midpoints, midpoints.new_tensor([torch.inf])])
