import pytest
import torch

from posttrain.models import precision
from tests.tiny import tiny_llama


@pytest.fixture(autouse=True)
def forget():
    precision.fastest.cache_clear()
    yield
    precision.fastest.cache_clear()


@pytest.mark.parametrize(
    ("wide", "narrow", "chosen"),
    [
        (7.0, 1.0, torch.bfloat16),  # matrix units for bfloat16
        (1.31, 1.0, torch.bfloat16),
        (1.29, 1.0, torch.float32),  # so little is not worth the rounding
        (1.0, 5.0, torch.float32),  # bfloat16 without instructions of its own
    ],
)
def test_what_is_clearly_faster_is_chosen(monkeypatch, wide, narrow, chosen):
    times = {torch.float32: wide, torch.bfloat16: narrow}
    monkeypatch.setattr(precision, "product_seconds", lambda *dtypes: [times[dtype] for dtype in dtypes])
    assert precision.fastest("cpu").dtype is chosen


def test_it_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(precision, "product_seconds", lambda *dtypes: measured.append(dtypes) or [1.0, 1.0])
    precision.fastest("cpu")
    precision.fastest("cpu")
    assert measured == [(torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("supported", "chosen"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_gpu_says_itself_what_it_can(monkeypatch, supported, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    assert precision.fastest("cuda").dtype is chosen


def test_the_measure_is_the_least_of_each_in_turn_after_a_warm_up(monkeypatch):
    clock = iter([0.0, 9.0, 10.0, 13.0, 20.0, 22.0, 30.0, 35.0, 40.0, 43.0, 50.0, 51.0])  # 9, 3; 2, 5; 3, 1
    products = []
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(precision.torch, "mm", lambda a, b: products.append((a.shape, a.dtype)))
    assert precision.product_seconds(torch.float32, torch.bfloat16, size=16, repeats=3) == [2.0, 1.0]
    assert products == [((16, 16), torch.float32), ((16, 16), torch.bfloat16)] * 4


def test_what_a_model_computes_with_says_why(monkeypatch):
    monkeypatch.setattr(precision, "product_seconds", lambda *dtypes: [1.0, 2.5])
    model = tiny_llama()
    found = precision.compute_of(model, "auto")
    assert (found["device"], found["precision"], found["threads"]) == ("cpu", "torch.float32", torch.get_num_threads())
    assert found["precision_reason"] == "matrix products in bfloat16 are 2.5 times as slow as in float32 here"
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert precision.compute_of(model, "float32")["precision_reason"] == "`precision`"
