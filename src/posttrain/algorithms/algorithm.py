"""The algorithm interface: hyperparameters, and the pure functions in which algorithms differ.

Shape legend: R rows, one for each episode and trained seat; N sampled tokens, flat and without padding; G rows of one
group, which are compared with each other; B pairs (of an unpaired algorithm: responses).

An algorithm is a frozen dataclass. It composes `objectives/` and states its defaults; it does not depend on models,
rollouts, data, workers or configurations, so five tensors are enough to test it. Of an online algorithm, which is
trained on the policy's own samples, a recipe calls, for each update,

    accepts      once per group and seat: whether to train on the group, or to sample another in its place
    advantages   once per batch: one advantage per token
    loss         once per micro-batch: one value per token
    reduce       once per micro-batch: a scalar, with denominators counted over the whole batch

and of one with a critic also `critic_loss`; of a preference algorithm, which is trained on a fixed set of pairs,

    loss         once per micro-batch: one value per pair, of which the batch's loss is the mean

and of an unpaired one, which is trained on single responses labelled good or bad,

    loss         once per micro-batch: one value per response, of which the batch's loss is the mean

A special case (other defaults, another advantage) is a small class that overrides just that. CONTRIBUTING.md has how to
add one.
"""

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain import errors
from posttrain.algorithms.inputs import Input, PretrainingNLL
from posttrain.algorithms.rollout import Rollout
from posttrain.objectives import reduce
from posttrain.objectives.pairwise import wins


class Advantages(NamedTuple):
    """One advantage per token, with numbers worth logging."""

    advantages_N: Float[Tensor, "N"]
    metrics: Mapping[str, float]
    returns_N: Float[Tensor, "N"] | None = None  # the critic's regression targets
    imitation_N: Float[Tensor, "N"] | None = None  # per-token weights of an auxiliary NLL loss
    penalty_N: Float[Tensor, "N"] | None = None  # per-token weights of a penalty

    @property
    def columns(self) -> dict[str, Float[Tensor, "N"]]:
        """What `loss` reads of these, by the field of `Tokens`; a column more is a field here and one there."""
        return {name: numbers_N for name, numbers_N in self._asdict().items() if torch.is_tensor(numbers_N)}


class Tokens(NamedTuple):
    """Per-token inputs of a loss, for one micro-batch. All logprobs are at the sampling temperature, in nats.

    The first three are what the surrogates of tokens take, in order; those of whole branches take the fourth as well.
    """

    logprobs_N: Float[Tensor, "N"]  # the trained policy's, which carry the gradient
    old_N: Float[Tensor, "N"]  # of the policy that the batch is anchored to, before its first update
    advantages_N: Float[Tensor, "N"]
    branch_N: Int[Tensor, "N"]  # which branch of a row a token belongs to, all of whose sampled tokens are here
    reference_N: Float[Tensor, "N"] | None = None  # the reference policy's
    entropy_N: Float[Tensor, "N"] | None = None  # of the whole distribution, in nats; with gradient if `needs_entropy`
    values_N: Float[Tensor, "N"] | None = None  # the critic's, which carry the gradient
    old_values_N: Float[Tensor, "N"] | None = None  # the critic's before the batch's first update
    returns_N: Float[Tensor, "N"] | None = None
    imitation_N: Float[Tensor, "N"] | None = None
    penalty_N: Float[Tensor, "N"] | None = None
    sampler_N: Float[Tensor, "N"] | None = None  # those at which the tokens were drawn
    divergence_N: Float[Tensor, "N"] | None = None  # from the teacher's distribution, in nats; carries the gradient


class Counts(NamedTuple):
    """Denominators of a loss, counted over the whole batch, including rows that are left out."""

    sequences: int  # rows; of a batch of examples without rows, the examples
    tokens: int
    longest: int = 0  # tokens that a row may have


class Responses(NamedTuple):
    """One response of each pair, with its logprob under a policy."""

    logprob_B: Float[Tensor, "B"]  # the sum over its tokens, in nats
    length_B: Float[Tensor, "B"]  # tokens
    divergence_B: Float[Tensor, "B"] | None = None  # the sum over its tokens of KL(reference || policy), if requested


class PairLoss(NamedTuple):
    """One loss value per pair (or response), with the numbers worth logging (detached; a recipe averages each)."""

    loss_B: Float[Tensor, "B"]
    metrics: Mapping[str, Float[Tensor, "..."]]


def compared(chosen_B: Float[Tensor, "B"], rejected_B: Float[Tensor, "B"]) -> dict[str, Float[Tensor, "B"]]:
    """Metrics of pairs, from the algorithm's implicit rewards of the two responses.

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
    """The reference's logprobs, for an algorithm that requires them; raises `ValueError` for None."""
    if reference is None:
        raise ValueError("this algorithm compares with a reference policy, so loss() needs its logprobs; got None")
    return reference


def positive(algorithm: object, *knobs: str, or_zero: bool = False) -> None:
    """Check that hyperparameters are finite and above 0 (with `or_zero`, at least 0); raises `UserError`."""
    for knob, value in ((knob, getattr(algorithm, knob)) for knob in knobs):
        if not (isinstance(value, int | float) and math.isfinite(value) and (value > 0 or (or_zero and value == 0))):
            raise errors.UserError(f"{knob} must be a number {'of at least' if or_zero else 'above'} 0; got {value!r}")


class TokenLoss(NamedTuple):
    """One loss value per token, with the per-token numbers worth logging (detached; a recipe reduces them)."""

    loss_N: Float[Tensor, "N"]
    metrics: Mapping[str, Float[Tensor, "N"]]


class Algorithm(Protocol):
    """Attributes common to all algorithms."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # hyperparameters are dataclass fields

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse names that are no hyperparameters, with the nearest one."""
        errors.refuse_unknown(cls, given)
        return super().__new__(cls)

    family: ClassVar[str]
    """`online`: trained on the policy's own samples, by `posttrain rl`; `preference`: on human or AI feedback, by
    `posttrain preference`; `supervised`: on demonstrations, by `posttrain sft`."""

    paper: ClassVar[str]
    """The arXiv identifier of the paper whose objective this is."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Required inputs other than samples and rewards, or pairs: none."""
        return ()


@runtime_checkable
class PreferenceAlgorithm(Algorithm, Protocol):
    """An algorithm trained on pairs of a chosen and a rejected response."""

    family: ClassVar[str] = "preference"
    unit: ClassVar[str] = "pair"  # of training data

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
    """An algorithm trained on single responses, each labelled good or bad."""

    family: ClassVar[str] = "preference"
    unit: ClassVar[str] = "response"  # of training data

    def rewards(self, responses: Responses, reference: Responses) -> Float[Tensor, "B"]:
        """The implicit reward of each response, computed from the policy's logprobs; it carries the gradient."""
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
class SupervisedAlgorithm(Algorithm, Protocol):
    """An algorithm trained on demonstrations."""

    family: ClassVar[str] = "supervised"

    def loss_of_tokens(self, logprobs_N: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """One loss value per token of a demonstration, from its logprob, which carries the gradient."""
        ...


@runtime_checkable
class OnlineAlgorithm(Algorithm, Protocol):
    """An algorithm trained on the policy's own samples. Members that are not overridden have the defaults below."""

    family: ClassVar[str] = "online"

    changes: ClassVar[str] = "advantage"
    """What it changes, as `posttrain algorithms` groups them: advantage, ratio, regulariser or correction."""

    least_group: ClassVar[int] = 1
    """Minimum group size, in completions per prompt: 2 for a group-relative baseline."""

    @property
    def extra_losses(self) -> tuple[PretrainingNLL, ...]:
        """Auxiliary losses on separate batches, added to the policy loss."""
        return ()

    sequence_ratio: ClassVar[bool] = False
    """Whether the importance ratio is sequence-level (one per branch) instead of token-level."""

    corrects: ClassVar[bool] = False
    """Whether the ratio's denominator is the sampler, so that importance weights would correct for it twice."""

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` needs the per-token entropy with its gradient."""
        return False

    @property
    def silent_at_zero(self) -> bool:
        """Whether a token with zero advantage has zero loss, so that its forward pass can be skipped."""
        return False

    def accepts(self, rewards_G: Float[Tensor, "G"]) -> bool:
        """Whether to train on a group, given the rewards of one of its seats (dynamic sampling).

        A group without an accepted seat is discarded, and a group of another prompt is sampled in its place.
        """
        return True

    def adapted(self, kl: float) -> "OnlineAlgorithm":
        """Adaptive KL control: the algorithm for the next step, given the mean KL of this one's completions in nats."""
        return self

    def advantages(self, rollout: Rollout) -> Advantages:
        """One advantage per token of the batch."""
        ...

    def loss(self, tokens: Tokens) -> TokenLoss:
        """One loss value per token."""
        ...

    def reduce(self, values_N: Float[Tensor, "N"], length_N: Int[Tensor, "N"], counts: Counts) -> Float[Tensor, ""]:
        """Reduce a micro-batch's per-token losses to its contribution to the batch's loss: the mean over all tokens.

        `length_N` is the number of sampled tokens of the row that a token belongs to, over all its branches, of which
        some may be in other micro-batches.
        """
        return reduce.token_mean(values_N, counts.tokens)


@runtime_checkable
class ActorCritic(OnlineAlgorithm, Protocol):
    """An online algorithm with a critic, which declares `CriticValues`: `loss` trains the critic, too."""

    def critic_loss(
        self, values_N: Float[Tensor, "N"], old_values_N: Float[Tensor, "N"], returns_N: Float[Tensor, "N"]
    ) -> TokenLoss:
        """The value loss without the policy loss, one value per token."""
        ...


def unused(algorithm: object, *knobs: str) -> None:
    """Refuse inherited hyperparameters that do nothing in this algorithm; raises `UserError`."""
    for knob in knobs:
        if getattr(algorithm, knob) != getattr(type(algorithm), knob):
            raise errors.UserError(f"{knob} does nothing in this algorithm; leave it out")


def enough(algorithm: OnlineAlgorithm, size: int) -> None:
    """Check the group size against the algorithm's minimum; raises `UserError`."""
    if size < algorithm.least_group:
        raise errors.UserError(
            f"this algorithm compares the completions of one prompt, so it needs {algorithm.least_group} or more of "
            f"them; got {size}: type `completions_per_prompt={algorithm.least_group}` or more"
        )


def enough_rows(algorithm: OnlineAlgorithm, rollout: Rollout) -> None:
    """Check the size of every group of a batch against the algorithm's minimum.

    Raises:
        UserError: all groups are too small.
        ValueError: some are, because episodes were lost; the caller must leave such groups out of the batch.
    """
    sizes = [rows_PG.shape[-1] for rows_PG in rollout.groups()]
    enough(algorithm, max(sizes))
    if min(sizes) < algorithm.least_group:
        raise ValueError(
            f"this algorithm compares {algorithm.least_group} or more rows of one task and seat; one group has "
            f"{min(sizes)} left, another {max(sizes)}: leave groups out of which too few are left"
        )
