import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.models import wide
from posttrain.models.wide import add_, wide_dtype


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
        patch.setattr(wide, "BLOCK", block)
        add_(total, part)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, expected.float(), rtol=0, atol=0)


def test_the_widened_copy_is_never_whole(monkeypatch):
    monkeypatch.setattr(wide, "BLOCK", 6)
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
