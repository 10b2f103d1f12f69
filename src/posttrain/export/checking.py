"""Export check: logprobs by plain transformers against those of the trained model.

Shape letters: N tokens of all texts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from posttrain.data.packing import Example, pack
from posttrain.data.tokenizer import ChatTokenizer
from posttrain.errors import ModelError
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import without_report
from posttrain.models.lora import by_peft_alone

EXACT = 1e-3
"""Nats: the most that one logprob may differ where nothing is rounded, everything computed in float32."""

ROUNDED = 0.05
"""Nats: the most that logprobs may differ on average where the weights are written in a narrower format."""

LONGEST = 128  # tokens of a text
TEXTS = (
    "The capital of France is Paris, and the river Seine flows through it.",
    "def add(first: int, second: int) -> int:\n    return first + second\n",
    "12 * 7 = 84 and 84 + 19 = 103, so the answer is 103.",
    "Subject: order 4471\n\nHello, I ordered a kettle two weeks ago and it has not arrived. Could you look into it?",
    '{"name": "find_order", "arguments": {"order": 4471, "country": "DE"}}',
    "Der Hund schl\u00e4ft. El perro duerme. \u72ac\u306f\u5bdd\u3066\u3044\u308b\u3002",
)


@dataclass(frozen=True)
class Difference:
    """How far logprobs are from others, in nats."""

    mean: float
    largest: float


def texts_of(tokenizer: ChatTokenizer, context: int) -> list[list[int]]:
    """The texts as token ids, each of two tokens at least."""
    found = [tokenizer.encode(text, add_special_tokens=False)[: min(LONGEST, context)] for text in TEXTS]
    return [ids for ids in found if len(ids) > 1]


@torch.inference_mode()
def trained_logprobs(model: LanguageModel, texts: Sequence[Sequence[int]]) -> Tensor:
    """Of each token but the first of a text, [N], as training and sampling compute it."""
    rows = [pack([Example.whole(ids, (False, *[True] * (len(ids) - 1)))], len(ids))[0] for ids in texts]
    return torch.cat([model.logprobs(row).logprobs.float().cpu() for row in rows])


@torch.inference_mode()
def plain_logprobs(network: Any, texts: Sequence[Sequence[int]]) -> Tensor:
    """The same by the network's own forward pass, one text at a time, [N]."""
    found: list[Tensor] = []
    for text in texts:
        ids = torch.tensor(text)
        logprobs_NV = network(input_ids=ids[None]).logits[0].float().log_softmax(-1)
        found.append(logprobs_NV[:-1].gather(1, ids[1:, None])[:, 0])
    return torch.cat(found)


def reloaded_logprobs(folder: Path, texts: Sequence[Sequence[int]], *, base: str = "") -> Tensor:
    """The same of a folder as transformers alone loads it, in float32; of an adapter's on its `base`, by peft."""
    with without_report():
        network: Any = AutoModelForCausalLM.from_pretrained(base or str(folder), dtype=torch.float32)
    return plain_logprobs(by_peft_alone(network, folder) if base else network.eval(), texts)


def difference(found: Tensor, expected: Tensor) -> Difference:
    """How far `found` is from `expected`; not finite where one of them is not."""
    apart = (found - expected).abs()
    return Difference(apart.mean().item(), apart.max().item())


def refuse_far(what: str, apart: Difference, *, rounded: bool) -> None:
    """Raise `ModelError` where the logprobs are further apart than they may be, or not finite."""
    value, limit = (apart.mean, ROUNDED) if rounded else (apart.largest, EXACT)
    if not value <= limit:
        raise ModelError(
            f"{what} computes other logprobs than what was trained: {'mean' if rounded else 'largest'} difference "
            f"{value:.2g} nats, at most {limit:g} is allowed; nothing was written"
            + ('; type `dtype="float32"`' if rounded else "")
        )
