"""Left-hand sides of answers, such as `x =` or `f(x) =`, and domains of equations."""

import re

LABEL = re.compile(
    r"^\s*(?:(?:[A-Za-z](?:_?\{?[0-9A-Za-z]\}?)?(?:\([A-Za-z0-9]\))?|\([a-z](?:, ?[a-z])*\)"
    r"|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|sigma|rho|tau))\s*=(?!=)|[A-Za-z]\s*\\in(?![a-z]))"
)
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_IGNORED = re.compile(r"\\(?:text|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_JOINT = re.compile(r"[,;]|\\text\s*\{\s*(?:and|or)\s*\}|\\(?:land|lor|wedge|vee)(?![A-Za-z])")
_ASSIGNED = re.compile(r"\s*([A-Za-z])(?:_\{?[0-9A-Za-z]\}?)?\s*=")
_NARROWS = re.compile(
    r"\\sqrt|\\l?vert|\||\\(?:log|ln|tan|arc[a-z]+)(?![a-z])|\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*[a-z][^{}]*\}"
)


def label_of_others(answer: str, gold: str) -> str | None:
    """A label that does not name what follows: `x = x+1`, `f(y) = x+1`, `(y,x) = (2,3)`, `x=1, y=2` for a set.

    Example:
        >>> label_of_others("f(x) = x+1", "x+1"), label_of_others("x = x+1", "x+1")
        (None, 'x =')
    """
    label = LABEL.match(answer)
    if label is None or "=" in gold or r"\in" in label[0]:
        return None
    names, rest = _letters(label[0]), answer[label.end() :]
    assigned = [match[1] for part in _JOINT.split(answer) if (match := _ASSIGNED.match(part))]
    if "=" in rest:
        several = len(set(assigned)) > 1 and gold.lstrip().startswith((r"\{", r"\left\{"))
        return ", ".join(assigned) if several or assigned != sorted(assigned) else None
    if "," in label[0]:
        return label[0].strip() if names != sorted(names) else None
    letters = set(_letters(rest)) - {"e", "i"}
    if names[:1] and names[0] in letters and "(" not in label[0] and names[0] not in "smghlL":
        return label[0].strip()
    return label[0].strip() if "(" in label[0] and letters and names[1:] and not letters & set(names[1:]) else None


def narrower(answer: str, gold: str) -> str | None:
    r"""What an equation is not defined for everywhere: `\sqrt{y} = \sqrt{x}` is not `y = x`."""
    if "=" not in gold or "=" not in answer:
        return None
    return next((match[0] for match in _NARROWS.finditer(answer) if match[0] not in gold), None)


def _letters(text: str) -> list[str]:
    return _LETTER.findall(_IGNORED.sub(" ", text))
