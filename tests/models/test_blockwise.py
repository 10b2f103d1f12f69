"""Codes of 8 bits against a literal reading of the paper, bounds by hand, and what a block keeps to itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.models.blockwise import BLOCK, blocks_of, dequantize, levels, quantize, worth_quantizing
from tests.references import blockwise as reference

CPU = torch.device("cpu")
SIGNED = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])


def read_back(x, *, signed):
    codes, scales = quantize(x, signed=signed)
    assert codes.dtype == torch.uint8 and codes.shape == x.shape and len(scales) == blocks_of(len(x))
    return dequantize(codes, scales, signed=signed)


def numbers(seed, count, decades=8.0):
    """Of either sign, spread over some decades."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=g) * 10 ** (-decades * torch.rand(count, generator=g))


@SIGNED
def test_levels_are_those_that_the_paper_s_bits_stand_for(signed):
    theirs = torch.tensor(reference.levels(signed), dtype=torch.float32)
    torch.testing.assert_close(levels(signed, CPU), theirs, rtol=1e-6, atol=0)
    assert len(set(reference.levels(signed))) == 256


def test_levels_by_hand():
    both, above = levels(True, CPU).tolist(), levels(False, CPU).tolist()
    # the top decade has 64 parts of 0.9 / 64 on either side, or 128; the lowest one, or two
    assert both[-2] == pytest.approx(1 - 0.9 / 128) and both[0] == -both[-2] and both[-1] == 1
    assert above[-2] == pytest.approx(1 - 0.9 / 256) and above[-1] == 1
    assert both[127:129] == pytest.approx([0.0, 0.55e-6]) and above[:3] == pytest.approx([0.0, 0.325e-6, 0.775e-6])


@SIGNED
@settings(max_examples=25)
@given(seed=st.integers(0, 2**16), count=st.integers(1, BLOCK + 40))
def test_every_number_is_read_back_as_the_nearest_level_of_its_block(signed, seed, count):
    x = numbers(seed, count) if signed else numbers(seed, count).square()
    ours, theirs = read_back(x, signed=signed), reference.read_back(x.tolist(), signed)
    scales = [max(map(abs, x.tolist()[k : k + BLOCK])) for k in range(0, count, BLOCK)]
    for i, (number, here, there) in enumerate(zip(x.tolist(), ours.tolist(), theirs, strict=True)):
        tie = abs(abs(number - here) - abs(number - there)) <= 1e-6 * scales[i // BLOCK] * abs(there)
        assert here == pytest.approx(there, rel=1e-6, abs=1e-44) or tie


@SIGNED
def test_levels_and_the_numbers_next_to_a_midpoint_are_told_apart(signed):
    found = levels(signed, CPU)
    assert torch.equal(read_back(found, signed=signed), found)
    middle = (found[1:] + found[:-1]) / 2
    below, above = torch.nextafter(middle, found[:-1]), torch.nextafter(middle, found[1:])
    one = torch.ones(1)
    assert torch.equal(read_back(torch.cat([middle, one]), signed=signed)[1:-1], found[1:-1])  # a tie: the lower one
    assert torch.equal(read_back(torch.cat([below, one]), signed=signed)[1:-1], found[1:-1])
    assert torch.equal(read_back(torch.cat([above, one]), signed=signed)[:-1], found[1:])


@SIGNED
def test_an_error_is_at_most_half_a_part_of_the_number_s_decade(signed):
    x = numbers(0, 40 * BLOCK) if signed else numbers(0, 40 * BLOCK).square()
    blocks, error = x.view(-1, BLOCK), (read_back(x, signed=signed) - x).abs().view(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True)
    share = blocks.abs() / scale
    for decade in range(6):
        inside = (share > 10.0 ** -(decade + 1)) & (share <= 10.0**-decade)
        part = 0.9 * 10.0**-decade / 2 ** (6 - decade + (not signed))
        assert inside.any() and (error / scale)[inside].max() <= part / 2 * 1.001


def test_an_outlier_costs_its_own_block_alone():
    x = numbers(1, 2 * BLOCK, decades=1)
    spoiled = x.clone()
    spoiled[3] = 1e6
    ours, theirs = read_back(x, signed=True), read_back(spoiled, signed=True)
    assert torch.equal(ours[BLOCK:], theirs[BLOCK:])
    assert (theirs[:BLOCK] - spoiled[:BLOCK])[4:].abs().max() > 0.1 > (ours - x).abs().max()


@SIGNED
def test_zeros_stay_zeros(signed):
    assert torch.equal(read_back(torch.zeros(BLOCK + 7), signed=signed), torch.zeros(BLOCK + 7))
    x = torch.zeros(BLOCK)
    x[5] = 3.0
    assert torch.equal(read_back(x, signed=signed), x)


def test_without_a_sign_what_is_above_0_stays_above_0():
    x = torch.full((BLOCK,), 1e-12)
    x[0] = 1.0
    assert read_back(x, signed=False).min() > 0
    assert read_back(x, signed=True).min() == 0


@SIGNED
def test_a_factor_of_two_changes_scales_and_no_code(signed):
    x = numbers(2, BLOCK + 9).abs()
    (codes, scales), (again, larger) = quantize(x, signed=signed), quantize(64 * x, signed=signed)
    assert torch.equal(codes, again) and torch.equal(64 * scales, larger)


def test_which_tensors_are_worth_it():
    assert worth_quantizing(torch.zeros(64, 64)) and worth_quantizing(torch.zeros(2, 64, 64))
    assert not worth_quantizing(torch.zeros(63, 65))
    assert not worth_quantizing(torch.zeros(8192))  # a norm
    assert not worth_quantizing(torch.zeros(64, 128).T)
