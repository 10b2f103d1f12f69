from contextlib import nullcontext

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from posttrain.errors import ModelError
from posttrain.fast_paths import without
from posttrain.models import attention, scoring
from posttrain.models.attention import FamilyAttention
from posttrain.models.language_model import wrap
from posttrain.models.scoring import Scoring
from tests.tiny import plain_logits, tiny_llama

# transformers' own attention takes its softmax in float32 whatever the dtype, so 1e-6 is its precision, not ours
PROMPT = [5, 9, 3, 7]
BRANCHES = [[4, 8, 2], [11], [6, 6, 12, 13, 14]]


def hidden_of(model, token_ids, positions, families):
    plan = FamilyAttention(families)
    return model.hidden(torch.tensor([token_ids]), torch.tensor([positions]), plan)[0]


@pytest.fixture(params=["products", "fused", "whole rows"])
def kernel(request, monkeypatch):
    """All ways to compute the attention."""
    if request.param == "fused":
        monkeypatch.setattr(scoring, "MATERIALIZE", 0)
    if request.param == "whole rows":
        monkeypatch.setattr(attention, "_at_once", lambda device: True)


@pytest.fixture(params=["recomputed", "kept"])
def way(request):
    """Both ways to take the gradient."""
    with without(*([] if request.param == "recomputed" else ["recomputed attention"])):
        yield request.param


def test_shared_prefix_equals_each_sequence_alone(kernel):
    model = tiny_llama(dtype=torch.float64)
    flat = PROMPT + [t for b in BRANCHES for t in b] + [20, 21]
    positions = [*range(4)] + [4 + i for b in BRANCHES for i in range(len(b))] + [0, 1]
    hidden = hidden_of(model, flat, positions, [(4, [3, 1, 5]), (0, [2])])
    logits = hidden @ model.head.T
    at = 4
    for branch in BRANCHES:
        alone = plain_logits(model, PROMPT + branch)
        torch.testing.assert_close(logits[:4], alone[:4], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(logits[at : at + len(branch)], alone[4:], rtol=1e-5, atol=1e-6)
        at += len(branch)
    torch.testing.assert_close(logits[at:], plain_logits(model, [20, 21]), rtol=1e-5, atol=1e-6)


def test_a_branch_does_not_see_its_siblings_nor_another_family(kernel):
    model = tiny_llama(dtype=torch.float64)
    positions = [0, 1, 2, 3, 2, 3, 0, 1]
    families = [(2, [2, 2]), (1, [1])]
    before = hidden_of(model, [5, 6, 7, 8, 9, 10, 11, 12], positions, families)
    after = hidden_of(model, [5, 6, 30, 31, 9, 10, 32, 33], positions, families)
    changed = (before - after).abs().amax(dim=1) > 1e-12
    assert changed.tolist() == [False, False, True, True, False, False, True, True]


def test_gradients_of_a_packed_row_equal_those_of_its_sequences(kernel, way):
    flat = PROMPT + [t for b in BRANCHES for t in b]
    positions = [*range(4)] + [4 + i for b in BRANCHES for i in range(len(b))]
    packed = tiny_llama(dtype=torch.float64)
    hidden = hidden_of(packed, flat, positions, [(4, [3, 1, 5])])
    hidden[4:].square().sum().backward()
    single = tiny_llama(dtype=torch.float64)
    for branch in BRANCHES:
        ids = PROMPT + branch
        hidden_of(single, ids, list(range(len(ids))), [(len(ids), [])])[4:].square().sum().backward()
    for (name, a), (_, b) in zip(packed.trainable(), single.trainable(), strict=True):
        torch.testing.assert_close(a.grad.to_dense(), b.grad.to_dense(), rtol=1e-9, atol=1e-9, msg=name)


def test_a_sliding_window_is_kept_across_the_prefix(kernel):
    config = MistralConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=3, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    network = MistralForCausalLM(config).double().eval()
    network.set_attn_implementation("eager")
    sequences = [PROMPT + branch for branch in BRANCHES]
    with torch.no_grad():
        expected = [network(input_ids=torch.tensor([ids])).logits[0] for ids in sequences]
    model = wrap(network, name="mistral", context=64)
    flat = PROMPT + [t for b in BRANCHES for t in b]
    positions = [*range(4)] + [4 + i for b in BRANCHES for i in range(len(b))]
    logits = hidden_of(model, flat, positions, [(4, [3, 1, 5])]) @ model.head.T
    torch.testing.assert_close(logits[4:], torch.cat([e[4:] for e in expected]), rtol=1e-5, atol=1e-6)


def test_a_window_that_hides_the_prefix_from_padding_leaves_gradients_finite(kernel, way):
    """A short branch beside a long one: the last queries of its rectangle are padding, and see nothing that is real."""
    config = MistralConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = wrap(MistralForCausalLM(config).double(), name="mistral", context=64)
    hidden = hidden_of(model, [5, 9, 11, 6, 6, 12, 13, 14], [0, 1, 2, 2, 3, 4, 5, 6], [(2, [1, 5])])
    hidden.square().sum().backward()
    assert all(torch.isfinite(p.grad.to_dense()).all() for _, p in model.trainable() if p.grad is not None)


FAMILIES = [(4, [3, 1, 5]), (0, [2, 6]), (3, []), (2, [2])]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
def test_the_gradient_in_closed_form_is_autograd_s(kernel, dtype, tolerance, window):
    """Against autograd in float64 through the same forward pass."""
    length, g = 28, torch.Generator().manual_seed(0)
    q, k, v, upstream = (torch.randn(1, h, length, 8, generator=g, dtype=torch.float64) for h in (4, 2, 2, 4))
    exact = [x.to(dtype).double().requires_grad_() for x in (q, k, v)]
    with without("recomputed attention", "whole rows"):
        expected = FamilyAttention(FAMILIES).attend(0, *exact, Scoring(0.3, window))
    expected.backward(upstream.to(dtype).double())
    ours = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    found = FamilyAttention(FAMILIES).attend(0, *ours, Scoring(0.3, window))
    found.backward(upstream.to(dtype))
    assert (found.double() - expected).norm() < tolerance * expected.norm()
    for a, b in zip(ours, exact, strict=True):
        assert a.grad.dtype == dtype
        assert (a.grad.double() - b.grad).norm() < tolerance * b.grad.norm()


def test_layers_of_one_row_may_see_differently_far(monkeypatch):
    """As in models whose layers alternate: every kind has its own bias."""
    q, k, v = (
        torch.randn(1, h, 28, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(h)) for h in (4, 2, 1)
    )
    v = v.expand(1, 2, 28, 8)
    apart = FamilyAttention(FAMILIES)
    monkeypatch.setattr(attention, "_at_once", lambda device: True)
    whole = FamilyAttention(FAMILIES)
    for window in (None, 3, 2, None):
        expected = apart.attend(0, q, k, v, Scoring(0.3, window))
        torch.testing.assert_close(whole.attend(0, q, k, v, Scoring(0.3, window)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("longest", "at_once"), [(28, True), (27, False)])
def test_a_row_that_is_too_long_for_one_bias_is_taken_apart(longest, at_once, monkeypatch):
    monkeypatch.setattr(attention, "_at_once", lambda device: True)
    monkeypatch.setattr(attention, "LONGEST", longest)
    monkeypatch.setattr(FamilyAttention, "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("apart")))
    row = [torch.randn(1, h, 28, 8) for h in (4, 2, 2)]
    with nullcontext() if at_once else pytest.raises(RuntimeError, match="apart"):
        assert FamilyAttention(FAMILIES).attend(0, *row, Scoring(0.3)).shape == row[0].shape


def test_no_weights_are_kept_for_the_backward_pass():
    row = [torch.randn(1, h, 28, 8, requires_grad=True) for h in (4, 2, 2)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        FamilyAttention(FAMILIES).attend(0, *row, Scoring(0.3))
    assert sorted(t.numel() for t in kept) == [2 * 28 * 8, 2 * 28 * 8, 4 * 28 * 8]


@pytest.mark.parametrize("materialize", [0, 2**30])
def test_the_softmax_is_taken_as_widely_as_the_scores_are(materialize, monkeypatch):
    monkeypatch.setattr(scoring, "MATERIALIZE", materialize)
    q, k, v = (
        torch.randn(1, 2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in range(3)
    )
    out = FamilyAttention([(5, [])]).attend(0, q, k, v, Scoring(0.3))
    hidden = torch.ones(5, 5).triu(1).bool()
    expected = (q @ k.transpose(2, 3) * 0.3).masked_fill(hidden, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(out, expected, rtol=1e-14, atol=1e-14)


def test_without_a_plan_the_model_refuses_to_run():
    model = tiny_llama()
    with pytest.raises(ModelError, match="needs a plan"):
        model.network(input_ids=torch.tensor([[5, 6]]))
