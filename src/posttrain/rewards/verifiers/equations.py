"""Steps that arithmetic can check: equations such as `3 + 4 = 7` in a text; and a reward that asks for all of them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from posttrain.errors import RewardError
from posttrain.rewards.reward import EpisodeReward, Verifier
from posttrain.rewards.verifiers.number_grammar import arithmetic
from posttrain.types import Episode, Score, SeatScores, Task, steps_in

_RUN = re.compile(r"[0-9()+\-*/.= \t\u00d7\u00f7\u00b7\u2212]+")  # what an equation consists of; linear in any text
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NUMBERING = re.compile(r"\s*+(?:[0-9]{1,3}+[.)]|[-*+])\s")  # at the beginning of a line
_GOES_ON = re.compile(r"\s*+(?:[+*/]|-\s)")  # within one, from something that is no number
_OPERATORS = str.maketrans("\u00d7\u00f7\u00b7\u2212", "*/*-")
_BESIDE = re.compile(r"[\w^%$\\]")  # what makes a number part of something else
_CHANGES = re.compile(  # a word before an equation that makes another one of it
    r"\b(?:(?:half|thirds?|quarters?|double|square|cube|root|percent) of|half|twice|double|triple|thrice|sqrt"
    r"|square root|minus|negative|times|plus|(?:divided|multiplied) by|log|ln|sin|cos|tan|abs)[ \t]*\Z",
    re.IGNORECASE,
)
_OPERATION = re.compile(r"[0-9)]\s*[-+*/]")


class Equation(NamedTuple):
    """An equation in a text, without white space, and whether its sides are equal."""

    text: str
    holds: bool


def equations(text: str) -> list[Equation]:
    """The equations of a text whose sides are all arithmetic, at least one with an operation, in order.

    What has letters, powers or percent signs is not checkable, and not found; nor is what follows a word such as
    "half of" or "minus". A quotient may be rounded to the decimals
    that are written.

    Example:
        >>> equations("First 3 + 4 = 7, then 7-2=4.")
        [Equation(text='3+4=7', holds=True), Equation(text='7-2=4', holds=False)]
    """
    text, found = _THOUSANDS.sub("", text), list[Equation]()
    for run in _RUN.finditer(text):
        written = run[0].translate(_OPERATORS)
        before = "" if written[0].isspace() else text[max(0, run.start() - 1) : run.start()]
        after = "" if written[-1].isspace() else text[run.end() : run.end() + 1]
        begins = text[max(0, run.start() - 1) : run.start()] in ("", "\n")
        if begins and (numbering := _NUMBERING.match(written)):
            written = written[numbering.end() :]
        word = text[max(0, run.start() - 12) : run.start()]
        if (
            "=" not in written
            or _CHANGES.search(word)
            or _BESIDE.match(before)
            or _BESIDE.match(after)
            or _GOES_ON.match(written)
        ):
            continue
        sides = [side.strip() for side in written.strip().removesuffix(".").split("=")]
        sides = sides[1:] if not sides[0] else sides  # x = 3 + 4 = 7
        values = [arithmetic(side) for side in sides]
        if len(sides) > 1 and None not in values and any(map(_OPERATION.search, sides)):
            known = [value for value in values if value is not None]
            holds = all(_equal(known[0], value, side, sides[0]) for value, side in zip(known, sides, strict=True))
            found.append(Equation("=".join(re.sub(r"\s", "", side) for side in sides), holds))
    return found


def _equal(first: Fraction, value: Fraction, side: str, left: str) -> bool:
    decimals = len(side.partition(".")[2]) if "/" in left and re.fullmatch(r"-?[0-9]+\.[0-9]+", side) else 0
    return first == value or (bool(decimals) and abs(first - value) * 2 * 10**decimals <= 1)


def chain_of(expression: str) -> list[str]:
    """The steps of a sum from left to right.

    Example:
        >>> chain_of("4 - 1 + 3")
        ['4-1=3', '3+3=6']
    """
    first, *rest = re.findall(r"[+-]?[0-9]+", expression.replace(" ", ""))
    total, found = int(first), list[str]()
    for term in rest:
        found.append(f"{total}{term}={total + int(term)}")
        total += int(term)
    return found


def labels_of(task: Task, text: str, solved: bool) -> list[bool | None]:
    """Whether each step (line) of a response is right, as far as arithmetic tells; None where it does not.

    A line is right if its equations hold. Of `gym:chain_sum` they must also be the next ones of the sum from left to
    right, so that a wrong term or a wrong beginning is a wrong step. The last line, with the answer, must be `solved`.
    """
    summed = task.metadata.get("dataset") == "chain_sum"
    expected = iter(chain_of(task.metadata["entry"]["metadata"]["expression"]) if summed else ())
    found: list[bool | None] = []
    for start, end in steps_in(text):
        told = equations(text[start:end])
        right = all(one.holds and (not summed or one.text == next(expected, "")) for one in told)
        found.append(right if told else None)
    return [*found[:-1], found[-1] is not False and solved] if found else []


@dataclass(frozen=True)
class AllSteps(Verifier):
    """1 if a verifier finds the answer right and every checkable step is right, else 0.

    A checkable step is an equation as `equations` finds them. A response without any is paid for its answer alone.
    """

    verifier: EpisodeReward
    name: str = "all-steps"

    def __post_init__(self) -> None:
        for key in ("columns", "patient", "unreadable", "alike"):
            if hasattr(self.verifier, key):
                object.__setattr__(self, key, getattr(self.verifier, key))

    async def score_episodes(self, episodes: Sequence[Episode]) -> list[SeatScores]:
        """The verifier's scores, 0 where a step is wrong."""
        found: list[SeatScores] = []
        for episode, score in zip(episodes, await self.verifier.score_episodes(episodes), strict=True):
            wrong = [one.text for one in equations(episode.completion) if not one.holds]
            if not isinstance(score, Score):
                raise RewardError(f"reward '{self.name}' asks a verifier with one score; got one by seat")
            if score.value and wrong:
                score = Score(0.0, score.parsed, f"the answer is right, and the step {wrong[0][:60]} is wrong")
            found.append(score)
        return found
