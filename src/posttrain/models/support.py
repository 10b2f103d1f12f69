"""Supported architectures, checked on the configuration before weights are read.

A packed row holds many sequences, so a layer may mix tokens only in attention controlled by a plan. Other
layers (state-space layers, convolutions, attention in chunks of positions) would mix neighbouring sequences
and silently give wrong numbers.
"""

from typing import Any

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)

from posttrain.errors import ModelError

TESTED = frozenset({
    *("gemma2", "gemma3_text", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite", "llama", "mistral", "mixtral"),
    *("olmo2", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"),
})  # fmt: skip
"""Model types in the support matrix (docs/models.md). Another type is compared with transformers when it is loaded."""

LAYERS = frozenset({"full_attention", "sliding_attention"})
OTHER_SENSES = frozenset({"text_config", "vision_config", "audio_config"})  # parts of a model that reads more than text
PAGE = "docs/models.md lists the models that can be trained"


def refuse_unsupported(config: Any, name: str) -> None:
    """Raise `ModelError` with the reason if a causal language model of this configuration cannot be trained."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return  # loading says that it is no causal language model
    network: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    kinds = getattr(config, "layer_types", None)
    other = ", ".join(sorted(set(kinds or ()) - LAYERS))
    known = getattr(config, "max_position_embeddings", None)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    context = context_of(config) if known and window else 0
    short = window and window < context and (kinds is None or "sliding_attention" in kinds)
    faults = {
        "it has an encoder, and only decoders are trained": getattr(config, "is_encoder_decoder", False),
        "it reads more than text, and only text models are trained": OTHER_SENSES & set(config.sub_configs),
        "its layers are recurrent, so that packed sequences would share their state": getattr(
            network, "_is_stateful", False
        ),
        f"it has layers of a kind that posttrain does not support ({other})": other,
        "its attention does not use transformers' registry of attention functions": not getattr(
            network, "_supports_attention_backend", False
        ),
        "its attention sees later tokens": getattr(config, "use_bidirectional_attention", None),
        "its configuration does not say how long a sequence may be (max_position_embeddings)": not known,
        f"its sliding window of {window} tokens is shorter than its context of {context}, and "
        "posttrain has no test of its window": short and config.model_type not in TESTED,
    }
    for reason, found in faults.items():
        if found:
            raise ModelError(f"'{name}' is of type {config.model_type}: {reason}; {PAGE}")


def refuse_no_classifier(config: Any, name: str) -> None:
    """Raise `ModelError` if transformers has no sequence classifier of this type, which a reward model is."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ModelError(
            f"'{name}' is of type {config.model_type}, of which transformers has no sequence classifier, so no reward "
            f"model can be saved; {PAGE}"
        )


def context_of(config: Any) -> int:
    """The most tokens that a sequence may have: `max_position_embeddings`, and less with LongRoPE.

    Beyond `original_max_position_embeddings`, LongRoPE takes other frequencies. transformers chooses them for a whole
    row by its largest position, so a long sequence would change the logprobs of those packed in the same row.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(one for one in rope.values() if isinstance(one, dict))]  # one for all layers, or one for each kind
    short = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([config.max_position_embeddings, *short])
