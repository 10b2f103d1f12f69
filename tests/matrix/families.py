"""Tiny random models of the families in the support matrix, one folder each, with the tokenizer that tests share.

Widths are small; what makes a family is kept: sliding windows, layers without positions, experts, caps, sinks, scales.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.data.families import of_family

CONTEXT = 256
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
}
ALTERNATING = ["sliding_attention", "full_attention"]
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}

EVERY_HEAD = ("gpt2", "gpt_neox")  # as many key heads as query heads, which their configurations do not mention
GROUPED = ("num_key_value_heads", "head_dim")

# title -> transformers' model type, and what differs from SIZES
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", {"tie_word_embeddings": True}),
    "SmolLM3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "Qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "Qwen2-MoE": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 48}),
    "Qwen3": ("qwen3", {}),
    "Qwen3-MoE": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "Mistral": ("mistral", {"sliding_window": 16}),
    "Mixtral": ("mixtral", LOCAL_EXPERTS),
    "Gemma 2": (
        "gemma2",
        {
            "sliding_window": 16,
            "layer_types": ALTERNATING,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "Gemma 3": ("gemma3_text", {"sliding_window": 16, "layer_types": ALTERNATING, "query_pre_attn_scalar": 24}),
    "Phi-3": ("phi3", {}),
    "OLMo 2": ("olmo2", {}),
    "Granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
    ),
    "GLM-4": ("glm4", {}),
    "GPT-2": ("gpt2", {"n_inner": 96}),
    "GPT-NeoX": ("gpt_neox", {}),
    "gpt-oss": ("gpt_oss", {**LOCAL_EXPERTS, "sliding_window": 16, "layer_types": ALTERNATING}),
    "Llama 4 text": (
        "llama4_text",
        {**LOCAL_EXPERTS, "num_experts_per_tok": 1, "intermediate_size_mlp": 96, "no_rope_layers": [1, 0]},
    ),
    "Mamba": ("mamba", {"state_size": 8}),
}


def config_of(family: str, tokenizer: Any) -> Any:
    """The configuration of a family's tiny model."""
    kind, options = FAMILIES[family]
    sizes = {name: size for name, size in SIZES.items() if kind not in EVERY_HEAD or name not in GROUPED}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    return AutoConfig.for_model(kind, **sizes | {"vocab_size": len(tokenizer)} | options | ends)


def save_family(family: str, folder: Path) -> Path:
    """Write a family's tiny model with random weights into `folder`; return that."""
    tokenizer = of_family("smollm2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config_of(family, tokenizer)).float()
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if "norm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.2)  # a scale that does something, around its own
                else:
                    parameter.copy_(torch.randn_like(parameter) * 0.15)
    network.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder
