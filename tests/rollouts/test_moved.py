"""How far a policy has moved: by hand, however it is packed, and as what it estimates."""

import math
from itertools import product

import pytest
import torch

from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import ModelError, UserError
from posttrain.rollouts.moved import kl_from, load_earlier
from posttrain.rollouts.policy import load_policy
from tests.recipes.folders import model_folder
from tests.tiny import CONTEXT, VOCABULARY, plain_logits, tiny_llama

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


def test_what_the_earlier_model_cannot_hold_is_refused():
    short = tiny_llama(seed=1, dtype=torch.float64, context=CONTEXT - 20)
    with pytest.raises(UserError, match="ends at token 6 of its conversation, and 'tiny' holds 4"):
        kl_from(short, POLICY, PROMPTS[:2], SAID[:2])


def test_the_earlier_model_comes_in_the_policys_precision_and_must_have_its_tokens(tmp_path):
    policy = load_policy(str(model_folder(tmp_path / "model")), precision="bfloat16")
    assert load_earlier(str(model_folder(tmp_path / "earlier", seed=1)), policy).dtype == torch.bfloat16
    other = load_tokenizer(tmp_path / "earlier")
    other.add_tokens(["<seen>"])
    other.save_pretrained(tmp_path / "earlier")
    with pytest.raises(ModelError, match=r"earlier' and '.*model' have other tokens"):
        load_earlier(str(tmp_path / "earlier"), policy)
