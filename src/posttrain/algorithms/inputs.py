"""What an algorithm may need besides its samples and their rewards. It declares it; whoever trains provides it.

A new need is one class here, one provider in `training/inputs/`, and one line in that folder's table; the recipes, the
catalogue, the planner and the documentation read it from there. The columns of a batch are fields of
`rollout.Rollout`.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens; B responses.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from posttrain.types import States


class Input(Protocol):
    """One need."""

    title: ClassVar[str]
    """What the table of algorithms calls it."""

    passes: ClassVar[int]
    """Forward passes over the batch that it takes in each step."""


@dataclass(frozen=True)
class GreedyReward:
    """What each row's seat earned in the greedy episode of its task: `greedy_R`."""

    title: ClassVar[str] = "greedy completions"
    passes: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class StateValues(States):
    """What intermediate states are worth, by continuing completions from them: `values_N` and `step_N`."""

    title: ClassVar[str] = "continuations"
    passes: ClassVar[int] = 0


@dataclass(frozen=True)
class PromptKinds:
    """What kind of prompt each is, from the data's column `kind`: `kinds_R`."""

    title: ClassVar[str] = "kinds of prompts"
    passes: ClassVar[int] = 0


@dataclass(frozen=True)
class CriticValues:
    """What a critic expects before each token: `values_N`. The algorithm is an `ActorCritic`, whose loss trains it.

    Attributes:
        warmup_steps: first steps in which the critic learns alone, of what the policy samples as it is.
    """

    warmup_steps: int = 0

    title: ClassVar[str] = "critic"
    passes: ClassVar[int] = 1


@dataclass(frozen=True)
class ReferenceLogprobs:
    """The reference policy's logprobs of the same tokens: `reference_N`, or a pair's `Responses` of the reference."""

    title: ClassVar[str] = "reference"
    passes: ClassVar[int] = 1


@dataclass(frozen=True)
class ReferenceDivergence:
    """The token-wise KL(reference || policy) of each response over the whole vocabulary: `Responses.divergence_B`."""

    title: ClassVar[str] = "whole distributions"
    passes: ClassVar[int] = 0


@dataclass(frozen=True)
class StepRewards:
    """What is paid before the end, by the spans of scores: `step_rewards_N`, and where steps end, `step_end_N`."""

    title: ClassVar[str] = "process rewards"
    passes: ClassVar[int] = 0


@dataclass(frozen=True)
class PretrainingNLL:
    """An extra loss: `weight` times the mean negative log-likelihood of pretraining text, on a batch of its own."""

    weight: float

    title: ClassVar[str] = "pretraining text"
    passes: ClassVar[int] = 0


@dataclass(frozen=True)
class TeacherLogprobs:
    """A frozen teacher's logprobs of the sampled tokens, at the sampling temperature: `teacher_N`."""

    title: ClassVar[str] = "teacher"
    passes: ClassVar[int] = 1


@dataclass(frozen=True)
class SeatBaselines:
    """An exponential moving average of the return of each seat: `baselines_R`. It is kept with checkpoints.

    Attributes:
        decay: share of the old average that an update keeps.
    """

    decay: float

    title: ClassVar[str] = "moving baselines"
    passes: ClassVar[int] = 0


KINDS = (
    GreedyReward,
    StateValues,
    CriticValues,
    ReferenceLogprobs,
    ReferenceDivergence,
    PretrainingNLL,
    PromptKinds,
    TeacherLogprobs,
    SeatBaselines,
    StepRewards,
)
"""In the order in which the table of algorithms names them."""


class Declares(Protocol):
    """An algorithm, as far as its needs go."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it needs."""
        ...


T = TypeVar("T", bound=Input)


def declared(algorithm: Declares, kind: type[T]) -> T | None:
    """The need of this kind that an algorithm declares, among its inputs and extra losses; None where it has none.

    Example:
        >>> from posttrain.algorithms.grpo import GRPO
        >>> declared(GRPO(kl_coefficient=0.1), ReferenceLogprobs), declared(GRPO(kl_coefficient=0.0), ReferenceLogprobs)
        (ReferenceLogprobs(), None)
    """
    needs: tuple[Input, ...] = (*algorithm.inputs, *getattr(algorithm, "extra_losses", ()))
    return next((need for need in needs if isinstance(need, kind)), None)
