import torch

from posttrain.models.footprint import read_shape
from posttrain.models.load import probe
from posttrain.models.precision import products_per_second, seconds_of
from tests.recipes.folders import model_folder


def test_a_probe_has_the_model_s_widths_and_as_many_layers_as_asked(tmp_path):
    folder = str(model_folder(tmp_path / "model"))
    shape = read_shape(folder)
    one = probe(folder, 1, dtype=torch.bfloat16)
    assert len(one.network.model.layers) == 1 and one.dtype == torch.bfloat16
    assert one.head.shape == (shape.vocabulary, shape.hidden)
    layer = (shape.parameters - shape.hidden - shape.vocabulary * shape.hidden) // shape.layers
    two = probe(folder, 2, dtype=torch.float32)
    assert sum(p.numel() for p in two.network.parameters()) == shape.parameters
    assert sum(p.numel() for p in one.network.parameters()) == shape.parameters - layer


def test_the_shortest_time_counts_and_the_first_does_not(monkeypatch):
    moments = iter([0.0, 1.0, 1.0, 6.0, 6.0, 9.0])  # the first took 1 s, the others 5 and 3
    monkeypatch.setattr("posttrain.models.precision.time.perf_counter", lambda: next(moments))
    calls = []
    assert seconds_of(lambda: calls.append(1), repeats=2) == 3.0
    assert len(calls) == 3


def test_the_rate_of_products_counts_two_operations(monkeypatch):
    monkeypatch.setattr("posttrain.models.precision.seconds_of", lambda work, device, repeats: 0.5)
    assert products_per_second(torch.float32) == 2 * 2048**3 / 0.5
