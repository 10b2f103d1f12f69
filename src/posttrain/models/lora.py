"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) by peft; the base, adapter off, is the reference policy."""

import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from posttrain.errors import ModelError, UserError, foreign, unknown
from posttrain.models.dropout import keyed_dropout
from posttrain.models.language_model import LanguageModel
from posttrain.models.mixed_adapters import is_linear

try:
    import peft
except ImportError:  # an extra: only adapters need it
    peft = None

# peft asks transformers by an old name; users cannot change that
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
# GPT-2 keeps its weights transposed; peft sees that by itself, and says so for every layer
warnings.filterwarnings("ignore", "fan_in_fan_out is set to False but the target module is `Conv1D`")

WEIGHTS = "adapter_model.safetensors"  # and never a pickle
INSTALL = "adapters need peft; type: pip install 'posttrain[lora]'"
SCALE = 2.0  # of a fresh adapter's update, unless alpha says otherwise
MERGE = "merge it into its base with peft first (merge_and_unload)"


@dataclass(frozen=True, slots=True)
class Lora:
    """A fresh adapter: W x + s B A x, with s = alpha / rank, or alpha / sqrt(rank) where `rslora`."""

    rank: int
    alpha: float | None = None  # None for what makes s = 2
    dropout: float = 0.0  # probability with which an input of A is zeroed in an update
    targets: tuple[str, ...] = ()  # names of linear layers, such as q_proj; none for every one but the head
    rslora: bool = False  # Kalajdzievski 2023, arXiv 2312.03732
    dora: bool = False  # learn the length of each row of W + s B A as well: Liu et al. 2024, arXiv 2402.09353
    modules_to_save: tuple[str, ...] = ()  # names of modules that are trained whole and saved with the adapter

    @property
    def scaled(self) -> float:
        """Alpha, given or not."""
        root = math.sqrt(self.rank) if self.rslora else self.rank
        return SCALE * root if self.alpha is None else self.alpha


def resolve(network: Any, lora: Lora, name: str) -> tuple[list[str], list[str]]:
    """The targets as they were typed, and the whole names of the modules that are trained whole, once looked at."""
    modules: dict[str, nn.Module] = {path: module for path, module in network.named_modules() if path}
    head = network.get_output_embeddings()
    linear = [path for path, module in modules.items() if is_linear(module) and module is not head]
    weighty = [path for path, module in modules.items() if any(True for _ in module.parameters())]
    trained: list[str] = []
    for typed in lora.modules_to_save:
        found = _named(typed, modules)
        if not {*found} & {*weighty}:
            raise unknown(f"module of '{name}' in `lora_modules_to_save`", typed, _names(weighty))
        trained += [path for path in found if path not in trained]
    for typed in lora.targets:
        if head is not None and any(modules[path] is head for path in _named(typed, modules)):
            raise UserError(
                f"`lora_targets` cannot be the head '{typed}', whose forward is fused with the loss; train it in full: "
                f'`lora_modules_to_save="{typed}"`'
            )
        found = _named(typed, linear)
        if not found:
            raise unknown(f"linear layer of '{name}' in `lora_targets`", typed, _names(linear))
        if set(found) <= set(inside(network, trained)):
            raise UserError(f"'{typed}' is trained in full by `lora_modules_to_save`; leave it out of `lora_targets`")
    return list(lora.targets), trained


def inside(network: nn.Module, paths: Iterable[str]) -> list[str]:
    """The paths of these modules and of all that is in them."""
    roots = tuple(paths)
    return [path for path, _ in network.named_modules() if any(f"{path}.".startswith(f"{root}.") for root in roots)]


def _named(typed: str, paths: Iterable[str]) -> list[str]:
    """The paths that a name means: the whole path, or its last parts."""
    return [path for path in paths if path == typed or path.endswith(f".{typed}")]


def _names(paths: Iterable[str]) -> set[str]:
    """The last parts of paths, without the numbers of layers."""
    return {last for path in paths if not (last := path.rpartition(".")[2]).isdecimal()}


def need_peft() -> Any:
    """The module peft; raises `UserError` if it is not installed."""
    if peft is None:
        raise UserError(INSTALL)
    return peft


def is_adapter(folder: str | Path) -> bool:
    """Whether a folder holds an adapter rather than a whole model."""
    return (Path(folder) / "adapter_config.json").is_file()


def base_of(folder: str | Path) -> str:
    """The model that an adapter was trained on."""
    path = Path(folder) / "adapter_config.json"
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        base = None
    if not isinstance(base, str) or not base:
        raise ModelError(f"{path} does not name the adapter's base model (base_model_name_or_path)")
    return base


def add_lora(
    model: LanguageModel, rank: int, alpha: float | None = None, seed: int = 0, whole: str = ""
) -> LanguageModel:
    """A plain adapter on every linear layer but the head: `add_adapter`."""
    return add_adapter(model, Lora(rank, alpha), seed=seed, whole=whole)


def add_adapter(model: LanguageModel, lora: Lora, *, seed: int = 0, whole: str = "") -> LanguageModel:
    """Freeze the model and add a trainable adapter; at first it changes nothing.

    The adapter's weights are float32 whatever the base computes in; those of modules that are trained whole stay in the
    base's format, and have float32 masters in the optimiser. `whole` names a layer that is trained as it is and belongs
    to no adapter, such as the rows of a reward model.
    """
    if model.adapter is not None:
        raise UserError(f"'{model.name}' is an adapter already; leave out `lora_rank` to train that one further")
    network = model.network
    targets, trained = resolve(network, lora, model.name)
    tied = getattr(network.config.get_text_config(), "tie_word_embeddings", False)
    ends = network.get_input_embeddings(), network.get_output_embeddings()
    config = need_peft().LoraConfig(
        r=lora.rank,
        lora_alpha=lora.scaled,
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        target_modules=targets or _linear_layers(network),
        modules_to_save=trained or None,
        exclude_modules=[*inside(network, trained), *([whole] if whole else [])] or None,
        ensure_weight_tying=tied and any(network.get_submodule(path) in ends for path in trained),
        task_type=None if whole else "CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = need_peft().get_peft_model(network, config)
    if config.target_parameters:
        raise UserError(
            f"peft would put the adapter on the stacked weights of the experts of '{model.name}', which is not "
            'supported; name other layers, such as `lora_targets="q_proj k_proj v_proj o_proj"`'
        )
    if whole:
        network.get_submodule(whole).requires_grad_(True)
    return _around(model, adapted, fresh=True)


def _linear_layers(network: Any) -> str | list[str]:
    """What peft is to take for all linear layers but the head."""
    if not any(".experts." in name for name, _ in network.named_parameters()):
        return "all-linear"  # by which it means the stacked weights of experts too, which are no linear layers
    head = network.get_output_embeddings()
    found = [name for name, module in network.named_modules() if isinstance(module, nn.Linear) and module is not head]
    return sorted({name.rpartition(".")[2] for name in found})


def load_adapter(model: LanguageModel, folder: str | Path) -> LanguageModel:
    """Put a saved adapter on its base, trainable as its configuration says: its own rank, scale and dropout."""
    if not (Path(folder) / WEIGHTS).is_file():
        raise ModelError(f"the adapter in '{folder}' has no {WEIGHTS}; copy it there, or save the adapter again")
    try:
        _refuse_other_kinds(folder)
        saved = need_peft().utils.load_peft_weights(str(folder), device="cpu")
        adapted = need_peft().PeftModel.from_pretrained(model.network, str(folder), is_trainable=True)
    except ModelError:
        raise
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError, SafetensorError) as error:
        told = foreign(" ".join(str(error).split())) or type(error).__name__
        raise ModelError(f"cannot load the adapter in '{folder}' on '{model.name}': {told[:300]}") from error
    placed = need_peft().get_peft_model_state_dict(adapted).keys()
    if saved.keys() != placed:  # peft itself only warns, and leaves out what does not fit
        raise ModelError(
            f"the adapter in '{folder}' was trained on another model: {len(saved.keys() - placed)} of its weights "
            f"match none in '{model.name}', and {len(placed - saved.keys())} modules have none"
        )
    _refuse_ends(folder, model.network)
    return _around(model, adapted, fresh=False)


def by_peft_alone(base: Any, folder: str | Path) -> Any:
    """A saved adapter on a network of transformers' own, as peft puts it there; nothing of ours is in it."""
    return need_peft().PeftModel.from_pretrained(base, str(folder)).eval()


def _refuse_other_kinds(folder: str | Path) -> None:
    """What would not be computed, merged or trained as peft means it."""
    kind = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8")).get("peft_type")
    found = [f"it is {kind}"]
    if kind == "LORA":
        may_differ = {
            *("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "target_modules", "exclude_modules"),
            *("modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern"),
            *("ensure_weight_tying", "fan_in_fan_out", "init_lora_weights", "inference_mode", "task_type", "revision"),
            *("base_model_name_or_path", "auto_mapping", "peft_version", "peft_type", "runtime_config"),
            *("megatron_core", "megatron_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
        }
        there = need_peft().PeftConfig.from_pretrained(str(folder)).to_dict()
        usual = need_peft().LoraConfig().to_dict()
        there["target_parameters"] = there["target_parameters"] or None  # peft writes [] for a model with experts
        found = [f"{key} is {value}" for key, value in there.items() if key not in may_differ and value != usual[key]]
    if found:
        raise ModelError(f"the adapter in '{folder}' is of a kind that is not supported ({'; '.join(found)}); {MERGE}")


def _refuse_ends(folder: str | Path, network: Any) -> None:
    """Logprobs take the head's weight and not the layer, so nothing may be added to that."""
    ends = network.get_input_embeddings(), network.get_output_embeddings()
    if any(hasattr(end, "lora_A") for end in ends):
        raise ModelError(f"the adapter in '{folder}' is on the embedding or the head, which is not supported; {MERGE}")
    tied = getattr(network.config.get_text_config(), "tie_word_embeddings", False)
    if tied and ends[1] is not None and ends[0].weight is not ends[1].weight:
        raise ModelError(
            f"the adapter in '{folder}' trained one of embedding and head, which are one matrix in its base; train it "
            "with ensure_weight_tying, or merge it with peft first"
        )


def _around(model: LanguageModel, adapted: Any, *, fresh: bool) -> LanguageModel:
    """The model under an adapter. peft keeps names of layers in sets: in order, equal adapters are equal files."""
    for config in adapted.peft_config.values():
        for names in ("target_modules", "modules_to_save", "exclude_modules"):
            if isinstance(kept := getattr(config, names), set | list):
                setattr(config, names, sorted(kept))
    adapted.eval()
    network = adapted.base_model.model
    layers = [module for module in network.modules() if hasattr(module, "lora_dropout")]
    dropout = keyed_dropout(layers, adapted.active_adapter)
    return replace(model, network=network, adapter=adapted, fresh_adapter=fresh, dropout=dropout)
