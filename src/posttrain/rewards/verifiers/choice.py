"""Multiple choice: which letter the completion gives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar, cast

from posttrain.errors import RewardError
from posttrain.rewards.reward import score_each
from posttrain.rewards.verifiers.extraction import AnswerIn, extract, not_found
from posttrain.types import Episode, Score

# These see text whose white space is single spaces. No two repetitions in them can take the same character, so that a
# long and strange completion costs no more than a long one: while `re` works, no time limit can fire.
_MARKS = " *_`\"'.,:;()[]{}$"
_COMMAND = re.compile(r"\\(?:text|mathrm|mathbf|boxed) ?\{([^{}]*)\}")
_ALONE = re.compile(r"(?:(?:option|choice|answer)[ *_`\"':(\[]*)?([a-z])", re.IGNORECASE)
_LEADING = re.compile(r"[*_`\"' ]*\(?([A-Z])[).:](?=[ *_]|$)")
_SAID = re.compile(
    r"(?i:\b(?:answer|option|choice)\b(?: is)?)[ *_`\"':$(\[]*([A-Z])\b"
    r"(?!['\u2019])(?![ )*]*(?:(?:or|and|/) ?\(?[A-Z]\b|, ?\([A-Z]\)))"
)


@dataclass(frozen=True)
class ChoiceVerifier:
    """1 if the completion gives the letter of the right choice, else 0.

    `task.answer` is the letter, or the index of the choice counted from 0, or, where the task's metadata has a list
    under "choices", the text of one. An answer is read as a letter if it is the letter alone, "(B)", "B) because",
    "the answer is B", or exactly the text of a choice. Anything else, also an answer that names two letters as the
    answer, is `unparsed`.

    Raises (while scoring):
        RewardError: `task.answer` names no choice.
    """

    answer_in: AnswerIn = "answer"
    name: str = "choice"
    verifies: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)

    async def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One score per episode."""
        return score_each(self.name, episodes, self._score_one)

    def _score_one(self, episode: Episode) -> Score:
        choices = _choices(episode)
        right = _right_letter(episode.task.answer, choices)
        if right is None:
            raise RewardError(
                f"reward '{self.name}' needs a letter, an index or a choice's text as task.answer; task "
                f"{episode.task.id!r} has {episode.task.answer!r}"
            )
        answer = extract(episode.completion, self.answer_in)
        if answer is None:
            return Score(0.0, explanation=not_found(self.answer_in), unparsed=True)
        letter = read_letter(answer, choices)
        if letter is None:
            return Score(0.0, answer, "not one letter", unparsed=True)
        return Score(float(letter == right), letter, "" if letter == right else f"expected {right}")


def read_letter(text: str, choices: Sequence[str] = ()) -> str | None:
    """The letter that `text` gives as its answer, or None.

    Example:
        >>> [read_letter(text) for text in ("(b)", "B) Paris", "I think the answer is **C**.", "A dog")]
        ['B', 'B', 'C', None]
        >>> read_letter("paris", ["London", "Paris"])
        'B'
    """
    text = _COMMAND.sub(r"\1", " ".join(text.split()))
    for index, choice in enumerate(choices):
        if " ".join(choice.split()).casefold() == text.rstrip(".").casefold():
            return ascii_uppercase[index]
    if alone := _ALONE.fullmatch(text.strip(_MARKS)):
        return alone[1].upper()
    said = set(_SAID.findall(text))
    if leading := _LEADING.match(text):
        said.add(leading[1])
    return said.pop() if len(said) == 1 else None


def _choices(episode: Episode) -> list[str]:
    return [str(choice) for choice in cast("Sequence[Any]", episode.task.metadata.get("choices", ()))]


def _right_letter(answer: object, choices: Sequence[str]) -> str | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return ascii_uppercase[answer] if 0 <= answer < (len(choices) or len(ascii_uppercase)) else None
    return read_letter(answer, choices) if isinstance(answer, str) else None
