"""Units after a number: which words are one, and which change what the number says; and numbers in English words."""

import re
from collections.abc import Iterable
from string import ascii_letters

from posttrain.rewards.verifiers.extraction import words

# A line for each dimension: money, time, length, mass, volume, angle; its units stand between commas.
_TABLE = """
    dollar dollars usd bucks $, cent cents, euro euros eur €, gbp £
    second seconds sec s, minute minutes min, hour hours h hr hrs, day days daily, week weeks weekly,\
        month months monthly, year years yearly
    mm millimeters millimetres, cm centimeter centimeters centimetre centimetres, m meter meters metre metres,\
        km kilometer kilometers kilometre kilometres, inch inches, foot feet ft, yard yards, mile miles mi
    mg, g gram grams, kg kilogram kilograms, ounce ounces oz, lb lbs pound pounds, ton tons tonne tonnes
    ml, l liter liters litre litres, gallon gallons, cup cups
    degree degrees ° circ, rad radian radians
"""
_DIMENSIONS = [[words(unit) for unit in line.split(",")] for line in _TABLE.strip().splitlines()]
_COMPOUND = words(
    """
    m2 m3 cm2 cm3 km2 ft2 m² m³ cm² cm³ km² ft² m^2 m^3 cm^2 cm^3 km^2 ft^2 km/h m/s mi/h kmh mph acres square cubic °c
    °f celsius old am pm units unit points point items people times ¥ ₹
    """
)
_MEASURES = frozenset[str]().union(*_DIMENSIONS[2], *_DIMENSIONS[3], *_DIMENSIONS[4]) - {"pound", "pounds"}
UNITS = _COMPOUND.union(*(unit for dimension in _DIMENSIONS for unit in dimension)) - {"$", "circ"}
ONE_LETTER = frozenset(("s", "h", "m", "g", "l", "L"))  # 42 S, 42 H and 42 A are no answers to what schools ask
_ORDINALS = words("first second third fifth eighth ninth twelfth")
_CONNECTORS = words("per a an each every of in total altogether")
CAPITALS = frozenset(("M", "MM", "G", "T", "B", "K"))  # million, giga, tera, billion, thousand
CHANGES = words(
    """
    not no never nor neither isn't isn\u2019t wrong incorrect false except or and but maybe perhaps possibly either
    between to plus minus negative times x less more fewer greater than over under above below about approximately
    around roughly nearly almost least most up under unlike versus half halves third thirds quarter quarters fourth
    fourths fifth fifths tenth tenths hundredth hundredths thousandth thousandths twice thrice double triple squared
    cubed root factorial power divided multiplied reciprocal inverse one two three four five six seven eight nine ten
    eleven twelve zero ten tens dozen dozens score scores gross hundred hundreds thousand thousands k m mil million
    millions mn mln b bn billion billions trillion lakh crore percent percentage permille pair pairs couple mod modulo
    base log opposite unknown if unless instead off short remaining excluding without
    """
)
"""Words that change what a number says. None of them is a unit, even where the question has it."""

OTHER_WORDS = words(
    """
    who whom whose what which when where why how whether does did doing can cannot could may might must shall should
    will would ought nobody none nothing nowhere anybody anyone anything any everybody everyone everything both some
    somebody someone something several few many much little lot lots enough other others another same such equal unequal
    although though because since until till while whereas then otherwise else yet still however so also too even ever
    again hardly scarcely barely rather quite very sometimes always often likely unlikely uncertain unsure after before
    beyond behind past near within beside besides against among despite toward towards through throughout like upon as
    at by maximum minimum max min approximate exact rounded impossible invalid untrue fold lakhs crores quadrillion
    quintillion couples grand quadruple
    """
)
"""Words that ask, hedge, deny, bound or count. No question makes one of them a unit, or the subject of a number."""

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = {"thousand": 1_000, "million": 1_000_000}
_VALUES = {word: value for value, word in enumerate(_SMALL)} | {word: 10 * i for i, word in enumerate(_TENS) if i > 1}
_CARDINAL = "|".join(sorted([*_VALUES, *_SCALES, "hundred"], key=len, reverse=True))
_BEGINNING = re.compile(rf"(?:{_CARDINAL})\b(?:[ -](?:and )?(?:{_CARDINAL})\b)*", re.IGNORECASE)
_WORDS = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?|[$€£]")
_OPEN = re.compile(r"^(?:\\text\{|[*_`$(])+|[*_`$.})]+$")


def is_unit(text: str, question: str) -> bool:
    """Whether `text`, which follows a number, is nothing, or a unit of at most four words.

    Of the units of a dimension (minutes and hours, cents and dollars) only one that the question names will do, where
    it names any.

    Example:
        >>> is_unit(" cents", "How many dollars?"), is_unit(" eggs", "How many eggs?"), is_unit(" million", "")
        (False, True, False)
    """
    raw = [word for word in (_OPEN.sub("", word) for word in text.split()) if word]
    words = [word.casefold() for word in raw]
    if not words:
        return not text.strip() or _OPEN.sub("", text.strip()) == ""
    if len(words) > 4 or not re.match(r"(?:[ *`$\\a-zA-Z°€£¥₹]|_(?![a-zA-Z]))", text) or CAPITALS & set(raw):
        return False
    if (raw[-1] in ascii_letters and raw[-1] not in ONE_LETTER) or words[-1] in ("per", "an", "of", "every"):
        return False
    asked = _WORDS.findall(question.casefold())
    known = {stem(word) for word in asked if len(word) > 2}
    return all(is_word_of_unit(word, known) for word in words) and not other_scale(words, question)


def is_word_of_unit(word: str, known: set[str]) -> bool:
    """Whether `word`, in lower case, is a common unit, a word between units, or a stem of `known`."""
    if word in UNITS and word != "times":
        return True
    if is_other_word(word):
        return False
    return word in _CONNECTORS or (word.isalpha() and stem(word) in known)


def is_other_word(word: str) -> bool:
    """Whether `word`, in lower case, is none that a question can make a unit: "not", "how", "fifty", "ninth"."""
    number = re.sub(r"(?:th|fold|s)$", "", re.sub(r"ieth$", "y", word))
    others = CHANGES | OTHER_WORDS | _ORDINALS
    return word in others or number in CHANGES or leading_cardinal(number) is not None


def is_millions(text: str, currency: str) -> bool:
    """Whether the m or mm after a number may mean millions: of money, or of what is counted, but not " m per day"."""
    words = [_OPEN.sub("", word) for word in text.casefold().split()[:2]]
    if currency or re.search(r"[$€£¥₹]", text):
        return bool(words) and words[0] in _MEASURES
    return words[:1] in (["m"], ["mm"]) and re.search(r"s$|^people$|^usd$", "".join(words[1:2])) is not None


def other_scale(words: Iterable[str], question: str) -> bool:
    """Whether one of the `words` is a unit of a dimension of which the `question` names only others."""
    asked = set(_WORDS.findall(question.casefold()))
    for dimension in _DIMENSIONS:
        named = [unit for unit in dimension if unit & asked]
        if named and any(word in unit and unit not in named for word in words for unit in dimension):
            return True
    return False


def stem(word: str) -> str:
    """Without the ending of a plural, so that "apple" in a question knows "apples"."""
    for ending in ("es", "s"):
        if len(word) > len(ending) + 2 and word.endswith(ending):
            return word.removesuffix(ending)
    return word.removesuffix("e") if len(word) > 3 else word


def leading_cardinal(text: str) -> tuple[int, str] | None:
    """The number in words that `text` begins with, below a thousand million, and what follows; None without one."""
    if not (match := _BEGINNING.match(text)):
        return None
    words = [word for word in re.split(r"[ -]", match[0].casefold()) if word != "and"]
    total = group = 0
    for word in words:
        if word in _SCALES:
            total, group = total + group * _SCALES[word], 0
        elif word == "hundred":
            group *= 100
        else:
            group += _VALUES[word]
    number = total + group
    return (number, text[match.end() :]) if number < 10**9 and _said(number) == words else None


def _said(number: int) -> list[str]:
    """The words of a number."""
    for scale, size in (("million", 1_000_000), ("thousand", 1_000), ("hundred", 100)):
        if number >= size:
            above, below = divmod(number, size)
            return [*_said(above), scale, *(_said(below) if below else [])]
    if number < 20:
        return [_SMALL[number]]
    return [_TENS[number // 10], *([_SMALL[number % 10]] if number % 10 else [])]
