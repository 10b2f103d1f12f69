import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.engine.sampling import draw, uniforms
from posttrain.errors import TrainingError
from posttrain.models import rounding

PROBS = [0.05, 0.4, 0.0, 0.3, 0.25]
LOGITS = torch.tensor([[math.log(p) if p else -1e30 for p in PROBS]])


def test_inverts_the_distribution_function_at_the_given_number():
    # cumulative: 0.05, 0.45, 0.45, 0.75, 1
    at = [0.0, 0.049, 0.051, 0.449, 0.451, 0.749, 0.751, 0.999999]
    tokens = draw(LOGITS.repeat(len(at), 1), torch.tensor(at), temperature=1.0).tokens
    assert tokens.tolist() == [0, 0, 1, 1, 3, 3, 4, 4]


def test_logprobs_are_those_of_the_distribution_drawn_from():
    found = draw(LOGITS.repeat(3, 1), torch.tensor([0.0, 0.2, 0.5]), temperature=1.0).logprobs
    torch.testing.assert_close(found, torch.tensor([0.05, 0.4, 0.3]).log(), rtol=1e-5, atol=1e-6)


def test_temperature_divides_the_logits():
    found = draw(LOGITS, torch.tensor([0.3]), temperature=0.5)
    squares = [p * p for p in PROBS]
    assert found.tokens.item() == 1
    assert found.logprobs.item() == pytest.approx(math.log(0.16 / sum(squares)), abs=1e-5)


def test_temperature_0_is_greedy_with_the_logprob_of_temperature_1():
    found = draw(LOGITS + 3, torch.tensor([0.99]), temperature=0)
    assert found.tokens.item() == 1
    assert found.logprobs.item() == pytest.approx(math.log(0.4), abs=1e-5)


def test_top_k_keeps_the_k_most_likely_and_scales_them_to_1():
    at = torch.tensor([0.0, 0.56, 0.58])  # of 0.4 and 0.3: the line is at 0.4 / 0.7 = 0.571
    found = draw(LOGITS.repeat(3, 1), at, temperature=1.0, top_k=2)
    assert found.tokens.tolist() == [1, 1, 3]
    assert found.logprobs[0].item() == pytest.approx(math.log(0.4 / 0.7), abs=1e-5)


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, {1}), (0.41, {1, 3}), (0.69, {1, 3}), (0.71, {1, 3, 4})])
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, kept):
    at = torch.linspace(0, 0.999, 50)
    assert set(draw(LOGITS.repeat(50, 1), at, temperature=1.0, top_p=top_p).tokens.tolist()) == kept


def test_frequencies_are_the_probabilities():
    n = 40_000
    noise = torch.from_numpy(uniforms([7] * n, range(n)))
    counts = Counter(draw(LOGITS.expand(n, -1), noise, temperature=1.0).tokens.tolist())
    chi2 = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in enumerate(PROBS) if p)
    assert counts[2] == 0 and chi2 < 16.3  # the 0.1% point of chi-square with 3 degrees of freedom


@pytest.mark.parametrize("top_p", [1e-7, 1e-40, 1e-60])  # the last one is 0 in float32
def test_a_small_top_p_keeps_the_most_likely_token(top_p):
    found = draw(LOGITS, torch.tensor([0.5]), temperature=1.0, top_p=top_p)
    assert found.tokens.tolist() == LOGITS.argmax(1).tolist() and found.logprobs.tolist() == [0.0]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.7}], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 7])
def test_drawing_in_blocks_is_drawing(monkeypatch, rows, settings):
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    settings = {"temperature": 0.8, **settings}
    whole = draw(logits, torch.linspace(0, 0.99, 7), **settings)
    assert len(set(whole.tokens.tolist())) > 3
    monkeypatch.setattr(rounding, "BLOCK", 11 * rows)
    blocks = draw(logits, torch.linspace(0, 0.99, 7), **settings)
    torch.testing.assert_close(tuple(blocks), tuple(whole), rtol=0, atol=0)


@given(st.integers(0, 2**63 - 1), st.integers(0, 5000))
def test_noise_is_in_the_unit_interval_and_has_no_state(seed, position):
    (first,), (second, _) = uniforms([seed], [position]), uniforms([seed, 3], [position, 4])
    assert 0 <= first < 1 and first == second


def test_noise_is_even_and_unrelated_between_seeds_and_positions():
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200), indexing="ij")
    grid = uniforms(seeds.ravel(), positions.ravel()).reshape(200, 200)
    counts, _ = np.histogram(grid, bins=20, range=(0, 1))
    assert ((counts - 2000) ** 2 / 2000).sum() < 43.8  # 0.1% point, 19 degrees of freedom
    for a, b in ((grid[:-1], grid[1:]), (grid[:, :-1], grid[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_the_number_just_below_1_never_draws_a_token_without_mass():
    logits = torch.tensor([[0.0, 0.0, -1e30, -1e30]])
    assert draw(logits, torch.tensor([1.0 - 2**-53], dtype=torch.float64), temperature=1.0).tokens.item() == 1


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_logits_that_are_not_finite_stop_the_run(poison):
    with pytest.raises(TrainingError, match="not finite"):
        draw(torch.tensor([[0.0, poison]]), torch.tensor([0.5]), temperature=1.0)
