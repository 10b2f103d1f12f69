"""Sequence logprobs: token logprobs summed per response of a packed row.

Shape letters: N learned tokens of a row, E its sequences.
"""

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Responses
from posttrain.data.packing import PackedRow
from posttrain.objectives.reduce import sequence_sum


def responses_of(logprobs_N: Tensor, row: PackedRow, divergence_N: Tensor | None = None) -> Responses:
    """The sums over the tokens of each sequence, in the order of `row.examples`: [E] each."""
    place = {number: e for e, number in enumerate(row.examples)}
    row_N = torch.tensor([place[number] for number in row.rows], dtype=torch.long, device=logprobs_N.device)
    logprob_E, length_E = (sequence_sum(x_N, row_N, len(place)) for x_N in (logprobs_N, torch.ones_like(logprobs_N)))
    return Responses(
        logprob_E, length_E, None if divergence_N is None else sequence_sum(divergence_N, row_N, len(place))
    )
