"""Every family that docs/usage.md names, tiny and random: packed with a shared prefix it computes the same."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.engine.transformers import TransformersEngine
from posttrain.models.attention import FamilyAttention
from posttrain.models.language_model import wrap
from posttrain.models.lora import add_lora
from posttrain.types import Request, Sampling

SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 4},
    "qwen2": {},
    "qwen3": {},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": {},
    "olmo2": {},
    "gemma2": {
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "granite": {"logits_scaling": 4.0, "attention_multiplier": 0.3},
    "cohere": {"logit_scale": 0.25},
    "qwen2_moe": {  # its attention does not pass its window on
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 48,
    },
    "gpt_oss": {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
}
PROMPT, BRANCHES = [5, 9, 3, 7, 11], [[4, 8, 2], [12], [6, 6, 13, 14, 15]]


def random_network(family, **options):
    config = AutoConfig.for_model(family, **SIZES, **options)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    return network


@pytest.mark.parametrize(("family", "options"), FAMILIES.items(), ids=FAMILIES)
def test_packed_logits_and_sampled_logprobs_equal_those_of_transformers(family, options):
    network = random_network(family, **options)
    plain = copy.deepcopy(network)
    model = wrap(network, name=family, context=64)
    flat = PROMPT + [t for branch in BRANCHES for t in branch]
    positions = [*range(5)] + [5 + i for branch in BRANCHES for i in range(len(branch))]
    with torch.no_grad():
        expected = torch.cat([plain(input_ids=torch.tensor([PROMPT + b])).logits[0, 5:] for b in BRANCHES])
        plan = FamilyAttention([(5, [3, 1, 5])])
        hidden = model.hidden(torch.tensor([flat]), torch.tensor([positions]), plan)[0, 5:]
    torch.testing.assert_close(model.logits(hidden), expected, rtol=1e-4, atol=1e-4)

    requests = [Request(tuple(PROMPT), Sampling(12), seed) for seed in range(3)]
    for completion in TransformersEngine(model, frozenset()).generate(requests):
        ids = torch.tensor([PROMPT + list(completion.token_ids)])
        with torch.no_grad():
            logprobs = plain(input_ids=ids).logits[0, 4:-1].log_softmax(-1).gather(1, ids[0, 5:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), logprobs, rtol=1e-4, atol=1e-4)


def test_an_adapter_leaves_the_stacked_weights_of_experts_alone():
    """peft takes `all-linear` for them, too; merging and loading know nothing of that."""
    pytest.importorskip("peft")
    network = random_network("mixtral", num_local_experts=4, num_experts_per_tok=2)
    names = set(network.state_dict())
    model = add_lora(wrap(network, name="mixtral", context=64), 2)
    learned = [name for name, _ in model.trainable()]
    assert len(learned) == 2 * 4 * 2 and all(".self_attn." in name for name in learned)
    assert set(model.whole()) == names
