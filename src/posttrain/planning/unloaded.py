"""A model's configuration and tokenizer, without its weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.data import ChatFormat, load_tokenizer
from posttrain.models.footprint import Shape, read_shape
from posttrain.models.load import tokenizer_of
from posttrain.options.kinds import Model
from posttrain.options.online import OnlineOptions
from posttrain.options.training import SFT, PairOptions
from posttrain.training.resolve_model import began_from, saved_model


@dataclass(frozen=True)
class Unloaded:
    """A model without weights."""

    shape: Shape
    chat: ChatFormat
    notes: tuple[str, ...]  # what to tell the user


def unloaded(options: SFT | PairOptions | OnlineOptions, resume: Path | None, *, scored: bool = False) -> Unloaded:
    """The model that a run would begin from, or that the run in `resume` began from.

    Raises:
        ModelError: there is none, or it cannot be trained; with `scored`, it cannot become a reward model.
        TemplateError: its tokenizer has no chat template, or the one that is given cannot be used.
    """
    saved = began_from(options.model, resume)
    shape = read_shape(saved.where, scored=scored)
    chat = ChatFormat(load_tokenizer(tokenizer_of(saved.where), options.chat_template, options.template_args))
    return Unloaded(shape, chat, saved.notes())


def reward_model_parameters(names: Sequence[str], gold: Model) -> int:
    """Parameters of the reward models of these names, and of the gold one, where there is one."""
    return sum(read_shape(saved_model(name).where).parameters for name in (*names, gold) if name)
