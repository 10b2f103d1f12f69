import math

import pytest
import torch

from posttrain import fast_paths
from posttrain.models import logprobs as module
from posttrain.models import rounding
from posttrain.models.logprobs import Readout, token_divergence, token_logprobs


def plain(hidden, weight, targets, temperature):
    """One float at a time."""
    out, entropies = [], []
    for h, target in zip(hidden.tolist(), targets.tolist(), strict=True):
        logits = [sum(a * b for a, b in zip(h, w, strict=True)) / temperature for w in weight.tolist()]
        log_total = math.log(sum(math.exp(z) for z in logits))
        out.append(logits[target] - log_total)
        entropies.append(-sum(math.exp(z - log_total) * (z - log_total) for z in logits))
    return out, entropies


def example(n=7, d=5, v=11, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, d, generator=g, dtype=dtype)
    weight = torch.randn(v, d, generator=g, dtype=dtype)
    return hidden, weight, torch.randint(v, (n,), generator=g)


@pytest.fixture(params=[(1, 1), (3, 2), (7, 3), (100, 3), (100, 100)], ids=str)
def chunk_rows(request, monkeypatch):
    """Rows of a chunk in float64, and of a block of it."""
    monkeypatch.setattr(module, "CHUNK_BYTES", request.param[0] * 8 * 11)
    monkeypatch.setattr(rounding, "BLOCK", request.param[1] * 11)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_equals_a_reading_in_plain_floats(chunk_rows, temperature):
    hidden, weight, targets = example()
    found = token_logprobs(hidden, weight, targets, temperature)
    logprobs, entropies = plain(hidden, weight, targets, temperature)
    torch.testing.assert_close(found.logprobs, torch.tensor(logprobs, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.entropy, torch.tensor(entropies, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_gradients_equal_those_of_log_softmax(chunk_rows, temperature):
    weights_n = torch.linspace(-2, 3, 7, dtype=torch.float64)
    grads = []
    for chunked in (True, False):
        hidden, weight, targets = example()
        hidden.requires_grad_()
        weight.requires_grad_()
        if chunked:
            values = token_logprobs(hidden, weight, targets, temperature).logprobs
        else:
            values = (hidden @ weight.T / temperature).log_softmax(-1).gather(1, targets[:, None])[:, 0]
        (values * weights_n).sum().backward()
        grads.append((hidden.grad, weight.grad))
    torch.testing.assert_close(grads[0][0], grads[1][0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grads[0][1], grads[1][1], rtol=1e-10, atol=1e-12)


def test_the_gradient_can_be_taken_again(chunk_rows):
    """Logits that are kept for the backward pass are read, not overwritten."""
    hidden, weight, targets = example()
    total = token_logprobs(hidden.requires_grad_(), weight.requires_grad_(), targets).logprobs.sum()
    first, second = (torch.autograd.grad(total, (hidden, weight), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_gradients_of_chunks_are_summed_in_float32(monkeypatch):
    """512 equal parts of a bfloat16 gradient: added up in bfloat16, the sum would stop growing at 256 of them."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    hidden, targets = torch.ones(512, 1, dtype=torch.bfloat16), torch.zeros(512, dtype=torch.long)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    token_logprobs(hidden, weight, targets).logprobs.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[256.0], [-256.0]]  # 512 times 1 - 1/2


def test_gradient_passes_the_numerical_check():
    hidden, weight, targets = example(3, 4, 6)
    hidden.requires_grad_()
    weight.requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: token_logprobs(h, w, targets, 0.8).logprobs, (hidden, weight))


def test_entropy_carries_no_gradient():
    hidden, weight, targets = example()
    assert not token_logprobs(hidden.requires_grad_(), weight, targets).entropy.requires_grad


def test_bfloat16_products_are_summed_in_float32():
    hidden, weight, targets = example(16, 64, 500, torch.bfloat16)
    found = token_logprobs(hidden, weight, targets)
    assert found.logprobs.dtype == torch.float32
    exact = (hidden @ weight.T).double().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(found.logprobs.double(), exact, rtol=1e-5, atol=1e-5)


def test_large_logits_do_not_overflow():
    hidden, weight, targets = example(dtype=torch.float32)
    found = token_logprobs(hidden * 1e3, weight, targets)
    assert torch.isfinite(found.logprobs).all() and torch.isfinite(found.entropy).all()


def test_no_logits_of_the_whole_batch_are_held(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 2 * 8 * 11)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dim() == 2 and out.shape[1] == 11:
                sizes.append(out.shape[0])
            return out

    hidden, weight, targets = example()
    with Watch():
        token_logprobs(hidden.requires_grad_(), weight.requires_grad_(), targets).logprobs.sum().backward()
    assert 2 in sizes and 7 not in sizes  # 5 is the transposed weight


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_refuses_a_temperature_that_is_not_above_0(temperature):
    with pytest.raises(ValueError, match="temperature above 0"):
        token_logprobs(*example(), temperature)


def test_the_exponentials_are_taken_once_where_all_rows_fit_one_chunk_and_residuals_only_where_they_are_needed(
    monkeypatch,
):
    made = {"_scaled": 0, "_minus_onehot": 0}

    def counted(name):
        function = getattr(module, name)

        def call(*args):
            made[name] += 1
            return function(*args)

        return call

    for name in made:
        monkeypatch.setattr(module, name, counted(name))
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    targets = torch.tensor([0, 5, 2])
    found = token_logprobs(hidden, weight, targets)
    assert made == {"_scaled": 1, "_minus_onehot": 1}
    found.logprobs.sum().backward()
    assert made == {"_scaled": 1, "_minus_onehot": 1}  # kept, not made again
    with torch.no_grad():
        token_logprobs(hidden, weight, targets)
    assert made == {"_scaled": 2, "_minus_onehot": 1}
    monkeypatch.setattr(module, "CHUNK_BYTES", 2 * 6 * 4)  # two rows
    token_logprobs(hidden, weight, targets).logprobs.sum().backward()
    assert made == {"_scaled": 6, "_minus_onehot": 3}  # two chunks forward, and again backward


def test_the_divergence_is_that_of_the_other_model_from_this_one(chunk_rows):
    hidden, weight, _ = example()
    others = example(seed=1)[:2]
    expected = []
    for h, g in zip(hidden.tolist(), others[0].tolist(), strict=True):
        odds = [
            [math.exp(sum(a * b for a, b in zip(state, w, strict=True))) for w in head.tolist()]
            for state, head in ((h, weight), (g, others[1]))
        ]
        p, q = ([x / sum(row) for x in row] for row in odds)
        expected.append(sum(b * math.log(b / a) for a, b in zip(p, q, strict=True)))
    found = token_divergence(hidden, weight, *others)
    assert found.tolist() == pytest.approx(expected, rel=1e-10)
    assert token_divergence(hidden, weight, hidden, weight).abs().max() < 1e-12


def test_the_divergence_s_gradient_reaches_this_model_alone(chunk_rows):
    (hidden, weight, _), (other, head, _) = example(), example(seed=1)
    for tensor in (hidden, weight, other, head):
        tensor.requires_grad_()
    scale = torch.linspace(-1, 2, 7, dtype=torch.float64)
    (token_divergence(hidden, weight, other, head) * scale).sum().backward()
    ours = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    q = (other @ head.T).softmax(1).detach()
    (((q * (q.log() - (hidden @ weight.T).log_softmax(1))).sum(1)) * scale).sum().backward()
    for mine, theirs in zip(ours, (hidden.grad, weight.grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert other.grad is None and head.grad is None


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_the_gradient_of_the_entropy_is_that_of_autograd(chunk_rows, temperature):
    by, of = torch.linspace(-2, 3, 7, dtype=torch.float64), torch.linspace(1, -2, 7, dtype=torch.float64)
    grads = []
    for chunked in (True, False):
        hidden, weight, targets = example()
        hidden.requires_grad_()
        weight.requires_grad_()
        if chunked:
            found = token_logprobs(hidden, weight, targets, temperature, entropy_gradient=True)
            logprobs, entropy = found
        else:
            spread = (hidden @ weight.T / temperature).log_softmax(-1)
            logprobs, entropy = spread.gather(1, targets[:, None])[:, 0], -(spread.exp() * spread).sum(1)
        grads.append(torch.autograd.grad((logprobs * by + entropy * of).sum(), (hidden, weight)))
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


def test_without_the_fast_path_the_entropy_has_the_same_gradient():
    with fast_paths.without("lean head"):
        hidden, weight, targets = example()
        found = token_logprobs(hidden.requires_grad_(), weight, targets, entropy_gradient=True)
        (plain,) = torch.autograd.grad(found.entropy.sum(), hidden)
    lean = token_logprobs(hidden, weight, targets, entropy_gradient=True)
    torch.testing.assert_close(torch.autograd.grad(lean.entropy.sum(), hidden)[0], plain, rtol=1e-10, atol=1e-12)


def test_the_entropy_has_no_gradient_unless_asked_for():
    for paths in (fast_paths.without(), fast_paths.without("lean head")):
        with paths:
            hidden, weight, targets = example()
            assert not token_logprobs(hidden.requires_grad_(), weight, targets).entropy.requires_grad


READOUTS = [Readout(0.4), Readout(1.0, 2.0), Readout(2.5, 1.5)]


def logits_of(products, readout):
    """The readout, one step at a time."""
    scaled = readout.multiplier * products
    return scaled if readout.cap is None else readout.cap * (scaled / readout.cap).tanh()


OF_EACH = torch.linspace(0.5, 2.0, 7, dtype=torch.float64)  # a temperature for each token


@pytest.mark.parametrize("readout", [*READOUTS, Readout()], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.7, OF_EACH], ids=["1", "0.7", "of each"])
@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("path", ["lean head", "no lean head"])
def test_a_head_that_caps_or_scales_its_logits(chunk_rows, readout, temperature, entropy_gradient, path):
    by, of = torch.linspace(-2, 3, 7, dtype=torch.float64), torch.linspace(1, -2, 7, dtype=torch.float64)
    found = []
    for ours in (True, False):
        hidden, weight, targets = example()
        learned = hidden.requires_grad_(), weight.requires_grad_()
        if ours:
            options = {"entropy_gradient": entropy_gradient, "readout": readout}
            with fast_paths.without(*(["lean head"] if path == "no lean head" else [])):
                logprobs, entropy = token_logprobs(hidden, weight, targets, temperature, **options)
        else:
            heat = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
            spread = (logits_of(hidden @ weight.T, readout) / heat).log_softmax(-1)
            logprobs, entropy = spread.gather(1, targets[:, None])[:, 0], -(spread.exp() * spread).sum(1)
        loss = (logprobs * by).sum() + ((entropy * of).sum() if entropy_gradient else 0.0)
        found.append((logprobs.detach(), entropy.detach(), *torch.autograd.grad(loss, learned)))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("readout", READOUTS, ids=str)
def test_the_divergence_is_between_what_is_read_out(chunk_rows, readout):
    (hidden, weight, _), (other, head, _) = example(), example(seed=1)
    hidden.requires_grad_()
    p, q = (logits_of(h @ w.T, readout).log_softmax(1) for h, w in ((hidden, weight), (other, head)))
    expected, found = (q.exp() * (q - p)).sum(1), token_divergence(hidden, weight, other, head, readout)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    theirs, ours = (torch.autograd.grad(x.sum(), hidden)[0] for x in (expected, found))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_logits_are_read_out_wide():
    products = torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    assert Readout().logits(products) is products
    found = Readout(0.5, 2.0).logits(products)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([2 * math.tanh(0.25), 2 * math.tanh(0.75)])


@pytest.mark.parametrize("top_k", [0, 1, 3, 99])
@pytest.mark.parametrize("temperature", [1.0, 0.7, torch.linspace(0.5, 2, 7, dtype=torch.float64)], ids=str)
def test_a_divergence_of_the_kept_tokens_and_of_all_others_together(chunk_rows, top_k, temperature):
    (hidden, weight, _), (other, head, _) = example(), example(seed=1)
    hidden.requires_grad_()
    wider = torch.cat([head, 9 * torch.ones(2, head.shape[1], dtype=head.dtype)])  # rows that are no token of ours

    def reverse(p, q):
        return (p.exp() * (p - q)).sum(1)

    readout = Readout(multiplier=0.5)
    found = token_divergence(
        *(hidden, weight, other, wider, readout),
        from_readout=Readout(),
        temperature=temperature,
        top_k=top_k,
        apart=reverse,
    )
    heat = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
    p, q = ((x / heat).softmax(1) for x in (hidden @ weight.T * 0.5, other @ head.T))
    expected = []
    for mine, its in zip(p, q, strict=True):
        kept = sorted(range(len(its)), key=lambda v: -its[v].item())[: top_k or None]
        pairs = [(mine[v], its[v]) for v in kept]
        if len(kept) < len(its):
            pairs.append(tuple(1 - sum(pair[i] for pair in pairs) for i in range(2)))
        expected.append(sum(a * (a.log() - b.log()) for a, b in pairs))
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-8, atol=1e-10)
    theirs, ours = (torch.autograd.grad(x.sum(), hidden)[0] for x in (torch.stack(expected), found))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_no_tokens_have_no_divergence():
    hidden, weight, _ = example()
    assert token_divergence(hidden[:0], weight, hidden[:0], weight).shape == (0,)
