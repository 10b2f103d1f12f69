r"""The number that a text in prose ends on, where no place was agreed for the answer.

Prose has no grammar, so doubts decide: a word that denies, hedges or compares, several candidates, a label such as
"step 3", or an equation that is false, and there is no number.
"""

import re

from posttrain.rewards.verifiers.characters import plain_characters
from posttrain.rewards.verifiers.number_grammar import NUMBER, Number, equals, one_notation, parse_number, read_number
from posttrain.rewards.verifiers.units import CHANGES

MAX_CHARACTERS = 2000  # of the end of a text that are read

_INSIDE = re.compile(rf"(?<![\w.^])(?<![0-9],)(?:{NUMBER})(?![\w^!/]|\*\w|[,.:'][0-9])")
_UNIT_WITH_DIGIT = re.compile(r"\b(?:mm|cm|m|km|ft|in)\^?[23]\b")  # the 2 of "m2" is no number
_MARKUP = re.compile(r"</?answer>|<<[^<>]*>>|\\[()\[\]]|\\(?:boxed|text|textbf|mathbf|mathrm)(?= ?\{)|#+(?= )")
_BRACED = re.compile(r"(?<![\w^_}\\])\{([^{}]*)\}")
_SENTENCE = re.compile(r"\n+|(?<!\bno)(?<!\bnot)(?<!\bca)(?<!\bapprox)(?<!\bvs)(?<!\bfig)(?<!\bst)[.!?;][*_)\"']*\s+", re.I)
# Words that turn what a sentence says, or leave it open. With one of them prose says nothing for certain.
_TURNS = re.compile(
    r"(?i:\b(?:not?|none|never|nor|neither|nobody|cannot|\w+n['\u2019]t|wait|actually|instead|rather|however|or|possibly"
    r"|maybe|perhaps|probably|might|could|either|between|except|unless|wrong|incorrect\w*|false|falsely|invalid|untrue"
    r"|opposite|unsure|uncertain|sure|confident|certain|guess\w*|doubt\w*|hardly|scarcely|alternatively|otherwise"
    r"|correction|sorry|hmm|thought|mistak\w*|errors?|unknown|options?|candidates?|choices?|whether|impossible"
    r"|denies|denied|reject\w*|refut\w*|contradict\w*|avoid|forget|ignore|typo|nope|nah)\b)"
    r"|\bmay\b|\?|~~|\u00ac|\u2260|\u2026|\.\."
)
_LABELS = frozenset(
    (
        *("step", "page", "footnote", "figure", "chapter", "section", "question", "problem", "exercise", "option"),
        *("choice", "line", "note", "version", "example", "table", "case", "part", "item", "no", "number", "nr", "see"),
    )
)
_NEAR = CHANGES - {"and", "but", "to", "m", "b", "x", "plus"}  # in prose these join sentences as well
_DECLARED = re.compile(r"\banswer(?: is|:| =|\*\*:|:\*\*)[ *_$:(]*(" + re.sub(r"\?P<\w+>", "?:", NUMBER) + ")", re.I)
_SIGN = re.compile(r"(?:^|[a-z:=,] )(?:minus|negative) $", re.IGNORECASE)


def final_number(text: str) -> Number | None:
    """The number that the last sentence with a number says; None if there is none, or where it is in doubt.

    Example:
        >>> [str(final_number(text)) for text in ("12 + 7 = 19", "it is 1/2", "41 or 42", "19 million", "Is it 3?")]
        ['19', '0.5', 'None', 'None', 'None']
    """
    plain = plain_characters(text[-MAX_CHARACTERS:])
    if plain is None:
        return None
    plain = _BRACED.sub(r"\1", _MARKUP.sub(" ", plain))
    sentence, rest = _last_sentence_with_digit(plain)
    number = parse_number(sentence) or _inside(one_notation(sentence))
    if number is None or _TURNS.search(sentence + " " + rest):
        return None
    before = one_notation(plain)[: -len(one_notation(sentence + rest)) or None]
    declared = [parse_number(match[1]) for match in _DECLARED.finditer(before)]
    return number if all(said in (None, number) for said in declared) else None


def _last_sentence_with_digit(text: str) -> tuple[str, str]:
    """The last sentence that has a digit, with the mark that ends it, and what follows."""
    digit = max(map(text.rfind, "0123456789\u00bc\u00bd\u00be"))
    ends = [match.end() for match in _SENTENCE.finditer(text)]
    start = max((end for end in ends if end <= digit), default=0)
    end = min((end for end in ends if end > digit), default=len(text))
    return text[start:end], text[end:]


def _inside(sentence: str) -> Number | None:
    """The last number in a sentence of one notation, where nothing beside it changes what it says."""
    text = _UNIT_WITH_DIGIT.sub(" ", sentence)
    digit = max(map(text.rfind, "0123456789"))
    numbers = list(_INSIDE.finditer(text))
    match = next((match for match in numbers if match.start() <= digit < match.end()), None)
    if match is None:
        return None
    before, after = text[: match.start()], text[match.end() :]
    near = [*before[-40:].split()[-2:], *re.sub(r"^ times(?= *[.!)]*$)", "", after)[:40].split()[:1]]
    words = [word.strip(".,;:!?*_()").casefold() for word in near]
    negated = _SIGN.search(before) is not None and not match["sign"]
    if set(words) & (_NEAR - {"minus", "negative"} if negated else _NEAR):
        return None
    if re.search(r"(?i)\bif\b", after):
        return None
    label = "".join(before.split()[-1:]).strip("(*_").casefold() in _LABELS
    if label or not _free(before, after, match):
        return None
    number = read_number(match)
    if number is None or not _sides_hold(before, number):
        return None
    return Number(-number.value, number.percent) if negated else number


def _free(before: str, after: str, match: re.Match[str]) -> bool:
    """Whether no sign, and no other number, stands directly at the number."""
    glued, follows = before.rstrip(" *_$(")[-1:], after.lstrip(" *_$)")[:1]
    if glued and not (glued.isalpha() or glued.isdigit() or glued in ".,:;=)\"'!\u2019"):
        return False
    if match["sign"] and glued.isdigit():
        return False
    if follows and not (follows.isalpha() or follows in ".,:;)\"'`}\u00b0\u20ac\u00a3(" or not follows.isascii()):
        return False
    if before.rstrip(" *_$")[-1:] == "(" and re.search(r"\w\($", before.rstrip(" *_$")):  # f(72)
        return False
    between = re.split(r"[0-9]", before)[-1]  # what stands between this number and the one before it
    joined = re.sub(r"(?i)\b(?:to|and|or|through|until|vs)\b", " ", between)
    return not re.search(r"[0-9]", before) or "=" in between or re.search(r"[^\W\d_]{2}", joined) is not None


def _sides_hold(before: str, number: Number) -> bool:
    """Whether an equation that ends in this number is true, as far as its other side is arithmetic."""
    before = before.rstrip(" $*_")
    if not before.endswith("="):
        return True
    side = before[:-1].split("=")[-1]
    arithmetic = re.search(r"(?<![\w.])[-+*/\u00d7\u00f7\u00b7()0-9.,\s$x]*$", side)
    written = arithmetic[0].strip(" ,.$") if arithmetic else ""
    return not re.search(r"[0-9]", written) or equals(written, number.value)
