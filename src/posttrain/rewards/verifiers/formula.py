r"""Content of a formula other than its value, and its cost; checked before computer algebra.

math-verify parses `41 = 42`, `\neq 42`, `42_8` and `42 \text{ million}` as 42: it drops unknown parts. So an
answer with parts that the right answer does not explain earns nothing, whatever its parsed value.
"""

import re
from collections.abc import Iterable

from posttrain.rewards.verifiers.characters import words
from posttrain.rewards.verifiers.dropped import dropped
from posttrain.rewards.verifiers.labels import LABEL, label_of_others, narrower
from posttrain.rewards.verifiers.powers import highest_power, terms_multiplied_out, too_many
from posttrain.rewards.verifiers.units import CAPITALS, ONE_LETTER, UNITS, is_word_of_unit, other_scale, stem

MAX_CHARACTERS = 1000
MAX_DIGITS = 50  # of one number; more are refused, unless the answer is that number and nothing else
MAX_EXPONENT = 9999
MAX_DEPTH = 12
MAX_TERMS = 1000
MAX_LETTERS = 9  # of a determinant

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
_POWER = re.compile(r"\^\s*(?:\{([^{}]*)\}|([0-9A-Za-z]))")
_TOWER = re.compile(
    r"\^\s*\{?\s*[0-9.]+[eE][0-9]|(?:(?:(?<![a-z])[ei]|\\pi)\s*\^\s*\{?\s*){3}"
    r"|[0-9)}]\s*\^\s*(?:\{[^{}^]{0,20}[0-9)}]|\([^()^]{0,20}[0-9)]|[-+]?[0-9.]+)\s*\^|[0-9)}\]]\s*\*\*[^*]{0,20}[0-9)}\]]\s*(?:\*\*|\^)|\^\s*\{?\s*[-+]?[0-9.(]+\s*!"
)
_POWER_OF_MATRIX = re.compile(r"\\end\s*\{[a-z]*(?:matrix|array)\}(?:\s|\\right.)*\^\s*\{?\s*[0-9]{2}")
_FACTORIAL = re.compile(r"(?:[0-9]{4,}|[)}\]!])\s*!")
_STRAY = re.compile(
    r"[?@#\u2026\u00ac]|\.\.|\\[cl]?dots|(?<!\\):|['\u2019\u2032]|//|\^\s*(?:\{\s*\}|$)|(?<=[0-9}])\^\s*\{?\s*e(?![A-Za-z])"
    r"|(?<![A-Za-z])[A-Za-z]\.(?![0-9])|(?<=[0-9])\.\s+(?=[0-9])"
)
_DANGLING = re.compile(r"[-+*/^&|]\s*$|^\s*[*/^&]|^\s*-\s*[-+]|^\s*\+\s*[-+]")
_SIGNS = frozenset(
    "\u03c0\u221e\u00b0\u20ac\u00a3\u00d7\u00b7\u221a\u2264\u2265\u00bc\u00bd\u00be\u00a0\u2009\u202f\u03b1\u03b2\u03b8"
)
_SUPERSCRIPT = re.compile(r"\^\s*\{?\s*(?:[*\[]|\\(?:text|mathrm|prime|dagger|ast|top)|([A-Z]|c(?![a-z])))")
_OF_SETS = (r"\cup", r"\cap", r"\setminus", r"\langle", r"\oplus")
_THOUSANDS = re.compile(r"(?<![0-9])[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3})+(?![0-9])")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_LETTER_OF_UNIT = re.compile(r"([0-9](?:\\[ ,;]|[ ~])*)[smghlL][ .]*$")
_CONSTANTS = frozenset("ei")
_LOOPS = re.compile(r"\\(?:sum|prod|int|iint|oint|lim|bigcup|bigcap)(?![A-Za-z])")
_BINOMIAL = re.compile(r"\\[dt]?binom\s*\{[^{}]*[a-z][^{}]*\}\s*\{[0-9]{3,}|\\[dt]?binom\s*\{[^{}]*[0-9]{4,}")


def too_large(text: str) -> str | None:
    """Why `text` is too expensive for computer algebra, decided by its size, not by a clock.

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
    if highest_power(text) > MAX_EXPONENT:
        return f"powers of powers above {MAX_EXPONENT}"
    if _POWER_OF_MATRIX.search(text):
        return "a large power of a matrix"
    determinants = [part.split(r"\end")[0] for part in text.split(r"\begin{vmatrix}")[1:]]
    if any(len(_LETTER.findall(_COMMAND.sub(" ", part))) > MAX_LETTERS for part in determinants):
        return "a determinant of many letters"
    if what := too_many(text):
        return f"too many {what}"
    if terms_multiplied_out(text) > MAX_TERMS:
        return "powers of sums that have many terms"
    return None


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
    if sign := _stray(answer, gold) or dropped(answer, gold):
        return f"a sign: {sign!r}"
    if "$" in answer or r"\boxed" in answer:
        return "several formulas"
    told = ",".join(LABEL.sub("", part) for part in re.split(r",(?![^(]*\)\s*=)|\\text\s*\{\s*(?:and|or)\s*\}", answer))
    if label := label_of_others(answer, gold):
        return f"a label of other letters: {label!r}"
    if extra := narrower(answer, gold):
        return f"another domain: {extra!r}"
    if extra := _surplus(_relations(told), _relations(gold)):
        return f"a relation: {extra!r}"
    if word := _unexplained_word(answer, gold, question):
        return f"words: {word!r}"
    formula = _ENVIRONMENT.sub(" ", _TEXT.sub(" ", answer))
    if letter := _surplus_letter(_ENVIRONMENT.sub(" ", _TEXT.sub(" ", told)), gold):
        return f"a letter: {letter!r}"
    if _answers(answer) > max(_answers(gold), _elements(gold) if _brackets(answer) == "" else 0):
        return "several answers"
    if _brackets(answer) and _brackets(gold) and _brackets(answer) != _brackets(gold):
        return "other brackets"
    if ("," in _THOUSANDS.sub("0", answer)) and not ("," in gold or _RELATION.search(gold) or r"\pm" in gold):
        return "several answers"
    for command in _COMMAND.findall(formula):
        if command not in _KNOWN_COMMANDS and "\\" + command not in gold and not _RELATION.match("\\" + command):
            return f"a command: '\\{command}'"
    if any(operation in answer and operation not in gold for operation in _OF_SETS):
        return "an operation on sets"
    if _LOOPS.search(answer) and not _LOOPS.search(gold):
        return "a sum, product, integral or limit"
    if re.search(r"[0-9]\s*_", answer) and not re.search(r"[0-9]\s*_", gold):
        return "a subscript of a number"
    if answer.count("%") > max(1, gold.count("%")):
        return "several percent signs"
    return None


def _stray(answer: str, gold: str) -> str | None:
    """A sign that algebra passes over, and that the right answer does not have."""
    for match in _STRAY.finditer(answer):
        if match[0] not in gold:
            return match[0]
    if (dangling := _DANGLING.search(answer)) and not _DANGLING.search(gold):
        return dangling[0]
    plain = answer.replace(r"\{", "").replace(r"\}", "")
    brackets = [sum(map(plain.count, marks)) for marks in ("([", ")]", "|")]
    if (brackets[0] != brackets[1] or brackets[2] % 2) and r"\left" not in plain and "|" not in gold:
        return "a bracket alone"
    for character in answer:
        if not character.isascii() and character not in _SIGNS and character not in gold:
            return character
    if answer.count(r"\left") != answer.count(r"\right") and gold.count(r"\left") == gold.count(r"\right"):
        return r"\left or \right alone"
    if not _ENVIRONMENT.search(answer) and (line := re.search(r"\n|\\\\|&", answer)) and line[0] not in gold:
        return line[0]
    for power in _SUPERSCRIPT.finditer(answer):
        if power[0] not in gold and not (power[1] and power[1] in re.findall(r"(?<!\\)\b[a-zA-Z]\b", gold)):
            return power[0]
    return None


def _relations(text: str) -> list[str]:
    found: list[str] = _RELATION.findall(text)
    return [_SAME_RELATION.get(relation, relation) for relation in found]


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


def _elements(gold: str) -> int:
    """How many elements a set has that the right answer is."""
    return gold.count(",") + 1 if _brackets(gold) == "{" else 0


def _bare(text: str) -> str:
    """Without what encloses all of it, and without a currency sign."""
    text = text.replace(r"\$", " ").replace("{~", "{").replace(r"~\text", r" \text").strip().removesuffix(".").strip()
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
    """Number of answers in a row; commas inside brackets belong to one, and two signs make two."""
    text = re.sub(r"\\[,;:! ]|\{,\}", " ", text)
    text = _THOUSANDS.sub("0", text)
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
