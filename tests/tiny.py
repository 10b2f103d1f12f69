"""A Llama small enough to be checked by hand: random weights, vocabulary 40, two layers, grouped heads, tied head."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.models.language_model import LanguageModel, wrap

VOCABULARY, CONTEXT = 40, 24
STOP = frozenset({0, 1})


def tiny_llama(
    seed: int = 0, dtype: torch.dtype = torch.float32, context: int = CONTEXT, vocabulary: int = VOCABULARY
) -> LanguageModel:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config)
    return wrap(network.to(dtype), name="tiny", context=context)


def plain_logits(model: LanguageModel, token_ids: list[int]) -> torch.Tensor:
    """[T, V] logits in float64 by transformers' own eager attention: no plan, no packing, no cache."""
    other = LlamaForCausalLM(copy.deepcopy(model.network.config))  # the attention's name is kept in the configuration
    other.load_state_dict(model.network.state_dict())
    other.set_attn_implementation("eager")
    with torch.no_grad():
        return other.double().eval()(input_ids=torch.tensor([token_ids])).logits[0]
