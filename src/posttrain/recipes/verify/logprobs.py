"""Item 1: token logprobs equal a slow float64 reading of the model, at the sampling temperature."""

import torch
from torch import Tensor

from posttrain.data.packing import pack
from posttrain.models.float64_reference import exact_logits, float64_copy
from posttrain.models.language_model import LanguageModel
from posttrain.models.reference import AdapterOff
from posttrain.recipes.verify.bounds import LOGPROB
from posttrain.recipes.verify.item import Item, within
from posttrain.recipes.verify.subject import Subject, longest
from posttrain.training.learner import Batch


def logprobs(subject: Subject) -> Item:
    """Packed rows against float64, one sequence at a time, at two temperatures."""
    batch, network = subject.batch, float64_copy(subject.exact.model)
    # logits once for all temperatures: this is most of the time that the item takes
    logits = torch.cat(
        [exact_logits(network, [*e.prefix, *e.continuation])[len(e.prefix) - 1 : -1] for e in batch.examples]
    )
    targets = torch.tensor([t for e in batch.examples for t in e.continuation], device=logits.device)
    details: list[str] = []
    worst = 0.0
    for temperature in (1.0, subject.temperature):
        exact = (logits / temperature).log_softmax(-1).gather(1, targets[:, None])[:, 0]
        gap = (packed_logprobs(subject.exact.model, batch, temperature).double() - exact).abs()
        worst = max(worst, gap.max().item())
        details.append(f"float32 {gap.max().item():.1e} at temperature {temperature:g}")
        if subject.dtype != torch.float32:
            coarse = (packed_logprobs(subject.policy.model, batch, temperature).double() - exact).abs()
            details.append(
                f"{format_name(subject.dtype)} {coarse.mean().item():.3f} mean, {coarse.max().item():.2f} max"
            )
    detail = f"largest distance from float64 over {len(targets)} tokens, in nats: {', '.join(details)}"
    return within("logprobs", worst, LOGPROB, detail)


@torch.no_grad()
def packed_logprobs(model: LanguageModel | AdapterOff, batch: Batch, temperature: float) -> Tensor:
    """Logprobs of all learned tokens by the fast path, in the order of the examples; in several rows."""
    found: dict[int, list[Tensor]] = {}
    for row in pack(batch.examples, 2 * longest(batch)):
        values = model.logprobs(row, temperature)
        values = values if isinstance(values, Tensor) else values.logprobs
        for number, value in zip(row.rows, values, strict=True):
            found.setdefault(number, []).append(value)
    return torch.stack([value for number in sorted(found) for value in found[number]])


def format_name(dtype: torch.dtype) -> str:
    """A number format without the library's name."""
    return str(dtype).removeprefix("torch.")
