"""Losses by the names that clients send: the equations of `objectives/`, which have their papers.

All are sums over the tokens of a batch, each times w, the column `weights`, where given: the client normalises. p is
the policy that is trained, q what sampled (the column `logprobs`), A the column `advantages`, r = p / q, and s the
ratio of the whole datum. Source of the names: https://tinker-docs.thinkingmachines.ai/losses

    cross_entropy        -log p                                     importance_sampling  -r A
    ppo                  -min(r A, clip(r, low, high) A)            cispo                -sg[clip(r, low, high)] A log p
    dro                  -A log p + beta / 2 (log p - log q)^2      gspo                 -min(s A, clip(s, low, high) A)

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
"""Logprobs [N] of the targets, columns, the datum of each, and settings to one loss per target, [N]."""


@dataclass(frozen=True)
class Kind:
    """A loss, with what a client gives it.

    Attributes:
        of_tokens: its equation.
        columns: the columns that a datum must have.
        silent_at_zero: whether a token of advantage 0 has neither loss nor gradient, and is left out: its ratio may
            overflow, and inf times 0 is no number.
        config: its settings and their defaults. Clip thresholds bound the ratio itself.
    """

    of_tokens: OfTokens
    columns: tuple[str, ...] = ("logprobs", "advantages")
    silent_at_zero: bool = True
    config: Config = field(default_factory=dict[str, float])


LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
_CLIP = MappingProxyType({LOW: 0.8, HIGH: 1.2})
MASK = "sequence_ratio_mask"  # 0 where a token does not count for the ratio of its sequence

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        # -w log p. The gradient of any loss C of the logprobs is that of this one with w = -dC/dlogprobs: so
        # `forward_backward_custom` works.
        "cross_entropy": Kind(lambda p, c, rows, config: negative_log_likelihood(p), (), silent_at_zero=False),
        "importance_sampling": Kind(lambda p, c, rows, config: importance_weighted(p, c["logprobs"], c["advantages"])),
        "ppo": Kind(
            lambda p, c, rows, config: (
                clipped_surrogate(
                    p, c["logprobs"], c["advantages"], clip_low=1 - config[LOW], clip_high=config[HIGH] - 1
                ).loss
            ),
            config=_CLIP,
        ),
        "cispo": Kind(
            lambda p, c, rows, config: clipped_weight(
                p, c["logprobs"], c["advantages"], lowest=config[LOW], highest=config[HIGH]
            ),
            config=_CLIP,
        ),
        "dro": Kind(
            lambda p, c, rows, config: quadratic_penalty(p, c["logprobs"], c["advantages"], beta=config["beta"]),
            silent_at_zero=False,
            config=MappingProxyType({"beta": 0.05}),
        ),
        "gspo": Kind(
            lambda p, c, rows, config: sequence_ratio_by_token(
                p, c["logprobs"], c["advantages"], rows, c[MASK], lowest=config[LOW], highest=config[HIGH]
            ),
            ("logprobs", "advantages", MASK),
            silent_at_zero=False,
            config=_CLIP,
        ),
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
        return (loss_N * columns["weights"] if "weights" in columns else loss_N).sum()


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
    if targets == 2 and name != "cross_entropy":
        raise UserError(
            f"the loss {name} has one target per token; target_tokens of shape [N, K] are for cross_entropy"
        )
    return Loss(kind, settings)
