import pytest
import torch
from torch import nn

from posttrain.models import fused as module
from posttrain.models.fused import packed_weights, packing_supported

needs_packing = pytest.mark.skipif(not packing_supported(), reason="oneDNN has no bfloat16 products on this processor")


def linear(out, wide, *, dtype=torch.bfloat16, bias=False):
    torch.manual_seed(out)
    return nn.Linear(wide, out, bias=bias).to(dtype)


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 64, 200])
def test_a_packed_weight_gives_the_same_numbers_to_the_last_bit(rows, bias):
    layer = linear(96, 64, bias=bias)
    x = torch.randn(rows, 3, 64).bfloat16()
    with torch.inference_mode():
        plain = layer(x)
        with packed_weights(layer) as count:
            assert count == 1
            assert "forward" in layer.__dict__
            assert torch.equal(layer(x), plain)


def test_after_the_block_a_changed_weight_counts_again_even_if_the_block_failed():
    layer = linear(8, 8)
    x = torch.eye(8).bfloat16()
    with torch.inference_mode():
        with pytest.raises(ZeroDivisionError), packed_weights(layer):
            _ = 1 / 0
        layer.weight.mul_(2)
        assert torch.equal(layer(x), layer.weight.T)
        with packed_weights(layer):
            assert torch.equal(layer(x), layer.weight.T)


@needs_packing
def test_only_plain_layers_in_bfloat16_are_packed():
    class Special(nn.Linear):
        def forward(self, input):
            return 7 * super().forward(input)

    special = Special(4, 4).bfloat16()
    with packed_weights(nn.ModuleList([linear(4, 4, dtype=torch.float32), special, linear(4, 4)])) as count:
        assert count == 1
    assert torch.equal(special(torch.ones(4).bfloat16()), 7 * nn.Linear.forward(special, torch.ones(4).bfloat16()))


def test_where_the_processor_cannot_nothing_is_packed(monkeypatch):
    monkeypatch.setattr(module, "packing_supported", lambda: False)
    layer = linear(8, 8)
    with packed_weights(layer) as count:
        assert count == 0
        assert "forward" not in layer.__dict__
