"""Token logprobs without materialising the logits of a batch.

The full [B, T, V] logits never exist: only tokens that are learned are projected, and those in chunks, forward and
backward. Shape letters: N tokens, D hidden width, V vocabulary, C tokens of a chunk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from posttrain import fast_paths
from posttrain.models.rounding import add_, block_rows, wide_dtype

CHUNK_BYTES = 128 * 2**20  # of logits in the format of the products: what one product makes


class Readout(NamedTuple):
    """How a model makes logits of the products x = W h of its head: z = c tanh(m x / c); without a cap, z = m x."""

    multiplier: float = 1.0  # m: Granite divides by its `logits_scaling`, Cohere multiplies by its `logit_scale`
    cap: float | None = None  # c: Gemma 2 (arXiv 2408.00118)

    def logits(self, products: Tensor) -> Tensor:
        """Logits of products, wide where they differ from them."""
        if self == PLAIN:
            return products
        wide = products.to(wide_dtype(products.dtype)) * self.multiplier
        return wide if self.cap is None else torch.tanh(wide / self.cap) * self.cap


PLAIN = Readout()


class TokenLogprobs(NamedTuple):
    """One number per token, float32."""

    logprobs: Tensor  # [N] log p(target), in nats, at the temperature given
    entropy: Tensor  # [N] of the same distribution, in nats; carries a gradient only if that is asked for


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float | Tensor = 1.0,
    *,
    entropy_gradient: bool = False,
    readout: Readout = PLAIN,
) -> TokenLogprobs:
    """Logprob and entropy of each target under the softmax of the logits over the temperature, or over its own, [N].

        logprob_n = z_n[target_n] - log sum_v exp z_n[v],   z_n = readout(W h_n) / temperature
        entropy_n = -sum_v p_n[v] log p_n[v],   p_n = softmax(z_n)

    The gradient of the logprobs reaches `hidden` [N, D] and `weight` [V, D], and with `entropy_gradient` the entropy's
    too; the logits are computed again in the backward pass, chunk
    by chunk, so peak memory does not grow with N. Products run in the dtype of `hidden`, everything after them in
    float32 (in float64 where the input is).
    """
    if (temperature <= 0) if isinstance(temperature, float | int) else bool((temperature <= 0).any()):
        raise ValueError(f"token_logprobs needs a temperature above 0; got {temperature}. Greedy text is scored at 1.")
    if not fast_paths.on("lean head"):
        return _with_logits(hidden, weight, targets, temperature, entropy_gradient, readout)
    learning = torch.is_grad_enabled()
    # c tanh(m x / c) / T = (c/m) tanh(x / (c/m)) / (T/m): what follows knows no multiplier
    warmth, cap = temperature / readout.multiplier, None if readout.cap is None else readout.cap / readout.multiplier
    logprobs, entropy = _ChunkedHead.apply(hidden, weight, targets, warmth, cap, learning, entropy_gradient)
    return TokenLogprobs(logprobs, entropy)


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher || student) of logprobs [C, V], by row."""
    return (teacher.exp() * (teacher - student)).sum(dim=1)


def token_divergence(
    hidden: Tensor,
    weight: Tensor,
    from_hidden: Tensor,
    from_weight: Tensor,
    readout: Readout = PLAIN,
    *,
    from_readout: Readout | None = None,
    temperature: float | Tensor = 1.0,
    top_k: int = 0,
    apart: Callable[[Tensor, Tensor], Tensor] = forward_kl,
) -> Tensor:
    """Divergence of each prediction from another model's, over the whole vocabulary: [N], in nats, wide.

        D_n = apart(log p_n, log q_n),   by default KL(q_n || p_n) = sum_v q_n[v] (log q_n[v] - log p_n[v])
        p = softmax(readout(W h) / temperature),   q = softmax(from_readout(W' h') / temperature)

    With `top_k` the K + 1 outcomes of both are the K tokens that q likes most and all others together, so that D is
    that of the coarser distributions, and at most the whole one. The gradient reaches `hidden` and `weight`, whose p it
    is; q, of `from_hidden` and `from_weight`, is given. Logits of a chunk exist at a time; the backward pass makes them
    again. Of a head W' with further rows, which are no tokens of p, only the first V count.
    """
    given, head = from_hidden.detach(), from_weight.detach()[: len(weight)]
    readouts = readout, from_readout or readout
    parts = [
        checkpoint(
            *(_divergence, hidden[chunk], weight, given[chunk], head),
            *(readouts, _of_rows(temperature, chunk), top_k, apart),
            use_reentrant=False,
        )
        for chunk in _chunks(hidden, weight)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=wide_dtype(hidden.dtype))


def _divergence(
    hidden: Tensor,
    weight: Tensor,
    from_hidden: Tensor,
    from_weight: Tensor,
    readouts: tuple[Readout, Readout],
    temperature: float | Tensor,
    top_k: int,
    apart: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    logits = [
        readout.logits(states @ head.T).to(wide_dtype(states.dtype))
        for readout, states, head in zip(readouts, (hidden, from_hidden), (weight, from_weight), strict=True)
    ]
    plain = not isinstance(temperature, Tensor) and temperature == 1
    p, q = (each.log_softmax(dim=1) if plain else (each / temperature).log_softmax(dim=1) for each in logits)
    if 0 < top_k < len(weight):
        ids = q.topk(top_k, dim=1).indices
        p, q = (_coarse(each, ids) for each in (p, q))
    return apart(p, q)


def _coarse(logprobs: Tensor, ids: Tensor) -> Tensor:
    """Logprobs of these tokens, [C, K], and of all others together, [C, K + 1]."""
    others = logprobs.scatter(1, ids, -torch.inf).logsumexp(dim=1, keepdim=True)
    return torch.cat([logprobs.gather(1, ids), others], dim=1)


def _with_logits(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float | Tensor,
    entropy_gradient: bool,
    readout: Readout,
) -> TokenLogprobs:
    """The same by autograd, from logits that all exist at once."""
    heat = _of_rows(temperature, slice(None))
    logits = readout.logits(hidden @ weight.T).to(wide_dtype(hidden.dtype)) / heat
    logprobs = logits.log_softmax(dim=1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(dim=1)
    return TokenLogprobs(logprobs.gather(1, targets[:, None])[:, 0], entropy)


def _parts(start: int, stop: int, rows: int) -> list[slice]:
    return [slice(i, min(i + rows, stop)) for i in range(start, stop, rows)]


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    return _parts(0, len(hidden), max(1, CHUNK_BYTES // (len(weight) * hidden.itemsize)))


def _blocks(chunk: slice, weight: Tensor) -> list[slice]:
    return _parts(chunk.start, chunk.stop, block_rows(len(weight), weight.device))


class _ChunkedHead(torch.autograd.Function):
    """Products run on large chunks; everything elementwise runs on blocks of them, which stay in the cache.

    What the backward pass needs of a chunk are its residuals, softmax - onehot, for d logprob / d logits is minus them
    over the temperature. They take the place of the logits. Where all rows fit one chunk, they are made in the forward
    pass, which has the exponentials, and kept; else the backward pass makes them again, chunk by chunk. The
    entropy's gradient, d entropy / d z_v = -p_v (log p_v + entropy), is added to them there. Where logits are capped,
    they are multiplied by d z / d x = 1 - (z / cap)^2.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float | Tensor,
        cap: float | None,
        learning: bool,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = wide_dtype(hidden.dtype)
        logprobs = torch.empty(len(targets), dtype=wide, device=hidden.device)
        entropy, normalizer = torch.empty_like(logprobs), torch.empty_like(logprobs)
        chunks = _chunks(hidden, weight)
        keep = learning and len(chunks) == 1 and not entropy_gradient
        product = None
        for chunk in chunks:
            product = hidden[chunk] @ weight.T
            for block in _blocks(chunk, weight):
                rows = product[block.start - chunk.start : block.stop - chunk.start]
                target = targets[block, None]
                logits, slope = _scaled(rows, _of_rows(temperature, block), cap)
                peak = logits.amax(dim=1, keepdim=True)
                chosen = logits.sub_(peak).gather(1, target)[:, 0]
                weights = torch.exp(logits)
                total = weights.sum(dim=1)
                log_total = total.log()
                logprobs[block] = chosen - log_total
                entropy[block] = log_total - logits.mul_(weights).sum(dim=1) / total
                normalizer[block] = log_total + peak[:, 0]
                if keep:
                    rows.copy_(_times(_minus_onehot(weights.mul_(total.reciprocal()[:, None]), target), slope))
        ctx.save_for_backward(hidden, weight, targets, normalizer, product if keep else None, entropy)
        ctx.temperature, ctx.cap, ctx.entropy_gradient = temperature, cap, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None, None]:
        hidden, weight, targets, normalizer, kept, entropy = ctx.saved_tensors
        wide = wide_dtype(hidden.dtype)
        # what a row of residuals is worth; with the entropy's gradient among them it is in them already
        weight_of_row = torch.ones_like(grads[0]) if ctx.entropy_gradient else grads[0]
        scale = weight_of_row[:, None] / -_of_rows(ctx.temperature, slice(None))
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = None
        for chunk in _chunks(hidden, weight):
            residuals = kept
            if residuals is None:
                residuals = hidden[chunk] @ weight.T
                for block in _blocks(chunk, weight):
                    rows = residuals[block.start - chunk.start : block.stop - chunk.start]
                    logits, slope = _scaled(rows, _of_rows(ctx.temperature, block), ctx.cap)
                    logits.sub_(normalizer[block, None])
                    if ctx.entropy_gradient:
                        probs = logits.exp()
                        spread = logits.add_(entropy[block, None]).mul_(probs).mul_(grads[1][block, None])
                        both = _minus_onehot(probs, targets[block, None]).mul_(grads[0][block, None]).add_(spread)
                        rows.copy_(_times(both, slope))
                    else:
                        rows.copy_(_times(_minus_onehot(logits.exp_(), targets[block, None]), slope))
            if grad_hidden is not None:
                grad_hidden[chunk] = (residuals @ weight).to(wide).mul_(scale[chunk])
            if ctx.needs_input_grad[1]:
                part = residuals.T @ (hidden[chunk].to(wide) * scale[chunk]).to(hidden.dtype)
                if grad_weight is None:
                    grad_weight = part if chunk.stop == len(targets) else part.to(wide)  # the sum of several is wide
                else:
                    add_(grad_weight, part)
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


def _of_rows(temperature: float | Tensor, rows: slice) -> float | Tensor:
    """The temperature of these rows, as a column where each has its own."""
    return temperature[rows, None] if isinstance(temperature, Tensor) else temperature


def _scaled(product: Tensor, temperature: float | Tensor, cap: float | None) -> tuple[Tensor, Tensor | None]:
    """A wide copy of logits, capped and over the temperature; and where they are capped, d logits / d product."""
    logits, slope = product.to(wide_dtype(product.dtype), copy=True), None
    if cap is not None:
        share = logits.div_(cap).tanh_()
        slope, logits = 1 - share.square(), share.mul_(cap)
    plain = not isinstance(temperature, Tensor) and temperature == 1
    return logits if plain else logits.div_(temperature), slope


def _times(residuals: Tensor, slope: Tensor | None) -> Tensor:
    return residuals if slope is None else residuals.mul_(slope)


def _minus_onehot(probs: Tensor, targets: Tensor) -> Tensor:
    """`probs` less 1 at each row's target, in place. They are wide: a probability near 1 must not be rounded first."""
    return probs.scatter_add_(1, targets, probs.new_full((), -1.0).expand_as(targets))
