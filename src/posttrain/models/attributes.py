"""Multi-attribute reward head with a prompt-conditioned gate.

Shape letters: E sequences of a packed row, D hidden width, K attributes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Unpack

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posttrain.errors import ModelError
from posttrain.models import heads
from posttrain.models.heads import ATTRIBUTE, How, RewardModel, load_classifier
from posttrain.models.language_model import LanguageModel, Packed
from posttrain.models.load import is_classifier, locate, read_config
from posttrain.models.lora import is_adapter
from posttrain.models.rounding import wide_dtype

ABOUT = "reward_attributes"  # what its configuration calls all that is said of them
GATE = "gate.safetensors"


class RatingScale(NamedTuple):
    """The attributes, and mean and standard deviation of their ratings: heads predict standardised ratings."""

    names: tuple[str, ...]
    means: tuple[float, ...]
    spreads: tuple[float, ...]


class Gate(nn.Module):
    """Prompt-conditioned gate over attributes; uniform at initialisation.

        g(x) = softmax( W_2 relu(W_1 h(x) + b_1) + b_2 )

    h(x) is the last state of the prompt; without hidden units the prompt makes no difference. The gate of Wang et al.
    2024 (https://arxiv.org/abs/2406.12845) has more layers.
    """

    def __init__(self, states: int, attributes: int, width: int) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element")
            self.inner, self.outer = nn.Linear(states, width), nn.Linear(width, attributes)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, prompts_ED: Tensor) -> Tensor:
        """[E, D] -> [E, K]: above 0, and 1 together."""
        inner = torch.relu(self.inner(prompts_ED.to(self.inner.weight.dtype)))
        return torch.softmax(self.outer(inner), -1)


class Mixture(NamedTuple):
    """Combines the attributes of a response into its score.

    R(x, y) = s sum_k g_k(x) w_k (a_k(x, y) - l_k a_j(x, y)) - z
    """

    gate: Gate  # g
    weights: tuple[float, ...]  # w: where it begins, and which of them are bad to have
    scale: float  # s
    zero: float = 0.0  # z
    apart: int | None = None  # j: the attribute that the score is not to follow
    shares: tuple[float, ...] = ()  # l: what of it there is in each of them
    comparable: bool = False  # whether z is known
    finished: bool = True  # whether nothing of it is still to be learned

    def counted(self, attributes_EK: Tensor) -> Tensor:
        """w_k (a_k - l_k a_j), [E, K]."""
        if self.apart is not None:
            attributes_EK = attributes_EK - attributes_EK[:, [self.apart]] * attributes_EK.new_tensor(self.shares)
        return attributes_EK * attributes_EK.new_tensor(self.weights)

    def scores(self, prompts_ED: Tensor, attributes_EK: Tensor) -> Tensor:
        """R, [E]."""
        return self.scale * (self.gate(prompts_ED) * self.counted(attributes_EK)).sum(1) - self.zero


class Reading(NamedTuple):
    """Outputs of the trunk for responses."""

    prompts_ED: Tensor  # the last state of each one's prompt
    attributes_EK: Tensor  # a: ratings in units of mean 0 and spread 1


@dataclass
class AttributeModel:
    """A decoder with a head for each attribute, and their gate."""

    body: LanguageModel  # whose network is transformers' ...ForSequenceClassification with K labels
    units: RatingScale
    mixture: Mixture
    members: ClassVar[int] = 1  # scores

    @property
    def comparable(self) -> bool:
        """True if scores are centred: 0 is the mean response's score."""
        return self.mixture.comparable

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that require a gradient, by name, without the gate, which is trained separately."""
        return self.body.trainable()

    def read(self, row: Packed) -> Reading:
        """Both of every sequence of a packed row, in the order of `row.examples`; each has a prompt."""
        states = self.body.states(row)
        last, prompts = (states[self.body.ids(places)] for places in (row.ends, prompt_ends(row)))
        return Reading(prompts, heads.wide_product(last, self.body.network.score.weight))

    def scores(self, row: Packed) -> Tensor:
        """The score of each sequence, [E, 1]."""
        return self.mixture.scores(*self.read(row))[:, None]

    def write(self, folder: Path) -> None:
        """As `RewardModel.write`, with the attributes as labels, and the gate in a file, for posttrain only."""
        about = self.mixture._asdict() | self.units._asdict()
        gate: Gate = about.pop("gate")
        setattr(self.body.network.config, ABOUT, about)
        self.body.network.save_pretrained(str(folder), state_dict=self.body.whole())
        save_file(gate.state_dict(), folder / GATE)


def prompt_ends(row: Packed) -> list[int]:
    """Where in a packed row the last token of each example's prompt is."""
    found: list[int] = []
    start = 0
    for prefix, members in row.families:
        assert prefix, "a sequence without a prompt has no gate weights"
        found += [start + prefix - 1] * len(members)
        start += prefix + sum(members)
    return found


def even(body: LanguageModel, weights: Sequence[float], *, width: int, seed: int) -> Mixture:
    """The sum of the attributes by their weights, whatever the prompt; those of weight 0 are never let through."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate = Gate(body.network.score.weight.shape[1], len(weights), width)
    with torch.no_grad():
        gate.outer.bias[torch.tensor(weights) == 0] = -torch.inf
    through = sum(weight != 0 for weight in weights)
    return Mixture(gate.to(body.device, wide_dtype(body.dtype)), tuple(weights), float(through))


def load_attributes(
    name: str, names: Sequence[str], weights: Sequence[float], *, width: int = 64, **how: Unpack[How]
) -> AttributeModel:
    """A model to learn ratings: one with heads for the same attributes, or a language model with heads of zeros.

    Zeros foretell the mean, and so begin with an error of 1; drawn rows would begin worse than that. How the attributes
    were rated is not known yet, and stands in `units` as mean 0 and spread 1.
    """

    def label(config: Any, known: bool) -> None:
        there = _attributes(config)
        if known and there != tuple(names):
            has = f"heads for {', '.join(there)}" if there else "other heads"
            raise ModelError(
                f"'{name}' is a reward model with {has}; start from a language model to learn ratings of "
                f"{', '.join(names)}"
            )
        heads.name_rows(config, [ATTRIBUTE + one for one in names])

    body = load_classifier(name, label, nn.init.zeros_, **how)
    units = RatingScale(tuple(names), (0.0,) * len(names), (1.0,) * len(names))
    return AttributeModel(body, units, even(body, weights, width=width, seed=how.get("seed", 0)))


Scores = RewardModel | AttributeModel
"""A trained reward model: `scores` are [E, H] of a packed row, H `members`."""


def load_scores(name: str, **how: Unpack[How]) -> Scores:
    """A trained reward model of any kind; attribute heads are read from a folder, where their gate is."""
    where = Path(locate(name))
    if not (where / GATE).is_file():
        config = None if is_adapter(str(where)) else read_config(name, locate(name))
        if config is not None and heads.scores_steps(config):
            return heads.load_step_model(name, **how)
        return heads.load_reward_model(name, trained=True, **how)
    about: Any = getattr(read_config(name, str(where)), ABOUT, None)
    if not isinstance(about, Mapping) or about.keys() != {*Mixture._fields, *RatingScale._fields} - {"gate"}:
        raise ModelError(f"'{name}' has a gate without its configuration; download or save it again")
    said: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    if not said["finished"]:
        raise ModelError(
            f"'{name}' was saved before its gate was trained; continue with `resume=RUN` (`steps=N` ends it sooner)"
        )
    units = RatingScale(*(said.pop(field) for field in RatingScale._fields))
    weights = load_file(where / GATE)
    model = load_attributes(name, units.names, said["weights"], width=len(weights["inner.bias"]), **how)
    model.mixture.gate.load_state_dict(weights)
    model.units, model.mixture = units, Mixture(model.mixture.gate, **said)
    return model


def _attributes(config: Any) -> tuple[str, ...]:
    """The attributes that a configuration has heads for; none if it is of another model."""
    labels = [str(label) for _, label in sorted((config.id2label or {}).items())]
    named = is_classifier(config) and all(label.startswith(ATTRIBUTE) for label in labels)
    return tuple(label.removeprefix(ATTRIBUTE) for label in labels) if named else ()
