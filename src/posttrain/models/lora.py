"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) by peft; the base, adapter off, is the reference policy."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from posttrain.errors import ModelError, UserError
from posttrain.models.language_model import LanguageModel

try:
    import peft
except ImportError:  # an extra: only adapters need it
    peft = None

# peft asks transformers by an old name; nobody who trains an adapter can do anything about that
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)

INSTALL = "adapters need peft; type: pip install 'posttrain[lora]'"


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds an adapter rather than a whole model."""
    return (Path(folder) / "adapter_config.json").is_file()


def base_of(folder: str | Path) -> str:
    """The model that an adapter was trained on.

    Raises:
        ModelError: the adapter's configuration does not say.
    """
    path = Path(folder) / "adapter_config.json"
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    if not isinstance(base, str) or not base:
        raise ModelError(f"{path} does not say which model the adapter belongs to (base_model_name_or_path)")
    return base


def _peft() -> Any:
    if peft is None:
        raise UserError(INSTALL)
    return peft


def add_lora(
    model: LanguageModel, rank: int, alpha: float | None = None, seed: int = 0, whole: str = ""
) -> LanguageModel:
    """Freeze the model and add a trainable adapter to every linear layer but the head; at first it changes nothing.

    `alpha` scales the update by alpha / rank and is 2 * rank unless given. The adapter's weights are float32 whatever
    the base computes in. `whole` names a layer that is trained as it is, such as the rows of a reward model.
    """
    if model.adapter is not None:
        raise UserError(f"'{model.name}' is an adapter already; leave out --lora-rank to train that one further")
    config = _peft().LoraConfig(
        r=rank,
        lora_alpha=alpha if alpha is not None else 2 * rank,
        target_modules="all-linear",
        exclude_modules=[whole] if whole else None,
        task_type=None if whole else "CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = _peft().get_peft_model(model.network, config)
    if whole:
        model.network.get_submodule(whole).requires_grad_(True)
    return _around(model, adapted, fresh=True)


def load_adapter(model: LanguageModel, folder: str | Path) -> LanguageModel:
    """Put a saved adapter on its base, trainable.

    Raises:
        ModelError: it cannot be read, or was made for another model.
    """
    try:
        adapted = _peft().PeftModel.from_pretrained(model.network, str(folder), is_trainable=True)
        saved = _peft().utils.load_peft_weights(str(folder), device="cpu").keys()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load the adapter in '{folder}': {str(error).splitlines()[0]}") from error
    placed = _peft().get_peft_model_state_dict(adapted).keys()
    if saved != placed:  # peft itself only warns, and leaves out what does not fit
        raise ModelError(
            f"the adapter in '{folder}' is another model's: {len(saved - placed)} of its weights fit nowhere in "
            f"'{model.name}', and {len(placed - saved)} places lack one"
        )
    return _around(model, adapted, fresh=False)


def _around(model: LanguageModel, adapted: Any, *, fresh: bool) -> LanguageModel:
    """The model under an adapter. peft keeps the layers' names in a set: in order, equal adapters are equal files."""
    for config in adapted.peft_config.values():
        config.target_modules = sorted(config.target_modules)
    adapted.eval()
    return replace(model, network=adapted.base_model.model, adapter=adapted, fresh_adapter=fresh)
