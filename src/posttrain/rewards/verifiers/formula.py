r"""Content of a formula other than its value; checked beside computer algebra.

math-verify parses `41 = 42`, `\neq 42`, `42_8` and `42 \text{ million}` as 42: it drops unknown parts. So an
answer with parts that the right answer does not explain earns nothing, whatever its parsed value.
"""

import re
from collections import Counter

from posttrain.rewards.verifiers.extraction import braced, last_box, words
from posttrain.rewards.verifiers.units import CAPITALS, ONE_LETTER, UNITS, is_word_of_unit, other_scale, stem

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z*]+\}(?:\s*\{[lcr| ]+\})?")
_WORD = re.compile(r"[^\W\d_]{2,}(?:['\u2019][^\W\d_]+)?")
_WORD_OF_TEXT = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_KNOWN_COMMANDS = {" "} | words(
    r"""
    frac dfrac tfrac cfrac sqrt cdot times div left right big Big bigl bigr displaystyle pi infty cup cap pm mp setminus
    emptyset varnothing mathbb sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp binom dbinom
    tbinom circ degree alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi varphi omega psi boxed quad
    qquad % $ , ; : ! { } \ overline lfloor rfloor lceil rceil langle rangle vec mathbf lvert rvert over in to
    """
)
_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln", "exp"))
_RELATION = re.compile(
    r"\\(?:neq?|not|approx|sim|simeq|cong|equiv|leq?|geq?|leqslant|geqslant|lt|gt|ll|gg|in|notin|propto|to|implies)(?![A-Za-z])"
    r"|[=<>≠≈≤≥~]|\\iff"
)
_SAME_RELATION = {
    **{r"\gt": "<", r"\lt": "<", ">": "<"},
    **dict.fromkeys((r"\le", r"\leq", r"\leqslant", r"\ge", r"\geq", r"\geqslant", "\u2264", "\u2265"), r"\leq"),
}  # computer algebra tells x > 3 from 3 > x
_LEAD = re.compile(
    r"^\s*\\(?:text|textbf|mathrm)\s*\{\s*(?:the )?(?:final |correct )?answer(?: is)?:?\s*\}", re.IGNORECASE
)
_SEPARATOR = re.compile(r"[,;]|\\(?:lor|vee|land|wedge)(?![A-Za-z])|\b(?:or|and)\b")
_STRAY = re.compile(
    r"[?@#\u2026\u00ac]|\.\.|\\[cl]?dots|(?<!\\):|['\u2019\u2032]|//|\^\s*(?:\{\s*\}|$)|(?<=[0-9}])\^\s*\{?\s*e(?![A-Za-z])"
    r"|(?<![A-Za-z])[A-Za-z]\.(?![0-9])|(?<=[0-9])\.\s+(?=[0-9])"
)
_DANGLING = re.compile(r"[-+*/^&|]\s*$|^\s*[*/^&]|^\s*-\s*[-+]|^\s*\+\s*[-+]|\\text\s*\{\s*(?:and|or)\s*\}\s*$")
_SIGNS = frozenset(
    "\u03c0\u221e\u00b0\u20ac\u00a3\u00d7\u00b7\u221a\u2264\u2265\u00bc\u00bd\u00be\u00a0\u2009\u202f\u03b1\u03b2\u03b8"
)
_SUPERSCRIPT = re.compile(r"\^\s*\{?\s*(?:[*\[]|\\(?:text|mathrm|prime|dagger|ast|top)|([A-Z]|c(?![a-z])))")
_OF_SETS = re.compile(r"\\(?:cup|cap|setminus|langle|oplus)")
_THOUSANDS = re.compile(r"(?<![0-9])[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3})+(?![0-9])")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_LETTER_OF_UNIT = re.compile(r"([0-9](?:\\[ ,;]|[ ~])*)[smghlL][ .]*$")
_CONSTANTS = frozenset("ei")
_LOOPS = re.compile(r"\\(?:sum|prod|int|iint|oint|lim|bigcup|bigcap)(?![A-Za-z])")
_SUBSCRIPT = re.compile(r"[0-9]\s*_")
_MARK_OF_TEXT = re.compile(r"[^\w\s.,:;~\u00b0]")
_UNIT_OF_TEXT = re.compile(r"[^\W\d_]+(?:\s*[/\u00b7]\s*[^\W\d_]+|\s*\^?[23\u00b2\u00b3]|\s*\^\{?-?[123]\}?)*")
_NEEDS_MORE = re.compile(
    r"\\(?:times|cdot|div|pm|mp|cup|cap|setminus|over|in|to|[dtc]?frac|sqrt|[dt]?binom|(?:arc)?(?:sin|cos|tan)h?|cot|sec"
    r"|csc|log|ln|exp|vec|overline|mathb[bf]|boxed)(?![A-Za-z])\s*(?:\{\s*\}\s*)*(?=$|[,;)\]}]|\\[\]})])"
    r"|[\u00b7\u00d7\u221a]\s*$|(?<=[0-9}])\s*(?:\u221e|\\infty|\\emptyset|\\varnothing|\\mathbb)"
)
_DEGREE = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree\b|\bdegrees?\b|\u00b0|\\?%")
_PAIRS = ((r"\left", r"\right"), *((rf"\l{name}", rf"\r{name}") for name in ("floor", "ceil", "angle", "vert")))
_INSIDE = re.compile(r"\"|[\x00-\x08\x0e-\x1f]|\^\s*\{?\s*[-+]\s*(?:\}|$)|[})]\s*_")
_LABEL = re.compile(
    r"^\s*(?:(?:[A-Za-z](?:_?\{?[0-9A-Za-z]\}?)?(?:\([A-Za-z0-9]\))?|\([a-z](?:, ?[a-z])*\)"
    r"|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|omega|sigma|rho|tau))\s*=(?!=)|[A-Za-z]\s*\\in(?![a-z]))"
)
_IGNORED = re.compile(r"\\(?:text|mathrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_JOINT = re.compile(r"[,;]|\\text\s*\{\s*(?:and|or)\s*\}|\\(?:land|lor|wedge|vee)(?![A-Za-z])")
_ASSIGNED = re.compile(r"\s*([A-Za-z])(?:_\{?[0-9A-Za-z]\}?)?\s*=")
_NARROWS = re.compile(
    r"\\sqrt|\\l?vert|\||\\(?:log|ln|tan|arc[a-z]+)(?![a-z])|\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*[a-z][^{}]*\}"
)


def unexplained(answer: str, gold: str, question: str = "") -> str | None:
    r"""What in `answer` the right answer `gold` does not explain; None where there is nothing.

    Words that end the answer may be of the `question`, as units are.

    Example:
        >>> unexplained("41 = 42", "42"), unexplained("x = 42", "42")
        ("a relation: '='", None)
        >>> unexplained(r"42 \text{ million}", "42"), unexplained(r"42 \text{ cm}", "42")
        ("words: 'million'", None)
    """
    if ".." in answer and ".." not in gold:
        return "a sign: '..'"
    if re.search(r"[0-9]\s*\\\$\s*[0-9]", answer):
        return "a currency sign in a number"
    answer, gold = _bare(_LEAD.sub("", _bare(answer))), _bare(gold)
    if sign := _stray(answer, gold):
        return f"a sign: {sign!r}"
    if "$" in answer or r"\boxed" in answer:
        return "several formulas"
    told = ",".join(
        _LABEL.sub("", part) for part in re.split(r",(?![^(]*\)\s*=)|\\text\s*\{\s*(?:and|or)\s*\}", answer)
    )
    if label := _label_of_others(answer, gold):
        return f"a label of other letters: {label!r}"
    if "=" in gold and "=" in answer:  # \sqrt{y} = \sqrt{x} is not y = x
        for match in _NARROWS.finditer(answer):
            if match[0] not in gold:
                return f"another domain: {match[0]!r}"
    relations, explained = ([_SAME_RELATION.get(one, one) for one in _RELATION.findall(text)] for text in (told, gold))
    if extra := Counter(relations) - Counter(explained):
        return f"a relation: {next(iter(extra))!r}"
    if word := _unexplained_word(answer, gold, question):
        return f"words: {word!r}"
    formula = _ENVIRONMENT.sub(" ", _TEXT.sub(" ", answer))
    if letter := _surplus_letter(_ENVIRONMENT.sub(" ", _TEXT.sub(" ", told)), gold):
        return f"a letter: {letter!r}"
    around, right = _brackets(answer), _brackets(gold)
    if _answers(answer) > max(_answers(gold), gold.count(",") + 1 if right == "{" and not around else 0):
        return "several answers"  # more than those of the right one, or than the elements of a set
    if around and right and around != right:
        return "other brackets"
    if ("," in _THOUSANDS.sub("0", answer)) and not ("," in gold or _RELATION.search(gold) or r"\pm" in gold):
        return "several answers"
    for command in _COMMAND.findall(formula):
        if command not in _KNOWN_COMMANDS and "\\" + command not in gold and not _RELATION.match("\\" + command):
            return f"a command: '\\{command}'"
    if answer.count("%") > max(1, gold.count("%")):
        return "several percent signs"
    return None


def _is_of_number(answer: str, gold: str) -> bool:
    """Whether signs of a unit may stand in `answer`: where the right one is numbers, and at their ends."""
    if re.search(r"[A-Za-z(\[\u03c0]", re.sub(r"\\(?:[dtc]?frac|text|left|right|[{},;!])", "", gold)):
        return False
    return all(
        re.match(r"[\s.}$)]*(?:Celsius|Fahrenheit|C|F|\\%|\\?[,;]|\\text|$)", answer[m.end() :])
        for m in _DEGREE.finditer(answer)
    )


def _label_of_others(answer: str, gold: str) -> str | None:
    """A label that does not name what follows: `x = x+1`, `f(y) = x+1`, `(y,x) = (2,3)`, `x=1, y=2` for a set."""
    label = _LABEL.match(answer)
    if label is None or "=" in gold or r"\in" in label[0]:
        return None
    rest = answer[label.end() :]
    names, letters = (_LETTER.findall(_IGNORED.sub(" ", text)) for text in (label[0], rest))
    assigned = [match[1] for part in _JOINT.split(answer) if (match := _ASSIGNED.match(part))]
    if "=" in rest:
        several = len(set(assigned)) > 1 and gold.lstrip().startswith((r"\{", r"\left\{"))
        return ", ".join(assigned) if several or assigned != sorted(assigned) else None
    if "," in label[0]:
        return label[0].strip() if names != sorted(names) else None
    letters = set(letters) - _CONSTANTS
    if names[:1] and names[0] in letters and "(" not in label[0] and names[0] not in "smghlL":
        return label[0].strip()
    return label[0].strip() if "(" in label[0] and letters and names[1:] and not letters & set(names[1:]) else None


def _stray(answer: str, gold: str) -> str | None:
    """A sign that algebra passes over, and that the right answer does not have."""
    for pattern in (_STRAY, _NEEDS_MORE, _INSIDE, _OF_SETS):
        for match in pattern.finditer(answer):
            if match[0] not in gold:
                return match[0]
    for pattern in (_DANGLING, _LOOPS, _SUBSCRIPT):
        if (match := pattern.search(answer)) and not pattern.search(gold):
            return match[0]
    for text in _TEXT.findall(answer):
        text = re.sub(r"\(([^()]+)\)", r"\1", text.strip())
        if (mark := _MARK_OF_TEXT.search(text)) and mark[0] not in gold and not _UNIT_OF_TEXT.fullmatch(text):
            return mark[0]
    for opens, closes in _PAIRS:
        if answer.count(opens) != answer.count(closes) and gold.count(opens) == gold.count(closes):
            return opens
    if (unit := _DEGREE.search(answer)) and not _DEGREE.search(gold) and not _is_of_number(answer, gold):
        return unit[0]
    plain = answer.replace(r"\{", "").replace(r"\}", "")
    brackets = [sum(map(plain.count, marks)) for marks in ("([", ")]", "|")]
    if (brackets[0] != brackets[1] or brackets[2] % 2) and r"\left" not in plain and "|" not in gold:
        return "a bracket alone"
    for character in answer:
        if not character.isascii() and character not in _SIGNS and character not in gold:
            return character
    if not _ENVIRONMENT.search(answer) and (line := re.search(r"\n|\\\\|&", answer)) and line[0] not in gold:
        return line[0]
    for power in _SUPERSCRIPT.finditer(answer):
        if power[0] not in gold and not (power[1] and power[1] in re.findall(r"(?<!\\)\b[a-zA-Z]\b", gold)):
            return power[0]
    return None


def _unexplained_word(answer: str, gold: str, question: str) -> str | None:
    """A word of the answer that is no unit, and that neither the right answer nor the end of a question has."""
    texts = " ".join(_TEXT.findall(answer))
    formula = _ENVIRONMENT.sub(" ", _TEXT.sub(" ", answer))
    told = {word.casefold() for word in re.findall(r"[^\W\d_]+", gold)}
    known = {stem(word) for word in re.findall(r"[^\W\d_]{3,}", question.casefold())}
    last = re.search(r"[0-9}]\s*(?:\\[ ,;])?\s*\\(?:text|mathrm)\s*\{([^{}]*)\}[\s.]*$", answer)
    unit = set(re.findall(r"[^\W\d_]+", last[1].casefold())) if last and len(last[1].split()) < 4 else set[str]()
    if number := re.search(r"[0-9][^ ]*", re.sub(r"\b(?:k|c|m)?m[23]\b", "", texts)):
        return None if number[0] in " ".join(_TEXT.findall(gold)) else number[0]
    for word in _WORD_OF_TEXT.findall(texts) + _WORD.findall(_COMMAND.sub(" ", formula)):
        said = word.casefold()
        if said in _FUNCTIONS or said in told | {"per", "and", "or"}:
            continue
        if len(word) == 1 and word not in ONE_LETTER and len(unit) < 2:
            return word
        if word in CAPITALS or not (said in UNITS or (said in unit and is_word_of_unit(said, known))):
            return word
    return next(iter(unit), None) if other_scale(unit, f"{question} {gold}") else None


def _surplus_letter(formula: str, gold: str) -> str | None:
    """A letter that the right answer has not: algebra drops "+ c", "d" and "t" after a number. A unit may be one."""
    if not _LETTER.search(_COMMAND.sub(" ", gold)):
        formula = _LETTER_OF_UNIT.sub(r"\1", formula)
    formula = _COMMAND.sub(" ", re.sub(r"\\mathbb\s*\{[A-Z]\}", " ", formula))
    return next(
        (letter for letter in _LETTER.findall(formula) if letter not in gold and letter not in _CONSTANTS), None
    )


def _brackets(text: str) -> str:
    """Which brackets enclose all of a list: "(" or "{"; "" where none do, or an interval's."""
    text = text.replace(r"\left", "").replace(r"\right", "").replace(r"\{", "\ue000").replace(r"\}", "\ue001").strip()
    if len(text) < 2 or "," not in text or any(text[1:-1].count(mark) for mark in "()\ue000\ue001"):
        return ""
    return {"()": "(", "\ue000\ue001": "{"}.get(text[0] + text[-1], "")


def _bare(text: str) -> str:
    """Without what encloses all of it, and without a currency sign."""
    text = text.replace(r"\$", " ").replace("{~", "{").replace(r"~\text", r" \text").strip().removesuffix(".").strip()
    for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end):
            return _bare(text[len(start) : -len(end)])
    text = braced(text)
    return _bare(text[text.index("{") + 1 : -1]) if last_box(text) == (0, len(text)) else text


def _answers(text: str) -> int:
    """Number of answers in a row; commas inside brackets belong to one, and two signs make two."""
    text = re.sub(r"\\[,;:! ]|\{,\}", " ", text)
    text = _THOUSANDS.sub("0", text)
    signs = len(re.findall(r"\\pm|\\mp|\u00b1", text))
    while (inner := re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", " ", text)) != text:
        text = inner
    return (1 + len(_SEPARATOR.findall(text))) * 2**signs
