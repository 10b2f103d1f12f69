r"""Context of the answer's box: a negated, struck-out or retracted box is no answer.

Only adjacent text is read, and later retractions: a "not" elsewhere in a solution is ignored.
"""

import re

from posttrain.rewards.verifiers.extraction import braced, extract, hidden, last_box, outside_reasoning
from posttrain.rewards.verifiers.number_grammar import equals, one_notation, parse_number
from posttrain.rewards.verifiers.prose import DECLARED, MILLIONS, words_fit
from posttrain.rewards.verifiers.units import is_unit

_NEAR = 300  # characters on each side that are read closely
_LINE = re.compile(r"\n|\\\\(?![a-zA-Z])")
_DELIMITER = re.compile(r"\$\$?|\\[()\[\]]")
_CLOSES = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
_FORMULA_CLOSES = re.compile(r"\$|\\[\])]")
_LAYOUT = (
    r"\\(?:quad|qquad|displaystyle|textstyle|boldsymbol"
    r"|large|Large|LARGE|huge|Huge|left\.?|right\.?)(?![a-zA-Z])|\\[,;:! ]"
    r"|\\(?:begin|end)\s*\{[a-z]+\*?\}|\\hspace\s*\{[^{}]*\}|\\tag\s*\{[0-9*]+\}|\\(?:blacksquare|square|checkmark|qed)\b"
    r"|\\color\s*\{[a-z]+\}|[~&]|\*\*|\s"
)
_LAYOUT_BEFORE = re.compile(
    rf"(?:{_LAYOUT}|(?:\\(?:text|textbf|mathbf|textcolor\s*\{{[a-z]+\}})\s*)?\{{|\\?\$|`|\\item|<[a-z]+>)$"
)
_LAYOUT_AFTER = re.compile(rf"{_LAYOUT}|\}}|[.,;:](?![0-9])")
_TEXT_BEFORE = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}$")
_TEXT_AFTER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SIGN_OF_UNIT = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\?%|\u00b0|\\degree\b")
_LEADS = re.compile(
    r"(?:(?<![<>!~=\u2248\u2260])[=:]|\\(?:Rightarrow|implies|therefore|to|in|rightarrow|Longrightarrow))$"
)
_LEADS_PROSE = re.compile(
    r"(?:[^\W\d_]|(?<![<>!~=])[=:]|(?<![0-9])[.,;!)\"'\u201d\u2019]|[\u2192\u21d2\u2234\u2705\u2014])$"
)
_ABOUT = re.compile(r"\\approx$|\u2248$")
_ROUNDED = re.compile(r"(?i)approx|round|nearest|estimate|about|decimal|significant")
_OPERATOR = re.compile(
    r"(?:[-+*/^_<>~|(\[\u2260\u2248\u2264\u2265\u00ac\u2212\u00d7]|\\(?:neq?|not|approx|sim|leq?|geq?))$"
)
_RULE = re.compile(r"[-*_=\s]{3,}$|[*#>\s]*$")  # a rule, a bullet, a heading, a quotation
_ARITHMETIC = re.compile(r"(?:[-+*/()0-9.,\s\u00d7\u00f7\u00b7&]|\\(?:times|cdot|div)\b)*[0-9)]\s*")
_ANOTHER = re.compile(r"[\s$*]*(?:,|;|&|and\b|und\b|oder\b|ou\b|\u6216|\u548c|/)[\s$*]*(?:-?[0-9]|\\d?frac)")
_DENIED = re.compile(
    r"(?i)\W*(?:(?:is|was|are|would be|can|could|may|must|seems?)\s*(?:n['\u2019]t|not|too|wrong|incorrect|false"
    r"|impossible)|can['\u2019]?no?t)\b"
)
_SAID_BEFORE = re.compile(
    r"(?i)(?:\b(?:cannot|\w+n['\u2019]t|not|never|said|says|wrote|claim\w*|guess\w*|nicht|kein\w*|pas|nunca|jamais|\u043d\u0435)"
    r"(?: be| equal| is| to)?|\u4e0d\u662f)\s*$"
)
# tags, and "is" in Korean and Japanese
_ENDINGS = r"\s*(?:</?[a-z]+>|<\||\uc785\ub2c8\ub2e4|\uc774\ub2e4|\u3067\u3059|\u3067\u3042\u308b)"
_TAKEN_BACK = re.compile(
    r"(?i)\b(?:(?:no|oh|but|hmm|hold on|oops),? wait|wait(?=[,.!\u2026])|actually(?=,| the| it| I)|scratch that"
    r"|correction:"
    r"|on second thoughts?|just kidding|i take (?:it|that) back|(?:that|this|which|it|my answer|the above) (?:is|was)"
    r" (?:wrong|incorrect|false|a mistake|not right|not correct)|i made (?:a|an) (?:mistake|error)|sorry, )"
)


def doubt_around_box(completion: str, question: str = "") -> str | None:
    r"""Why the context of the last box leaves its content in doubt; None if it does not.

    Example:
        >>> doubt_around_box(r"So $x = \boxed{42}$ cm."), doubt_around_box(r"It is not \boxed{42}.")
        (None, 'what stands before the box')
    """
    text = braced(outside_reasoning(completion))
    if (found := last_box(text)) is None:
        return None
    start, end = found
    before, after, box = text[:start], text[end:], extract(text[start:end], "boxed") or ""
    if hidden(before):
        return "the box is struck out or a comment"
    line = _LINE.split(before[-_NEAR:])[-1]
    if any(extract(rf"\boxed{{{other}", "boxed") not in (None, box) for other in line.split(r"\boxed{")[1:]):
        return "several boxes in one line"
    formula = _open_formula(before)
    if formula is not None and not _FORMULA_CLOSES.search(after):  # a dollar sign
        formula = None
    if not _fits_before(before[-_NEAR:], formula, box, question):
        return "what stands before the box"
    if not _fits_after(after[:_NEAR], formula is not None, question):
        return "what stands after the box"
    declared = [parse_number(match[1]) for match in DECLARED.finditer(one_notation(after))]
    if _TAKEN_BACK.search(after) or any(said not in (None, parse_number(box)) for said in declared):
        return "the box is taken back"
    return None


def doubt_around_tag(completion: str) -> str | None:
    """The same of the last `<answer>...</answer>`, with less context: its content is compared verbatim."""
    before, _, rest = outside_reasoning(completion).rpartition("<answer>")
    after = rest.partition("</answer>")[2]
    if hidden(before):
        return "the tags are struck out or a comment"
    line, sentence = before.rpartition("\n")[2], re.split(r"[.!;\n]", after)[0]
    joined = re.match(r"(?i)[\s,]*(?:or|oder|ou|\u6216)\b", after) or re.search(
        r"(?i)</answer>[\s,]*(?:or|oder|ou|\u6216)\s*$", line
    )
    if _SAID_BEFORE.search(line) or _DENIED.match(sentence) or joined or sentence.strip().startswith("?"):
        return "what stands beside the tags"
    return "the answer is taken back" if _TAKEN_BACK.search(after) else None


def _open_formula(before: str) -> str | None:
    """What the formula around the box has before it; None where the box is in none that is marked."""
    opened, start = "", 0
    for match in _DELIMITER.finditer(before.replace(r"\$", "  ")):
        mark = match[0]
        if opened and mark == _CLOSES[opened]:
            opened = ""
        elif mark in _CLOSES and (not opened or opened == "$"):  # a single dollar sign may be a currency's
            opened, start = "$" if opened + mark == "$$$" else mark, match.end()
    return before[start:] if opened else None


def _fits_before(before: str, formula: str | None, box: str, question: str) -> bool:
    """Whether the text directly before the box only introduces it."""
    left = _stripped(_LINE.split(before if formula is None else formula)[-1])
    if formula is not None and left:
        return _leads(left, box, question)
    if formula is not None:
        rows = _stripped(formula)
        if _OPERATOR.search(rows):
            return False
        before = re.sub(r"(?:\$\$?|\\[\[(])$", "", before[: len(before) - len(formula)])
    *lines, line = before.split("\n")
    if not (left := _stripped(line)):
        left = _stripped(next((line for line in reversed(lines) if line.strip()), ""))
        return _RULE.fullmatch(left) is not None or (not _OPERATOR.search(left) and _words_fit(left, question))
    if _RULE.fullmatch(left) and "-" not in left:
        return True
    if formula is None and (left.endswith("=") or _TEXT_BEFORE.search(left)):
        return _leads(left, box, question)
    word = left.split()[-1]
    if "\\" in word or (len(word) == 1 and word.isalpha() and before.endswith(word)):
        return False
    return _LEADS_PROSE.search(left) is not None and _words_fit(left, question)


def _leads(left: str, box: str, question: str) -> bool:
    """Whether a formula leads to the box: by an equals sign that is true as far as it is arithmetic, or by words."""
    if (words := _TEXT_BEFORE.search(left)) is not None:
        return left == words[0] and _words_fit(words[1], question)
    if _ABOUT.search(left):
        return _ROUNDED.search(question) is not None
    if not _LEADS.search(left):
        return False
    side, number = left[:-1].split("=")[-1], parse_number(box)
    if number is None or not left.endswith("=") or not _ARITHMETIC.fullmatch(side):
        return True
    return equals(side.replace("&", ""), number.value) or (number.percent and equals(side, number.value / 100))


def _words_fit(left: str, question: str) -> bool:
    """Whether the words that a text ends on do not change what follows them."""
    if _SAID_BEFORE.search(left):
        return False
    return words_fit(re.split(r"[.!?:;,)]\s+|[.!?:;,)]$", left)[-1], "", False, question)


def _fits_after(after: str, in_formula: bool, question: str) -> bool:
    """Whether the text directly after the box is a unit, or irrelevant to it."""
    line = re.split(_ENDINGS, _LINE.split(after)[0])[0]
    if in_formula:
        close = re.search(r"\$\$?|\\[\])]", line)
        inside, line = (line[: close.start()], line[close.end() :]) if close else (line, "")
        if (rest := _without_unit(inside, question)) is None or rest:
            return False
    elif re.match(r"\s*(?:\\|\^|%|\u00b0)", line):
        if (rest := _without_unit(line, question)) is None:
            return False
        line = rest
    sentence = re.split(r"[.!?;:](?:\s|$)", line)[0]
    mark = line[len(sentence) :][:1]
    follows = re.sub(r"^\s+\(", "", line).lstrip(" *_\"'`)}")[:1]
    if mark == "?" or re.search(r"(?i)\b(?:else|otherwise)\b", sentence):
        return False
    if re.match(r"[*_`]*[\w]|[.,][0-9]|\.\.", line) or (follows and follows in "+-*/^_=<>~|({[&\\\u2026\u2248\u2260"):
        return False
    if _ANOTHER.match(line) or _DENIED.match(sentence) or MILLIONS.match(line):
        return False
    return words_fit("", sentence.lstrip(" *_\"'`)}("), False, question)


def _without_unit(text: str, question: str) -> str | None:
    """The rest of a formula after the box, without layout and one unit; None where its words are no unit."""
    text = _SIGN_OF_UNIT.sub("", text.lstrip(), count=1) if _SIGN_OF_UNIT.match(text.lstrip()) else text
    while match := _LAYOUT_AFTER.match(text):
        text = text[match.end() :]
    if words := _TEXT_AFTER.match(text):
        if not is_unit(" " + words[1].strip(" ~.()"), question):
            return None
        text = re.sub(r"^\s*\^\s*\{?[23]\}?", "", text[words.end() :])
    while match := _LAYOUT_AFTER.match(text):
        text = text[match.end() :]
    return text


def _stripped(text: str) -> str:
    while match := _LAYOUT_BEFORE.search(text):
        text = text[: match.start()]
    return text
