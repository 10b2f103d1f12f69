"""Conversion of GGUF files to Hugging Face folders."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def convert(gguf: Path, folder: Path, config_fields: Mapping[str, Any]) -> None:
    """Write a SmolLM GGUF file as a folder: config, weights, generation config, tokenizer with chat template.

    `config_fields` are those of the published config.json that GGUF does not carry, or not exactly.

    The weights are unpacked in float32 and stored in bfloat16, the type that the originals were published in. Against
    float32 storage, for SmolLM2-135M in Q4_1, this moves a next-token distribution by 6e-5 nats of KL on average
    (0.001 at most, over 2k tokens) and leaves the perplexity as it is (63.85); computing in bfloat16 moves it 20 times
    as far. It halves the folder.
    """
    # here and not above, so that asking for a model that is already there does not wait seconds for them
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    # the loaders draw progress bars; terminal output is the caller's
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        unpacked = AutoModelForCausalLM.from_pretrained(
            gguf.parent, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, **source
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **source)
        config = unpacked.config
        for field, value in config_fields.items():
            setattr(config, field, value)
        vars(config).pop("_model_name_or_path", None)  # GGUF's own title of the model; it cannot be loaded
        # the loaded model refuses to be saved, being marked as quantised: its weights move to a fresh one
        fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        fresh.load_state_dict(unpacked.state_dict())
        fresh.generation_config = unpacked.generation_config
        fresh.save_pretrained(folder)
        # transformers knows no rule for GGUF's "smollm" splitting and falls back to GPT-2's, which joins one space to
        # the digits after it; the published tokenizer cuts out every digit first, so "a  1" has other tokens
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.model_max_length = config.max_position_embeddings
        for how_it_was_loaded in ("is_local", "local_files_only"):
            tokenizer.init_kwargs.pop(how_it_was_loaded, None)
        tokenizer.save_pretrained(folder)
