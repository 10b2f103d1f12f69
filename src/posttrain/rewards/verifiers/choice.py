"""Multiple choice: parses the letter of the answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from string import ascii_uppercase
from typing import Any, cast

from posttrain.errors import RewardError
from posttrain.rewards.reward import Verifier
from posttrain.rewards.verifiers.extraction import (
    NOT_FOUND,
    AnswerIn,
    answered_before,
    around,
    extract,
    plain_characters,
    question_of,
    taken_back,
    words,
)
from posttrain.types import Episode, Score

# These see text whose white space is single spaces. No two repetitions in them can take the same character, so that a
# long and strange completion costs no more than a long one: while `re` works, no time limit can fire.
MAX_CHARACTERS = 2000  # of an answer that is read
_COMMAND = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|boxed) ?\{([^{}]*)\}")
_DENIED = re.compile(r"(?:[!\u00ac~\u2260]|[-\u2013\u2014](?! ))[ *_`\"'(\[]*$")  # before a letter: !B, -B
_DENIED_WHOLE = re.compile(r"[!\u00ac~\u2260]|[-\u2013\u2014](?! )|<!--")
_SPOILED_WHOLE = re.compile(r"\[ *\]|<>|(?:\.\.|\u2026)[^\w.]*$")  # a box that is not ticked, an end left open
_PRIME = re.compile(r"[)\]}*_`$]*['\u2019\u2032]")  # after it: B' is a complement, unless B was quoted
_SPOILED = re.compile(r"[)\]}*_`\"'$ ]*(?:\.\.|\u2026)")  # B...
_MARKS = " *_`\"'\u201c\u201d.,:;!()[]{}$<>-\u2013\u2014"
_CAPITAL = re.compile(r"(?<![\w'\u2019])([A-Z])(?![\w'\u2019])")
_ANY_CAPITAL = re.compile(r"(?<!\w)(?<!\w['\u2019])([A-Z])(?!\w|['\u2019]\w)")
_NO_LETTER = re.compile(r"\bA (?=[a-z])|\bI(?=['\u2019 ][A-Za-z]{2})")  # the article, and the word "I"
_ALONE = re.compile(
    r"(?:(?:the )?(?:correct |right |final )?(?:option|choice|answer)(?: is)?[ *_`\"':(\[]*)?([a-z])",
    re.IGNORECASE | re.ASCII,  # else the long s and the sign of kelvin are letters
)
# A tail that explains begins with one of these; it may name no other letter or choice, and nothing in _TURNS.
_BECAUSE = re.compile(
    r"(?i)[ ,;.:\-]*(?:(?:because|since) \w|as (?=(?:it|this|that|he|she|they|we|the)\b|(?-i:[A-Z])))"
)
# Text allowed before and after the letter. No word in it can change the sentence's meaning.
_LEADS = words(
    """
    so thus therefore hence i i'd i'll we would will think believe choose pick select say go with that the my our final
    correct right best answer option choice letter is be it it's one must definitely clearly
    """
)
_LETTER_IN_QUESTION = re.compile(r"(?<!\w)[(\[]?[A-Z][)\].:=]")
_FILLERS = re.compile(r"(?i)\b(?:of course|for sure|to (?:this|the) question)\b")
_ASKS = re.compile(
    r"(?i)[ *_\"'(]*(?:(?:is|am)\b|(?:would|will|must)(?: (?:it|this|that|i|we|the|option|choice)\b|\W*$))"
)
_ASKS_AFTER = re.compile(r"(?i)\b(?:is|would|will|must) (?:it|this|that|i|we)\b.*\w")
# Words that change a sentence's meaning: with one of them, free text is ambiguous.
_TURNS = re.compile(
    r"(?i)\b(?:no|not|none|never|nor|neither|cannot|can't|\w+n['\u2019]t|wait|actually|instead|rather|but|however|though"
    r"|although|or|and|also|possibly|maybe|perhaps|probably|might|may|could|either|both|all|any|except|unless|without"
    r"|excluding|rule[sd]?|ruling|eliminat\w*|reject\w*|exclud\w*|discard\w*|wrong|incorrect\w*|false|falsely|invalid"
    r"|untrue|bad|worst|least|opposite|other|others|else|if|unsure|uncertain|guess\w*|doubt\w*|hardly|scarcely|second"
    r"|alternatively|otherwise|correction|sorry|hmm|thought|far|fails?|refuted?|contradict\w*|mistak\w*|seems?|appears?"
    r"|random\w*|nobody|jok(?:e|es|ing)|told|you|your|want(?:ed|s)?|have to|had to|should|placeholder)\b"
)


@dataclass(frozen=True)
class ChoiceVerifier(Verifier):
    """1 if the completion gives the letter of the right choice, else 0.

    `task.answer` is the letter, or the index of the choice counted from 0, or the text of one. The choices are the list
    under "choices" in the task's metadata, or else the lines "A) ...", "B) ..." of its prompt. An answer is read as a
    letter if it is the letter alone, "(B)", "the answer is B", "B) Paris" or "B, because ...", or the text of a choice.
    Anything else is `unparsed`: an answer with two letters, a denial or a hedge ("B is wrong", "possibly B"), or
    whose letter and text belong to two choices, or that the text before or after it retracts. Where `task.answer` names
    no choice, or may mean two, that is an error; so are more than 26 choices.
    """

    answer_in: AnswerIn = "answer"
    name: str = "choice"
    columns = ("choices",)

    def _score_one(self, episode: Episode) -> Score:
        choices = _choices(episode)
        if len(choices) > len(ascii_uppercase):
            raise RewardError(
                f"reward '{self.name}': task {episode.task.id!r} has {len(choices)} choices, and there are 26 letters"
            )
        right: object = episode.task.answer
        if isinstance(right, int) and not isinstance(right, bool):
            right = ascii_uppercase[right] if 0 <= right < (len(choices) or len(ascii_uppercase)) else None
        else:
            right = read_letter(right, choices) if isinstance(right, str) else None
        if right is None:
            raise RewardError(
                f"reward '{self.name}' needs a letter, an index or a choice's text as task.answer; task "
                f"{episode.task.id!r} has {episode.task.answer!r}"
            )
        answer = extract(episode.completion, self.answer_in)
        if answer is None:
            return Score(0.0, explanation=NOT_FOUND[self.answer_in], unparsed=True)
        letter = read_letter(answer, choices, question_of(episode.task))
        before, after = around(episode.completion, self.answer_in, answer)
        earlier = answered_before(before, self.answer_in)
        others = [*_DECLARED.findall(after), *([read_letter(earlier, choices)] if earlier else [])]
        if letter is None or taken_back(before, after, self.answer_in) or set(others) - {letter}:
            why = "not one letter" if letter is None else "what stands around it takes it back"
            return Score(0.0, answer, why, unparsed=True)
        return Score(float(letter == right), letter, "" if letter == right else f"expected {right}")


def read_letter(text: str, choices: Sequence[str] = (), question: str = "") -> str | None:
    """The letter that `text` gives as its answer, or None.

    Where the choices are not known, the text after a letter must be in the `question`.

    Example:
        >>> [read_letter(text) for text in ("(b)", "B) Paris", "I think the answer is **C**.", "A dog")]
        ['B', None, 'C', None]
        >>> read_letter("paris", ["London", "Paris"]), read_letter("B) Paris", question="London (A) or Paris (B)?")
        ('B', 'B')
    """
    plain = plain_characters(text) if len(text) <= MAX_CHARACTERS else None
    if plain is None:
        return None
    text = _COMMAND.sub(r"\1", " ".join(plain.split()))
    text = _COMMAND.sub(r"\1", text)  # a box around text
    lettered = list(zip(ascii_uppercase, choices, strict=False))
    same = [letter for letter, choice in lettered if " ".join(choice.split()) == text]
    spoiled = not same and _SPOILED_WHOLE.search(text) is not None
    same = same or [letter for letter, choice in lettered if _same(choice, text) and not spoiled]
    denied = spoiled or _DENIED_WHOLE.match(text) is not None
    by_text = same[0] if len(same) == 1 else None if denied else _by_text(text, choices)
    alone = _ALONE.fullmatch(text.strip(_MARKS))
    letter = alone[1].upper() if alone else None
    if by_text:  # a letter that is the text of another choice may mean either
        return None if letter and letter != by_text and letter in ascii_uppercase[: len(choices)] else by_text
    if denied or same:
        return None
    if alone:
        return None if _denied(text, text.index(alone[0]) + alone.start(1)) else letter
    letters = islice(_CAPITAL.finditer(text), 8)  # before the one that counts only the word "I" may stand
    return next((match[1] for match in letters if _gives(text, match, choices, question)), None)


def _denied(text: str, letter: int) -> bool:
    """Whether a sign at the letter at this place denies it."""
    quoted = text[:letter].rstrip("([{*_`$")[-1:] in ("'", "\u2018")
    spoiled = _SPOILED.match(text, letter + 1) is not None or (
        _PRIME.match(text, letter + 1) is not None and not quoted
    )
    return spoiled or _DENIED.search(text[:letter]) is not None


_DECLARED = re.compile(
    r"(?:\b(?i:(?:answer|option|choice)(?: is|:)|choose|pick|select)|^)[\s*_(\[,/;]*([A-Z])(?![\w'\u2019])(?! [a-z])"
)
_THE_ANSWER = re.compile(
    r"(?:(?:so|thus|therefore|hence),? )?(?:the |my )?(?:final |correct |right |best )?(?:answer|option|choice)"
    r"(?: is)?[ :*_]+",
    re.IGNORECASE,
)
_LETTER_BESIDE = re.compile(r"(?P<text>.+?)[ ,]+[(\[]?(?P<letter>[A-Z])[)\]]?")
_TEXT_BESIDE = re.compile(r"[(\[]?(?P<letter>[a-z])[)\].:] *(?P<text>.+)")


def _by_text(text: str, choices: Sequence[str]) -> str | None:
    """The letter of the choice whose text is given: after "the answer is", or next to its own letter."""
    text = _THE_ANSWER.sub("", _BEFORE_TEXT.sub("", text), count=1)
    letters = [letter for letter, choice in zip(ascii_uppercase, choices, strict=False) if _same(choice, text)]
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
        or _other_letters(before, letter[1])
        or (choices and ascii_uppercase.index(letter[1]) >= len(choices))
    ):
        return False
    shown = _BEFORE_TEXT.sub("", _DASH.sub("", after))
    if not shown.strip(_MARKS) or (_is_lead(after) and not _other_letters(after, letter[1])):
        return not _ASKS_AFTER.search(after)
    if choices and _same(choices[ascii_uppercase.index(letter[1])], shown):
        return True
    if _other_letters(after, letter[1]) or _TURNS.search(after):
        return False
    own = "".join(choices[ascii_uppercase.index(letter[1]) :][:1])
    if _BECAUSE.match(after) or (own.strip() and _repeats(shown, own, question)):
        others = [choice.strip() for choice, other in zip(choices, ascii_uppercase, strict=False) if other != letter[1]]
        return not any(re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", after, re.IGNORECASE) for choice in others)
    return not choices and _stands_beside(letter[1], shown.rstrip(_MARKS), " ".join(question.split()))


def _stands_beside(letter: str, text: str, question: str) -> bool:
    """Whether the question, whose choices are not known, has this text next to this letter and no other."""
    text, letters = rf"(?i:{re.escape(text)})", list(_LETTER_IN_QUESTION.finditer(question))
    if not re.search(r"\w", text.removeprefix("(?i:")) or not letters:
        return False
    if re.match(r"[*_ -]{0,3}\w", question[letters[-1].end() :]):  # (A) London (B) Paris
        beside = rf"(?<!\w)([A-Z])(?!\w)[)\]}}.:=*_ -]{{1,6}}{text}(?!\w)"
    else:  # London (A) or Paris (B)
        beside = rf"(?<!\w){text}[ *_]*[(\[]([A-Z])[)\]]"
    return set(re.findall(beside, question)) == {letter}


def _is_lead(text: str) -> bool:
    text = _FILLERS.sub(" ", text)
    words = [word.strip(_MARKS).casefold().replace("\u2019", "'") for word in text.split()]
    return all(word in _LEADS for word in words if word)


def _other_letters(text: str, letter: str) -> bool:
    """Whether `text` has another capital letter that stands alone, but for the word "I" and an article."""
    return any(match[1] != letter for match in _ANY_CAPITAL.finditer(_NO_LETTER.sub("", text)))


def _repeats(text: str, choice: str, question: str) -> bool:
    """Whether `text` is the choice and then no more than words of the question: "Paris is the capital of France"."""
    said = re.match(rf"{re.escape(' '.join(choice.split()))}(?![.,]?\w)", text, re.IGNORECASE)
    known = {*re.findall(r"\w+", question.casefold()), "is", "are", "was", "the", "a", "an", "of", "it"}
    return (
        said is not None
        and not (re.search(r"[^\w\s.,!*]", text[said.end() :]) or _ASKS_AFTER.search(text[said.end() :]))
        and set(re.findall(r"\w+", text[said.end() :].casefold())) <= known
    )


# Marks around the text of a choice, where a sign that is glued to it is none: -5, <5, .5, 5!
_BEFORE_TEXT = re.compile(r"^(?:[ *_`\"'\u201c\u201d,:;()\[\]{}$]|\.(?![0-9])|[->\u2013\u2014]+(?= ))+")
_AFTER_TEXT = re.compile(r"(?:[ *_`\"'\u201c\u201d.,:;()\[\]{}$<>\u2013\u2014-]|(?<![0-9)])!)+$")
_MARKS_AROUND = re.compile(f"{_BEFORE_TEXT.pattern}|{_AFTER_TEXT.pattern}")
_DASH = re.compile(r"^[)\]}*_`.:]*[-\u2013\u2014](?=[^\W\d_]{2})")  # B-Paris
_BRACKETS = re.compile(r"[(\[].*,.*[)\]]")  # of an interval or a point, where they say something


def _same(choice: str, text: str) -> bool:
    choice, text = (" ".join(part.split()).replace("\u2212", "-").lower() for part in (choice, text))
    if _BRACKETS.fullmatch(choice) and not text.rstrip(" .*_`\"'$").endswith(choice):
        return False
    return _MARKS_AROUND.sub("", choice) == _MARKS_AROUND.sub("", text)


def _choices(episode: Episode) -> list[str]:
    """The choices that the metadata has, or else those that the question lists from A on."""
    if given := cast("Sequence[Any]", episode.task.metadata.get("choices", ())):
        return [str(choice) for choice in given]
    listed = _LISTED.findall(question_of(episode.task))
    letters = "".join(letter for letter, _ in listed)
    return [text for _, text in listed] if len(letters) > 1 and ascii_uppercase.startswith(letters) else []


_LISTED = re.compile(r"(?m)^[ \t*]*\(?([A-Z])[).:][ \t*]+(\S[^\n]*?)[ \t]*$")
