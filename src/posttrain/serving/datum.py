"""What a client trains on, and what it gets of samples, as numbers.

Shape letters: N tokens of a sequence, K targets of a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.errors import UserError

MAX_TARGETS = 64  # of one token, for cross-entropy over several
MISSING = -99999.0  # logprob of a place that has none, among the most likely tokens


@dataclass(frozen=True, slots=True)
class Datum:
    """One sequence.

    Attributes:
        tokens: the input, N of them; token i predicts the targets i.
        targets: [N], or [N, K] where each token has several.
        columns: numbers of the shape of `targets`, float32, by name.
    """

    tokens: tuple[int, ...]
    targets: np.ndarray
    columns: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Sampled:
    """One sample: its tokens, their logprobs, and whether it ended by a stop token or string."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool


@dataclass(frozen=True)
class PromptLogprobs:
    """Of a prompt: the logprob of each token, and of the most likely ones at its place, [N] and [N, K].

    The first token has none: nan, and `MISSING` for token 0.
    """

    own: np.ndarray
    top_tokens: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None


def check_data(data: Sequence[Datum], *, vocabulary: int, context: int, most_tokens: int) -> None:
    """Check what a client sent against the model.

    Raises:
        UserError: a sequence is empty or too long, a token is outside the vocabulary, the columns have other shapes
            than the targets, or a number is not finite.
    """
    if not data:
        raise UserError("a batch needs at least one datum")
    for what, total in (
        ("tokens", sum(len(datum.tokens) for datum in data)),
        ("targets", sum(datum.targets.size for datum in data)),
    ):
        if total > most_tokens:
            raise UserError(f"a request may have {most_tokens} {what}; this one has {total}: send smaller batches")
    for number, datum in enumerate(data):
        length = len(datum.tokens)
        if not 0 < length <= context:
            raise UserError(f"datum {number} has {length} tokens; the model reads 1 to {context}")
        shape = datum.targets.shape
        if shape[:1] != (length,) or len(shape) > 2 or (len(shape) == 2 and not 0 < shape[1] <= MAX_TARGETS):
            raise UserError(
                f"datum {number}: target_tokens has shape {list(shape)}; {length} tokens need [{length}], or "
                f"[{length}, K] with K up to {MAX_TARGETS}"
            )
        check_tokens(datum.tokens, vocabulary, f"datum {number}")
        check_tokens(datum.targets.ravel().tolist(), vocabulary, f"datum {number}: target_tokens")
        if datum.columns.keys() != data[0].columns.keys():
            raise UserError(f"datum {number} has other loss_fn_inputs than datum 0; all must have the same")
        if len(shape) != data[0].targets.ndim:
            raise UserError(
                f"datum {number}: target_tokens has {len(shape)} dimensions, and {data[0].targets.ndim} in datum 0"
            )
        for name, column in datum.columns.items():
            if column.shape != shape:
                raise UserError(
                    f"datum {number}: {name} has shape {list(column.shape)} and target_tokens {list(shape)}"
                )
            if not np.isfinite(column).all():
                raise UserError(f"datum {number}: {name} has a number that is not finite")


def check_tokens(tokens: Sequence[int], vocabulary: int, what: str) -> None:
    """Raise `UserError` for a token id outside the vocabulary."""
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary):
        wrong = next(token for token in tokens if not 0 <= token < vocabulary)
        raise UserError(f"{what} has token {wrong}; the vocabulary has 0 to {vocabulary - 1}")
