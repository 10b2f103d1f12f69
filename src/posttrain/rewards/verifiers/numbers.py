"""Numbers at the end of a solution, as in GSM8K's `#### 42` (Cobbe et al. 2021, arXiv 2110.14168)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from posttrain.errors import RewardError
from posttrain.rewards.reward import score_each
from posttrain.rewards.verifiers.extraction import AnswerIn, extract, not_found, outside_reasoning
from posttrain.types import Episode, Score

# An integer with or without groups of three, a fraction part, an exponent. It must not be glued to a letter or a digit
# on its left (the 2 of "m2"), nor be cut out of something longer (the 1 of "1,23").
_NUMBER = re.compile(
    r"(?<![\w.])(?<![0-9],)(?P<sign>[-+]?)(?:[$€£¥₹]\s?)?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)?(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]{1,4})?"
    r"(?![0-9]|[,.][0-9])"
)
_UNIT = re.compile(r"(?<![A-Za-z])[A-Za-z]+[0-9]\b")
_ANY_DIGIT = re.compile(r"[0-9]")


@dataclass(frozen=True)
class NumberVerifier:
    """1 if the number in the answer equals `task.answer` exactly, else 0.

    Commas between groups of three, currency signs, units, a final full stop and a percent sign are ignored; decimals
    are compared as decimals, so 0.10 equals .1. An answer with several numbers is `unparsed`: which one is meant is
    not the verifier's to guess.

    Args:
        answer_in: where the answer is.
        last_number: where there is no such place, take the last number outside the reasoning. Off by default, because
            it pays for a number that was not given as the answer.

    Raises (while scoring):
        RewardError: `task.answer` is not a number. It may be a GSM8K solution that ends in `#### 42`.
    """

    answer_in: AnswerIn = "hashes"
    last_number: bool = False
    name: str = "numbers"
    verifies: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode."""
        return score_each(self.name, episodes, self._score_one)

    def _score_one(self, episode: Episode) -> Score:
        right = parse_number(str(episode.task.answer).rpartition("####")[2])
        if right is None:
            raise RewardError(
                f"reward '{self.name}' needs a number as task.answer; task {episode.task.id!r} has "
                f"{str(episode.task.answer)[:80]!r}"
            )
        answer = extract(episode.completion, self.answer_in)
        if answer is not None:
            number, why = parse_number(answer), f"not one number: {answer[:80]!r}"
        else:
            numbers = find_numbers(outside_reasoning(episode.completion)) if self.last_number else []
            number, why = (numbers[-1] if numbers else None), not_found(self.answer_in)
        if number is None:
            return Score(0.0, answer, why, unparsed=True)
        equal = number == right
        return Score(float(equal), str(number), "" if equal else f"expected {right}")


def parse_number(text: str) -> Decimal | None:
    """The one number in `text`; None if there is none, or more than one.

    Example:
        >>> parse_number("$1,234.50 per year"), parse_number("−7."), parse_number("5 or 6"), parse_number("1,23")
        (Decimal('1234.50'), Decimal('-7'), None, None)
    """
    text = _plain(text)
    matches = [match for match in _NUMBER.finditer(text) if _has_digits(match)]
    if not matches:
        return None
    outside = text[: matches[0].start()] + text[matches[0].end() :]
    # a digit left over is another number, unless it belongs to a unit such as m2
    if _ANY_DIGIT.search(_UNIT.sub("", outside)):
        return None
    return _decimal(matches[0])


def find_numbers(text: str) -> list[Decimal]:
    """Every number in `text`, in order."""
    return [_decimal(match) for match in _NUMBER.finditer(_plain(text)) if _has_digits(match)]


def _plain(text: str) -> str:
    """One kind of minus sign; no thin spaces; the dollar of LaTeX."""
    return text.replace("\u2212", "-").replace("\u202f", "").replace("\\$", "$").replace("{,}", ",")


def _has_digits(match: re.Match[str]) -> bool:
    return bool(match["digits"] or match["fraction"])


def _decimal(match: re.Match[str]) -> Decimal:
    digits = (match["digits"] or "").replace(",", "")
    return Decimal(f"{match['sign']}{digits}{match['fraction'] or ''}{match['exponent'] or ''}")
