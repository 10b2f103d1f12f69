"""Whether prose asserts a number as the answer, rather than attributing it, or as a label, a bound or a draft."""

import re

from posttrain.rewards.verifiers.extraction import words
from posttrain.rewards.verifiers.units import CHANGES, stem

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
_SMALL = words("the a an of in for per on at by and to our his her their")
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
    if len(words) <= 3 and not all(_fits(word, known) or word.casefold() in _SMALL for word in words if word != "A"):
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
