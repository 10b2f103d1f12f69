"""Answers that are compared exactly: numbers, as in GSM8K's `#### 42` (Cobbe et al. 2021, arXiv 2110.14168); and texts.

The whole answer must be one number (`number_grammar`). Anything more is unparsed, never right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import cast
from unicodedata import normalize

from posttrain.errors import RewardError
from posttrain.rewards.reward import Verifier
from posttrain.rewards.verifiers.boxes import doubt_around_tag
from posttrain.rewards.verifiers.extraction import (
    INVISIBLE,
    NOT_FOUND,
    AnswerIn,
    answered_before,
    around,
    extract,
    outside_reasoning,
    question_of,
    taken_back,
)
from posttrain.rewards.verifiers.number_grammar import Number, parse_number
from posttrain.rewards.verifiers.prose import declared, final_number
from posttrain.types import Episode, Score, Task


@dataclass(frozen=True)
class NumberVerifier(Verifier):
    """1 if the number in the answer equals `task.answer` exactly, else 0.

    Read are integers, decimals, `1e3` and 10^3, fractions such as 3/4 and 2 1/2, groups of three, currency signs, a
    percent sign, "minus 5", "forty-two", an equation that holds, and a unit: a common one, or words of the question; of
    the units of time, money, length, mass and volume only those that the question names, where it names any. Numbers
    are compared exactly, so 0.10 equals .1. 50% equals both 50 and 0.5. An answer that says anything else is
    `unparsed`, and so is one that the text before or after it retracts. `last_number`: where there is no place for an
    answer, take the last number outside the reasoning. Off by default: it pays for one not given as the answer.
    `task.answer` must be a number; it may be a GSM8K solution that ends in `#### 42`.
    """

    answer_in: AnswerIn = "hashes"
    last_number: bool = False
    name: str = "numbers"

    def _score_one(self, episode: Episode) -> Score:
        gold = str(episode.task.answer).rpartition("####")[2]
        right = parse_number(gold)
        if right is None:
            raise RewardError(
                f"reward '{self.name}' needs a number as task.answer; task {episode.task.id!r} has "
                f"{str(episode.task.answer)[:80]!r}"
            )
        answer = extract(episode.completion, self.answer_in)
        question = f"{question_of(episode.task)}\n{gold}"
        if answer is not None:
            number, why = parse_number(answer, question), f"not one number: {answer[:80]!r}"
            before, after = around(episode.completion, self.answer_in, answer)
            earlier = answered_before(before, self.answer_in)
            alone = parse_number(after.strip().partition("\n")[0], question)  # the next line is another number
            others = [other for other in (alone, *declared(after)) if other is not None]
            others += [parse_number(earlier, question)] if earlier else []
            if taken_back(before, after, self.answer_in) or any(other != number for other in others):
                number, why = None, "what stands around it takes it back"
        else:
            number = final_number(outside_reasoning(episode.completion), question) if self.last_number else None
            why = NOT_FOUND[self.answer_in]
        equal = number is not None and same_number(number, right)
        if number is None or equal is None:
            return Score(0.0, answer, why if number is None else f"{number} may mean {right} or not", unparsed=True)
        return Score(float(equal), str(number), "" if equal else f"expected {right}")

    def alike(self, one: str, other: str) -> bool:
        """Whether two answers, as `Score.parsed` has them, are votes for one: 50% and 0.5 are."""
        first, second = parse_number(one), parse_number(other)
        return first is not None and second is not None and bool(same_number(first, second))


def same_number(given: Number, right: Number) -> bool | None:
    """Whether the two are equal; None where a percent sign leaves it open.

    Only one of them may have a percent sign that the other leaves out: 50% is 50 percent, and it is 0.5. Below 1 the
    two readings meet (is "0.5%" the answer 0.5?), so that only the second one counts.
    """
    if given.percent == right.percent:
        return given.value == right.value
    percent, plain = (given.value, right.value) if given.percent else (right.value, given.value)
    if percent == plain and 0 < abs(plain) < 1:
        return None
    return plain in (percent, percent / 100)


@dataclass(frozen=True)
class ExactVerifier(Verifier):
    """1 if the answer is `task.answer`, or one of them where it is a list; else 0.

    Runs of white space count as one space, invisible characters at the ends as nothing, and a letter with an accent as
    the same in one code point or two (NFC). Nothing else is forgiven, except case with `ignore_case`. An answer that
    is null, NaN or empty is a missing one and earns nothing, whatever the completion says. Tags that are struck out, a
    comment, denied ("not <answer>") or taken back are `unparsed`. A task must have an answer of texts, numbers or
    booleans.
    """

    answer_in: AnswerIn = "answer"
    ignore_case: bool = False
    name: str = "exact"

    def _score_one(self, episode: Episode) -> Score:
        expected = self._expected(episode.task)
        answer = extract(episode.completion, self.answer_in)
        if answer is None:
            return Score(0.0, explanation=NOT_FOUND[self.answer_in], unparsed=True)
        equal = self._normal(answer) in expected
        if equal and self.answer_in == "answer" and (doubt := doubt_around_tag(episode.completion)):
            return Score(0.0, answer, doubt, unparsed=True)
        return Score(float(equal), answer, "" if equal else f"expected {' or '.join(expected)}")

    def _expected(self, task: Task) -> list[str]:
        right = task.answer
        several = cast("Sequence[object]", right if isinstance(right, list | tuple) else [right])
        present = [a for a in several if a is not None and not (isinstance(a, float) and isnan(a))]
        if unlike := [a for a in present if not isinstance(a, str | int | float)]:
            kind = type(unlike[0]).__name__
            raise RewardError(f"reward '{self.name}' compares text; an answer of task {task.id!r} is a {kind}")
        if not (expected := [text for text in (self._normal(str(a)) for a in present) if text]):
            raise RewardError(f"reward '{self.name}' needs task.answer; task {task.id!r} has none")
        return expected

    def _normal(self, text: str) -> str:
        text = " ".join(normalize("NFC", text.strip().strip(INVISIBLE)).split())
        return text.casefold() if self.ignore_case else text
