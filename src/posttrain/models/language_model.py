"""Causal language models on packed rows.

Shape letters: B rows, N tokens of a flat row, M tokens that are learned, D hidden width, V vocabulary.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain import fast_paths
from posttrain.errors import ModelError, first_line
from posttrain.models.attention import BY_PLAN, AttentionPlan, FamilyAttention
from posttrain.models.dropout import Dropout
from posttrain.models.fused import use_lean_forms
from posttrain.models.logprobs import Readout, TokenLogprobs, token_logprobs
from posttrain.models.mixed_adapters import LowRank, MixedAdapters
from posttrain.models.rounding import narrow_, wide_dtype
from posttrain.models.support import PAGE, TESTED


class Packed(Protocol):
    """The fields of a packed row that a forward pass needs (data/packing.py makes them)."""

    token_ids: list[int]
    positions: list[int]
    families: list[tuple[int, list[int]]]
    sources: list[int]
    targets: list[int]
    rows: list[int]
    temperatures: list[float]
    examples: list[int]
    ends: list[int]


@dataclass
class LanguageModel:
    """A causal language model that runs by plan. `trainable` is what an optimiser may hold.

    Of a network that is sharded among processes, read `head` after the states of a row: `trunk` unshards it.
    """

    network: Any  # of transformers
    context: int  # the most tokens a sequence may have
    name: str
    adapter: Any = None  # the peft model around `network`, where there is one
    fresh_adapter: bool = False  # whether that began as nothing, so that the base is the policy before training
    dropout: Dropout | None = None  # of the adapter, where it has some
    trunk: Callable[..., Tensor] | None = None  # computes last hidden states, of a sharded network
    computes_on: torch.device | None = None  # of a sharded network, whose shards may be in the host's memory
    mixed: MixedAdapters | None = None  # of a network in which each token has an adapter of its own

    @property
    def device(self) -> torch.device:
        """Where passes compute: the device of the weights."""
        return self.computes_on or self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype."""
        return self.network.dtype

    @property
    def head(self) -> Tensor:
        """The output embedding [V, D]."""
        return self.network.get_output_embeddings().weight

    @property
    def embedding(self) -> Tensor:
        """The input embedding [V, D]; in many models it is the head as well."""
        return self.network.get_input_embeddings().weight

    @property
    def readout(self) -> Readout:
        """Scaling and soft-capping of the products with `head`, which gives logits."""
        config = self.network.config
        divisor = getattr(config, "logits_scaling", None) or 1.0
        multiplier = getattr(config, "logit_scale", None) or 1.0
        return Readout(multiplier / divisor, getattr(config, "final_logit_softcapping", None))

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a turn according to the model's generation config."""
        found: Any = getattr(getattr(self.network, "generation_config", None), "eos_token_id", None)
        return frozenset([found] if isinstance(found, int) else found or ())

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that require a gradient, by name."""
        return [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights by their names in a Hugging Face folder of the whole model; an adapter is merged into them.

        A layer under a low-rank adapter has W + s B A, with DoRA (Liu et al. 2024, arXiv 2402.09353, eq. 5) its rows
        scaled to the lengths that were learned, m (W + s B A) / ||W + s B A||; of a module that was trained whole it is
        what was trained. The sum is taken in float32 and rounded once, to the format of W.
        """
        for name, weight in self.network.named_parameters():
            if "lora_" in name or ".original_module." in name:
                continue
            plain = name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")
            if name.endswith(".base_layer.weight"):
                rounded = torch.empty_like(weight)
                narrow_(rounded, _merged(self.network.get_submodule(name.removesuffix(".base_layer.weight")), weight))
                yield plain, rounded
            else:
                yield plain, weight

    @torch.no_grad()
    def whole(self) -> dict[str, Tensor]:
        """The weights and persistent buffers of a folder of the whole model; an adapter is merged, on the host."""
        if self.adapter is None:
            return self.network.state_dict()
        parameters = dict(self.network.named_parameters(remove_duplicate=False))
        buffers = {
            name: kept
            for name, kept in self.network.state_dict().items()
            if name not in parameters and ".original_module." not in name and ".modules_to_save." not in name
        }
        return {name: weight.detach().cpu() for name, weight in self.weights()} | buffers

    def hidden(self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states [B, N, D] of `token_ids` [B, N] at `positions` [B, N]."""
        inputs: dict[str, Any] = {"input_ids": token_ids, "position_ids": positions, "plan": plan, "use_cache": False}
        return self.network.base_model(**inputs).last_hidden_state if self.trunk is None else self.trunk(**inputs)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [B, V] of last hidden states [B, D]."""
        return self.readout.logits(self.network.get_output_embeddings()(hidden))

    @property
    def drops(self) -> bool:
        """Whether a forward pass of a packed row would drop inputs of the adapter now."""
        return self.dropout is not None and self.dropout.on

    def dropping(self, seed: int | None) -> contextlib.AbstractContextManager[None]:
        """While the block runs, the adapter's dropout is on, a function of `seed`; None: off. Sampling is outside."""
        return contextlib.nullcontext() if self.dropout is None else self.dropout.dropping(seed)

    def placed(
        self, adapters: Sequence[LowRank | None], tokens: Sequence[int]
    ) -> contextlib.AbstractContextManager[None]:
        """While the block runs, of a forward pass the first `tokens[0]` tokens have `adapters[0]`, and so on."""
        if self.mixed is not None:
            return self.mixed.placed(adapters, tokens)
        assert not any(adapters), "only a network of mixed adapters has one for each token"
        return contextlib.nullcontext()

    def states(self, row: Packed) -> Tensor:
        """Last hidden states [N, D] of a packed row."""
        if self.dropout is not None:
            self.dropout.read(row)
        plan = FamilyAttention(row.families, self.device)
        return self.hidden(self.ids(row.token_ids)[None], self.ids(row.positions)[None], plan)[0]

    def learned_states(self, row: Packed) -> Tensor:
        """The states [M, D] from which the learned tokens of a packed row are predicted."""
        return self.states(row)[self.ids(row.sources)]

    def logprobs(self, row: Packed, temperature: float = 1.0) -> TokenLogprobs:
        """Logprob and entropy of each learned token of a packed row, [M] each, at its own temperature if it has one."""
        return self.logprobs_at(self.learned_states(row), row, temperature)

    def logprobs_at(
        self, states: Tensor, row: Packed, temperature: float = 1.0, *, entropy_gradient: bool = False
    ) -> TokenLogprobs:
        """The same, from the states that the learned tokens are predicted from, [M, D]."""
        targets, heat = self.ids(row.targets), self.heat(row, temperature, states)
        return token_logprobs(states, self.head, targets, heat, entropy_gradient=entropy_gradient, readout=self.readout)

    @torch.no_grad()
    def likeliest(self, row: Packed, k: int) -> tuple[Tensor, Tensor]:
        """The tokens that are likeliest in place of each learned one, best first, and their logprobs, [M, k] each."""
        logits = self.logits(self.learned_states(row))
        found = logits.to(wide_dtype(logits.dtype)).log_softmax(dim=-1).topk(k)
        return found.indices, found.values

    def heat(self, row: Packed, temperature: float, states: Tensor) -> float | Tensor:
        """The temperature of the learned tokens of a row: one, or of each, [M], where some have their own."""
        if not any(row.temperatures):
            return temperature
        own = [each or temperature for each in row.temperatures]
        return torch.tensor(own, dtype=wide_dtype(states.dtype), device=states.device)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: the adapter alone where there is one, else the whole model."""
        (self.network if self.adapter is None else self.adapter).save_pretrained(str(folder))

    def ids(self, numbers: Sequence[int]) -> Tensor:
        """A tensor on the device of the weights."""
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


@torch.no_grad()
def _merged(layer: Any, weight: Tensor) -> Tensor:
    """The layer's weight under its one adapter, wide."""
    (adapter,) = layer.active_adapters
    found = weight.to(wide_dtype(weight.dtype)) + layer.get_delta_weight(adapter).to(wide_dtype(weight.dtype))
    if adapter not in layer.lora_magnitude_vector:
        return found
    outputs = found.T if layer.fan_in_fan_out else found  # a view with a row per output
    outputs.mul_((layer.lora_magnitude_vector[adapter].weight / torch.linalg.norm(outputs, dim=1))[:, None])
    return found


def with_shared_weights(model: LanguageModel) -> LanguageModel:
    """Another network whose weights are the model's own tensors; an adapter on one of the two is not on the other.

    Only the tree of modules is copied. A gradient of one network is none of the other's as long as the shared weights
    are frozen, which `lora.add_adapter` does.
    """
    if model.adapter is not None:
        raise ValueError(f"'{model.name}' has an adapter, which the other network would share")
    tensors = chain(model.network.parameters(), model.network.buffers())
    return replace(model, network=copy.deepcopy(model.network, {id(tensor): tensor for tensor in tensors}))


def wrap(network: Any, *, name: str, context: int) -> LanguageModel:
    """Make a Hugging Face model run by plan; dropout is off for good, so that training computes what sampling did."""
    model = LanguageModel(ready(network), context, name)
    embedding = network.get_input_embeddings()
    # Its gradient has a row per token then, not per word of the vocabulary; the head's, to which it is added, has all.
    embedding.sparse = embedding.weight is model.head and fast_paths.on("sparse embedding")
    _refuse_unusual_heads(model)
    return model


def ready(network: Any) -> PreTrainedModel:
    """A network that runs by plan and in lean forms, all of it trainable, dropout off; untested types are compared."""
    network.eval()
    own = None if network.config.model_type in TESTED else _own_states(network)
    network.set_attn_implementation(BY_PLAN)  # no dropout in attention
    if fast_paths.on("lean forms"):
        use_lean_forms(network)
    if own is not None:
        _refuse_other_states(network, own)
    return network.requires_grad_(True)


_PREFIX, _BRANCHES = [0, 1, 2, 3, 4], [[5, 6, 7], [8, 9, 10, 11, 12, 13]]
_STATES_BOUND = {torch.bfloat16: 0.1, torch.float16: 0.1}  # of the largest; real errors are usually larger
_FAULTS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)  # what an unknown type may raise


@torch.no_grad()
def _own_states(network: Any) -> Tensor:
    """Last hidden states of two branches behind a prefix by transformers' own attention, one sequence at a time."""
    network.set_attn_implementation("eager")
    alone = [torch.tensor([_PREFIX + branch], device=network.device) for branch in _BRANCHES]
    found = [network.base_model(input_ids=ids, use_cache=False).last_hidden_state for ids in alone]
    return torch.cat([states[0, len(_PREFIX) :] for states in found])


@torch.no_grad()
def _refuse_other_states(network: Any, own: Tensor) -> None:
    """Whether a packed row gives the states `own` of its sequences alone: an untested type may not."""
    ids = [*_PREFIX, *chain.from_iterable(_BRANCHES)]
    positions = [*range(len(_PREFIX)), *(len(_PREFIX) + i for branch in _BRANCHES for i in range(len(branch)))]
    row, places = (torch.tensor([numbers], device=network.device) for numbers in (ids, positions))
    plan = FamilyAttention([(len(_PREFIX), [len(branch) for branch in _BRANCHES])], network.device)
    kind = network.config.model_type
    try:
        packed = network.base_model(input_ids=row, position_ids=places, plan=plan, use_cache=False).last_hidden_state
    except _FAULTS as error:
        raise ModelError(f"models of type {kind} do not run on packed rows: {first_line(error)}") from error
    gap = (packed[0, len(_PREFIX) :].float() - own.float()).abs().max()
    if not gap <= _STATES_BOUND.get(network.dtype, 1e-3) * own.abs().max():
        raise ModelError(
            f"models of type {kind} compute different outputs for packed rows and for single sequences; {PAGE}"
        )


@torch.no_grad()
def _refuse_unusual_heads(model: LanguageModel) -> None:
    """A head with a bias or an unknown cap or scale would make every logprob wrong: compare once, on a few tokens."""
    ids = torch.arange(4, device=model.device)[None]
    plan = FamilyAttention([(4, [])], model.device)
    theirs = model.network(input_ids=ids, position_ids=ids, plan=plan, use_cache=False).logits
    ours = model.readout.logits(model.hidden(ids, ids, plan) @ model.head.T)
    if not torch.allclose(theirs.float(), ours.float(), rtol=2e-2, atol=2e-2 * theirs.abs().max().item()):
        raise ModelError(f"the head of '{model.name}' computes logits in a way that posttrain does not support; {PAGE}")
