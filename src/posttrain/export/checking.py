"""Merged weights, and whether plain transformers computes with a folder what was trained.

Shape letters: N tokens of all texts, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from posttrain.data.chat import ChatFormat
from posttrain.data.packing import Example, pack
from posttrain.data.tokenizer import ChatTokenizer
from posttrain.errors import ModelError, TemplateError
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import read_config, without_report
from posttrain.models.lora import by_peft_alone
from posttrain.models.rounding import narrow_

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

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


def stored_dtype(base: str) -> torch.dtype:
    """The number format that a model's configuration says its weights are stored in; float32 where it does not."""
    found = getattr(read_config(base, base).get_text_config(), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


@torch.no_grad()
def plain_network(model: LanguageModel, base: str) -> Any:
    """A network of transformers' own with the weights of `model`, its adapter merged, in float32."""
    network: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=torch.float32)
    found = network.load_state_dict(model.whole(), strict=False)
    tied = set(network._tied_weights_keys or ())  # which are the input embedding, and have been loaded with it
    missing = [name for name in found.missing_keys if name not in tied]
    if missing or found.unexpected_keys:
        raise ModelError(
            f"'{base}' and the merged weights are not of one shape: {len(missing)} are missing and "
            f"{len(found.unexpected_keys)} fit nowhere"
        )
    network.tie_weights()
    return network.eval()


@torch.no_grad()
def narrowed(network: Any, dtype: torch.dtype) -> Any:
    """The network in another number format, rounded so that updates smaller than half a step show (`narrow_`)."""
    if dtype != torch.float32:
        for parameter in network.parameters():
            room = torch.empty_like(parameter, dtype=dtype)
            narrow_(room, parameter.data)
            parameter.data = room
        network.config.dtype = dtype
    return network


def save_generation(model: LanguageModel, tokenizer: ChatTokenizer, folder: Path) -> None:
    """Write the base's generation config, with the tokens that end a turn in training as those that end generation."""
    found: Any = model.network.generation_config
    settings = GenerationConfig() if found is None else GenerationConfig.from_dict(found.to_dict())
    try:
        stops = ChatFormat(tokenizer, model.stop_ids).stop_ids
    except TemplateError:  # no chat template: it ends as its base does
        stops = model.stop_ids
    if stops:
        settings.eos_token_id = sorted(stops)
    # not by save_pretrained: with other stops it refuses what it loaded, such as a temperature without do_sample
    settings.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])


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
