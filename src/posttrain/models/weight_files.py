"""Files of weights, looked at before anything is built: of safetensors, the name and the shape of each tensor."""

import json
import math
import re
from pathlib import Path
from typing import Any

from safetensors import safe_open

from posttrain.errors import ModelError

MOST_LAYERS = 10_000  # where no weights say how many there are
_WHOLE, _INDEX, _PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
)
_LAYER = re.compile(r"\.(\d+)\.")  # the first number in a tensor's name
AGAIN = "correct it, or fetch the model again"


def weights_that_fit(config: Any, folder: Path, name: str) -> int:
    """How many numbers the weights in a folder are, whose configuration has sizes that can be built; 0 without any.

    Raises:
        ModelError: a size is too small, there are more layers than in the weights, or the weights are not to be read.
    """
    sizes = {size: value for size in _SIZES if isinstance(value := getattr(config, size, None), int)}
    for size, value in sizes.items():
        if value < 1:
            raise ModelError(f"'{name}': {size} is {value} in config.json; expected 1 or more; {AGAIN}")
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts and not 1 <= (used := getattr(config, "num_experts_per_tok", 1)) <= experts:
        raise ModelError(f"'{name}': num_experts_per_tok is {used} of {experts} experts in config.json; {AGAIN}")
    tensors: dict[str, int] = {}
    for file in _files(folder, name):
        with safe_open(file, framework="pt") as opened:
            tensors |= {key: math.prod(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
    layers, most = sizes.get("num_hidden_layers", 0), len({found[1] for found in map(_LAYER.search, tensors) if found})
    if layers > (most or MOST_LAYERS):
        limit = f"its weights have {most}" if most else f"at most {MOST_LAYERS} are built"
        raise ModelError(f"'{name}': num_hidden_layers is {layers} in config.json, and {limit}; {AGAIN}")
    return sum(tensors.values())


def _files(folder: Path, name: str) -> list[Path]:
    """The files that transformers would read; links in the folder may lead out of it, as in the hub's cache."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        if any(folder.glob(f"{_PICKLE}*")):
            raise ModelError(
                f"'{name}' has {_PICKLE} and no {_WHOLE}, and a pickle can run code when it is read; if you trust it, "
                'convert it: python -c "from transformers import AutoModelForCausalLM as M; '
                f"M.from_pretrained('{name}').save_pretrained('{name}')\""
            )
        return []
    try:
        places = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        files = [Path(file) for file in sorted(set(places))]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"'{name}': {_INDEX} has no map from weights to files; download it again") from error
    for file in files:
        if file.is_absolute() or ".." in file.parts or not (folder / file).is_file():
            raise ModelError(f"'{name}': {_INDEX} names '{file}', which is no file in the folder; fetch it again")
    return [folder / file for file in files]
