"""A model folder small enough to be trained in a test: a random Llama, and a byte-level tokenizer with a template."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.data.families import of_family


def model_folder(path: Path, *, seed: int = 0, context: int = 256) -> Path:
    """Save it at `path` and return that."""
    tokenizer = of_family("smollm2")
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config)
    network.save_pretrained(str(path))
    tokenizer.save_pretrained(str(path))
    return path


def holds_a_merged_adapter(folder: Path) -> None:
    """That a checkpoint is of a whole reward model, of which an adapter and the heads were trained."""
    assert not (folder / "adapter_config.json").exists()
    learned = load_file(folder / "masters.safetensors")
    assert all("lora" in name or name == "score.weight" for name in learned)
    assert any(weight.any() for name, weight in learned.items() if "lora_B" in name)  # which begin as zeros
