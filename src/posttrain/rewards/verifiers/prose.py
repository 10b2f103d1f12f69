r"""The number, or the formula, that a text in prose ends on, where no place was agreed for the answer.

Prose has no grammar, so doubts decide: a word that denies, hedges or compares, several candidates, a label such as
"step 3", or an equation that is false, and there is no answer.
"""

import re
from fractions import Fraction
from itertools import pairwise

from posttrain.rewards.verifiers.extraction import braced, extract, plain_characters, taken_back, words
from posttrain.rewards.verifiers.number_grammar import NUMBER, Number, equals, one_notation, parse_number, read_number
from posttrain.rewards.verifiers.units import CHANGES, is_claim, is_millions, leading_cardinal, other_scale

MAX_CHARACTERS = 2000  # of the end of a text that are read

_INSIDE = re.compile(rf"(?<![\w.^])(?<![0-9],)(?:{NUMBER})(?![\w^!/]|\*\w|[,.:'][0-9])")
_UNIT_WITH_DIGIT = re.compile(r"\b(?:mm|cm|m|km|ft|in)\^?[23]\b")  # the 2 of "m2" is no number
_MARKUP = re.compile(r"</?answer>|<<[^<>]*>>|#+(?= )")
_COMMAND = re.compile(r"\\(?:boxed|text|textbf|mathbf|mathrm) ?\{([^{}]*)\}")
_SENTENCE = re.compile(
    r"\n+|(?<!\bno)(?<!\bnot)(?<!\bca)(?<!\bapprox)(?<!\bvs)(?<!\bfig)(?<!\bst)(?<!\be\.g)[.!?;][*_)\"']*\s+", re.I
)
# Words that change a sentence's meaning, or hedge it. With one of them prose is ambiguous.
_TURNS = re.compile(
    r"(?i:\b(?:not?|none|never|nor|neither|nobody|cannot|\w+n['\u2019]t|wait|actually|instead|rather|however|or|possibly"
    r"|maybe|perhaps|probably|might|could|either|between|except|unless|wrong|incorrect\w*|false|falsely|invalid|untrue"
    r"|opposite|unsure|uncertain|sure|confident|certain|doubt\w*|hardly|scarcely|alternatively|otherwise|else|unlikely"
    r"|correction|sorry|hmm|thought|mistak\w*|errors?|unknown|options?|candidates?|choices?|whether|impossible|anything"
    r"|denie[sd]|reject\w*|refut\w*|contradict\w*|exclud\w*|rul(?:ed?|ing) out|fails?|avoid|forget|ignore|typo|nope|nah"
    r"|says?|said|claim\w*|mention\w*|hop(?:e|es|efully)|citation|too (?:high|low|big|large|small|much|many|few)|near"
    r"|close to|exceeds?|such as|e\.g|for example|ish)\b)"
    r"|\bmay\b|\?|~~|\u00ac|\u2260|\u2026|\.\.|<!--|<(?:del|s|strike)>"
    # denials, "or" and "about" in other languages
    r"|(?i:\b(?:pas|nicht|kein\w*|nein|oder|ou|environ|etwa|ungef\u00e4hr|casi|circa|n\u00e3o|nunca|jamais|\u043d\u0435\u0442?"
    r"|\u0438\u043b\u0438|\u043e\u043a\u043e\u043b\u043e)\b)|[\u4e0d\u6ca1\u975e\u6216\u7ea6\u7d04]|\u306a\u3044|\u307e\u305f\u306f"
)
# Anywhere in the text, these say that the answer is not meant.
_NOT_MEANT = re.compile(
    r"(?i)\b(?:no idea|not sure|(?:don['\u2019]t|do not) know|guess\w*|random\w*|kidding|joke|lie|lol)\b"
)
_LABELS = words(
    """
    step page footnote figure chapter section question problem exercise option choice line note version example table
    case part item no number nr see
    """
)
_NEAR = CHANGES - {"and", "but", "to", "m", "b", "x", "plus"}  # in prose these join sentences as well
_BEFORE = (
    _NEAR
    | {"after", "before", "square", "cube", "like", "but", "approx", "ca"}
    | {"suppose", "supposing", "assume", "assuming", "pretend", "try", "trying", "let", "another", "neg"}
)
_AFTER = (_NEAR - {"remaining"}) | {"plus", "etc", "dz", "doz", "approx", "bc", "bce"}
_ENDS = words(
    """
    half change third quarter debt short off plus minus without percent times million millions mil thousand hundred
    dozen approx odd something ish some
    """
)  # after the number, perhaps with its unit between
MILLIONS = re.compile(r"[ *_$`)]*[KMGBT]\b")  # 42 M; a unit is written small: 42 m, 42 g
_NO_EQUATION = re.compile(r"[<>!~\u2248]\s*=[ *_$`(]*$")  # >= 42, != 42
_SIGN_APART = re.compile(r"[-+~!]\)?[ *_$`]*$|!$")  # (-)42, !42
_JOINS = re.compile(r"(?i)\b(?:to|and|or|through|until|vs|versus|then|first|und|\u0438|et|y)\b")
DECLARED = re.compile(r"\banswer(?: is|:| =|\*\*:|:\*\*)[ *_$:(]*(" + re.sub(r"\?P<\w+>", "?:", NUMBER) + ")", re.I)
_DECLARED_IN_WORDS = re.compile(r"\banswer(?: is|:) [*_]*([a-z]+(?:[ -][a-z]+)*)", re.I)
_SIGN = re.compile(r"(?:^|[a-z:=,] )(?:minus|negative) $", re.IGNORECASE)
_GOES_ON = re.compile(
    r"(?i)\W*(?:add|double|triple|halve|half|then|divide|multiply|subtract|let|but|in|at|approximately|roughly|about|plus"
    r"|minus|times|scratch|source|i made)\b"
)
_SHORT = re.compile(r"(?:^|[.!?] +)\(?(?!yes|so|ok|thus|mrs?|ms|dr|st)[a-z]{1,4}\.\s*$", re.IGNORECASE)
_ITEM = re.compile(r"\s*(?:[-*\u2022]|\(?(?:[0-9a-z]{1,2}|[ivx]{1,4})[.):]|[a-z] ?=)\s+(.*)", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*\u2022]|\(?[0-9]{1,2}[.)]|\(?[a-z][.)]) [ *_$]*$", re.IGNORECASE)
_FOLLOWS = ".,:;)\"'`}\u00b0\u20ac\u00a3(\u2705\u2713\u2714"
_MARKS = re.compile(r"^(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])$")
_FORMULA = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(((?:(?!\\[()]).)+)\\\)|\\\[((?:(?!\\[\[\]]).)+)\\\]", re.DOTALL)


def final_number(text: str, question: str = "") -> Number | None:
    """The number that the last sentence with a number says; None if there is none, or where it is in doubt.

    Example:
        >>> [str(final_number(text)) for text in ("12 + 7 = 19", "it is 1/2", "41 or 42", "19 million", "Is it 3?")]
        ['19', '0.5', 'None', 'None', 'None']
    """
    plain = plain_characters(text[-MAX_CHARACTERS:])
    if plain is None or _NOT_MEANT.search(plain):
        return None
    plain = re.sub(r"\\[()\[\]]", "$", _COMMAND.sub(r"\1", _MARKUP.sub(" ", plain)))
    digit = max(map(plain.rfind, "0123456789\u00bc\u00bd\u00be"))
    ends = [match.end() for match in _SENTENCE.finditer(plain)]
    start = max((end for end in ends if end <= digit), default=0)
    end = min((end for end in ends if end > digit), default=len(plain))
    before, sentence, rest = plain[:start], plain[start:end], plain[end:]
    number = parse_number(sentence, question) or _inside(one_notation(sentence), question)
    if number is None or _TURNS.search(sentence + " " + rest) or _numbers_in_words(rest):
        return None
    if _GOES_ON.match(rest) or taken_back("", rest):
        return None
    return None if _another_stands(before, sentence, number, question) else number


def final_formula(text: str, question: str = "") -> str | None:
    """The content of the last box or formula, or else the last number; None if it is in doubt."""
    text = braced(text[-MAX_CHARACTERS:])
    starts = [match.start() for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]
    boxes = [box for begin, end in pairwise([*starts, len(text)]) if (box := extract(text[begin:end], "boxed"))]
    if boxes:
        text = _FORMULA.sub(lambda match: _MARKS.sub(" ", match[0]) if r"\boxed" in match[0] else match[0], text)
        for box in boxes:
            text = re.sub(r"\\(?:boxed|fbox)\s*\{" + re.escape(box) + r"\}", lambda _, box=box: f"${box}$", text)
    formulas = [next(part for part in match.groups() if part is not None).strip() for match in _FORMULA.finditer(text)]
    if not formulas:
        number = final_number(text, question)
        return None if number is None else str(number)
    if len(set(boxes)) > 1 or (boxes and boxes[-1].strip() != formulas[-1]):
        return None
    # The rules for numbers hold for formulas: each one is told by a number that the text has not.
    first = next(number for number in range(7_000_001, 8_000_000, 7) if str(number)[:4] not in text)
    names = {formula: first + index for index, formula in enumerate(dict.fromkeys(formulas))}
    told = _FORMULA.sub(lambda match: str(names[next(p for p in match.groups() if p is not None).strip()]), text)
    number = final_number(told, question)
    if number is None or number.value == names[formulas[-1]]:
        return None if number is None or number.percent else formulas[-1]
    return None if number.value in names.values() else str(number)


def declared(text: str) -> list[Number | None]:
    """The numbers that `text` calls its answer."""
    words = [leading_cardinal(match[1]) for match in _DECLARED_IN_WORDS.finditer(text)]
    numbers = [parse_number(match[1]) for match in DECLARED.finditer(one_notation(text))]
    return numbers + [Number(Fraction(cardinal[0])) for cardinal in words if cardinal and cardinal[0] != 1]


def _another_stands(before: str, sentence: str, number: Number, question: str) -> bool:
    """Whether the text gave another answer, or is a list of numbers, of which this is the last."""
    if any(said not in (None, number) for said in declared(before + sentence)):
        return True
    line = before.rpartition("\n")[2]
    above = before.rstrip().rpartition("\n")[2]
    if _item(sentence, question) is not None and _item(above, question) not in (None, number):
        return True
    if _SHORT.search(line) and re.match(r"\W*[0-9]", sentence):  # Eq. 42
        return True
    alone = parse_number(sentence, question) is not None
    if alone and _BULLET.fullmatch(line.lstrip() + re.split(r"[0-9]", sentence)[0]):
        return True
    before = re.sub(r"(?:^|\n)\s*\(?[0-9a-z]{1,2}[.)]\s*$", "", before, flags=re.IGNORECASE)  # the number of a line
    previous = re.split(r"(?<=[.!?;])\s+|\n+", before.strip())[-1].rstrip("!?;.\u2026 ")
    alone = alone and "answer" not in sentence.casefold()
    step = re.search(r"[0-9].*=", sentence) is not None  # 48 / 2 = 24. 48 + 24 = 72
    return alone and not step and parse_number(previous, question) not in (None, number)


def _item(line: str, question: str) -> Number | None:
    """The number that an item of a list is: "(a) 42", "* 42", "B: 42"."""
    item = _ITEM.fullmatch(line.rstrip())
    return parse_number(item[1], question) if item else None


def _numbers_in_words(text: str) -> bool:
    words = re.findall(r"[a-z]+(?:-[a-z]+)?", text.casefold())
    return any(word != "one" and leading_cardinal(word) is not None for word in words)


def _inside(sentence: str, question: str) -> Number | None:
    """The last number in a sentence of one notation, if no adjacent text changes its meaning."""
    text = _UNIT_WITH_DIGIT.sub(" ", sentence)
    digit = max(map(text.rfind, "0123456789"))
    match = next((match for match in _INSIDE.finditer(text) if match.start() <= digit < match.end()), None)
    if match is None:
        return None
    before, after = text[: match.start()], text[match.end() :]
    negated = _SIGN.search(before) is not None and not match["sign"]
    if not words_fit(before, after, negated, question) or not _signs_fit(before, after, match):
        return None
    if not is_claim(before, after, question) or is_millions(after[:40], match["currency"] or ""):
        return None
    number = read_number(match)
    if number is None or not _sides_hold(before, number):
        return None
    return Number(-number.value, number.percent) if negated else number


def words_fit(before: str, after: str, negated: bool, question: str) -> bool:
    """Whether no adjacent word changes the number's meaning."""
    said = [word.strip(".,;:!?*_()$").casefold() for word in before[-40:].split()[-2:]]
    follow = re.sub(r"^ times(?= *[.!)]*$)", "", after.lstrip("*_$`\"')"))[:40].split()[:3]
    follow = follow[: next((i + 1 for i, word in enumerate(follow) if word[-1] in ".,:;"), 3)]
    follow = [word.strip(".,;:!?*_()$").casefold() for word in follow]
    if set(said) & (_BEFORE - {"minus", "negative"} if negated else _BEFORE) or set(follow[:1]) & _AFTER:
        return False
    if _ENDS & set(follow) or re.search(r"(?i)\bif\b", after):
        return False
    if any(_numbers_in_words(word) for word in [*said[-1:], *follow[:1]]):
        return False
    return "".join(said[-1:]) not in _LABELS and not other_scale(follow[:1], question)


def _signs_fit(before: str, after: str, match: re.Match[str]) -> bool:
    """Whether no sign or other number is adjacent to the number."""
    glued, follows = before.rstrip(" *_$(`")[-1:], after.lstrip(" *_$)`")[:1]
    if glued and not (glued.isalpha() or glued in "0123456789.,:;=)\"'!\u2019"):
        return False
    if _NO_EQUATION.search(before) or _SIGN_APART.search(before.rstrip(" ")) or MILLIONS.match(after):
        return False
    bare = before.rstrip("*_$`")
    if bare != before and bare[-1:].isalnum():  # x**72**
        return False
    if re.match(r"[*_$`]+[^\W_]", after) or (follows and not (follows.isalpha() or follows in _FOLLOWS)):
        return False
    if (match["sign"] and glued.isdigit()) or re.search(r"\w\([ *_$]*$", before):  # 3 -5, f(72)
        return False
    between = re.split(r"[0-9]", before)[-1]  # the text between this number and the previous one
    if not re.search(r"[0-9]", before):
        return True
    if re.search(r"[,;] *[a-z] *=", between):  # x = 3, y = 4
        return False
    return "=" in between or re.search(r"[^\W\d_]{2}", _JOINS.sub(" ", between)) is not None


def _sides_hold(before: str, number: Number) -> bool:
    """Whether an equation that ends in this number is true, as far as its other side is arithmetic."""
    before = before.rstrip(" $*_")
    if not before.endswith("="):
        return True
    side = before[:-1].split("=")[-1]
    arithmetic = re.search(r"(?<![\w.])[-+*/\u2013\u00d7\u00f7\u00b7()0-9.,\s$x]*$", side)
    written = arithmetic[0].strip(" ,.$") if arithmetic else ""
    return not re.search(r"[0-9]", written) or equals(written, number.value)
