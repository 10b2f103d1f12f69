"""What a client trains on: datums, and losses by the names that clients send.

The equations are those of `objectives/`, which have their papers. All are sums over the tokens of a batch, each times
w, the column `weights`, where given: the client normalises. p is the policy that is trained, q what sampled (the column
`logprobs`), A the column `advantages`, r = p / q, and s the ratio of the whole datum. Source of the names:
https://tinker-docs.thinkingmachines.ai/losses

    cross_entropy        -log p                                     importance_sampling  -r A
    ppo                  -min(r A, clip(r, low, high) A)            cispo                -sg[clip(r, low, high)] A log p
    dro                  -A log p + beta / 2 (log p - log q)^2      gspo                 -min(s A, clip(s, low, high) A)

Shape letters: N targets of a packed row, flat, or tokens of a datum; K targets of a token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
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

MAX_TARGETS = 64  # of one token, for cross-entropy over several

Columns = Mapping[str, Tensor]
Config = Mapping[str, float]
OfTokens = Callable[[Tensor, Columns, Tensor, Config], Tensor]
"""Logprobs [N] of the targets, columns, the datum of each, and settings to one loss per target, [N]."""


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence."""

    tokens: tuple[int, ...]  # the input, N of them; token i predicts the targets i
    targets: np.ndarray  # [N], or [N, K] where each token has several
    columns: Mapping[str, np.ndarray]  # numbers of the shape of `targets`, float32, by name


def check_data(data: Sequence[Datum], *, vocabulary: int, context: int, most_tokens: int) -> None:
    """Raise `UserError` for what the model cannot train on: lengths, tokens, shapes, numbers that are not finite."""
    if not data:
        raise UserError("a batch needs at least one datum")
    for what, total in (
        ("tokens", sum(len(datum.tokens) for datum in data)),
        ("targets", sum(datum.targets.size for datum in data)),
    ):
        if total > most_tokens:
            raise UserError(f"a request may have {most_tokens} {what}; this one has {total}: send smaller batches")
    for number, datum in enumerate(data):
        length, shape, name = len(datum.tokens), datum.targets.shape, f"datum {number}"
        if not 0 < length <= context:
            raise UserError(f"{name} has {length} tokens; the model reads 1 to {context}")
        if shape[:1] != (length,) or len(shape) > 2 or (len(shape) == 2 and not 0 < shape[1] <= MAX_TARGETS):
            raise UserError(
                f"{name}: target_tokens has shape {list(shape)}; {length} tokens need [{length}], or "
                f"[{length}, K] with K up to {MAX_TARGETS}"
            )
        check_tokens(datum.tokens, vocabulary, name)
        check_tokens(datum.targets.ravel().tolist(), vocabulary, f"{name}: target_tokens")
        if datum.columns.keys() != data[0].columns.keys():
            raise UserError(f"{name} has other loss_fn_inputs than datum 0; all must have the same")
        if len(shape) != (first := data[0].targets.ndim):
            raise UserError(f"{name}: target_tokens has {len(shape)} dimensions, and {first} in datum 0")
        for each, column in datum.columns.items():
            if column.shape != shape:
                raise UserError(f"{name}: {each} has shape {list(column.shape)} and target_tokens {list(shape)}")
            if not np.isfinite(column).all():
                raise UserError(f"{name}: {each} has a number that is not finite")


def check_tokens(tokens: Sequence[int], vocabulary: int, what: str) -> None:
    """Raise `UserError` for a token id outside the vocabulary."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise UserError(f"{what} has token {wrong}; the vocabulary has 0 to {vocabulary - 1}")


@dataclass(frozen=True)
class Loss:
    """A loss, with what a client gives it."""

    of_tokens: OfTokens  # its equation
    columns: tuple[str, ...] = ("logprobs", "advantages")  # that a datum must have
    # a token of advantage 0 has neither loss nor gradient; it is left out: its ratio may overflow, and inf * 0 is nan
    silent_at_zero: bool = True
    config: Config = field(default_factory=dict[str, float])  # settings; clip thresholds bound the ratio

    def of_row(self, logprobs_N: Tensor, columns: Columns, row_N: Tensor) -> Tensor:
        """The sum of the losses of a packed row's targets; `weights` multiply the loss of each, where given."""
        if self.silent_at_zero:
            chosen_N = columns["advantages"] != 0
            logprobs_N, row_N = logprobs_N[chosen_N], row_N[chosen_N]
            columns = {name: column[chosen_N] for name, column in columns.items()}
        loss_N = self.of_tokens(logprobs_N, columns, row_N, self.config)
        return (loss_N * columns["weights"] if "weights" in columns else loss_N).sum()


LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
_CLIP = MappingProxyType({LOW: 0.8, HIGH: 1.2})
MASK = "sequence_ratio_mask"  # 0 where a token does not count for the ratio of its sequence

LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        # -w log p. The gradient of any loss C of the logprobs is that of this one with w = -dC/dlogprobs: so
        # `forward_backward_custom` works.
        "cross_entropy": Loss(lambda p, c, rows, config: negative_log_likelihood(p), (), silent_at_zero=False),
        "importance_sampling": Loss(lambda p, c, rows, config: importance_weighted(p, c["logprobs"], c["advantages"])),
        "ppo": Loss(
            lambda p, c, rows, config: (
                clipped_surrogate(
                    p, c["logprobs"], c["advantages"], clip_low=1 - config[LOW], clip_high=config[HIGH] - 1
                ).loss
            ),
            config=_CLIP,
        ),
        "cispo": Loss(
            lambda p, c, rows, config: clipped_weight(
                p, c["logprobs"], c["advantages"], lowest=config[LOW], highest=config[HIGH]
            ),
            config=_CLIP,
        ),
        "dro": Loss(
            lambda p, c, rows, config: quadratic_penalty(p, c["logprobs"], c["advantages"], beta=config["beta"]),
            silent_at_zero=False,
            config=MappingProxyType({"beta": 0.05}),
        ),
        "gspo": Loss(
            lambda p, c, rows, config: sequence_ratio_by_token(
                p, c["logprobs"], c["advantages"], rows, c[MASK], lowest=config[LOW], highest=config[HIGH]
            ),
            ("logprobs", "advantages", MASK),
            silent_at_zero=False,
            config=_CLIP,
        ),
    }
)


UNPUBLISHED = (
    "it needs what the hosted service records of samples, by an equation that is not published; "
    "train with importance_sampling, ppo, cispo, dro or gspo"
)


def loss_of(name: str, config: Config, columns: set[str], targets: int) -> Loss:
    """The loss that a client named, of datums with these columns and dimensions of targets; or raises `UserError`."""
    if name == "stable_reinforce":
        raise UserError(f"stable_reinforce is not served: {UNPUBLISHED}")
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    loss = LOSSES[name]
    if wrong := sorted(config.keys() - loss.config.keys()):
        known = ", ".join(loss.config) or "none"
        raise UserError(f"the loss {name} has no setting '{wrong[0]}'; it has: {known}")
    settings = dict(loss.config) | dict(config)
    if not all(0 <= value < float("inf") for value in settings.values()):
        raise UserError(f"the settings of {name} must be finite and not negative; got {settings}")
    if settings.get(LOW, 0.0) > settings.get(HIGH, 1.0):
        raise UserError(f"{LOW} is above {HIGH}; got {settings}")
    if extra := sorted(columns - {*loss.columns, "weights"}):
        raise UserError(f"the loss {name} does not read '{extra[0]}'; leave it out of the loss_fn_inputs")
    if missing := [column for column in loss.columns if column not in columns]:
        raise UserError(f"the loss {name} needs {', '.join(missing)} in the loss_fn_inputs of every datum")
    if targets == 2 and name != "cross_entropy":
        raise UserError(
            f"the loss {name} has one target per token; target_tokens of shape [N, K] are for cross_entropy"
        )
    return replace(loss, config=settings)
