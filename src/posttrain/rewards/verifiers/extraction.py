r"""Answer extraction, shared by all verifiers, so that `unparsed` means the same everywhere; and what stands around it.

Answers are extracted outside the reasoning: text before the last `</think>` is ignored, and a
completion with an unclosed `<think>` has no answer. Of several answers the last one counts.
"""

import re
from typing import Literal

from posttrain.types import Task

INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"
_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069]")  # displayed order differs from text order
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}

AnswerIn = Literal["after_think", "answer", "boxed", "hashes", "outside_think", "text"]
r"""Where the answer is looked for:

- `after_think`: everything after the last `</think>`
- `answer`: inside the last `<answer>...</answer>`
- `boxed`: inside the last `\boxed{...}`, braces balanced; of boxes inside one another, the outer one; see `braced`
- `hashes`: after the last `####`, to the end of that line
- `outside_think`: everything after the last `</think>`, or the whole completion if it does not think
- `text`: the whole completion, reasoning included
"""

NOT_FOUND: dict[AnswerIn, str] = {
    "after_think": "nothing after </think>",
    "answer": "no <answer>...</answer> outside the reasoning",
    "boxed": r"no \boxed{...} outside the reasoning",
    "hashes": "no #### outside the reasoning",
    "outside_think": "nothing outside the reasoning",
    "text": "the completion is empty",
}
"""Why `extract` gives None."""


def extract(completion: str, answer_in: AnswerIn) -> str | None:
    r"""The answer's text, stripped; None if there is none or it is empty.

    Example:
        >>> extract(r"So \boxed{\frac{1}{2}}.", "boxed")
        '\\frac{1}{2}'
        >>> extract("48/2 = 24\n#### 24", "hashes")
        '24'
        >>> extract("<think>still thinking about <answer>7</answer>", "answer") is None
        True
    """
    if answer_in == "text":
        return completion.strip() or None
    if answer_in == "after_think":
        _, closed, after = completion.rpartition("</think>")
        return (after.strip() or None) if closed else None
    outside = outside_reasoning(completion)
    if answer_in == "outside_think":
        found = outside
    elif answer_in == "answer":
        end = outside.rfind("</answer>")
        start = outside.rfind("<answer>", 0, max(end, 0))
        found = outside[start + len("<answer>") : end] if start >= 0 else None
    elif answer_in == "boxed":
        text = braced(outside)
        box = text[slice(*last_box(text) or (0, 0))]
        found = box[box.index("{") + 1 : -1] if box else None
    else:
        _, hashes, after = outside.rpartition("####")
        found = after.split("\n", 1)[0] if hashes else None
    return (found.strip() or None) if found is not None else None


def outside_reasoning(completion: str) -> str:
    """The completion without its reasoning: the text after the last `</think>`; empty if `<think>` is not closed."""
    rest = completion.rpartition("</think>")[2]
    return rest.partition("<think>")[0]


def reasoning(completion: str) -> str:
    """The text before the last `</think>`, without the tags; the whole completion if it has no such tags."""
    before, closed, _ = completion.rpartition("</think>")
    thought = before if closed else completion
    return thought.replace("<think>", " ").replace("</think>", " ").strip()


_BARE = re.compile(
    r"(\\{1,3}(?:boxed|fbox))\s*(?:(?=\{)|([0-9]|(?<=\s)[A-Za-z])(?![ \t]*[\w^{]|[.,][0-9])"
    r"|(?=[-+.]?[0-9]|\\[A-Za-z]|[A-Za-z][0-9^_]))"
)


def braced(text: str) -> str:
    r"""`text` with boxes as TeX reads them: `\boxed {5}` and `\boxed 5` are `\boxed{5}`.

    Of `\boxed 57` TeX boxes the 5, and its author means 57: that box is empty here, and so are those of `\boxed -5`,
    `\boxed x^2` and `\boxed \frac{1}{2}`. A word behind `\boxed` is prose about it.
    """
    return _BARE.sub(lambda m: m[1] if text.startswith("{", m.end()) else f"{m[1]}{{{m[2] or ''}}}", text)


_BRACE = re.compile(r"(?P<box>\\{1,3}(?:boxed|fbox)\{)|\\.|(?P<brace>[{}])", re.DOTALL)


def last_box(text: str) -> tuple[int, int] | None:
    r"""Where the last `\boxed{...}`, or the one around it, begins and ends; None if it is never closed."""
    last, opened, closed = -1, list[int](), list[tuple[int, int]]()
    for match in _BRACE.finditer(text):
        if match["box"]:
            last = match.start()
            opened.append(last)
        elif match["brace"] == "{":
            opened.append(-1)
        elif match["brace"] == "}" and opened:
            start = opened.pop()
            if start >= 0:
                closed.append((start, match.end()))
    if last < 0 or all(start != last for start, _ in closed):
        return None
    return min(span for span in closed if span[1] > last)


def question_of(task: Task) -> str:
    """What the user says in a task's prompt."""
    return "\n".join(message.content for message in task.prompt if message.role == "user")


def plain_characters(text: str) -> str | None:
    """With full-width forms as ASCII, no invisible characters at the ends; None where one changes the direction."""
    if _DIRECTION.search(text):
        return None
    return text.translate(_FULL_WIDTH).strip(INVISIBLE + " \t\r\n")


def words(text: str) -> frozenset[str]:
    """The words of a text, as a set."""
    return frozenset(text.split())


MAX_CHARACTERS = 2000  # on either side that are read
_STARTS: dict[AnswerIn, str] = {"hashes": "####", "answer": "</answer>", "boxed": ""}  # a box is found by its content

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
_HIDES = re.compile(
    r"(?P<on><(?:s|del|strike)>|<!--|\\iffalse\b|\\begin\{comment\})|</(?:s|del|strike)>|-->|\\fi\b|\\end\{comment\}"
)
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
    """The text outside the reasoning before and after the answer that `extract` found.

    A new task that a model makes up after its answer is not looked at.
    """
    if answer_in not in _STARTS:
        return "", ""
    completion = braced(completion) if answer_in == "boxed" else completion
    said = completion.rpartition("</think>")[2]
    place = outside_reasoning(completion).rfind(_STARTS[answer_in] or answer)
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
    return extract(before.rpartition("\n")[2], answer_in) if before and answer_in in _STARTS else None


def taken_back(before: str, after: str, answer_in: AnswerIn = "text") -> bool:
    """Whether the text around an answer negates, hides, retracts or continues it."""
    if answer_in == "boxed" and (_PART_BEFORE.search(before) or _PART_AFTER.match(after)):
        return True
    words = [word.strip("*_\"'(`:,$\\[") for word in before.casefold().split()[-8:]]
    while words and (not words[-1] or words[-1] in _ANNOUNCE):
        words.pop()
    if (words and _DENIES.fullmatch(words[-1])) or _CONDITION.search(before):
        return True
    goes_on = _GOES_ON.match(after) is not None or "<think>" in after or "<answer>" in after
    struck = hidden(before.replace("<s>", ""))  # which begins a text, too
    return struck or goes_on or _RETRACTS.search(after) is not None


def hidden(before: str) -> bool:
    """Whether what follows a text is struck out or in a comment."""
    marks = list(_HIDES.finditer(before))
    return before.rpartition("\n\n")[2].count("~~") % 2 == 1 or bool(marks and marks[-1]["on"])
