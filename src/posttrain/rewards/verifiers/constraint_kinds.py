"""Instructions that a program can check: the 25 kinds of IFEval, a pattern and a JSON schema.

The kinds and their arguments have the names of "Instruction-Following Evaluation for Large Language Models"
(arXiv 2311.07911, table 1 and its code). Three count otherwise than that code, which downloads models of nltk's when it
is imported and asks langdetect, whose answers are drawn: sentences end at their marks, a word is a run of letters,
digits, apostrophes and hyphens, and languages are told by py3langid, which always says the same.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, cast

from posttrain.errors import UserError, described

INSTALL = "needs a package that is not installed; type: pip install 'posttrain[constraints]'"
PATTERN_S = 1.0  # that a pattern may take for one text
Relation = Literal["at least", "less than"]

_ABBREVIATIONS = re.compile(r"\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|Inc|Ltd|Co|No|e\.g|i\.e)\.$")
_SENTENCE = re.compile(r"[.!?\u2026]+[\"'\u201d\u2019)\]]*(?=\s|$)|[\u3002\uff01\uff1f\u0964]+")
_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_FENCE = re.compile(r"\A```(?:json)?\s*\n?(.*?)\n?```\Z", re.DOTALL | re.IGNORECASE)


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
    return language_of(text) == language.partition("-")[0].lower()


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
    word = _WORD.search(paragraphs[nth_paragraph - 1])
    return word is not None and word[0].lower() == first_word.lower()


def _placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\[\]\n]*\]", text)) >= num_placeholders


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = r"\s?".join(map(re.escape, postscript_marker.strip().rstrip(".").split()))
    marker = marker.replace(r"P\.P\.S", r"P\.\s?P\.\s?S").replace(r"P\.S", r"P\.\s?S")
    return re.search(rf"(?i)(?<!\w){marker}(?!\w)", text) is not None


def _bullets(text: str, num_bullets: int) -> bool:
    return len(re.findall(r"(?m)^[ \t]*(?:\*[^*\n]|-(?!-)).*$", text)) == num_bullets


def _one_answer(text: str) -> bool:
    return any(f"My answer is {answer}." in text for answer in ("yes", "no", "maybe"))


def _highlights(text: str, num_highlights: int) -> bool:
    single = [m for m in re.findall(r"\*([^\n*]*)\*", text) if m.strip()]
    double = [m for m in re.findall(r"\*\*([^\n*]*)\*\*", text) if m.strip()]
    return len(single) + len(double) >= num_highlights


def _sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def _title(text: str) -> bool:
    return any(title.strip(" <>") for title in re.findall(r"<<([^\n]+?)>>", text))


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
    return text.isupper() and language_of(text) == "en"


def _lower(text: str) -> bool:
    return text.islower() and language_of(text) == "en"


def _no_comma(text: str) -> bool:
    return "," not in text


def _read_json(text: str) -> Any:
    fenced = _FENCE.match(text.strip())
    return json.loads(fenced[1] if fenced else text)


def _is_json(text: str) -> bool:
    try:
        _read_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def matches(text: str, pattern: str, whole: bool = True) -> bool:
    """Whether a pattern matches a text, the whole of it unless `whole` is false; one that takes too long does not.

    Raises:
        UserError: `pattern` is none, or the package regex is not installed.

    Example:
        >>> matches("ab-12", "[a-z]+-[0-9]+"), matches("a" * 40, "(a|aa)+b")
        (True, False)
    """
    regex = _regex()
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise UserError(f"the pattern {pattern!r} cannot be read: {error}") from None
    try:
        return (compiled.fullmatch if whole else compiled.search)(text, timeout=PATTERN_S) is not None
    except TimeoutError:
        return False


def _regex() -> Any:
    try:
        import regex  # alone has a time limit
    except ImportError as error:
        raise UserError(f"a pattern {INSTALL}") from error
    return regex


def fits_schema(text: str, schema: Mapping[str, Any] | str) -> bool:
    """Whether a text is JSON, perhaps in a fenced block, that is valid by a JSON Schema (draft 2020-12 unless it says).

    A reference to another document is not followed, and a pattern inside has the time limit of `matches`.

    Raises:
        UserError: the schema is not valid, refers to what is not in it, or jsonschema is not installed.
    """
    validator = _validator(schema if isinstance(schema, str) else json.dumps(schema))
    try:
        value = _read_json(text)
    except (ValueError, RecursionError):
        return False
    try:
        return bool(validator.is_valid(value))
    except RecursionError:
        return False
    except Exception as error:  # a reference that is not there is found when it is followed
        raise UserError(f"the JSON schema cannot be used: {described(error)}") from None


@cache
def _validator(schema: str) -> Any:
    try:
        import jsonschema
        import jsonschema.validators
        import referencing
    except ImportError as error:
        raise UserError(f"a JSON schema {INSTALL}") from error
    validators, registry = cast(Any, jsonschema.validators), cast(Any, referencing).Registry()  # fetches no document

    def pattern(_: Any, wanted: str, instance: object, __: object) -> Iterator[jsonschema.ValidationError]:
        if isinstance(instance, str) and not matches(instance, wanted, whole=False):
            yield jsonschema.ValidationError(f"does not match {wanted!r}")

    try:
        read = json.loads(schema)
        kind = validators.validator_for(read, default=jsonschema.Draft202012Validator)
        kind.check_schema(read)
        if '"patternProperties":' in json.dumps(read):
            raise ValueError("patternProperties have no time limit; use properties")
    except (ValueError, jsonschema.SchemaError) as error:
        raise UserError(f"the JSON schema cannot be read: {' '.join(str(error).split())[:200]}") from None
    return validators.extend(kind, {"pattern": pattern})(read, registry=registry)


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
