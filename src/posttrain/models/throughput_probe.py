"""Throughput probe: a few layers of random weights, and matrix products."""

import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from posttrain.models import lora
from posttrain.models.language_model import LanguageModel, wrap
from posttrain.models.load import base_of, locate, read_config
from posttrain.models.support import context_of


def probe(name: str, layers: int, *, dtype: torch.dtype, device: str = "cpu") -> LanguageModel:
    """The model `name` with its own widths, `layers` layers and random weights, made from its configuration alone."""
    where = locate(name)
    if lora.is_adapter(where):
        return probe(base_of(where), layers, dtype=dtype, device=device)
    config = read_config(name, where)
    text = config.get_text_config()
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return wrap(network.to(device), name=name, context=context_of(text))


def seconds_of(work: Callable[[], object], device: str = "cpu", repeats: int = 2) -> float:
    """The shortest time of some repetitions, after one to warm up: others on the machine only make it longer."""
    times: list[float] = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()  # products are only queued there
        times.append(time.perf_counter() - began)
    return min(times[1:])


def products_per_second(dtype: torch.dtype, device: str = "cpu") -> float:
    """Operations per second of a large square product: a multiplication and an addition count as two."""
    size = 2048 if device == "cpu" else 4096
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: torch.mm(a, b), device, repeats=5)
