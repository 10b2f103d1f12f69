r"""What a formula says beside its value, and how much work it asks for; read before it is given to computer algebra.

math-verify reads `41 = 42`, `\neq 42`, `42_8` and `42 \text{ million}` as 42: it drops what it does not know. So an
answer whose parts the right answer does not explain is not paid, whatever value is found in it.
"""

import re
from collections.abc import Iterable

from posttrain.rewards.verifiers.units import UNITS

MAX_CHARACTERS = 1000
MAX_DIGITS = 50  # of one number; more are refused, unless the answer is that number and nothing else
MAX_EXPONENT = 9999
MAX_DEPTH = 30

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-zA-Z*]+\}")
_WORD = re.compile(r"[^\W\d_]{2,}(?:['\u2019][^\W\d_]+)?")
_KNOWN_COMMANDS = frozenset(
    (
        *("frac", "dfrac", "tfrac", "cfrac", "sqrt", "cdot", "times", "div", "left", "right", "big", "Big", "bigl"),
        *(
            "bigr",
            "displaystyle",
            "pi",
            "infty",
            "cup",
            "cap",
            "pm",
            "mp",
            "setminus",
            "emptyset",
            "varnothing",
            "mathbb",
        ),
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln"),
        *("exp", "binom", "dbinom", "tbinom", "circ", "degree", "alpha", "beta", "gamma", "delta", "epsilon", "theta"),
        *("lambda", "mu", "nu", "rho", "sigma", "tau", "phi", "varphi", "omega", "psi", "boxed", "quad", "qquad", "%"),
        *("$", ",", ";", ":", "!", " ", "{", "}", "\\", "overline", "lfloor", "rfloor", "lceil", "rceil", "langle"),
        *("rangle", "vec", "mathbf", "lvert", "rvert", "prime", "bmod", "pmod", "mod", "in", "to", "colon", "mid"),
    )
)
_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "log", "ln", "exp"))
_RELATION = re.compile(
    r"\\(?:neq?|not|approx|sim|simeq|cong|equiv|leq?|geq?|leqslant|geqslant|lt|gt|ll|gg|in|notin|propto|to|implies)\b"
    r"|[=<>≠≈≤≥~]|\\iff"
)
_LABEL = re.compile(r"^\s*(?:[A-Za-z](?:_?\{?[0-9A-Za-z]\}?)?(?:\([A-Za-z]\))?|\\[a-z]+)\s*=(?!=)")
_SEPARATOR = re.compile(r"[,;]|\\(?:lor|vee|land|wedge)\b|\b(?:or|and)\b")
_POWER = re.compile(r"\^\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_TOWER = re.compile(
    r"[0-9)}]\s*\^\s*\{?[^{}^]{0,20}[0-9)}]\s*\^|[0-9)}\]]\s*\*\*[^*]{0,20}[0-9)}\]]\s*(?:\*\*|\^)|\^\s*\{?\s*[-+]?[0-9.(]+\s*!"
)
_FACTORIAL = re.compile(r"(?:[0-9]{4,}|[)}\]!])\s*!")
_STRAY = re.compile(r"[?@#\u2026\u00ac]|\.\.|\\[cl]?dots")
_LOOPS = re.compile(r"\\(?:sum|prod|int|iint|oint|lim|bigcup|bigcap)\b")
_BINOMIAL = re.compile(r"\\[dt]?binom\s*\{[^{}]*[0-9]{4,}")


def too_large(text: str) -> str | None:
    """Why computer algebra is not asked about `text`: what it would cost is decided by its size, not by a clock.

    Example:
        >>> too_large("9^{9^{9^9}}"), too_large("2^{2025}")
        ('a power of a power', None)
    """
    if len(text) > MAX_CHARACTERS:
        return f"more than {MAX_CHARACTERS} characters"
    if re.search(rf"[0-9]{{{MAX_DIGITS + 1},}}", text):
        return f"a number of more than {MAX_DIGITS} digits"
    if _depth(text) > MAX_DEPTH:
        return f"nested more than {MAX_DEPTH} deep"
    if _TOWER.search(text):
        return "a power of a power"
    for braced, single in _POWER.findall(text):
        if any(int(n) > MAX_EXPONENT for n in re.findall(r"[0-9]+", braced or single)):
            return f"an exponent above {MAX_EXPONENT}"
    if re.search(r"\*\*\s*\(?[-+]?[0-9]{5,}", text):
        return f"an exponent above {MAX_EXPONENT}"
    if _FACTORIAL.search(text):
        return "a large factorial"
    if _BINOMIAL.search(text):
        return "a large binomial coefficient"
    return None


def unexplained(answer: str, gold: str) -> str | None:
    r"""What in `answer` the right answer `gold` does not explain; None where there is nothing.

    Example:
        >>> unexplained("41 = 42", "42"), unexplained("x = 42", "42")
        ("a relation: '='", None)
        >>> unexplained(r"42 \text{ million}", "42"), unexplained(r"42 \text{ cm}", "42")
        ("words: 'million'", None)
    """
    if (stray := _STRAY.search(answer)) and stray[0] not in gold:
        return f"a sign: {stray[0]!r}"
    answer, gold = _bare(answer), _bare(gold)
    if "$" in answer or r"\boxed" in answer:
        return "several formulas"
    told = ",".join(_LABEL.sub("", part) for part in answer.split(","))
    if extra := _surplus(_RELATION.findall(told), _RELATION.findall(gold)):
        return f"a relation: {extra!r}"
    texts = " ".join(_TEXT.findall(answer))
    formula = _ENVIRONMENT.sub(" ", _TEXT.sub(" ", answer))
    gold_words = {word.casefold() for word in _WORD.findall(gold)}
    words = _WORD.findall(texts) + [w for w in _WORD.findall(_COMMAND.sub(" ", formula)) if w not in _FUNCTIONS]
    for word in words:
        if word.casefold() not in gold_words | UNITS | {"per", "and", "or"}:
            return f"words: {word!r}"
    if _answers(answer) > _answers(gold):
        return "several answers"
    for command in _COMMAND.findall(formula):
        if command not in _KNOWN_COMMANDS and "\\" + command not in gold and not _RELATION.match("\\" + command):
            return f"a command: '\\{command}'"
    if _LOOPS.search(answer) and not _LOOPS.search(gold):
        return "a sum, product, integral or limit"
    if re.search(r"[0-9]\s*_", answer) and not re.search(r"[0-9]\s*_", gold):
        return "a subscript of a number"
    if answer.count("%") > max(1, gold.count("%")):
        return "several percent signs"
    return None


def _bare(text: str) -> str:
    """Without what encloses all of it, and without a currency sign."""
    text = text.replace(r"\$", " ").strip().removesuffix(".").strip()
    for start, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end):
            return _bare(text[len(start) : -len(end)])
    if (match := re.fullmatch(r"\\boxed\s*\{(.*)\}", text, re.DOTALL)) and _balanced(match[1]):
        return _bare(match[1])
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _answers(text: str) -> int:
    """How many answers stand side by side; commas inside brackets belong to one, and two signs make two."""
    text = re.sub(r"\\[,;:! ]|\{,\}", " ", text)
    text = re.sub(r"(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])", "0", text)
    signs = len(re.findall(r"\\pm|\\mp|\u00b1", text))
    while (inner := re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", " ", text)) != text:
        text = inner
    return (1 + len(_SEPARATOR.findall(text))) * 2**signs


def _surplus(found: Iterable[str], explained: Iterable[str]) -> str | None:
    """The first of `found` that is not among `explained` as often."""
    left = list(explained)
    for one in found:
        if one not in left:
            return one
        left.remove(one)
    return None
