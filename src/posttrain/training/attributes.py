"""Attribute heads: their loss on partial ratings, and their gate, trained on pairs with frozen trunk and heads.

Shape letters: E sequences, K attributes, D hidden width, B pairs.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from posttrain.algorithms.algorithm import Counts
from posttrain.data.order import batch_indices
from posttrain.data.packing import Example, Graded, PackedRow, Ranked, pack
from posttrain.models.attributes import AttributeModel, Gate, Mixture, RatingScale, Reading
from posttrain.objectives.pairwise import bradley_terry
from posttrain.objectives.reward_models import rating_error
from posttrain.training.learner import Batch, Loss, Models, Share

LONGEST = 300  # updates
EVEN_LR, GATE_LR = 0.05, 3e-3  # of what is the same for all prompts, and of what is not
DECAY = 0.1  # of weights, not of biases


@dataclass(frozen=True)
class RatingLoss(Loss[AttributeModel]):
    """The mean over responses of `rating_error`, in units of each attribute's spread.

    An error of 1 is that of a constant prediction of the mean.
    """

    def of_row(self, row: PackedRow, batch: Batch, parts: Models[AttributeModel]) -> Share:
        """As in `Loss`."""
        predicted_EK, units = parts.model.read(row).attributes_EK, parts.model.units
        graded = [batch.units["graded"][number] for number in row.examples]
        rated_EK, known_EK = standard(units, graded, like=predicted_EK)
        error_E = rating_error(predicted_EK, rated_EK, known_EK)
        squared_EK = (predicted_EK - rated_EK).square()
        each = zip(units.names, squared_EK.T, known_EK.T, strict=True)
        seen = {f"error/{name}": squared_E[known_E] for name, squared_E, known_E in each}
        return Share(error_E.sum() / batch.counts.sequences, seen)


def rated_batch(graded: Sequence[Graded], *, seed: int | None = None) -> Batch:
    """Rated responses; `seed` as in `Batch`."""
    examples = [one.example for one in graded]
    return Batch(examples, Counts(len(examples), 0), units={"graded": graded}, seed=seed)


def standard(units: RatingScale, graded: Sequence[Graded], *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Standardised ratings and their mask, [E, K] each."""
    rows = [
        [
            (one.ratings[name] - mean) / spread if name in one.ratings else math.nan
            for name, mean, spread in zip(*units, strict=True)
        ]
        for one in graded
    ]
    rated_EK = like.new_tensor(rows)
    return rated_EK, ~rated_EK.isnan()


@torch.no_grad()
def read_all(model: AttributeModel, examples: Sequence[Example], *, microbatch_tokens: int) -> Reading:
    """The trunk's hidden state of each, in order, in float32 or wider."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for row in pack(examples, microbatch_tokens):
        prompts_ED, attributes_EK = model.read(row)
        found |= dict(
            zip(row.examples, zip(prompts_ED.to(attributes_EK.dtype), attributes_EK, strict=True), strict=True)
        )
    prompts, attributes = zip(*(found[i] for i in range(len(examples))), strict=True)
    return Reading(torch.stack(prompts), torch.stack(attributes))


class Choices(NamedTuple):
    """Preference pairs in terms of the attribute heads."""

    prompts_BD: Tensor
    ahead_BK: Tensor  # weighted difference of each attribute, chosen minus rejected
    weight_B: Tensor  # 1 / number of pairs of its prompt
    prompt_B: Tensor  # index of its prompt

    def some(self, which_B: Tensor) -> "Choices":
        """The subset with these pairs."""
        return Choices(*(part[which_B] for part in self))


def choices_of(mixture: Mixture, read: Reading, rankings: Sequence[Ranked]) -> Choices:
    """The pairs of rankings whose responses were read one after the other; a prompt may have several rankings."""
    counted_EK = mixture.counted(read.attributes_EK)
    numbers: dict[tuple[int, ...], int] = {}
    places: list[tuple[int, int, int]] = []
    start = 0
    for unit in rankings:
        number = numbers.setdefault(unit.examples[0].prefix, len(numbers))
        places += [(start + a, start + b, number) for a, b, _ in unit.pairs]
        start += len(unit.examples)
    chosen, rejected, prompts = map(list, zip(*places, strict=True))
    ahead_BK = counted_EK[chosen] - counted_EK[rejected]
    prompt_B = torch.tensor(prompts, device=ahead_BK.device)
    weight_B = 1 / prompt_B.bincount()[prompt_B].to(ahead_BK.dtype)
    return Choices(read.prompts_ED[chosen], ahead_BK, weight_B, prompt_B)


def fit_gate(mixture: Mixture, choices: Choices, *, seed: int) -> Mixture:
    """Fit gate and scale of a mixture to preference pairs by maximum likelihood.

        L = sum_b v_b BT( s sum_k g_k(x_b) w_k (chosen_bk - rejected_bk) ) / sum_b v_b

    Every prompt has equal weight: v is 1 / number of its pairs. First the prompt-independent parameters are fitted, b_2
    and s; then the whole gate, with early stopping: for the number of updates that maximised the likelihood of a
    held-out fifth of the prompts. So if prompts carry no information, the weights are constant. n prompts count as if
    one in n + 2 had chosen otherwise (as in score calibration), which keeps the scale finite if few prompts all agree.
    The gate is untrained; `ahead_BK` includes the factor w.
    """
    mean_D, spread_D = choices.prompts_BD.mean(0), choices.prompts_BD.std(0, correction=0)
    spread_D = spread_D.where(spread_D > 0, 1.0)
    choices = choices._replace(prompts_BD=(choices.prompts_BD - mean_D) / spread_D)
    prompts = int(choices.prompt_B.max()) + 1
    fifth = batch_indices(prompts, prompts, 0, seed)[: prompts // 5]
    judged_B = torch.isin(choices.prompt_B, choices.prompt_B.new_tensor(fifth))
    updates = 0
    if fifth:
        learner, judged = _Learner(mixture, choices.some(~judged_B)), choices.some(judged_B)
        costs = [learner.cost(judged).item(), *(learner.cost(judged).item() for _ in learner.updates(LONGEST))]
        updates = costs.index(min(costs))
    learner = _Learner(mixture, choices)
    for _ in learner.updates(updates):
        pass
    gate = _of_states_as_they_are(learner.gate, mean_D, spread_D)
    return mixture._replace(gate=gate, scale=learner.log_scale.exp().item())


@torch.no_grad()
def _of_states_as_they_are(gate: Gate, mean_D: Tensor, spread_D: Tensor) -> Gate:
    """Fold the standardisation into the gate, for states that are not standardised."""
    gate.inner.weight.div_(spread_D)
    gate.inner.bias.sub_(gate.inner.weight @ mean_D)
    return gate


class _Learner:
    """A gate in training on preference pairs."""

    def __init__(self, mixture: Mixture, choices: Choices) -> None:
        """Fit the prompt-independent parameters."""
        self._choices = choices
        self.gate = copy.deepcopy(mixture.gate)
        self.log_scale = choices.prompts_BD.new_tensor(mixture.scale).log().requires_grad_()
        any_prompt = choices._replace(prompts_BD=torch.zeros_like(choices.prompts_BD[:1]))  # W_2 is 0 still
        for _ in self._descend(any_prompt, [self.gate.outer.bias, self.log_scale], LONGEST, EVEN_LR):
            pass

    def updates(self, most: int) -> Iterator[None]:
        """Train the whole gate; yields after each update."""
        yield from self._descend(self._choices, [*self.gate.parameters(), self.log_scale], most, GATE_LR)

    def cost(self, choices: Choices) -> Tensor:
        """L on these pairs."""
        ahead_B = self.log_scale.exp() * (self.gate(choices.prompts_BD) * choices.ahead_BK).sum(1)
        doubt = 1 / (self._choices.weight_B.sum().item() + 2)
        cost_B = bradley_terry(ahead_B, torch.zeros_like(ahead_B), label_smoothing=doubt)
        return (cost_B * choices.weight_B).sum() / choices.weight_B.sum()

    def _descend(self, choices: Choices, parameters: Sequence[Tensor], most: int, lr: float) -> Iterator[None]:
        weights, others = ([p for p in parameters if (p.dim() == 2) == weight] for weight in (True, False))
        adam = torch.optim.AdamW([{"params": weights, "weight_decay": DECAY}, {"params": others}], lr, weight_decay=0.0)
        for _ in range(most):
            adam.zero_grad()
            self.cost(choices).backward()
            adam.step()
            yield
