"""How far a policy has moved: by hand, however it is packed, and as what it estimates."""

import math
from itertools import product

import pytest
import torch
from transformers import LlamaForCausalLM

from posttrain.data.tokenizer import load_tokenizer
from posttrain.engine.policy import load_policy
from posttrain.errors import ModelError, UserError
from posttrain.evaluation.policy_kl import kl_from, refuse_incomparable
from posttrain.types import Message, Task
from tests.recipes.folders import model_folder
from tests.tiny import VOCABULARY, plain_logits, tiny_llama

POLICY, EARLIER = tiny_llama(dtype=torch.float64), tiny_llama(seed=1, dtype=torch.float64)
PROMPTS = [(5, 9, 3), (5, 9, 3), (2, 2)]
SAID = [(4, 8, 1), (7, 1), (11, 12, 13, 14, 1)]


def by_hand(prompt, said):
    """Token by token, all of the vocabulary, in floats."""
    ids = [*prompt, *said]
    p, q = (plain_logits(model, ids).log_softmax(-1).tolist() for model in (POLICY, EARLIER))
    steps = range(len(prompt) - 1, len(ids) - 1)
    return math.fsum(math.exp(a) * (a - b) for t in steps for a, b in zip(p[t], q[t], strict=True))


@pytest.mark.parametrize("microbatch_tokens", [1, 10, 100])
def test_it_is_the_sum_over_a_response_of_how_far_apart_the_predictions_are(microbatch_tokens):
    found = kl_from(EARLIER, POLICY, PROMPTS, SAID, microbatch_tokens=microbatch_tokens)
    assert found == pytest.approx([by_hand(*each) for each in zip(PROMPTS, SAID, strict=True)], rel=1e-5)
    back = kl_from(POLICY, EARLIER, PROMPTS, SAID)
    assert all(abs(a - b) > 0.01 * b for a, b in zip(found, back, strict=True))  # it has a direction


def test_its_mean_over_all_that_can_be_said_is_the_divergence_of_the_whole_responses():
    prompt = (5, 9, 3)
    responses = list(product(range(VOCABULARY), repeat=2))
    first = [plain_logits(model, list(prompt)).log_softmax(-1)[-1] for model in (POLICY, EARLIER)]
    then = [[plain_logits(m, [*prompt, y]).log_softmax(-1)[-1] for y in range(VOCABULARY)] for m in (POLICY, EARLIER)]
    logprobs = [[(a[y] + b[y][z]).item() for y, z in responses] for a, b in zip(first, then, strict=True)]
    whole = math.fsum(math.exp(p) * (p - q) for p, q in zip(*logprobs, strict=True))
    along = kl_from(EARLIER, POLICY, [prompt] * len(responses), responses)
    assert math.fsum(math.exp(p) * d for p, d in zip(logprobs[0], along, strict=True)) == pytest.approx(whole, rel=1e-5)


def test_a_policy_that_stayed_has_not_moved():
    assert kl_from(POLICY, POLICY, PROMPTS, SAID) == pytest.approx([0.0] * 3, abs=1e-9)
    assert kl_from(POLICY, POLICY, [], []) == []


def test_what_is_computed_is_counted():
    counted = []
    kl_from(EARLIER, POLICY, PROMPTS, SAID, microbatch_tokens=10, on_tokens=counted.append)
    assert sum(counted) == 8 + 7 and len(counted) == 2  # the prompt of the first two once


def asked(length):
    return [Task((Message("user", "2"),)), Task((Message("user", "2" * length),))]


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    return str(model_folder(tmp_path_factory.mktemp("now") / "model"))


def test_an_earlier_state_of_the_same_model_can_be_compared(now, tmp_path):
    earlier = str(model_folder(tmp_path / "earlier", seed=1))
    refuse_incomparable(earlier, now, asked(400), 400)  # what does not fit the policy either is for others to say
    longest = len(load_policy(now, precision="float32").chat.prompt_ids(asked(40)[1].prompt))
    short = str(model_folder(tmp_path / "short", seed=1, context=longest + 20))
    refuse_incomparable(short, now, asked(40), 20)
    with pytest.raises(UserError, match=rf"a prompt of {longest} tokens with an answer of up to 21 does not fit"):
        refuse_incomparable(short, now, asked(40), 21)


def test_a_model_of_other_tokens_is_refused(now, tmp_path):
    earlier = model_folder(tmp_path / "earlier", seed=1)
    padded = LlamaForCausalLM.from_pretrained(earlier)
    padded.resize_token_embeddings(len(load_tokenizer(earlier).get_vocab()) + 7)
    padded.save_pretrained(tmp_path / "padded")
    other = load_tokenizer(earlier)
    other.save_pretrained(tmp_path / "padded")
    with pytest.raises(ModelError, match=r"padded' gives logits of .* name an earlier state"):
        refuse_incomparable(str(tmp_path / "padded"), now, asked(1), 1)
    other.add_tokens(["<seen>"])
    other.save_pretrained(tmp_path / "padded")  # whose embedding has a row for it
    with pytest.raises(ModelError, match=r"padded' and '.*model' have other tokens; pass an earlier state"):
        refuse_incomparable(str(tmp_path / "padded"), now, asked(1), 1)
