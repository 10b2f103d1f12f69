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
MAX_CHARACTERS = 2000  # of an answer that is read
_COMMAND = re.compile(r"\\(?:text|mathrm|mathbf|boxed) ?\{([^{}]*)\}")
_MARKS = " *_`\"'\u201c\u201d.,:;!()[]{}$<>-\u2013\u2014"
_CAPITAL = re.compile(r"(?<![\w'\u2019])([A-Z])(?![\w'\u2019])")
_ALONE = re.compile(
    r"(?:(?:the )?(?:correct |right |final )?(?:option|choice|answer)(?: is)?[ *_`\"':(\[]*)?([a-z])", re.IGNORECASE
)
# A tail that explains begins with one of these; it may name no other letter or choice, and nothing in _TURNS.
_BECAUSE = re.compile(r"[ ,;.:\-]*(?:because|since|as)\b", re.IGNORECASE)
# What may stand before the letter, and after it. No word in it can turn what the sentence says.
_LEADS = frozenset(
    (
        *("so", "thus", "therefore", "hence", "i", "i'd", "i'll", "we", "would", "will", "think", "believe", "choose"),
        *(
            "pick",
            "select",
            "say",
            "go",
            "with",
            "that",
            "the",
            "my",
            "our",
            "your",
            "final",
            "correct",
            "right",
            "best",
        ),
        *("answer", "option", "choice", "letter", "is", "be", "it", "it's", "to", "this", "question", "of", "course"),
        *("one", "for", "must", "sure", "definitely", "clearly", "am", "and"),
    )
)
# Words that turn what a sentence says: with one of them, free text says nothing for certain.
_TURNS = re.compile(
    r"(?i)\b(?:no|not|none|never|nor|neither|cannot|can't|\w+n['\u2019]t|wait|actually|instead|rather|but|however|though"
    r"|although|or|and|also|possibly|maybe|perhaps|probably|might|may|could|either|both|all|any|except|unless|without"
    r"|excluding|rule[sd]?|ruling|eliminat\w*|reject\w*|exclud\w*|discard\w*|wrong|incorrect\w*|false|falsely|invalid"
    r"|untrue|bad|worst|least|opposite|other|others|else|if|unsure|uncertain|guess\w*|doubt\w*|hardly|scarcely|second"
    r"|alternatively|otherwise|correction|sorry|hmm|thought|far|fails?|refuted?|contradict\w*|mistak\w*)\b"
)


@dataclass(frozen=True)
class ChoiceVerifier:
    """1 if the completion gives the letter of the right choice, else 0.

    `task.answer` is the letter, or the index of the choice counted from 0, or, where the task's metadata has a list
    under "choices", the text of one. An answer is read as a letter if it is the letter alone, "(B)", "the answer is B",
    "B) Paris" or "B, because ...", or exactly the text of a choice. Anything else is `unparsed`: an answer that names
    two letters, that denies or hedges ("B is wrong", "possibly B"), or whose letter and text belong to two choices.

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
    if len(text) > MAX_CHARACTERS:
        return None
    text = _COMMAND.sub(r"\1", " ".join(text.split()))
    for index, choice in enumerate(choices):
        if _same(choice, text):
            return ascii_uppercase[index]
    if alone := _ALONE.fullmatch(text.strip(_MARKS)):
        return alone[1].upper()
    return next((match[1] for match in _CAPITAL.finditer(text) if _gives(text, match, choices)), None)


def _gives(text: str, letter: re.Match[str], choices: Sequence[str]) -> bool:
    """Whether `text` gives this letter as its answer, and says nothing else that could be one."""
    before, after = text[: letter.start()], text[letter.end() :]
    if letter[1] == "I" and re.match(r" [a-z]", after):  # the word
        return False
    if not _is_lead(before) or (choices and ascii_uppercase.index(letter[1]) >= len(choices)):
        return False
    if not after.strip(_MARKS) or (_is_lead(after) and not _other_letters(after, letter[1])):
        return True
    if choices and _same(choices[ascii_uppercase.index(letter[1])], after.lstrip(_MARKS)):
        return True
    if _other_letters(after, letter[1]) or _TURNS.search(after):
        return False
    if _BECAUSE.match(after):
        return not any(_names(after, choice) for choice in _others(choices, letter[1]))
    # the text of a choice that is not known here; a letter and a space alone begin a sentence ("A dog")
    return not choices and not before.strip(_MARKS) and (letter[1] not in "AI" or after[:1] in ").:")


def _is_lead(text: str) -> bool:
    words = [word.strip(_MARKS).casefold().replace("\u2019", "'") for word in text.split()]
    return all(word in _LEADS for word in words if word)


def _other_letters(text: str, letter: str) -> bool:
    """Whether `text` has a capital letter that stands alone, but for the word "I" and an article."""
    return any(match[1] not in ("I", letter) for match in _CAPITAL.finditer(re.sub(r"\bA (?=[a-z])", "", text)))


def _others(choices: Sequence[str], letter: str) -> list[str]:
    return [choice for index, choice in enumerate(choices) if ascii_uppercase[index] != letter]


def _names(text: str, choice: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(choice.strip())}(?!\w)", text, re.IGNORECASE) is not None


def _same(choice: str, text: str) -> bool:
    return " ".join(choice.split()).strip(_MARKS).casefold() == text.strip(_MARKS).casefold()


def _choices(episode: Episode) -> list[str]:
    return [str(choice) for choice in cast("Sequence[Any]", episode.task.metadata.get("choices", ()))]


def _right_letter(answer: object, choices: Sequence[str]) -> str | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return ascii_uppercase[answer] if 0 <= answer < (len(choices) or len(ascii_uppercase)) else None
    return read_letter(answer, choices) if isinstance(answer, str) else None
