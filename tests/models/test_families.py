"""Every family that the README names, tiny and random: packed with a shared prefix it computes the same."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from posttrain.errors import ModelError
from posttrain.models.attention import FamilyAttention
from posttrain.models.language_model import wrap
from posttrain.rollouts.transformers import TransformersEngine
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
    torch.testing.assert_close(hidden @ model.head.T, expected, rtol=1e-4, atol=1e-4)

    requests = [Request(tuple(PROMPT), Sampling(12), seed) for seed in range(3)]
    for completion in TransformersEngine(model, frozenset()).generate(requests):
        ids = torch.tensor([PROMPT + list(completion.token_ids)])
        with torch.no_grad():
            logprobs = plain(input_ids=ids).logits[0, 4:-1].log_softmax(-1).gather(1, ids[0, 5:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), logprobs, rtol=1e-4, atol=1e-4)


def test_a_family_that_caps_its_attention_scores_is_refused():
    with pytest.raises(ModelError, match="Gemma2"):
        wrap(random_network("gemma2"), name="gemma2", context=64)


def test_a_family_that_caps_its_logits_is_refused():
    network = random_network("gemma3_text", final_logit_softcapping=2.0, layer_types=["full_attention"] * 2)
    with pytest.raises(ModelError, match="does more than multiply"):
        wrap(network, name="capped", context=64)
