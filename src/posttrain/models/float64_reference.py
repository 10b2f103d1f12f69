"""Reference implementation: transformers' own attention, one sequence at a time.

No plan, no packing, no chunks, no cache, no lean forms: nothing here is shared with `attention.py`, `logprobs.py` and
`fused.py`, which are measured against it.
"""

import copy
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from posttrain.models.fused import use_lean_forms
from posttrain.models.language_model import LanguageModel


def float64_copy(model: LanguageModel) -> PreTrainedModel:
    """A copy of the network in float64, with the attention and the experts of transformers, in their plain form."""
    network = copy.deepcopy(model.network)
    use_lean_forms(network, on=False)
    network.set_attn_implementation("eager")
    network.set_experts_implementation("eager")  # grouped products of experts know no float64
    return network.double().eval()


@torch.no_grad()
def exact_logits(network: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """Logits [T, V] of one sequence from a float64 copy; no step of the way is in float32."""
    with Float64():
        return _logits(network, input_ids=torch.tensor([list(token_ids)], device=network.device))[0]


def exact_logprobs(network: PreTrainedModel, token_ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Logprobs of `token_ids[1:]` [T - 1], in nats, from a float64 copy."""
    scaled = exact_logits(network, token_ids)[:-1] / temperature
    return scaled.log_softmax(-1).gather(1, torch.tensor(token_ids[1:], device=network.device)[:, None])[:, 0]


def exact_gradient(
    network: PreTrainedModel, sequences: Sequence[tuple[Sequence[int], Sequence[float]]], temperature: float = 1.0
) -> dict[str, Tensor]:
    """The gradient of `sum_n weight_n logprob_n`, by name, through a float64 copy.

    A sequence is its T tokens and the weights of all but the first of them.
    """
    network.zero_grad()
    for token_ids, weights in sequences:
        ids = torch.tensor(list(token_ids), device=network.device)
        with Float64():
            logprobs = (_logits(network, input_ids=ids[None])[0, :-1] / temperature).log_softmax(-1)
            chosen = logprobs.gather(1, ids[1:, None])[:, 0]
            (chosen * torch.tensor(list(weights), dtype=torch.float64, device=network.device)).sum().backward()
    return {name: p.grad.to_dense() for name, p in network.named_parameters() if p.grad is not None}


@torch.no_grad()
def padded_logprobs(
    network: PreTrainedModel,
    sequences: Sequence[Sequence[int]],
    side: Literal["left", "right"],
    temperature: float = 1.0,
) -> list[Tensor]:
    """Logprobs of each sequence's tokens but the first, from one padded batch with an attention mask."""
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long, device=network.device)
    mask = torch.zeros_like(ids)
    spans = [slice(longest - len(s), longest) if side == "left" else slice(0, len(s)) for s in sequences]
    for row, (span, sequence) in enumerate(zip(spans, sequences, strict=True)):
        ids[row, span] = torch.tensor(list(sequence), device=network.device)
        mask[row, span] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with Float64():
        logits = _logits(network, input_ids=ids, attention_mask=mask, position_ids=positions) / temperature
        logprobs = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, :, 0]
    return [logprobs[row, span.start : span.stop - 1] for row, span in enumerate(spans)]


def _logits(network: Any, **inputs: Tensor) -> Tensor:
    return network(**inputs, use_cache=False).logits


class Float64(TorchDispatchMode):
    """Gives float64 wherever float32 is asked for: models take norms, angles and softmax in float32 in any case."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if options.get("dtype") == torch.float32:
            options["dtype"] = torch.float64
        return func(*args, **options)
