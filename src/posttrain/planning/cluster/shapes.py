"""The shape of a dense decoder of which only the number of parameters is known."""

import math
from dataclasses import replace

from posttrain.models.footprint import Shape

# from the configurations of the published models; `active` is all but the embedding and the head
_LONG = 131072


def _dense(name: str, layers: int, hidden: int, heads: int, keys: int, units: int, words: int, tied: bool) -> Shape:
    body = layers * hidden * (2 * hidden + 2 * keys + 3 * units)  # q and o, k and v, gate and up and down
    total = body + words * hidden * (1 if tied else 2)
    widths = layers * (2 * (hidden + hidden) + 2 * (hidden + keys) + 3 * (hidden + units))
    return Shape(name, _LONG, layers, hidden, heads, hidden, keys, units, words, total, body, widths)


PUBLISHED = (
    _dense("Qwen2.5-0.5B", 24, 896, 14, 128, 4864, 151936, True),
    _dense("Qwen2.5-1.5B", 28, 1536, 12, 256, 8960, 151936, True),
    _dense("Qwen2.5-7B", 28, 3584, 28, 512, 18944, 152064, False),
    _dense("Qwen2.5-14B", 48, 5120, 40, 1024, 13824, 152064, False),
    _dense("Qwen2.5-32B", 64, 5120, 40, 1024, 27648, 152064, False),
    _dense("Llama-3.1-70B", 80, 8192, 64, 1024, 28672, 128256, False),
    _dense("Llama-3.1-405B", 126, 16384, 128, 1024, 53248, 128256, False),
)


def dense_shape(parameters: float) -> Shape:
    """A dense decoder with this many parameters: the widths of the nearest published one, by ratio.

    Only the parameters are changed; layers and widths decide the cache of keys and values, activations, and attention.

    Example:
        >>> dense_shape(7e9).layers, dense_shape(400e9).name
        (28, 'Llama-3.1-405B')
    """
    nearest = min(PUBLISHED, key=lambda shape: abs(math.log(shape.parameters / parameters)))
    ends = nearest.parameters - nearest.active
    return replace(nearest, parameters=round(parameters), active=max(1, round(parameters) - ends))
