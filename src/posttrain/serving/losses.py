"""Losses by the names that clients send. All are sums over the tokens of a batch: the client normalises.

p is the policy that is trained, q what sampled (the column `logprobs`), A the column `advantages`, w the column
`weights`. The sources are https://tinker-docs.thinkingmachines.ai/losses and the papers that `objectives/` names.

Shape letters: N targets of a packed row, flat.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from torch import Tensor

from posttrain.errors import UserError, unknown
from posttrain.objectives.likelihood import negative_log_likelihood
from posttrain.objectives.off_policy import (
    clipped_weight,
    importance_weighted,
    quadratic_penalty,
    sequence_ratio_by_token,
)
from posttrain.objectives.policy import clipped_surrogate

Columns = Mapping[str, Tensor]
Config = Mapping[str, float]
OfTokens = Callable[[Tensor, Columns, Tensor, Config], Tensor]
"""Logprobs of the targets, columns, the datum of each, and settings to one loss per target."""


def cross_entropy(logprobs_N: Tensor, columns: Columns, row_N: Tensor, config: Config) -> Tensor:
    """L = -sum_t w_t log p(y_t). Without `weights`, all are 1.

    The gradient of any loss C of the logprobs is that of this one with w = -dC/dlogprobs: so
    `forward_backward_custom` works.
    """
    loss_N = negative_log_likelihood(logprobs_N)
    return columns["weights"] * loss_N if "weights" in columns else loss_N


def importance_sampling(logprobs_N: Tensor, columns: Columns, row_N: Tensor, config: Config) -> Tensor:
    """L = -sum_t p(x_t) / q(x_t) A_t."""
    return importance_weighted(logprobs_N, columns["logprobs"], columns["advantages"])


def ppo(logprobs_N: Tensor, columns: Columns, row_N: Tensor, config: Config) -> Tensor:
    """L = -sum_t min(r_t A_t, clip(r_t, low, high) A_t), r_t = p(x_t) / q(x_t); Schulman et al. 2017, eq. 7.

    `clip_low_threshold` (0.8) and `clip_high_threshold` (1.2) bound the ratio itself.
    """
    low, high = 1 - config["clip_low_threshold"], config["clip_high_threshold"] - 1
    return clipped_surrogate(logprobs_N, columns["logprobs"], columns["advantages"], clip_low=low, clip_high=high).loss


def cispo(logprobs_N: Tensor, columns: Columns, row_N: Tensor, config: Config) -> Tensor:
    """L = -sum_t sg[clip(r_t, low, high)] A_t log p(x_t); bounds as in `ppo`. Chen et al. 2025, eq. 4."""
    lowest, highest = config["clip_low_threshold"], config["clip_high_threshold"]
    return clipped_weight(logprobs_N, columns["logprobs"], columns["advantages"], lowest=lowest, highest=highest)


def dro(logprobs_N: Tensor, columns: Columns, row_N: Tensor, config: Config) -> Tensor:
    """L = -sum_t A_t log p(x_t) - beta / 2 (log p(x_t) - log q(x_t))^2; Richemond et al. 2024.

    `beta` is 0.05 unless given.
    """
    return quadratic_penalty(logprobs_N, columns["logprobs"], columns["advantages"], beta=config["beta"])


def gspo(logprobs_N: Tensor, columns: Columns, row_N: Tensor, config: Config) -> Tensor:
    """L = -sum_t min(s_t A_t, clip(s_t, low, high) A_t), s_t the ratio of the whole datum; Zheng et al. 2025, eq. 13.

    The ratio counts the tokens where `sequence_ratio_mask` is not 0. Bounds as in `ppo`.
    """
    lowest, highest = config["clip_low_threshold"], config["clip_high_threshold"]
    inputs = columns["logprobs"], columns["advantages"], row_N, columns["sequence_ratio_mask"]
    return sequence_ratio_by_token(logprobs_N, *inputs, lowest=lowest, highest=highest)


@dataclass(frozen=True)
class Kind:
    """A loss, with what a client gives it.

    Attributes:
        of_tokens: its equation.
        columns: the columns that a datum must have.
        silent_at_zero: whether a token of advantage 0 has neither loss nor gradient, and is left out: its ratio may
            overflow, and inf times 0 is no number.
        config: its settings and their defaults.
    """

    of_tokens: OfTokens
    columns: tuple[str, ...] = ("logprobs", "advantages")
    silent_at_zero: bool = True
    config: Config = field(default_factory=dict[str, float])


_CLIP = MappingProxyType({"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "cross_entropy": Kind(cross_entropy, (), silent_at_zero=False),
        "importance_sampling": Kind(importance_sampling),
        "ppo": Kind(ppo, config=_CLIP),
        "cispo": Kind(cispo, config=_CLIP),
        "dro": Kind(dro, silent_at_zero=False, config=MappingProxyType({"beta": 0.05})),
        "gspo": Kind(gspo, ("logprobs", "advantages", "sequence_ratio_mask"), silent_at_zero=False, config=_CLIP),
    }
)


@dataclass(frozen=True)
class Loss:
    """A loss with its settings, as `loss_of` made it."""

    kind: Kind
    config: Config

    def of_row(self, logprobs_N: Tensor, columns: Columns, row_N: Tensor) -> Tensor:
        """The sum of the losses of a packed row's targets; `weights` multiply the loss of each, where given."""
        if self.kind.silent_at_zero:
            chosen_N = columns["advantages"] != 0
            logprobs_N, row_N = logprobs_N[chosen_N], row_N[chosen_N]
            columns = {name: column[chosen_N] for name, column in columns.items()}
        loss_N = self.kind.of_tokens(logprobs_N, columns, row_N, self.config)
        if self.kind.of_tokens is not cross_entropy and "weights" in columns:
            loss_N = loss_N * columns["weights"]
        return loss_N.sum()


UNPUBLISHED = (
    "it needs what the hosted service records of samples, by an equation that is not published; "
    "train with importance_sampling, ppo, cispo, dro or gspo"
)


def loss_of(name: str, config: Config, columns: set[str], targets: int) -> Loss:
    """The loss that a client named.

    Args:
        name: one of `KINDS`.
        config: settings that the client gave.
        columns: those that every datum has.
        targets: dimensions of the targets, 1, or 2 where a token has several.

    Raises:
        UserError: there is no such loss or setting, a column is missing, or the loss has one target per token.
    """
    if name == "stable_reinforce":
        raise UserError(f"stable_reinforce is not served: {UNPUBLISHED}")
    if name not in KINDS:
        raise unknown("loss", name, KINDS)
    kind = KINDS[name]
    if wrong := sorted(config.keys() - kind.config.keys()):
        known = ", ".join(kind.config) or "none"
        raise UserError(f"the loss {name} has no setting '{wrong[0]}'; it has: {known}")
    settings = dict(kind.config) | dict(config)
    if not all(value == value and abs(value) != float("inf") and value >= 0 for value in settings.values()):
        raise UserError(f"the settings of {name} must be finite and not negative; got {settings}")
    if settings.get("clip_low_threshold", 0.0) > settings.get("clip_high_threshold", 1.0):
        raise UserError(f"clip_low_threshold is above clip_high_threshold; got {settings}")
    if extra := sorted(columns - {*kind.columns, "weights"}):
        raise UserError(f"the loss {name} does not read '{extra[0]}'; leave it out of the loss_fn_inputs")
    if missing := [column for column in kind.columns if column not in columns]:
        raise UserError(f"the loss {name} needs {', '.join(missing)} in the loss_fn_inputs of every datum")
    if targets == 2 and kind.of_tokens is not cross_entropy:
        raise UserError(
            f"the loss {name} has one target per token; target_tokens of shape [N, K] are for cross_entropy"
        )
    return Loss(kind, settings)
