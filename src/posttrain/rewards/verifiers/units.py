"""Words around a number: units, words that change what it says, numbers in English words, and claims.

A claim is prose that asserts a number as the answer, rather than attributing it, or as a label, a bound or a draft.
"""

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
    for scale, size in (("million", 1_000_000), ("thousand", 1_000), ("hundred", 100)):
        if number >= size:
            above, below = divmod(number, size)
            return [*_said(above), scale, *(_said(below) if below else [])]
    if number < 20:
        return [_SMALL[number]]
    return [_TENS[number // 10], *([_SMALL[number % 10]] if number % 10 else [])]


# Words that may name the requested quantity, or introduce it.
_NEUTRAL = words(
    """
    answer ans result results solution total totals sum value number amount count final finally correct right altogether
    overall all so thus therefore hence have has get gets gives give is equals equal makes calculate compute cost price
    profit time area probability conclusion summary combined remaining we she he they it that this which there i you add
    subtract multiply chance odds rate ratio percentage distance speed weight mass length height width depth volume
    perimeter age temperature difference average mean product quotient remainder revenue income salary bill discount
    grand rest divide x
    """
)
_PREDICATE = _NEUTRAL | words("the of in for what how many much our my her his their to")
_MINOR = words("the a an of in for per on at by and to our his her their")
_NAMED = words("the final correct right our my this numerical i we overall exact")
_HEDGES = re.compile(
    r"(?i)\b(?:presumably|supposed(?:ly)?|alleged(?:ly)?|apparently|seem(?:s|ed|ingly)?|appears?|appeared|looks like"
    r"|tentative(?:ly)?|theor(?:y|etically)|hypothe\w+|arguably|suspects?|estimat\w+|approximat\w+|roughly|rounded|bets?"
    r"|wish|hypothetical|imagine|refuse[sd]?|den(?:y|ies|ied)|provided|given that|pending|depending|subject to|tb[cd]"
    r"|sic|jk|haha|confirmed|checked|placeholder|draft|upper|lower|bounds?|max(?:imum)?|minimum|limit|tops|and up"
    r"|upwards|counting|as (?:many|few|much|little) as|starting at|no fewer|order of|region of|neighbou?rhood"
    r"|in excess|within"
    r"|at (?:best|worst|least|most)|give or take|range|according|told|thinks|believes|formerly|previous(?:ly)?"
    r"|used to|initial(?:ly)?|at first|first glance|earlier|resp|respectively|for instance|namely|i\.e"
    r"|hex(?:adecimal)?|octal|binary|(?:let['\u2019]s|let us) (?:call|say)|a bit|and (?:some|one|counting|the rest)"
    r"|assuming|suppose|reckon|wager|far from|differen\w+ (?:from|than)|distinct|unequal|contrary"
    r"|besides|opposed to|in place of|n['\u2019]t|barely|lacks?|ought|dozens|hundreds|thousands|millions"
    r"|est\b\.|me|i am|i['\u2019]m|lucky)(?!\w)|, about\b"
)
# "less than", "at least", "perhaps", "false", "half" and scales in other languages
_OTHER_LANGUAGES = re.compile(
    r"(?i)\b(?:zirka|rund|unter|knapp|mindestens|(?:mehr|weniger) als|vielleicht|wahrscheinlich|niemals|weder|falsch"
    r"|doppelt\w*|bis|tausend|millionen|dutzend|presque|moins|(?:au )?plus de|au plus|probablement|faux|mille|ni"
    r"|aproximadamente|alrededor|unos|menos|mucho|al menos|tal vez|falso|mitad|millones|mil|cerca|mais de|talvez|quase"
    r"|quasi|meno|almeno|forse|non|mila|ongeveer|bijna|(?:meer|minder) dan|misschien|niet|geen|helft|duizend|lub|nie"
    r"|prawie|belki|ikke|inte|mere end|noin|ei)\b"
)
_ANSWER = re.compile(r"(?i)(?<![\w'\u2019])([\w'\u2019]+) answers?\b")
_COLON = re.compile(r"(?:^|[.;!])([^:.;!]*):[\s*_$(`]*$")
_SUBJECT = re.compile(
    r"(?:^|[.;:,!] )([^.;:,!0-9=]*?) (?:is|was|are|were|has|have|had|gives?|gets?|got|lists?|equals|puts?)[ *_$(`]*$"
)
_JOINED = re.compile(r"[*_$`)]*(?: \w+){0,2}, (\w+)")  # 42 clips, less the lost ones
_PLACE = re.compile(r"(?:^|[\s(*_])([A-Z][A-Za-z]*)\.?[ *_$(`]+$")  # Room 42
_IS = re.compile(r"^[*_$`)]*(?: \w+){0,2} (is|was|seems|looks|smells|remains|used|needs)\b(.*)", re.DOTALL)


def is_claim(before: str, after: str, question: str) -> bool:
    """Whether the sentence around a number lets it be the answer to `question`: not in "Room 42", "42 is a lie"."""
    asked = question.casefold()
    known = {stem(word) for word in re.findall(r"\w+", asked)}
    text = f"{before}0{after}"
    near = " ".join([*before.split()[-4:], "0", *after.split()[:6]])
    said = [match[0].casefold() for match in _HEDGES.finditer(near)]
    if any(not re.search(rf"\b{re.escape(hedge)}\b", asked) for hedge in said) or _OTHER_LANGUAGES.search(near):
        return False
    if re.search(r"[0-9][^()]*\([^()]*$", before):  # 73 (was 72)
        return False
    if question.isascii() and any(letter.isalpha() and not letter.isascii() for letter in text):
        return False
    if any(match[1].casefold() not in _NAMED and not _known(match[1], known) for match in _ANSWER.finditer(before)):
        return False
    label = _COLON.search(before.strip("-*\u2022 "))
    words = re.findall(r"[^\W\d_]+", label[1]) if label else []
    if words and words != ["A"] and not any(_fits(word, known) for word in words):
        return False
    if len(words) <= 3 and not all(_fits(word, known) or word.casefold() in _MINOR for word in words if word != "A"):
        return False
    subject = re.findall(r"[^\W\d_]+", found[1]) if (found := _SUBJECT.search(before)) else []
    if subject and not any(_fits(word, known) or word.endswith("ing") for word in subject):
        return False
    joined = _JOINED.match(after)
    if joined and joined[1].casefold() in CHANGES - {"and", "but", "x", "m"} | {"in", "per", "ignoring"}:
        return False
    place = _PLACE.search(before)
    if place and not _fits(place[1], known):
        return False
    if (described := _IS.match(after)) is None:
        return True
    words = [word.casefold() for word in re.findall(r"[^\W\d_]+", described[2])]
    if not words or described[1] not in ("is", "was") or (described[1] == "was" and "answer" in words):
        return False
    return all(word in _PREDICATE or _known(word, known) for word in words)  # "42 is the answer", not "42 is a trap"


def _fits(word: str, known: set[str]) -> bool:
    return word.casefold() in _NEUTRAL or _known(word, known)


def _known(word: str, known: set[str]) -> bool:
    return stem(word.casefold()) in known
