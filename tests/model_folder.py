"""A model folder like one from a hub, trained in a second: a random Llama, ChatML, bytes as tokens."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.data.families import of_family

CONTEXT = 256


def write_model(folder: Path, *, seed: int = 0, template: str | None = None, tokenizer: bool = True) -> Path:
    """Write the folder, without a tokenizer or with another chat template where asked."""
    words = of_family("smollm2", template=template)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    if tokenizer:
        words.save_pretrained(folder)
    return folder
