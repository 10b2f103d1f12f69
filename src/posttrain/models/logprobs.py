"""Logprobs of tokens without the logits of a batch.

The full [B, T, V] logits never exist: only tokens that are learned are projected, and those in chunks, forward and
backward. Shape letters: N tokens, D hidden width, V vocabulary, C tokens of a chunk.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from posttrain.models.wide import add_, block_rows, wide_dtype

CHUNK_BYTES = 64 * 2**20  # of logits in the format of the products: what one product makes


class TokenLogprobs(NamedTuple):
    """One number per token, float32."""

    logprobs: Tensor  # [N] log p(target), in nats, at the temperature given
    entropy: Tensor  # [N] of the same distribution, in nats; carries no gradient


def token_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0) -> TokenLogprobs:
    """Logprob and entropy of each target under the softmax of `hidden @ weight.T / temperature`.

        logprob_n = z_n[target_n] - log sum_v exp z_n[v],   z_n = W h_n / temperature

    The gradient reaches `hidden` [N, D] and `weight` [V, D]; the logits are computed again in the backward pass, chunk
    by chunk, so peak memory does not grow with N. Products run in the dtype of `hidden`, everything after them in
    float32 (in float64 where the input is).
    """
    if temperature <= 0:
        raise ValueError(f"token_logprobs needs a temperature above 0; got {temperature}. Greedy text is scored at 1.")
    logprobs, entropy = _ChunkedHead.apply(hidden, weight, targets, temperature)
    return TokenLogprobs(logprobs, entropy)


def _parts(start: int, stop: int, rows: int) -> list[slice]:
    """Cut into parts of `rows` rows."""
    return [slice(i, min(i + rows, stop)) for i in range(start, stop, rows)]


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    return _parts(0, len(hidden), max(1, CHUNK_BYTES // (len(weight) * hidden.itemsize)))


def _blocks(chunk: slice, weight: Tensor) -> list[slice]:
    return _parts(chunk.start, chunk.stop, block_rows(len(weight), weight.device))


class _ChunkedHead(torch.autograd.Function):
    """Products run on large chunks; everything elementwise runs on blocks of them, which stay in the cache.

    Where all rows fit one chunk, its logits are kept for the backward pass and not computed again.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        wide = wide_dtype(hidden.dtype)
        logprobs = torch.empty(len(targets), dtype=wide, device=hidden.device)
        entropy, normalizer = torch.empty_like(logprobs), torch.empty_like(logprobs)
        chunks = _chunks(hidden, weight)
        product = None
        for chunk in chunks:
            product = hidden[chunk] @ weight.T
            for block in _blocks(chunk, weight):
                logits = product[block.start - chunk.start : block.stop - chunk.start].to(wide) / temperature
                chosen = logits.gather(1, targets[block, None])[:, 0]
                peak = logits.amax(dim=1, keepdim=True)
                weights = torch.exp(logits - peak)
                total = weights.sum(dim=1)
                log_total = peak[:, 0] + total.log()
                logprobs[block] = chosen - log_total
                entropy[block] = log_total - weights.mul_(logits).sum(dim=1) / total
                normalizer[block] = log_total
        ctx.save_for_backward(hidden, weight, targets, normalizer, product if len(chunks) == 1 else None)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, targets, normalizer, kept = ctx.saved_tensors
        wide = wide_dtype(hidden.dtype)
        scale = grads[0] / ctx.temperature
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = None
        for chunk in _chunks(hidden, weight):
            product = hidden[chunk] @ weight.T if kept is None else kept
            grad_product = torch.empty_like(product)
            for block in _blocks(chunk, weight):
                rows = slice(block.start - chunk.start, block.stop - chunk.start)
                probs = (product[rows].to(wide) / ctx.temperature).sub_(normalizer[block, None]).exp_()
                # d logprob / d logits = (onehot - softmax) / temperature
                grad_logits = probs.mul_(-scale[block, None])
                grad_product[rows] = grad_logits.scatter_add_(1, targets[block, None], scale[block, None])
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_product @ weight
            if ctx.needs_input_grad[1]:
                part = grad_product.T @ hidden[chunk]
                if grad_weight is None:
                    grad_weight = part if chunk.stop == len(targets) else part.to(wide)  # the sum of several is wide
                else:
                    add_(grad_weight, part)
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None
