"""Inputs that an algorithm may declare in addition to samples and rewards; the trainer provides them.

A new input is one class here, one provider in `training/inputs.py`, and one line in its table there; the recipes, the
catalogue, the planner and the documentation read it from there. The columns of a batch are fields of
`rollout.Rollout`.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens; B responses.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from posttrain.types import States


class Input(Protocol):
    """One input."""

    title: ClassVar[str]
    """Its name in the table of algorithms."""

    passes: ClassVar[int] = 0
    """Forward passes over the batch that it requires in each step."""

    columns: ClassVar[tuple[str, ...]] = ()
    """The fields of `rollout.Rollout` that it fills."""


@dataclass(frozen=True)
class GreedyReward(Input):
    """The reward of each row's seat in the greedy episode of its task: `greedy_R`."""

    title: ClassVar[str] = "greedy completions"
    columns: ClassVar[tuple[str, ...]] = ("greedy_R",)


@dataclass(frozen=True, slots=True)
class StateValues(States):
    """Monte Carlo values of intermediate states, from continuations of each: `values_N` and `step_N`."""

    title: ClassVar[str] = "continuations"
    passes: ClassVar[int] = 0
    columns: ClassVar[tuple[str, ...]] = ("values_N", "step_N")


@dataclass(frozen=True)
class PromptKinds(Input):
    """The kind of each row's prompt, from the data's column `kind`: `kinds_R`."""

    title: ClassVar[str] = "kinds of prompts"
    columns: ClassVar[tuple[str, ...]] = ("kinds_R",)


@dataclass(frozen=True)
class NamedScores(Input):
    """The score of each reward and its weight: `scores_RK`, NaN where a reward does not apply, and `weights_K`."""

    title: ClassVar[str] = "scores by name"
    columns: ClassVar[tuple[str, ...]] = ("scores_RK", "weights_K")


@dataclass(frozen=True)
class CriticValues(Input):
    """A critic's values before each token: `values_N`. The algorithm is an `ActorCritic`, whose loss trains it.

    Attributes:
        warmup_steps: initial steps in which only the critic is updated.
    """

    warmup_steps: int = 0

    title: ClassVar[str] = "critic"
    passes: ClassVar[int] = 1
    columns: ClassVar[tuple[str, ...]] = ("values_N",)


@dataclass(frozen=True)
class ReferenceLogprobs(Input):
    """The reference policy's logprobs of the same tokens: `reference_N`, or a pair's `Responses` of the reference."""

    title: ClassVar[str] = "reference"
    passes: ClassVar[int] = 1
    columns: ClassVar[tuple[str, ...]] = ("reference_N",)


@dataclass(frozen=True)
class ReferenceDivergence(Input):
    """The token-wise KL(reference || policy) of each response over the whole vocabulary: `Responses.divergence_B`."""

    title: ClassVar[str] = "whole distributions"


@dataclass(frozen=True)
class StepRewards(Input):
    """Process rewards, from the spans of scores: `step_rewards_N`, and the ends of steps, `step_end_N`."""

    title: ClassVar[str] = "process rewards"
    columns: ClassVar[tuple[str, ...]] = ("step_rewards_N", "step_end_N")


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


@dataclass(frozen=True)
class SeatBaselines(Input):
    """An exponential moving average of the return of each seat: `baselines_R`. It is saved with checkpoints.

    Attributes:
        decay: weight of the old average in an update.
    """

    decay: float

    title: ClassVar[str] = "moving baselines"
    columns: ClassVar[tuple[str, ...]] = ("baselines_R",)


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
    NamedScores,
)
"""In the order in which the table of algorithms names them."""


class Declares(Protocol):
    """The part of the algorithm interface that declares inputs."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The declared inputs."""
        ...


T = TypeVar("T", bound=Input)


def declared(algorithm: Declares, kind: type[T]) -> T | None:
    """The input of this type that an algorithm declares, among its inputs and extra losses; None if there is none.

    Example:
        >>> from posttrain.algorithms.grpo import GRPO
        >>> declared(GRPO(kl_coefficient=0.1), ReferenceLogprobs), declared(GRPO(kl_coefficient=0.0), ReferenceLogprobs)
        (ReferenceLogprobs(), None)
    """
    needs: tuple[Input, ...] = (*algorithm.inputs, *getattr(algorithm, "extra_losses", ()))
    return next((need for need in needs if isinstance(need, kind)), None)
