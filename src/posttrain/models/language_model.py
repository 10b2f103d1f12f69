"""A causal language model that runs by plan, on packed rows.

Shape letters: B rows, N tokens of a flat row, M tokens that are learned, D hidden width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posttrain.errors import ModelError
from posttrain.models.attention import AttentionPlan, FamilyAttention, use_plans
from posttrain.models.logprobs import TokenLogprobs, token_logprobs


class Packed(Protocol):
    """What a forward pass needs to know of a packed row (data/packing.py makes them)."""

    token_ids: list[int]
    positions: list[int]
    families: list[tuple[int, list[int]]]
    sources: list[int]
    targets: list[int]


@dataclass
class LanguageModel:
    """A causal language model that runs by plan. `trainable` is what an optimiser may hold."""

    network: PreTrainedModel
    context: int  # the most tokens a sequence may have
    name: str
    adapter: Any = None  # the peft model around `network`, where there is one

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.head.dtype

    @property
    def head(self) -> Tensor:
        """The output embedding [V, D]."""
        return self.network.get_output_embeddings().weight  # type: ignore[union-attr,return-value]

    @property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end a turn according to the model's generation config."""
        found: Any = getattr(self.network.generation_config, "eos_token_id", None)
        return frozenset([found] if isinstance(found, int) else found or ())

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that require a gradient, by name."""
        return [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]

    def hidden(self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """Last hidden states [B, N, D] of `token_ids` [B, N] at `positions` [B, N]."""
        body: Any = self.network.base_model
        return body(input_ids=token_ids, position_ids=positions, plan=plan, use_cache=False).last_hidden_state

    def logprobs(self, row: Packed, temperature: float = 1.0) -> TokenLogprobs:
        """Logprob and entropy of each learned token of a packed row, [M] each."""
        plan = FamilyAttention(row.families, self.device)
        hidden = self.hidden(self._ids(row.token_ids)[None], self._ids(row.positions)[None], plan)[0]
        return token_logprobs(hidden[self._ids(row.sources)], self.head, self._ids(row.targets), temperature)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: the adapter alone where there is one, else the whole model."""
        (self.network if self.adapter is None else self.adapter).save_pretrained(str(folder))

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


def wrap(network: PreTrainedModel, *, name: str, context: int) -> LanguageModel:
    """Make a Hugging Face model run by plan; dropout is off for good, so that training computes what sampling did."""
    use_plans(network)
    network.eval()
    for parameter in network.parameters():
        parameter.requires_grad_(True)
    model = LanguageModel(network, context, name)
    _refuse_unusual_heads(model)
    return model


@torch.no_grad()
def _refuse_unusual_heads(model: LanguageModel) -> None:
    """A head with a bias, a cap or a scale would make every logprob wrong: compare once, on a few tokens."""
    ids = torch.arange(4, device=model.device)[None]
    plan: Any = {"plan": FamilyAttention([(4, [])], model.device), "use_cache": False}
    theirs = model.network(input_ids=ids, position_ids=ids, **plan).logits
    ours = model.hidden(ids, ids, plan["plan"]) @ model.head.T
    if not torch.allclose(theirs.float(), ours.float(), rtol=2e-2, atol=2e-2 * theirs.abs().max().item()):
        raise ModelError(
            f"the head of '{model.name}' does more than multiply by the output embedding; not supported yet"
        )
