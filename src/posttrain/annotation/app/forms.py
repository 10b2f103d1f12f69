"""Form parsing for browsers without scripts, by kind of question.

`task_kinds` validates the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any

from posttrain.annotation.task_kinds import Question

Fields = Mapping[str, str]


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _rank(fields: Fields, question: Question) -> dict[str, Any]:
    places: dict[str, list[int]] = {}
    for number in question.texts:
        places.setdefault(fields.get(f"place-{number}", ""), []).append(number)
    if "" in places:
        return {}
    failed = places.pop("F", [])
    return {"ranking": [places[place] for place in sorted(places)], "failed": failed}


def _compare(fields: Fields, question: Question) -> dict[str, Any]:
    better, _, strength = fields.get("choice", "").partition(":")
    return {"better": _int(better), "strength": _int(strength)}


def _thumbs(fields: Fields, question: Question) -> dict[str, Any]:
    thumbs = {number: fields.get(f"thumb-{number}") for number in question.texts}
    return {value: [number for number, thumb in thumbs.items() if thumb == value] for value in ("good", "bad")}


def _score(fields: Fields, question: Question) -> dict[str, Any]:
    names = question.attributes
    scores = {str(one): {name: _int(fields.get(f"score-{one}-{name}")) for name in names} for one in question.texts}
    return {"scores": scores}


def _steps(fields: Fields, question: Question) -> dict[str, Any]:
    wrong = fields.get("wrong")
    if wrong is None:
        return {}
    number = _int(wrong)
    return {"wrong": None if wrong == "none" else -1 if number is None else number}


def _choose(fields: Fields, question: Question) -> dict[str, Any]:
    broken = {
        str(number): [rule for rule in range(len(question.rules)) if fields.get(f"broken-{number}-{rule}")]
        for number in sorted(question.texts)[-2:]
    }
    return _compare(fields, question) | {"turn": _int(fields.get("turn")), "broken": broken}


READ: dict[str, Callable[[Fields, Question], dict[str, Any]]] = {
    "rank": _rank,
    "compare": _compare,
    "thumbs": _thumbs,
    "score": _score,
    "steps": _steps,
    "demonstrate": lambda fields, question: {"text": fields.get("text", "")},
    "converse": _choose,
    "red-team": _choose,
}
"""By kind."""
