"""The base model that all clients share, and the adapters that are put on it."""

from dataclasses import dataclass, replace
from typing import Any

from posttrain.data.tokenizer import ChatTokenizer
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel, with_shared_weights
from posttrain.models.lora import Lora, add_adapter
from posttrain.models.mixed_adapters import MixedAdapters, is_linear

ALPHA = 32.0  # of every rank, so that one learning rate serves all: Schulman et al. 2025, "LoRA Without Regret"


@dataclass(frozen=True)
class Adapter:
    """A client's LoRA configuration."""

    rank: int  # of A and B
    seed: int = 0  # of A
    train_mlp: bool = True  # whether the linear layers of MLPs have one
    train_attn: bool = True  # whether those of attention have one
    train_unembed: bool = True  # kept and reported; the head never has one

    def __post_init__(self) -> None:
        if not (self.train_mlp or self.train_attn):
            raise UserError("an adapter needs train_mlp or train_attn; the head alone cannot have one here")

    @property
    def shape(self) -> tuple[int, bool, bool]:
        """What decides the names and shapes of its weights."""
        return self.rank, self.train_mlp, self.train_attn

    @property
    def scale(self) -> float:
        """By which B A x is multiplied."""
        return ALPHA / self.rank


@dataclass(frozen=True)
class Base:
    """The base model."""

    model: LanguageModel  # its weights, frozen
    name: str  # by which clients ask for it, and find its tokenizer
    tokenizer: ChatTokenizer  # for stop strings alone
    stop_ids: frozenset[int]  # the tokens that end a turn

    @property
    def vocabulary(self) -> int:
        """The number of token ids that the model reads."""
        return len(self.model.embedding)

    def adapted(self, adapter: Adapter) -> LanguageModel:
        """A network over the base's weights with a fresh adapter."""
        lora = Lora(adapter.rank, ALPHA, targets=self._targets(adapter))
        return add_adapter(with_shared_weights(self.model), lora, seed=adapter.seed)

    def mixed(self) -> LanguageModel:
        """A network over the base's weights in which each token has an adapter of its own."""
        shared = with_shared_weights(self.model)
        return replace(shared, mixed=MixedAdapters(shared.network))

    def _targets(self, adapter: Adapter) -> tuple[str, ...]:
        """The linear layers of attention or MLPs by the last two parts of their names; none for both."""
        if adapter.train_mlp and adapter.train_attn:
            return ()
        paths = [name for name, module in self.model.network.named_modules() if is_linear(module)]
        attention = {name for name in paths if "attn" in name or "attention" in name}
        head: Any = self.model.network.get_output_embeddings()
        others = {name for name in paths if self.model.network.get_submodule(name) is not head} - attention
        chosen = {".".join(name.split(".")[-2:]) for name in (attention if adapter.train_attn else others)}
        if not chosen:
            part = "attention" if adapter.train_attn else "MLPs"
            raise UserError(f"'{self.name}' has no linear layers in {part}; train both")
        return tuple(sorted(chosen))
