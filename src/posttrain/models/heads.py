"""Scalar reward heads, read at the last token, or at the ends of steps.

Shape letters: E sequences of a packed row, D hidden width, H heads: the members of an ensemble on one trunk, M step
ends in a packed row, S the most of one sequence in it.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, TypeVar, Unpack

import torch
from safetensors.torch import load, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from posttrain import fast_paths
from posttrain.errors import ModelError
from posttrain.models import lora
from posttrain.models.language_model import LanguageModel, Packed, ready
from posttrain.models.load import is_classifier, load_model, locate, read_config, read_network, refuse_missing
from posttrain.models.lora import Lora
from posttrain.models.rounding import wide_dtype
from posttrain.models.support import context_of, refuse_no_classifier

ROWS = "score"  # what transformers calls the layer of the heads
WEIGHT = f"{ROWS}.weight"
ATTRIBUTE = "attribute_"  # what the labels of attribute heads are called in a folder (models/attributes.py)
STEP = "step_right"  # what the label of a process reward model is called in its folder
MEMBER = "reward_"  # what the labels of an ensemble are called in its folder: a classifier with others is none
ZEROS = "reward_zeros"  # what the configuration in a folder calls the scores that count as 0
R = TypeVar("R", bound="RewardModel")


class Calibration(NamedTuple):
    """Calibration of scores."""

    zeros: tuple[float, ...]  # of each head
    temperature: float


class How(TypedDict, total=False):
    """How a model with heads is loaded: `seed` is of what is fresh, `adapter` is trained instead of all weights."""

    dtype: Required[torch.dtype]
    device: str
    seed: int
    adapter: Lora | None


@dataclass
class RewardModel:
    """A decoder with H rows for a head: `score_h(x, y) = w_h . h(last token of y) - z_h`."""

    body: LanguageModel  # whose network is transformers' ...ForSequenceClassification with H labels
    zeros: tuple[float, ...] = (0.0,)  # z: what counts as a score of 0, for each head
    length_head: nn.Parameter | None = None  # [1, D]: while length is learned apart, what takes it up
    comparable: bool = False  # whether the zeros are known, without which no two heads mean the same by a score

    @property
    def head(self) -> nn.Parameter:
        """The rows w, [H, D]."""
        return self.body.network.score.weight

    @property
    def members(self) -> int:
        """Number of heads that give a score: H."""
        return len(self.zeros)

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that require a gradient, by name."""
        beside = [] if self.length_head is None else [("length_head", self.length_head)]
        return [*self.body.trainable(), *beside]

    def scores(self, row: Packed) -> Tensor:
        """H numbers for each sequence of a packed row, [E, H], in the order of `row.examples`, float32.

        The last product is wide even where the model computes in bfloat16, which could not tell 8.00 from 8.03.
        """
        states = self._last_states(row)
        return wide_product(states, self.head) - torch.tensor(self.zeros, device=self.body.device)

    def scores_and_length(self, row: Packed) -> Tensor:
        """The same with a column more, which the length head gives: [E, H + 1]."""
        assert self.length_head is not None, "this reward model has no length head"
        zeros = torch.tensor((*self.zeros, 0.0), device=self.body.device)
        states = self._last_states(row)
        return wide_product(states, torch.cat([self.head, self.length_head.to(self.head.dtype)])) - zeros

    def _last_states(self, row: Packed) -> Tensor:
        """Of each sequence, [E, D]; read `head` after this (`LanguageModel`)."""
        return self.body.states(row)[self.body.ids(row.ends)]

    def save(self, folder: Path, *, padding: int, calibration: Calibration | None = None) -> None:
        """Write a Hugging Face folder; see `complete`."""
        self.write(folder)
        complete(folder, padding=padding, calibration=calibration)

    def write(self, folder: Path) -> None:
        """Write a Hugging Face folder that `complete` has to complete. An adapter is merged into its weights."""
        if self.comparable or any(self.zeros):
            setattr(self.body.network.config, ZEROS, list(self.zeros))
        self.body.network.save_pretrained(str(folder), state_dict=self.body.whole())


class StepModel(RewardModel):
    """A process reward model: one row, read at the end of each step, before the tokens that a packed row learns.

    Its scores are the logits that steps are right.
    """

    def logits(self, row: Packed) -> Tensor:
        """One number for each step end of a packed row, [M], float32, in order."""
        return wide_product(self.body.learned_states(row), self.head)[:, 0] - self.zeros[0]

    def scores(self, row: Packed) -> Tensor:
        """The logits of the steps of each sequence, [E, S]; NaN where it has fewer."""
        counts = Counter(row.rows)
        of_sequences = self.logits(row).split([counts[example] for example in row.examples])
        return nn.utils.rnn.pad_sequence(list(of_sequences), batch_first=True, padding_value=math.nan)


def complete(folder: Path, *, padding: int, calibration: Calibration | None = None) -> None:
    """Complete a folder that a reward model has written: transformers reads it as a sequence classifier with H labels.

    Its classifier reads the score at the last token that is not `padding`, so no sequence may end with that: many
    tokenizers pad with the stop token, and every score would silently be that of the token before it.

    A `calibration` is of the scores as they were written: the rows are divided by its temperature, so that it holds for
    all readers; its zeros are in the configuration, which other tools ignore.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"pad_token_id": padding}
    if calibration is not None:
        old = config.get(ZEROS) or [0.0] * len(calibration.zeros)
        apart = zip(old, calibration.zeros, strict=True)
        config[ZEROS] = [(before + more) / calibration.temperature for before, more in apart]
        weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
        if index.exists():
            weights = folder / json.loads(index.read_text(encoding="utf-8"))["weight_map"][WEIGHT]
        tensors = load(weights.read_bytes())  # not mapped: the file is written anew
        save_file(tensors | {WEIGHT: tensors[WEIGHT] / calibration.temperature}, weights, {"format": "pt"})
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def members_of(name: str) -> int:
    """The number of scores of the model in a folder; one of a language model, whose head would be fresh."""
    where = locate(name)
    config = None if lora.is_adapter(where) else read_config(name, where)
    return config.num_labels if config is not None and is_classifier(config) else 1


def wide_product(states: Tensor, rows: Tensor) -> Tensor:
    """States [E, D] and rows [H, D] -> [E, H], in float32 or wider."""
    wide = wide_dtype(states.dtype)
    return states.to(wide) @ rows.to(wide).T


def load_reward_model(name: str, *, members: int = 0, trained: bool = False, **how: Unpack[How]) -> RewardModel:
    """Load a reward model, or put fresh heads on a language model: w_h ~ N(0, 1 / (D + 1)).

    The initialisation is that of Stiennon et al. 2020 (https://arxiv.org/abs/2009.01325), appendix B. `members` of 0
    are as many as there are, and one on a language model, which is refused where the heads must be `trained`.
    """

    def label(config: Any, known: bool) -> None:
        if known:
            _refuse_other_classifiers(name, config, members)
        elif trained:
            raise ModelError(f"'{name}' is no reward model; train one with posttrain reward-model, or name another")
        else:
            config.num_labels = members or 1
        if config.num_labels > 1:
            name_rows(config, [f"{MEMBER}{i}" for i in range(config.num_labels)])

    return _with_zeros(RewardModel, load_classifier(name, label, lambda rows: _draw(rows, how.get("seed", 0)), **how))


def load_step_model(name: str, **how: Unpack[How]) -> StepModel:
    """Load a process reward model, or put a head of zeros on a language model: each step is right with odds of 1."""

    def label(config: Any, known: bool) -> None:
        if known and not scores_steps(config):
            raise ModelError(
                f"'{name}' is a reward model with other heads; start from a language model to learn labels of steps"
            )
        name_rows(config, [STEP])

    return _with_zeros(StepModel, load_classifier(name, label, nn.init.zeros_, **how))


def _with_zeros(kind: type[R], body: LanguageModel) -> R:
    zeros = getattr(body.network.config, ZEROS, None)
    return kind(body, tuple(zeros or (0.0,) * body.network.config.num_labels), comparable=zeros is not None)


def scores_steps(config: Any) -> bool:
    """Whether a configuration is that of a process reward model of posttrain."""
    return is_classifier(config) and [*(config.id2label or {}).values()] == [STEP]


def name_rows(config: Any, labels: Sequence[str]) -> None:
    """Give a classifier's configuration as many rows as there are labels."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}


def load_classifier(
    name: str, label: Callable[[Any, bool], None], fill: Callable[[Tensor], object], **how: Unpack[How]
) -> LanguageModel:
    """A sequence classifier that runs by plan; errors are those of `load_model` and `lora.add_adapter`.

    `label` is handed the configuration, and whether it is a classifier's already. It says how many rows there are and
    what they are called, or raises `ModelError`. `fill` is handed the rows if it was a language model, which has none.
    An adapter is one, merged into its base.
    """
    where, dtype, known = locate(name), how["dtype"], False
    if lora.is_adapter(where):
        refuse_no_classifier(read_config(name, locate(lora.base_of(where))), name)
        policy = load_model(name, dtype=dtype)
        config: Any = deepcopy(policy.network.config)
        label(config, known)
        network: Any = AutoModelForSequenceClassification.from_config(config, dtype=dtype)
        # it has no place for the output embedding
        refuse_missing(name, {*network.load_state_dict(policy.whole(), strict=False).missing_keys} - {WEIGHT})
    else:
        config = read_config(name, where)
        refuse_no_classifier(config, name)
        known = is_classifier(config)
        label(config, known)
        kind, fresh = AutoModelForSequenceClassification, () if known else (WEIGHT,)
        network = read_network(kind, name, where, "a reward model", fresh=fresh, config=config, dtype=dtype)
    if not known:
        fill(network.score.weight)
    # a row per token of the batch, which MasterAdamW can take
    network.get_input_embeddings().sparse = fast_paths.on("sparse embedding")
    found = LanguageModel(ready(network.to(how.get("device", "cpu"))), context_of(config.get_text_config()), name)
    adapter = how.get("adapter")
    return lora.add_adapter(found, adapter, seed=how.get("seed", 0), whole=ROWS) if adapter else found


def with_length_head(model: RewardModel, *, seed: int) -> RewardModel:
    """The same with a second row, fresh, which learns the length apart; it is not saved as a score."""
    row = nn.Parameter(torch.empty_like(model.head[:1]))
    _draw(row, seed + 1)
    return replace(model, length_head=row)


def _refuse_other_classifiers(name: str, config: Any, members: int) -> None:
    labels = config.id2label or {}
    if scores_steps(config):
        raise ModelError(
            f"'{name}' is a process reward model, which scores steps and not responses; it is trained further by "
            'posttrain reward-model `heads="steps"`'
        )
    if any(str(label).startswith(ATTRIBUTE) for label in labels.values()):
        raise ModelError(
            f"'{name}' rates attributes; it scores as a folder with its gate (download it first from a hub), and is "
            'trained further by posttrain reward-model `heads="attributes"`'
        )
    if config.num_labels != 1 and not all(str(label).startswith(MEMBER) for label in labels.values()):
        raise ModelError(f"'{name}' gives {config.num_labels} scores to a sequence; a reward model gives one")
    if members not in (0, config.num_labels):
        raise ModelError(
            f"'{name}' is a reward model with {config.num_labels} members; an ensemble of {members} starts from a "
            "language model"
        )


@torch.no_grad()
def _draw(rows: Tensor, seed: int) -> None:
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(seed))
    rows.copy_(noise / math.sqrt(noise.shape[1] + 1))
