"""Merging an adapter into its base model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from posttrain.data.chat import ChatFormat
from posttrain.data.tokenizer import ChatTokenizer
from posttrain.errors import ModelError, TemplateError
from posttrain.models.language_model import LanguageModel
from posttrain.models.load import is_classifier, read_config
from posttrain.models.rounding import narrow_

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def stored_dtype(base: str) -> torch.dtype:
    """The number format that a model's configuration says its weights are stored in; float32 where it does not."""
    config = read_config(base, base)
    found = getattr(config.get_text_config(), "dtype", None)
    return found if isinstance(found, torch.dtype) else torch.float32


@torch.no_grad()
def plain_network(model: LanguageModel, base: str) -> Any:
    """A network of transformers' own with the weights of `model`, its adapter merged, in float32."""
    weights: dict[str, Tensor] = model.whole()
    network: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=torch.float32)
    found = network.load_state_dict(weights, strict=False)
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
    if dtype == torch.float32:
        return network
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


def scores_sequences(folder: str) -> bool:
    """Whether a folder is a reward model's."""
    return is_classifier(read_config(folder, folder))
