"""Instructions that a program can check: the 25 kinds of IFEval, a pattern and a JSON schema.

The kinds and their arguments have the names of "Instruction-Following Evaluation for Large Language Models"
(arXiv 2311.07911, table 1 and its code). Four count otherwise than that code, which downloads models of nltk's when it
is imported and asks langdetect, whose answers are drawn: sentences end at their marks, a word is a run of letters,
digits, apostrophes and hyphens, languages are told by py3langid, which always says the same, and a postscript's marker
does not stand within a word.

While `re` matches, no time limit can fire: each pattern here takes time in proportion to the text, whatever it is.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, cast

from posttrain.errors import UserError
from posttrain.rewards.verifiers.workers import TIME_LIMITS

INSTALL = "needs a package that is not installed; type: pip install 'posttrain[constraints]'"
PATTERN_S = 1.0  # that a pattern may take for one text
Relation = Literal["at least", "less than"]

_ABBREVIATIONS = re.compile(r"\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|Inc|Ltd|Co|No|e\.g|i\.e)\.$")
_SENTENCE = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]++[\"'\u201d\u2019)\]]*+(?=\s|$)|[\u3002\uff01\uff1f\u0964]+"  # nothing is tried twice
)
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_FENCES = ("```json", "```Json", "```JSON", "```")


def _counts(found: int, wanted: int, relation: Relation) -> bool:
    return found >= wanted if relation == "at least" else found < wanted


def sentences(text: str) -> int:
    """How many sentences a text has: ends of sentences that no abbreviation or number explains, and what is left.

    Example:
        >>> sentences("Dr. Who paid 3.50. Did he? Yes")
        3
    """
    ends = [m for m in _SENTENCE.finditer(text) if not _ABBREVIATIONS.search(text, max(0, m.start() - 8), m.end())]
    return len(ends) + bool(text[ends[-1].end() if ends else 0 :].strip())


def language_of(text: str) -> str:
    """The language of a text by its ISO 639-1 code; "" for one without letters.

    Raises:
        UserError: py3langid is not installed.
    """
    try:
        told: Any = import_module("py3langid")  # takes half a second, and has no types
    except ImportError as error:
        raise UserError(f"the language of a response {INSTALL}") from error
    if not any(map(str.isalpha, text)):
        return ""
    return str(told.classify(text.lower())[0])  # upper case is rare in what it learned from


@cache
def _languages() -> frozenset[str]:
    told: Any = import_module("py3langid.langid")
    told.classify("")  # reads the model
    return frozenset(map(str, told.IDENTIFIER.nb_classes))


def _parts(text: str, mark: str) -> list[str]:
    """What stands between marks, without an empty part at either end."""
    parts = [part.strip() for part in text.split(mark)]
    return parts[not parts[0] : len(parts) - (len(parts) > 1 and not parts[-1])]


def _existence(text: str, keywords: Sequence[str]) -> bool:
    return all(word.lower() in text.lower() for word in keywords)


def _frequency(text: str, keyword: str, frequency: int, relation: Relation) -> bool:
    return _counts(text.lower().count(keyword.lower()), frequency, relation)


def _forbidden(text: str, forbidden_words: Sequence[str]) -> bool:
    return not any(re.search(rf"(?i)(?<!\w){re.escape(word)}(?!\w)", text) for word in forbidden_words)


def _letters(text: str, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    return _counts(text.lower().count(letter.lower()), let_frequency, let_relation)


def _language(text: str, language: str) -> bool:
    told, wanted = language_of(text), language.partition("-")[0].lower()
    if wanted not in _languages():
        raise UserError(f"the language '{language}' is none that can be told; give a code of ISO 639-1, such as en")
    return told == wanted


def _sentences(text: str, num_sentences: int, relation: Relation) -> bool:
    return _counts(sentences(text), num_sentences, relation)


def _paragraphs(text: str, num_paragraphs: int) -> bool:
    parts = _parts(text, "***")
    return len(parts) == num_paragraphs and all(parts)


def _words(text: str, num_words: int, relation: Relation) -> bool:
    return _counts(len(_WORD.findall(text)), num_words, relation)


def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = [part for part in re.split(r"\n\n+", text) if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    word = re.match(r"[^.,?!'\"]*", paragraphs[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"'))
    return word is not None and word[0].lower() == first_word.lower()


def _placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\[\]\n]*\]", text)) >= num_placeholders


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = {"P.S.": r"p\.\s?s\.", "P.P.S": r"p\.\s?p\.\s?s"}.get(postscript_marker, re.escape(postscript_marker))
    return re.search(rf"(?i)(?<!\w){marker}", text) is not None


def _bullets(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"(?m)^[ \t]*(?:\*[^*\n]|-).*$", text)) == num_bullets


def _one_answer(text: str) -> bool:
    return any(f"My answer is {answer}." in text for answer in ("yes", "no", "maybe"))


def _highlights(text: str, num_highlights: int) -> bool:
    single = [m for m in re.findall(r"\*([^\n*]*)\*", text) if m.strip()]
    double = [m for m in re.findall(r"\*\*([^\n*]*)\*\*", text) if m.strip()]
    return len(single) + len(double) >= num_highlights


def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def _title(text: str) -> bool:
    for line in text.split("\n"):
        begin, end = line.find("<<"), line.rfind(">>")
        if begin >= 0 and end > begin + 2 and line[begin:end].lstrip("<").rstrip(">").strip():
            return True
    return False


def _two_responses(text: str) -> bool:
    parts = _parts(text, "******")
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


def _repeats(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def _ends(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def _quoted(text: str) -> bool:
    return len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'


def _capital_words(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    return _counts(sum(map(str.isupper, _WORD.findall(text))), capital_frequency, capital_relation)


def _upper(text: str) -> bool:
    return language_of(text) == "en" and text.isupper()


def _lower(text: str) -> bool:
    return language_of(text) == "en" and text.islower()


def _no_comma(text: str) -> bool:
    return "," not in text


def _read_json(text: str, **readers: Any) -> Any:
    text = text.strip()
    fence = next(filter(text.startswith, _FENCES), "")
    return json.loads(text.removeprefix(fence).removesuffix("```" if fence else ""), **readers)


def _finite(number: str) -> float:
    """What JSON has no word for is no number: NaN lies within all bounds."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not finite")
    return value


def _is_json(text: str) -> bool:
    try:
        _read_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def matches(text: str, pattern: str, whole: bool = True) -> bool:
    """Whether a pattern matches a text, the whole of it unless `whole` is false; one that takes too long does not.

    That depends on the machine's load, so a run keeps it, and a resumed one uses it again (`TIME_LIMITS`).

    Raises:
        UserError: `pattern` is none, or the package regex is not installed.

    Example:
        >>> matches("ab-12", "[a-z]+-[0-9]+"), matches("a" * 40, "(a|aa)+b")
        (True, False)
    """
    compiled = _compiled(pattern)
    digest = hashlib.sha256(repr(("pattern", pattern, whole, text)).encode()).hexdigest()
    if digest in TIME_LIMITS.known:
        return False
    try:
        return (compiled.fullmatch if whole else compiled.search)(text, timeout=PATTERN_S) is not None
    except TimeoutError:
        TIME_LIMITS.add(digest)
        return False


@cache
def _compiled(pattern: object) -> Any:
    try:
        import regex  # alone has a time limit
    except ImportError as error:
        raise UserError(f"a pattern {INSTALL}") from error
    try:
        if isinstance(pattern, str):
            return regex.compile(pattern)
        why = "expected text"
    except regex.error as error:
        why = f"{error}"
    raise UserError(f"the pattern {pattern!r} cannot be read: {why}")


def fits_schema(text: str, schema: Mapping[str, Any] | str) -> bool:
    """Whether a text is JSON, perhaps in a fenced block, that is valid by a JSON Schema (draft 2020-12 unless it says).

    NaN and infinite numbers are none. A reference is `#`, or to a place in the schema (`#/$defs/name`), and a pattern
    inside has the time limit of `matches`.

    Raises:
        UserError: the schema is not valid, refers to what is not in it, or jsonschema is not installed.
    """
    validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
    try:
        return bool(validator.is_valid(_read_json(text, parse_float=_finite, parse_constant=_finite)))
    except (ArithmeticError, ValueError, RecursionError):  # no JSON; a number too long to be divided
        return False


@cache
def _validator(schema: str) -> Any:
    try:
        import jsonschema
        import jsonschema.validators
    except ImportError as error:
        raise UserError(f"a JSON schema {INSTALL}") from error
    validators = cast(Any, jsonschema.validators)

    def pattern(_: Any, wanted: str, instance: object, __: object) -> Iterator[jsonschema.ValidationError]:
        if isinstance(instance, str) and not matches(instance, wanted, whole=False):
            yield jsonschema.ValidationError(f"does not match {wanted!r}")

    try:
        read = json.loads(schema)
        if not isinstance(read, dict | bool):
            raise ValueError(f"expected an object, not {schema[:40]}")
        kind = validators.validator_for(read, default=jsonschema.Draft202012Validator)
        kind.check_schema(read, format_checker=None)  # patterns are those of the package regex
        return validators.extend(kind, {"pattern": pattern})(_refined(read, read))
    except (ValueError, jsonschema.SchemaError) as error:
        raise UserError(f"the JSON schema cannot be read: {' '.join(str(error).split())[:200]}") from None


def _refined(part: Any, root: Any) -> Any:
    """A schema without `$schema`, by which jsonschema would choose its own patterns again.

    Raises:
        ValueError: it has a reference that leads nowhere, or `patternProperties`.
    """
    if isinstance(part, list):
        return [_refined(one, root) for one in cast("list[Any]", part)]
    if not isinstance(part, dict):
        return part
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", part).items():
        if key == "patternProperties":
            raise ValueError("patternProperties have no time limit; use properties")
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            _referred(value, root)
        if key == "pattern" and isinstance(value, str):
            _compiled(value)
        if key != "$schema" or not isinstance(value, str):
            found[key] = value if key in ("enum", "const", "default", "examples") else _refined(value, root)
    return found


def _referred(reference: str, root: Any) -> None:
    """Check that a reference leads to a place in the schema."""
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"{reference} is another document, or a name; refer to a place in the schema, as #/$defs/name")
    place = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(place, dict) or name not in place:
            raise ValueError(f"{reference} is not in it")
        place = cast("dict[str, Any]", place)[name]


KINDS: dict[str, Callable[..., bool]] = {
    "change_case:capital_word_frequency": _capital_words,
    "change_case:english_capital": _upper,
    "change_case:english_lowercase": _lower,
    "combination:repeat_prompt": _repeats,
    "combination:two_responses": _two_responses,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:constrained_response": _one_answer,
    "detectable_format:json_format": _is_json,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:title": _title,
    "keywords:existence": _existence,
    "keywords:forbidden_words": _forbidden,
    "keywords:frequency": _frequency,
    "keywords:letter_frequency": _letters,
    "language:response_language": _language,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:number_sentences": _sentences,
    "length_constraints:number_words": _words,
    "punctuation:no_comma": _no_comma,
    "startend:end_checker": _ends,
    "startend:quotation": _quoted,
    "json_schema": fits_schema,
    "pattern": matches,
}
"""Each kind of constraint: whether a text follows it, given its arguments. One line adds another."""
