r"""Answer extraction, shared by all verifiers, so that `unparsed` means the same everywhere.

Answers are extracted outside the reasoning: text before the last `</think>` is ignored, and a
completion with an unclosed `<think>` has no answer. Of several answers the last one counts.
"""

import re
from typing import Literal, get_args

AnswerIn = Literal["after_think", "answer", "boxed", "hashes", "outside_think", "text"]
r"""Where the answer is looked for:

- `after_think`: everything after the last `</think>`
- `answer`: inside the last `<answer>...</answer>`
- `boxed`: inside the last `\boxed{...}`, braces balanced; of boxes inside one another, the outer one; see `braced`
- `hashes`: after the last `####`, to the end of that line
- `outside_think`: everything after the last `</think>`, or the whole completion if it does not think
- `text`: the whole completion, reasoning included
"""

ANSWER_IN: tuple[AnswerIn, ...] = get_args(AnswerIn)

_NOT_FOUND: dict[AnswerIn, str] = {
    "after_think": "nothing after </think>",
    "answer": "no <answer>...</answer> outside the reasoning",
    "boxed": r"no \boxed{...} outside the reasoning",
    "hashes": "no #### outside the reasoning",
    "outside_think": "nothing outside the reasoning",
    "text": "the completion is empty",
}


def extract(completion: str, answer_in: AnswerIn) -> str | None:
    r"""The answer's text, stripped; None if there is none or it is empty.

    Example:
        >>> extract("<think>1 or 2? <answer>1</answer></think> <answer> 2 </answer>", "answer")
        '2'
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
        found = _last_tagged(outside)
    elif answer_in == "boxed":
        found = _last_boxed(braced(outside))
    else:
        _, hashes, after = outside.rpartition("####")
        found = after.split("\n", 1)[0] if hashes else None
    return (found.strip() or None) if found is not None else None


def not_found(answer_in: AnswerIn) -> str:
    """Why `extract` gave None, for a score's explanation."""
    return _NOT_FOUND[answer_in]


def outside_reasoning(completion: str) -> str:
    """The completion without its reasoning: the text after the last `</think>`; empty if `<think>` is not closed."""
    rest = completion.rpartition("</think>")[2]
    return rest.partition("<think>")[0]


def reasoning(completion: str) -> str:
    """The text before the last `</think>`, without the tags; the whole completion if it has no such tags."""
    before, closed, _ = completion.rpartition("</think>")
    thought = before if closed else completion
    return thought.replace("<think>", " ").replace("</think>", " ").strip()


def _last_tagged(text: str) -> str | None:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    return text[start + len("<answer>") : end] if start >= 0 else None


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


def _last_boxed(text: str) -> str | None:
    r"""The content of that box. `\{` is text."""
    if (span := last_box(text)) is None:
        return None
    box = text[slice(*span)]
    return box[box.index("{") + 1 : -1]
