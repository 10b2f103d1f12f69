"""Context of an answer: text before and after it that retracts it."""

import re

from posttrain.rewards.verifiers.characters import words
from posttrain.rewards.verifiers.extraction import AnswerIn, braced, extract, outside_reasoning

MAX_CHARACTERS = 2000  # on either side that are read
_MARKS: dict[AnswerIn, str] = {"hashes": "####", "answer": "</answer>", "boxed": ""}  # a box is found by its content

# Words that only announce an answer: the word before them says whether it is one.
_ANNOUNCE = words(
    """
    a an the my our it that this so is are was be would will must answer result total value number option choice final
    correct right best =
    """
)
_DENIES = re.compile(
    r"not|no|never|neither|nor|or|cannot|\w+n['\u2019]t|except|about|approximately|around|roughly|nearly|almost|than|least"
    r"|most|maybe|perhaps|possibly|probably|might|may|could|wrong|incorrect|false|if|unless|half|twice|double|minus"
    r"|says|said|claims|claimed|thinks|believes|told|wrote|answered|doubt|doubts|example|format|e\.g\."
)
_CONDITION = re.compile(r"(?:^|[.!?\n])[ *_]*(?:if|unless|suppose|supposing|assuming)\b[^.!?\n0-9]*$", re.IGNORECASE)
_HIDES = (("<!--", "-->"), ("<del>", "</del>"), ("<strike>", "</strike>"), ("~~", "~~"))
_RETRACTS = re.compile(
    r"\b(?:wait|actually|wrong|incorrect\w*|correction|mistak\w+|error|sorry|oops|instead|(?:not|un)[ -]?sure|no idea"
    r"|(?:is|was) (?:that|this|it) (?:right|correct|okay)|guess\w*|kidding|jok(?:e|ing)|second thoughts?|scratch that"
    r"|disregard|nope|never ?mind|hmm|lol"
    r"|(?:not|n['\u2019]t|never) (?:be )?(?:right|correct|true|it|the (?:final |right |correct )?answer))\b",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"[\s(*_\"'\[,;:/]*(?:\?|(?:or|and|but|not|no|maybe|perhaps|if|unless|minus|plus|times|hundred|thousand|million|billion"
    r"|dozen|percent|squared|cubed)\b)"
)
# What makes a box a part of a formula: 2 before it, \ne before it, ^2 after it.
_PART_BEFORE = re.compile(
    r"(?:[-+/^<>~!0-9{\u2248\u2260\u2264\u2265\u221a]|\\(?:neq?|not|approx|sim|simeq|lt|gt|leq?|geq?|pm|sqrt|neg))\s*$"
)
_PART_AFTER = re.compile(r" *(?:[\^_!%/'+<>\u00b2\u00b3]|-\s*[0-9]|\\?(?:times|cdot|pm|neq?)\b)")
_NEXT_TASK = re.compile(
    r"\n[^\w\n]{0,9}(?:question|problem|exercise|example|task|instruction|input|user|human|q)[^\w\n:]{0,3}[0-9]{0,4}"
    r"[^\w\n:]{0,9}:",
    re.IGNORECASE,
)


def around(completion: str, answer_in: AnswerIn, answer: str) -> tuple[str, str]:
    r"""The text outside the reasoning before and after the answer that `extract` found.

    A new task that a model makes up after its answer is not looked at.

    Example:
        >>> around("It is\n#### 42\nThe end", "hashes", "42"), around("So <answer>B</answer>.", "answer", "B")
        (('It is\n', '\nThe end'), ('So ', '.'))
    """
    if answer_in not in _MARKS:
        return "", ""
    completion = braced(completion) if answer_in == "boxed" else completion
    said = completion.rpartition("</think>")[2]
    place = outside_reasoning(completion).rfind(_MARKS[answer_in] or answer)
    if answer_in == "answer":
        place = said.rfind("<answer>", 0, place)
    end = said.find(answer, place) + len(answer)
    before = said[max(place - MAX_CHARACTERS, 0) : max(place, 0)]
    if answer_in == "boxed":
        before = re.sub(r"\\{1,3}(?:boxed|fbox)\{\s*$", "", before)
    after = re.sub(r"^\s*(?:</answer>|[}$\\)\]]+)", "", said[end : end + MAX_CHARACTERS])
    return before, _NEXT_TASK.split(after, maxsplit=1)[0]


def answered_before(before: str, answer_in: AnswerIn) -> str | None:
    """An earlier answer in the same line: of two in a line neither counts."""
    return extract(before.rpartition("\n")[2], answer_in) if before and answer_in in _MARKS else None


def taken_back(before: str, after: str, answer_in: AnswerIn = "text") -> bool:
    """Whether the text around an answer negates, hides, retracts or continues it.

    Example:
        >>> taken_back("It is not ", ""), taken_back("It is not 41. So ", ""), taken_back("", "Wait, no.")
        (True, False, True)
        >>> taken_back("", "or 43"), taken_back("", "The others are not sold.")
        (True, False)
    """
    if answer_in == "boxed" and (_PART_BEFORE.search(before) or _PART_AFTER.match(after)):
        return True
    words = [word.strip("*_\"'(`:,$\\[") for word in before.casefold().split()[-8:]]
    while words and (not words[-1] or words[-1] in _ANNOUNCE):
        words.pop()
    if (words and _DENIES.fullmatch(words[-1])) or _CONDITION.search(before):
        return True
    hidden = any(before.rpartition(start)[1] and end not in before.rpartition(start)[2] for start, end in _HIDES[:-1])
    hidden = hidden or before.count(_HIDES[-1][0]) % 2 == 1
    goes_on = _GOES_ON.match(after) is not None or "<think>" in after or "<answer>" in after
    return hidden or goes_on or _RETRACTS.search(after) is not None
