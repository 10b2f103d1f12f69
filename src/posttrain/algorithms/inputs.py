"""Inputs that an algorithm may declare in addition to samples and rewards.

An input carries all that it is: its columns, how they are computed, the option that provides it, what it costs and what
it samples. An algorithm's own file may define a new one: recipes, planner and documentation read it from there. What
needs a model or samples asks its `Context`, which the recipe fills in.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens; B responses; K rewards.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from posttrain.algorithms.load import Load
from posttrain.errors import UserError
from posttrain.objectives.advantages import moving_baselines
from posttrain.objectives.reduce import sequence_mean
from posttrain.types import Group, States
from posttrain.types import StateValues as ValuesOfStates

if TYPE_CHECKING:
    from posttrain.algorithms.algorithm import Algorithm, Counts, OnlineAlgorithm, TokenLoss, Tokens

REFERENCE, TEACHER = "reference", "teacher"  # models beside the policy whose logprobs a context has
CRITIC, PROVER = "critic", "prover"
BASELINES = "seat_baselines"  # in the state of a context, by "GAME SEAT": the average of the return

Columns = Mapping[str, Any]
"""Columns of a batch by name: fields of `rollout.Rollout`; others are in its `more`."""

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """What the inputs of a step work with. A recipe fills in what those of its algorithm need.

    `greedy_rewards` plays the task of each group once more, greedily: what that earned, by the seat's name.
    `state_values` continues completions from their states: what those are worth, row by row. `logprobs` are of the
    sampled tokens of all branches, by a model beside the policy, at the sampling temperature, and `values` a critic's
    (or another head's, by its part) before each of them. `taught` has for each branch who teaches it, and what that one
    reads.
    """

    greedy_rewards: Callable[[Sequence[Group]], Sequence[Mapping[str, float]]] | None = None
    state_values: Callable[[Sequence[Group], States], Sequence[ValuesOfStates]] | None = None
    logprobs: Callable[[Sequence[Group], str], Sequence[Sequence[float]]] | None = None
    taught: Callable[[Sequence[Group]], Sequence[Any]] | None = None
    values: Callable[..., Sequence[Sequence[float]]] | None = None
    weights: Mapping[str, float] = field(default_factory=dict[str, float])  # of the rewards that are optimised, by name
    # What inputs keep from step to step, by their names, as JSON. An input puts a new entry in the place of its old
    # one; a checkpoint has what the last finished step left.
    state: MutableMapping[str, Any] = field(default_factory=dict[str, Any])


class Input:
    """An input; a subclass is a frozen dataclass. One without columns is the trainer's own concern."""

    title: ClassVar[str]
    """Its name in the table of algorithms."""

    passes: ClassVar[int] = 0
    """Forward passes over the batch that it requires in each step."""

    columns: ClassVar[tuple[str, ...]] = ()
    """The columns that it fills, for the conformance kit; their names end in the letters of their shapes."""

    sampled: ClassVar[bool] = False
    """Whether it samples, and so comes with the rollouts and not with the batch."""

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """Its columns of these groups, of which there is at least one."""
        return {}

    def load(self, step: Load) -> tuple[Load, ...]:
        """What it samples besides a batch of that load."""
        return ()


def columns_of(inputs: Sequence[Input], groups: Sequence[Group], context: Context, *, samples: bool) -> Columns:
    """The columns of all inputs that sample, or of all that do not."""
    found: dict[str, Any] = {}
    for need in inputs if groups else ():
        found |= need.of(groups, context) if need.sampled == samples else {}
    return found


def flat(numbers: Sequence[Sequence[float]]) -> Tensor:
    """One number per token of all rows, [N], in float64."""
    return torch.tensor(list(chain.from_iterable(numbers)), dtype=torch.float64)


def given(part: T | None, what: str) -> T:
    """A part of the context that an input needs; raises `ValueError` where it is missing."""
    if part is None:
        raise ValueError(f"the algorithm needs {what}, which the context does not have")
    return part


@dataclass(frozen=True)
class GreedyReward(Input):
    """The reward of each row's seat in the greedy episode of its task: `greedy_R`."""

    title: ClassVar[str] = "greedy completions"
    columns: ClassVar[tuple[str, ...]] = ("greedy_R",)
    sampled: ClassVar[bool] = True

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """What its seat earned in the greedy episode of its task, of each row."""
        earned = given(context.greedy_rewards, "greedy completions")(groups)
        rows = [by_seat[row.seat] for group, by_seat in zip(groups, earned, strict=True) for row in group.rows]
        return {"greedy_R": torch.tensor(rows, dtype=torch.float64)}

    def load(self, step: Load) -> tuple[Load, ...]:
        """One more completion of each prompt."""
        return (replace(step, group=1),)


@dataclass(frozen=True, slots=True)
class StateValues(States, Input):
    """Monte Carlo values of intermediate states, from continuations of each: `values_N` and `step_N`."""

    title: ClassVar[str] = "continuations"
    columns: ClassVar[tuple[str, ...]] = ("values_N", "step_N")
    sampled: ClassVar[bool] = True

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """What the states of completions are worth, and which step a token is of."""
        states = given(context.state_values, "continuations")(groups, self)
        steps = [step for state in states for step in state.steps]
        return {"values_N": flat([state.values for state in states]), "step_N": torch.tensor(steps)}

    def load(self, step: Load) -> tuple[Load, ...]:
        """Continuations of prompts, in which all completions begin, and of later states.

        There are taken to be as many states as there may be, evenly spread over a completion: where a step is a line,
        how many it has shows only when it is sampled.
        """
        steps = min(self.most, math.ceil(step.completion_tokens / max(1, self.step_tokens)))
        begun, done = step.sequences * (steps - 1), step.completion_tokens // 2
        prompt, completion = step.prompt_tokens + done, step.completion_tokens - done
        later = replace(step, prompts=begun, group=self.samples, prompt_tokens=prompt, completion_tokens=completion)
        return replace(step, group=self.samples), later


@dataclass(frozen=True, slots=True)
class ProverValues(StateValues):
    """The same, of continuations by another model: the one that the option `prover` names."""

    by: str = PROVER

    title: ClassVar[str] = "a prover's continuations"


@dataclass(frozen=True)
class PromptKinds(Input):
    """The kind of each row's prompt, from the data's column `kind`, "" where it has none: `kinds_R`."""

    title: ClassVar[str] = "kinds of prompts"
    columns: ClassVar[tuple[str, ...]] = ("kinds_R",)

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """The column of the data, as text."""
        return {"kinds_R": tuple(str(group.task.metadata.get("kind", "")) for group in groups for _ in group.rows)}


@dataclass(frozen=True)
class NamedScores(Input):
    """The score of each reward and its weight: `scores_RK`, NaN where a reward does not apply, and `weights_K`."""

    title: ClassVar[str] = "scores by name"
    columns: ClassVar[tuple[str, ...]] = ("scores_RK", "weights_K")

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """What each reward that is optimised gave each row, and its weight."""
        weights = given(context.weights or None, "weights of rewards")
        weights = {name: weight for name, weight in weights.items() if weight}
        scores = [[row.scores[name].total for name in weights] for group in groups for row in group.rows]
        numbers = {"scores_RK": scores, "weights_K": list(weights.values())}
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}


@dataclass(frozen=True)
class TrainedModel(Input):
    """A model that begins as the policy and is trained beside it, by a loss of its own, on the same batches.

    A subclass names its `part` and the one column that has what it says of each sampled token before the batch's first
    update. It is a second network, and says logprobs; a `head` says values, and reads the policy's trunk unless the
    option `critic` gives it a network of its own.
    """

    warmup_steps: int = 0  # initial steps in which the policy is not updated
    lr: float | None = None  # its learning rate, which is constant; None: the option `critic_lr`

    part: ClassVar[str]
    """Its name: of the learner's part, its files in checkpoints, and its metrics, `PART_loss` and `PART_grad_norm`."""

    head: ClassVar[bool] = False
    """Whether it is a head that says values."""

    passes: ClassVar[int] = 1

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """What it says now."""
        said = given(context.values if self.head else context.logprobs, f"a {self.title}")
        return {self.columns[0]: flat(said(groups, self.part))}

    def loss(self, algorithm: "OnlineAlgorithm", tokens: "Tokens") -> "TokenLoss":
        """One loss value per token: `values_N` is what it says, with gradient, `old_values_N` what its column has."""
        raise NotImplementedError(f"{type(self).__name__} needs a method loss")

    def reduce(self, algorithm: "OnlineAlgorithm", values_N: Tensor, length_N: Tensor, counts: "Counts") -> Tensor:
        """As `OnlineAlgorithm.reduce`: by default the mean over rows of the mean over a row's tokens."""
        return sequence_mean(values_N, length_N, denominator=counts.sequences)


@dataclass(frozen=True)
class CriticValues(TrainedModel):
    """A critic's values before each token: `values_N`. The algorithm is an `ActorCritic`, whose loss trains it."""

    title: ClassVar[str] = "critic"
    columns: ClassVar[tuple[str, ...]] = ("values_N",)
    part: ClassVar[str] = CRITIC
    head: ClassVar[bool] = True

    def loss(self, algorithm: "OnlineAlgorithm", tokens: "Tokens") -> "TokenLoss":
        """The value loss alone."""
        critic: Any = algorithm
        return critic.critic_loss(tokens.values_N, tokens.old_values_N, tokens.returns_N)

    def reduce(self, algorithm: "OnlineAlgorithm", values_N: Tensor, length_N: Tensor, counts: "Counts") -> Tensor:
        """As the algorithm's loss."""
        return algorithm.reduce(values_N, length_N, counts)


@dataclass(frozen=True)
class ReferenceLogprobs(Input):
    """The reference policy's logprobs of the same tokens: `reference_N`, or a pair's `Responses` of the reference."""

    title: ClassVar[str] = "reference"
    passes: ClassVar[int] = 1
    columns: ClassVar[tuple[str, ...]] = ("reference_N",)

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """The reference's logprobs of what was sampled."""
        return {"reference_N": flat(given(context.logprobs, "a reference")(groups, REFERENCE))}


@dataclass(frozen=True)
class ReferenceDivergence(Input):
    """The token-wise KL(reference || policy) of each response over the whole vocabulary: `Responses.divergence_B`."""

    title: ClassVar[str] = "whole distributions"


@dataclass(frozen=True)
class StepRewards(Input):
    """Process rewards, from the spans of scores: `step_rewards_N`, and the ends of steps, `step_end_N`."""

    title: ClassVar[str] = "process rewards"
    columns: ClassVar[tuple[str, ...]] = ("step_rewards_N", "step_end_N")

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """What is paid at a token, and whether a step ends there: that of a wrong line may pay 0 and is a step too."""
        rows = [row for group in groups for row in group.rows]
        places = [(row.step_rewards, token) for row in rows for token in range(len(row.trajectory.logprobs))]
        return {
            "step_rewards_N": torch.tensor([paid.get(token, 0.0) for paid, token in places], dtype=torch.float64),
            "step_end_N": torch.tensor([token in paid for paid, token in places], dtype=torch.bool),
        }


@dataclass(frozen=True)
class PretrainingNLL(Input):
    """An auxiliary loss: `weight` times the mean negative log-likelihood of a separate batch of pretraining text."""

    weight: float

    title: ClassVar[str] = "pretraining text"


@dataclass(frozen=True)
class TeacherLogprobs(Input):
    """A teacher's logprobs of the sampled tokens, at the sampling temperature: `teacher_N`.

    Rows may have teachers by name, and these another prompt (`training/teacher.py`).
    """

    title: ClassVar[str] = "teacher"
    passes: ClassVar[int] = 1
    columns: ClassVar[tuple[str, ...]] = ("teacher_N",)

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """Teachers' logprobs of what the policy sampled."""
        return {"teacher_N": flat(given(context.logprobs, "a teacher")(groups, TEACHER))}


@dataclass(frozen=True)
class TeacherDistributions(TeacherLogprobs):
    """A teacher's whole distribution at each sampled token: `Tokens.divergence_N`, the generalised JSD from it.

    It is computed micro-batch by micro-batch in the loss, from what the teacher of a branch reads: `taught_B`.
    """

    beta: float  # of `objectives.kl.generalised_jsd`
    top_k: int  # tokens that are kept, 0: all

    title: ClassVar[str] = "teacher's distributions"
    columns: ClassVar[tuple[str, ...]] = ("taught_B",)

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """Who teaches each branch, and what that one reads."""
        return {"taught_B": given(context.taught, "a teacher")(groups)}


@dataclass(frozen=True)
class SeatBaselines(Input):
    """An exponential moving average of the return of each seat: `baselines_R`. It is saved with checkpoints."""

    decay: float  # weight of the old average in an update

    title: ClassVar[str] = "moving baselines"
    columns: ClassVar[tuple[str, ...]] = ("baselines_R",)

    def of(self, groups: Sequence[Group], context: Context) -> Columns:
        """The averages of each row's seat with this batch, which the state then has."""
        keys = [f"{group.task.metadata.get('kind', '')} {row.seat}" for group in groups for row in group.rows]
        returns_R = torch.tensor([row.reward for group in groups for row in group.rows], dtype=torch.float64)
        before = context.state.get(BASELINES, {})
        found_R, context.state[BASELINES] = moving_baselines(returns_R, keys, before, decay=self.decay)
        return {"baselines_R": found_R}


N = TypeVar("N", bound=Input)


def declared(algorithm: "Algorithm", kind: type[N]) -> N | None:
    """The input of this type that an algorithm declares, among its inputs and extra losses; None if there is none.

    Example:
        >>> from posttrain.algorithms.grpo import GRPO
        >>> declared(GRPO(kl_coefficient=0.1), ReferenceLogprobs), declared(GRPO(kl_coefficient=0.0), ReferenceLogprobs)
        (ReferenceLogprobs(), None)
    """
    needs: tuple[Input, ...] = (*algorithm.inputs, *getattr(algorithm, "extra_losses", ()))
    return next((need for need in needs if isinstance(need, kind)), None)


def trained(algorithm: "Algorithm") -> dict[str, TrainedModel]:
    """The models that are trained beside the policy, by part; raises `UserError` for two of one name, or a taken one.

    Example:
        >>> from posttrain.algorithms.ppo import PPO
        >>> trained(PPO(critic_warmup_steps=3))
        {'critic': CriticValues(warmup_steps=3, lr=None)}
    """
    found: dict[str, TrainedModel] = {}
    for need in algorithm.inputs:
        if isinstance(need, TrainedModel):
            if need.part in found or need.part in ("policy", "start", REFERENCE) or need.part.startswith(TEACHER):
                raise UserError(
                    f"the part '{need.part}' of {type(need).__name__} is another model; choose another name"
                )
            if not need.part.isidentifier():  # files of checkpoints, metrics and options have it
                raise UserError(
                    f"the part '{need.part}' of {type(need).__name__} is no name; use letters, digits and _"
                )
            found[need.part] = need
    return found
