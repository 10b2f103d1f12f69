import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.models import rounding
from posttrain.models.rounding import add_, l2_norm, narrow_, wide_dtype


def test_sums_of_float64_stay_float64():
    assert wide_dtype(torch.float64) == torch.float64
    assert wide_dtype(torch.bfloat16) == wide_dtype(torch.float16) == wide_dtype(torch.float32) == torch.float32


@given(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 20), st.booleans())
def test_a_sum_in_blocks_is_the_sum(shape, block, turned):
    """Whatever the shapes, the blocks and the order in memory: what is added is the part, rounded nowhere."""
    g = torch.Generator().manual_seed(len(shape))
    total, part = torch.randn(shape, generator=g), torch.randn(shape, generator=g).bfloat16()
    if turned and len(shape) == 2:
        total, part = total.T, part.T
    expected = total.double() + part.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "BLOCK", block)
        add_(total, part)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, expected.float(), rtol=0, atol=0)


def test_the_widened_copy_is_never_whole(monkeypatch):
    monkeypatch.setattr(rounding, "BLOCK", 6)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.add_.Tensor:
                sizes.append(args[1].numel())
            return func(*args, **(kwargs or {}))

    with Watch():
        add_(torch.zeros(7, 3), torch.ones(7, 3, dtype=torch.bfloat16))
    assert sizes == [6, 6, 6, 3]


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises((RuntimeError, ValueError)):
        add_(torch.zeros(4, 3), torch.ones(5, 3, dtype=torch.bfloat16))


def narrowed(numbers: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(numbers, dtype=torch.bfloat16)
    narrow_(found, numbers)
    return found


@given(st.floats(-(2.0**99), 2.0**99, width=32), st.integers(1, 70_000))
def test_what_is_narrowed_is_one_of_its_two_neighbours(number, places):
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    lower, upper = (
        struct.unpack("<f", struct.pack("<I", (half << 16) % 2**32))[0] for half in (bits >> 16, (bits >> 16) + 1)
    )
    found = narrowed(torch.full((places,), number, dtype=torch.float32)).float()
    assert set(found.tolist()) <= ({lower, upper} if number != lower else {number})


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.9])
def test_of_equal_weights_as_many_move_as_the_change_is_of_a_step(share, sign):
    """From 1, whose upper neighbour is 1 + 2^-7: rounded to the nearest, none or all would."""
    wide_numbers = torch.full((300, 1000), sign * (1 + share * 2**-7))
    found = narrowed(wide_numbers)
    assert set(found.unique().tolist()) == {sign * 1.0, sign * (1 + 2**-7)}
    assert (found.float() != sign).float().mean().item() == pytest.approx(share, abs=3e-3)
    for line in (found.float().mean(0), found.float().mean(1)):  # in every row and every column, too
        assert line.std() < 2 * (share * (1 - share) / 300) ** 0.5 * 2**-7


def test_numbers_on_the_grid_stay():
    grid = torch.randn(70_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(narrowed(grid.float()), grid)


def test_narrowing_depends_on_number_and_place_alone_and_counts_as_a_write():
    wide_numbers = torch.randn(90, 1100, generator=torch.Generator().manual_seed(0))
    once = narrowed(wide_numbers)
    assert torch.equal(narrowed(wide_numbers), once) and not torch.equal(once, wide_numbers.bfloat16())
    assert ((once.float() - wide_numbers).abs() <= wide_numbers.abs() * 2**-7).all()
    turned = torch.empty(1100, 90, dtype=torch.bfloat16).T
    before = turned._version
    narrow_(turned, wide_numbers.T.contiguous().T)
    assert torch.equal(turned, once) and turned._version > before
    weight = torch.nn.Parameter(torch.zeros(90, 1100, dtype=torch.bfloat16))
    before = weight._version
    narrow_(weight, wide_numbers)
    assert torch.equal(weight, once) and weight._version > before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_other_formats_are_rounded_to_the_nearest(dtype):
    numbers = torch.randn(100, dtype=torch.float64)
    found = torch.empty(100, dtype=dtype)
    narrow_(found, numbers)
    assert torch.equal(found, numbers.to(dtype))
    narrow_(found, numbers.float())
    assert torch.equal(found, numbers.float().to(dtype))
    exact = torch.randn(100, dtype=torch.float64)
    close = torch.empty(100, dtype=torch.bfloat16)
    narrow_(close, exact)
    assert torch.equal(close, exact.bfloat16())


@given(st.integers(0, 200_000), st.integers(0, 70_000))
def test_a_part_is_rounded_as_in_the_whole(start, numbers):
    wide = torch.linspace(0.5, 1.5, 200_000)
    whole, part = torch.empty(200_000, dtype=torch.bfloat16), torch.empty(numbers, dtype=torch.bfloat16)
    part = part[: len(wide) - start]
    narrow_(whole, wide)
    narrow_(part, wide[start : start + len(part)], start)
    assert torch.equal(part, whole[start : start + len(part)])


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (5, 4), (3, 4, 5)])
def test_the_norm_is_that_of_all_numbers(shape):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = math.sqrt(sum(x * x for x in numbers.double().flatten().tolist()))
    assert l2_norm(numbers).item() == pytest.approx(expected, rel=1e-6)
    assert l2_norm(numbers).dtype == torch.float64


def test_the_norm_of_many_numbers_is_not_that_of_the_first():
    """Torch's own, in float32 on a CPU, is 0.9% too small here."""
    numbers = torch.randn(2**16, 2**10, generator=torch.Generator().manual_seed(0))
    assert l2_norm(numbers).item() == pytest.approx(2**13, rel=1e-3)
