"""Multiple choice: which letter the completion gives."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar, cast

from posttrain.errors import RewardError
from posttrain.rewards.reward import score_each
from posttrain.rewards.verifiers.characters import plain_characters
from posttrain.rewards.verifiers.extraction import AnswerIn, extract, not_found
from posttrain.types import Episode, Score

# These see text whose white space is single spaces. No two repetitions in them can take the same character, so that a
# long and strange completion costs no more than a long one: while `re` works, no time limit can fire.
MAX_CHARACTERS = 2000  # of an answer that is read
_COMMAND = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|boxed) ?\{([^{}]*)\}")
_DENIED = re.compile(r"(?:[!\u00ac~\u2260]|[-\u2013\u2014](?! ))[ *_`\"'(\[]*$")  # before a letter: !B, -B
_DENIED_WHOLE = re.compile(r"[!\u00ac~\u2260]|[-\u2013\u2014](?! )|<!--")
_PRIME = re.compile(r"['\u2019\u2032]")  # after it: B' is a complement, unless B was quoted
_MARKS = " *_`\"'\u201c\u201d.,:;!()[]{}$<>-\u2013\u2014"
_CAPITAL = re.compile(r"(?<![\w'\u2019])([A-Z])(?![\w'\u2019])")
_ALONE = re.compile(
    r"(?:(?:the )?(?:correct |right |final )?(?:option|choice|answer)(?: is)?[ *_`\"':(\[]*)?([a-z])", re.IGNORECASE
)
# A tail that explains begins with one of these; it may name no other letter or choice, and nothing in _TURNS.
_BECAUSE = re.compile(r"[ ,;.:\-]*(?:because|since|as(?! (?:well|long|soon|far|if|opposed)))\b", re.IGNORECASE)
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
        *("answer", "option", "choice", "letter", "is", "be", "it", "it's", "one", "must", "definitely", "clearly"),
    )
)
_FILLERS = re.compile(r"(?i)\b(?:of course|for sure|to (?:this|the) question)\b")
_ASKS = re.compile(r"(?i)[ *_\"'(]*(?:is|would|will|must|am) (?:it|this|that|i|we|the)\b")
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

    `task.answer` is the letter, or the index of the choice counted from 0, or the text of one. The choices are the list
    under "choices" in the task's metadata, or else the lines "A) ...", "B) ..." of its prompt. An answer is read as a
    letter if it is the letter alone, "(B)", "the answer is B", "B) Paris" or "B, because ...", or the text of a choice.
    Anything else is `unparsed`: an answer with two letters, a denial or a hedge ("B is wrong", "possibly B"), or
    whose letter and text belong to two choices.

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
        letter = read_letter(answer, choices, _question(episode))
        if letter is None:
            return Score(0.0, answer, "not one letter", unparsed=True)
        return Score(float(letter == right), letter, "" if letter == right else f"expected {right}")


def read_letter(text: str, choices: Sequence[str] = (), question: str = "") -> str | None:
    """The letter that `text` gives as its answer, or None.

    Where the choices are not known, the text after a letter must stand in the `question`.

    Example:
        >>> [read_letter(text) for text in ("(b)", "B) Paris", "I think the answer is **C**.", "A dog")]
        ['B', None, 'C', None]
        >>> read_letter("paris", ["London", "Paris"]), read_letter("B) Paris", question="London (A) or Paris (B)?")
        ('B', 'B')
    """
    plain = plain_characters(text) if len(text) <= MAX_CHARACTERS else None
    if plain is None or _DENIED_WHOLE.match(plain):
        return None
    text = _COMMAND.sub(r"\1", " ".join(plain.split()))
    text = _COMMAND.sub(r"\1", text)  # a box around text
    for index, choice in enumerate(choices):
        if " ".join(choice.split()) == text:
            return ascii_uppercase[index]
    if letter := _by_text(text, choices):
        return letter
    if alone := _ALONE.fullmatch(text.strip(_MARKS)):
        return None if _denied(text, text.index(alone[0]) + alone.start(1)) else alone[1].upper()
    return next((match[1] for match in _CAPITAL.finditer(text) if _gives(text, match, choices, question)), None)


def _denied(text: str, letter: int) -> bool:
    """Whether a sign at the letter at this place denies it."""
    quoted = text[max(letter - 1, 0) : letter] in ("'", "\u2018")
    return _DENIED.search(text[:letter]) is not None or (_PRIME.match(text, letter + 1) is not None and not quoted)


_THE_ANSWER = re.compile(
    r"(?:(?:so|thus|therefore|hence),? )?(?:the |my )?(?:final |correct |right |best )?(?:answer|option|choice)"
    r"(?: is)?[ :*_]+",
    re.IGNORECASE,
)
_LETTER_BESIDE = re.compile(r"(?P<text>.+?)[ ,]+[(\[]?(?P<letter>[A-Z])[)\]]?")
_TEXT_BESIDE = re.compile(r"[(\[]?(?P<letter>[a-z])[)\].:] *(?P<text>.+)")


def _by_text(text: str, choices: Sequence[str]) -> str | None:
    """The letter of the choice whose text is given: after "the answer is", or with its own letter beside it."""
    text = _THE_ANSWER.sub("", text.strip(_MARKS), count=1)
    letters = [ascii_uppercase[i] for i, choice in enumerate(choices) if _same(choice, text)]
    for beside in (_LETTER_BESIDE.fullmatch(text.strip(" .*")), _TEXT_BESIDE.fullmatch(text)):
        if beside:
            index = ascii_uppercase.index(beside["letter"].upper())
            letters += [beside["letter"].upper()] if _same("".join(choices[index : index + 1]), beside["text"]) else []
    return letters[0] if len(set(letters)) == 1 else None


def _gives(text: str, letter: re.Match[str], choices: Sequence[str], question: str) -> bool:
    """Whether `text` gives this letter as its answer, and says nothing else that could be one."""
    before, after = text[: letter.start()], text[letter.end() :]
    if letter[1] == "I" and re.match(r" [a-z]", after):  # the word
        return False
    if (
        _denied(text, letter.start())
        or _ASKS.match(before)
        or not _is_lead(before)
        or (choices and ascii_uppercase.index(letter[1]) >= len(choices))
    ):
        return False
    if not after.strip(_MARKS) or (_is_lead(after) and not _other_letters(after, letter[1])):
        return True
    if choices and _same(choices[ascii_uppercase.index(letter[1])], after.lstrip(_MARKS)):
        return True
    if _other_letters(after, letter[1]) or _TURNS.search(after):
        return False
    own = "".join(choices[ascii_uppercase.index(letter[1]) :][:1])
    if _BECAUSE.match(after) or (own.strip() and _repeats(after.lstrip(_MARKS), own, question)):
        return not any(_names(after, choice) for choice in _others(choices, letter[1]))
    shown = after.strip(_MARKS).casefold()  # the text of a choice that only the question has
    return not choices and bool(shown) and shown in " ".join(question.split()).casefold()


def _is_lead(text: str) -> bool:
    text = _FILLERS.sub(" ", text)
    words = [word.strip(_MARKS).casefold().replace("\u2019", "'") for word in text.split()]
    return all(word in _LEADS for word in words if word)


def _other_letters(text: str, letter: str) -> bool:
    """Whether `text` has a capital letter that stands alone, but for the word "I" and an article."""
    return any(match[1] not in ("I", letter) for match in _CAPITAL.finditer(re.sub(r"\bA (?=[a-z])", "", text)))


def _others(choices: Sequence[str], letter: str) -> list[str]:
    return [choice for index, choice in enumerate(choices) if ascii_uppercase[index] != letter]


def _names(text: str, choice: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(choice.strip())}(?!\w)", text, re.IGNORECASE) is not None


def _repeats(text: str, choice: str, question: str) -> bool:
    """Whether `text` is the choice and then no more than words of the question: "Paris is the capital of France"."""
    said = re.match(rf"{re.escape(' '.join(choice.split()))}(?!\w)", text, re.IGNORECASE)
    known = {*re.findall(r"\w+", question.casefold()), "is", "are", "was", "the", "a", "an", "of", "it"}
    return (
        said is not None
        and not re.search(r"[^\w\s.,!*]", text[said.end() :])
        and set(re.findall(r"\w+", text[said.end() :].casefold())) <= known
    )


def _same(choice: str, text: str) -> bool:
    return " ".join(choice.split()).strip(_MARKS).casefold() == text.strip(_MARKS).casefold()


def _choices(episode: Episode) -> list[str]:
    """The choices that the metadata has, or else those that the question lists from A on."""
    if given := cast("Sequence[Any]", episode.task.metadata.get("choices", ())):
        return [str(choice) for choice in given]
    listed = _LISTED.findall(_question(episode))
    letters = "".join(letter for letter, _ in listed)
    return [text for _, text in listed] if len(letters) > 1 and ascii_uppercase.startswith(letters) else []


def _question(episode: Episode) -> str:
    return "\n".join(message.content for message in episode.task.prompt if message.role == "user")


_LISTED = re.compile(r"(?m)^[ \t*]*\(?([A-Z])[).:][ \t*]+(\S[^\n]*?)[ \t]*$")


def _right_letter(answer: object, choices: Sequence[str]) -> str | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return ascii_uppercase[answer] if 0 <= answer < (len(choices) or len(ascii_uppercase)) else None
    return read_letter(answer, choices) if isinstance(answer, str) else None
