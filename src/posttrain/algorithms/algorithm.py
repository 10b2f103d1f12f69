"""What an algorithm is: its knobs, and the few pure functions in which it differs from its neighbours.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens, flat and without padding; G rows of one
group, which are compared with each other; B pairs (of an unpaired algorithm: responses).

An algorithm is a frozen dataclass. It composes `objectives/` and states its defaults; it knows nothing of models,
rollouts, data, workers or configurations, so five tensors are enough to test it. Of an online algorithm, which learns
from what the policy itself samples, a recipe calls, for each update,

    accepts      once per group and seat: whether to learn from it, or to sample another in its place
    advantages   once per batch: what was better than expected, token by token
    loss         once per micro-batch: one value per token
    reduce       once per micro-batch: a scalar, by denominators that were counted over the whole batch

and of one with a critic also `critic_loss`; of a preference algorithm, which learns from pairs that are there already,

    loss         once per micro-batch: one value per pair, of which the batch's loss is the mean

and of an unpaired one, which learns from responses that were each found good or bad,

    loss         once per micro-batch: one value per response, of which the batch's loss is the mean

To add one: write its file, register it in one line of `__init__.py`. A special case (other defaults, another
advantage, another reduction) is a small class that overrides just that, never a branch on a name.
"""

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.inputs import Input, PretrainingNLL
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives.pairwise import wins


class Advantages(NamedTuple):
    """One advantage per token, with numbers worth logging."""

    advantages_N: Float[Tensor, "N"]
    metrics: Mapping[str, float]
    returns_N: Float[Tensor, "N"] | None = None  # what a critic is to expect
    imitation_N: Float[Tensor, "N"] | None = None  # weights of a likelihood that is raised beside


class Tokens(NamedTuple):
    """What a loss knows of the tokens of a micro-batch. All logprobs are under the sampling temperature, in nats."""

    logprobs_N: Float[Tensor, "N"]  # the trained policy's, which carry the gradient
    old_N: Float[Tensor, "N"]  # of the policy that the batch is anchored to, before its first update
    advantages_N: Float[Tensor, "N"]
    branch_N: Int[Tensor, "N"]  # which branch of a row a token belongs to, all of whose sampled tokens are here
    reference_N: Float[Tensor, "N"] | None = None  # the reference policy's
    entropy_N: Float[Tensor, "N"] | None = None  # of the whole distribution, in nats; carries a gradient if asked for
    values_N: Float[Tensor, "N"] | None = None  # the critic's, which carry the gradient
    old_values_N: Float[Tensor, "N"] | None = None  # the critic's before the batch's first update
    returns_N: Float[Tensor, "N"] | None = None
    imitation_N: Float[Tensor, "N"] | None = None


class Counts(NamedTuple):
    """What a loss may be divided by. It is counted over the whole batch, rows that are left out included."""

    sequences: int  # rows; of a batch of examples without rows, the examples
    tokens: int
    longest: int = 0  # tokens that a row may have


class Responses(NamedTuple):
    """One response of each pair, as a policy sees it."""

    logprob_B: Float[Tensor, "B"]  # the sum over its tokens, in nats
    length_B: Float[Tensor, "B"]  # tokens
    divergence_B: Float[Tensor, "B"] | None = None  # the sum over its tokens of KL(reference || policy), if asked for


class PairLoss(NamedTuple):
    """One loss value per pair (or response), with the numbers worth logging (detached; a recipe averages each)."""

    loss_B: Float[Tensor, "B"]
    metrics: Mapping[str, Float[Tensor, "..."]]


def compared(chosen_B: Float[Tensor, "B"], rejected_B: Float[Tensor, "B"]) -> dict[str, Float[Tensor, "B"]]:
    """The metrics of pairs by what an algorithm takes for the rewards of the two responses.

    `reward/chosen` and `reward/rejected`, their `margin`, and `accuracy`: 1 where the chosen one's is larger, 1/2 where
    they are equal. Before training all implicit rewards are 0, so that accuracy begins at 1/2; TRL counts a tie as
    wrong and begins at 0.

    Example:
        >>> import torch
        >>> compared(torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.5]))["accuracy"]
        tensor([0.0000, 0.5000])
    """
    chosen_B, rejected_B = chosen_B.detach(), rejected_B.detach()
    return {
        "reward/chosen": chosen_B,
        "reward/rejected": rejected_B,
        "margin": chosen_B - rejected_B,
        "accuracy": wins(chosen_B, rejected_B),
    }


def needed(reference: tuple[Responses, Responses] | None) -> tuple[Responses, Responses]:
    """The reference's logprobs, for an algorithm that cannot do without; raises `ValueError` for None."""
    if reference is None:
        raise ValueError("this algorithm compares with a reference policy, so loss() needs its logprobs; got None")
    return reference


def positive(algorithm: object, knob: str, *, or_zero: bool = False) -> None:
    """Refuse a knob that is not a finite number above 0 (or 0, where it may be); raises `UserError`."""
    value = getattr(algorithm, knob)
    if not (math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
        raise errors.UserError(f"{knob} must be a number {'of at least' if or_zero else 'above'} 0; got {value}")


class TokenLoss(NamedTuple):
    """One loss value per token, with the per-token numbers worth logging (detached; a recipe reduces them)."""

    loss_N: Float[Tensor, "N"]
    metrics: Mapping[str, Float[Tensor, "N"]]


class Algorithm(Protocol):
    """What all algorithms have."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # its knobs are the fields of a dataclass

    family: ClassVar[str]
    """`online`: learns from its own samples, by `posttrain rl`; `preference`: from what people said of responses, by
    `posttrain preference`."""

    paper: ClassVar[str]
    """The arXiv identifier of the paper whose objective this is."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What it needs besides its samples and their rewards, or its pairs."""
        ...


@runtime_checkable
class PreferenceAlgorithm(Algorithm, Protocol):
    """An algorithm that learns from pairs of a chosen and a rejected response."""

    unit: ClassVar[str]
    """What it learns from: `pair`."""

    def loss(
        self, chosen: Responses, rejected: Responses, *, reference: tuple[Responses, Responses] | None = None
    ) -> PairLoss:
        """One loss value per pair.

        The logprobs of `chosen` and `rejected` are the trained policy's and carry the gradient; `reference` has the
        reference policy's of the same two responses.
        """
        ...


@runtime_checkable
class UnpairedAlgorithm(Algorithm, Protocol):
    """An algorithm that learns from single responses, each of them found good or bad."""

    unit: ClassVar[str]
    """What it learns from: `response`."""

    def rewards(self, responses: Responses, reference: Responses) -> Float[Tensor, "B"]:
        """What the policy's own logprobs say each response is worth; it carries the gradient."""
        ...

    def loss_of_each(
        self, responses: Responses, good_B: Bool[Tensor, "B"], *, reference: Responses, divergence: float
    ) -> PairLoss:
        """One loss value per response.

        The logprobs of `responses` are the trained policy's and carry the gradient; `reference` has the reference
        policy's of the same. `divergence` is how far the policy is from the reference over the whole batch, in nats per
        response: the mean of log(policy / reference) of responses to other prompts, and at least 0.
        """
        ...


@runtime_checkable
class OnlineAlgorithm(Algorithm, Protocol):
    """An algorithm that learns from what the policy itself has just sampled; what one does not say is as said here."""

    family: ClassVar[str] = "online"

    least_group: ClassVar[int] = 1
    """How many completions of a prompt it takes at least: 2 where they are compared with each other."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What `advantages` or `loss` needs besides samples and rewards."""
        return ()

    @property
    def extra_losses(self) -> tuple[PretrainingNLL, ...]:
        """Losses on batches of their own, added to the policy's."""
        return ()

    sequence_ratio: ClassVar[bool] = False
    """Whether the importance ratio is that of a whole branch, and not of a token."""

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` needs the entropy of each distribution with its gradient."""
        return False

    @property
    def silent_at_zero(self) -> bool:
        """Whether a token whose advantage is 0 adds nothing to the loss, so that it need not be computed."""
        return False

    def accepts(self, rewards_G: Float[Tensor, "G"]) -> bool:
        """Whether to learn from a group, by the rewards of one of its seats.

        A group of which no seat is accepted is thrown away, and another prompt's is sampled in its place.
        """
        return True

    def adapted(self, kl: float) -> "OnlineAlgorithm":
        """The algorithm for the next step, after one whose completions were `kl` nats from the reference on average."""
        return self

    def advantages(self, rollout: Rollout) -> Advantages:
        """One advantage per token of the batch."""
        ...

    def loss(self, tokens: Tokens) -> TokenLoss:
        """One loss value per token."""
        ...

    def reduce(self, values_N: Float[Tensor, "N"], length_N: Int[Tensor, "N"], counts: Counts) -> Float[Tensor, ""]:
        """Reduce a micro-batch's losses to its share of the batch's.

        `length_N` is the number of sampled tokens of the row that a token belongs to, over all its branches, of which
        some may be in other micro-batches.
        """
        ...


@runtime_checkable
class ActorCritic(OnlineAlgorithm, Protocol):
    """An online algorithm with a critic, which declares `CriticValues`: `loss` trains the critic, too."""

    def critic_loss(
        self, values_N: Float[Tensor, "N"], old_values_N: Float[Tensor, "N"], returns_N: Float[Tensor, "N"]
    ) -> TokenLoss:
        """The critic's part of the loss alone, one value per token."""
        ...


def enough(algorithm: OnlineAlgorithm, size: int) -> None:
    """Refuse groups that are too small for an algorithm; raises `UserError`."""
    if size < algorithm.least_group:
        raise errors.UserError(
            f"this algorithm compares the completions of one prompt, so it needs {algorithm.least_group} or more of "
            f"them; got {size}: type --completions-per-prompt {algorithm.least_group} or more"
        )


def enough_rows(algorithm: OnlineAlgorithm, rollout: Rollout) -> None:
    """Refuse a batch with a group that is too small for an algorithm.

    Raises:
        UserError: all groups are.
        ValueError: some are, after others of their episodes were lost; whoever makes the batch leaves such groups out.
    """
    sizes = [rows_PG.shape[-1] for rows_PG in rollout.groups()]
    enough(algorithm, max(sizes))
    if min(sizes) < algorithm.least_group:
        raise ValueError(
            f"this algorithm compares {algorithm.least_group} or more rows of one task and seat; one group has "
            f"{min(sizes)} left, another {max(sizes)}: leave groups out of which too few are left"
        )
