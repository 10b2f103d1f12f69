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
    scores = {
        str(number): {attribute: _int(fields.get(f"score-{number}-{attribute}")) for attribute in question.attributes}
        for number in question.texts
    }
    return {"scores": scores}


def _steps(fields: Fields, question: Question) -> dict[str, Any]:
    wrong = fields.get("wrong")
    return (
        {} if wrong is None else {"wrong": None if wrong == "none" else _int(wrong) if _int(wrong) is not None else -1}
    )


def _demonstrate(fields: Fields, question: Question) -> dict[str, Any]:
    return {"text": fields.get("text", "")}


def _choose(fields: Fields, question: Question) -> dict[str, Any]:
    turn = _int(fields.get("turn"))
    broken: dict[str, list[int]] = {}
    for number in sorted(question.texts)[-2:]:
        broken[str(number)] = [n for n in range(len(question.rules)) if fields.get(f"broken-{number}-{n}")]
    return _compare(fields, question) | {"turn": turn, "broken": broken}


READ: dict[str, Callable[[Fields, Question], dict[str, Any]]] = {
    "rank": _rank,
    "compare": _compare,
    "thumbs": _thumbs,
    "score": _score,
    "steps": _steps,
    "demonstrate": _demonstrate,
    "converse": _choose,
    "red-team": _choose,
}
"""By kind."""
