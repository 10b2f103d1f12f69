"""Exact match."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import cast
from unicodedata import normalize

from posttrain.errors import RewardError
from posttrain.rewards.reward import EpisodeReward
from posttrain.rewards.verifiers.boxes import doubt_around_tag
from posttrain.rewards.verifiers.extraction import INVISIBLE, NOT_FOUND, AnswerIn, extract
from posttrain.types import Episode, Score, Task


@dataclass(frozen=True)
class ExactVerifier(EpisodeReward):
    """1 if the answer is `task.answer`, or one of them where it is a list; else 0.

    Runs of white space count as one space, invisible characters at the ends as nothing, and a letter with an accent as
    the same in one code point or two (NFC). Nothing else is forgiven, except case with `ignore_case`. An answer that
    is null, NaN or empty is a missing one and earns nothing, whatever the completion says. Tags that are struck out, a
    comment, denied ("not <answer>") or taken back are `unparsed`.

    Raises (while scoring):
        RewardError: the task has no answer, or one that is no text, number or boolean.
    """

    answer_in: AnswerIn = "answer"
    ignore_case: bool = False
    name: str = "exact"
    role = "verifier"
    bounds = (0.0, 1.0)

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
