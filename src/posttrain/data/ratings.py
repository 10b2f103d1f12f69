"""Loading ratings of single responses by attribute, for multi-attribute reward models.

A row without any rating is dropped; a missing attribute is left out of its row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from posttrain.data.chat import ChatFormat
from posttrain.data.given import Source
from posttrain.data.layouts import own_rows, turns_of
from posttrain.data.loaded import Loaded, Reading, Unusable, read_all
from posttrain.data.packing import Graded
from posttrain.data.preferences import responses_to
from posttrain.data.records import Record
from posttrain.data.tasks import dress
from posttrain.types import Message


@dataclass(frozen=True, slots=True)
class Rated:
    """One response to a prompt, with ratings of several attributes, each on its own scale."""

    prompt: tuple[Message, ...]
    response: str
    ratings: Mapping[str, float]  # by attribute name; unrated attributes are absent
    source: str = ""  # where it was read: file and line


HELPSTEER = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


def load_ratings(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[Rated]:
    """The rated responses of a data set.

    A row has `prompt`, `completion` and `ratings`, an object with a number for each attribute, of which some may be
    null; or it is one of HelpSteer, HelpSteer2 or UltraFeedback, whose columns say so. Rows without any rating, or
    whose response says nothing, are left out, and named in the result. Arguments are those of `load_preferences`.

    Raises:
        DataError: as `load_rows`; a row that is no rating, by file, line and field; or all were left out.
    """

    def layout_of(row: Record) -> Callable[[Record], list[Said]]:
        return next((read for columns, read in LAYOUTS if row.fields.keys() >= columns), _own)

    def read(row: Record) -> list[Rated]:
        found = [
            Rated(dress(prompt, system, prompt_template), response, ratings, row.place)
            for prompt, response, ratings in layout_of(row)(row)
            if ratings and response.strip()
        ]
        if not found:
            raise Unusable("it has no rating, or no text")
        return found

    return read_all(source, read, own=lambda row: own_rows(row) if layout_of(row) is _own else [row], **reading)


def graded_of(chat: ChatFormat, rated: Rated) -> Graded:
    """A rated response as tokens."""
    (example,) = responses_to(chat, rated.prompt, "", (Message("assistant", rated.response),), False)
    return Graded(example, rated.ratings)


Said = tuple[tuple[Message, ...], str, dict[str, float]]
"""A prompt, a response and its ratings."""


def _own(row: Record) -> list[Said]:
    if "ratings" not in row.fields:
        raise row.missing("ratings")
    given = row.as_mapping("ratings", row.get("ratings") or {})
    return [(row.prompt("prompt"), _response(row, "completion"), _numbers(row, given))]


def _helpsteer(row: Record) -> list[Said]:
    fields = {**row.fields, "prompt": turns_of(row.text("prompt"))}
    prompt = Record(fields, row.place, row.id, row.read).prompt("prompt")
    return [(prompt, _response(row, "response"), _numbers(row, {name: row.get(name) for name in HELPSTEER}))]


def _response(row: Record, field: str) -> str:
    return "" if row.get(field) == "" else row.as_answer(field, row.get(field))  # it may say nothing


def _ultrafeedback(row: Record) -> list[Said]:
    """`annotations` of each of the `completions`; what could not be rated is "N/A"."""
    prompt = row.prompt("instruction")
    found: list[Said] = []
    for one in row.as_list("completions"):
        completion = row.as_mapping("completions", one)
        given = row.as_mapping("completions annotations", completion.get("annotations") or {})
        aspects = {str(name): row.as_mapping(f"annotations {name}", said or {}) for name, said in given.items()}
        ratings = _numbers(row, {name: _spoken(said.get("Rating")) for name, said in aspects.items()})
        if completion.get("response"):
            found.append((prompt, row.as_text("completions response", completion["response"]), ratings))
    return found


def _spoken(rating: Any) -> Any:
    """A number that is written as text; None for what says that there is none."""
    if not isinstance(rating, str):
        return rating
    try:
        return float(rating.replace("_", " "))
    except ValueError:
        return None


LAYOUTS: tuple[tuple[set[str], Callable[[Record], list[Said]]], ...] = (
    ({"prompt", "response", "helpfulness"}, _helpsteer),
    ({"instruction", "completions"}, _ultrafeedback),
)
"""Public data sets: the columns by which each is recognised, and how it is read."""


def _numbers(row: Record, given: Mapping[str, Any]) -> dict[str, float]:
    found = {str(name): value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
            raise row.fail(f"the rating of '{name}' must be a number, or null if it has none; got {value!r}")
        if not name.strip() or "=" in name or len(name.split()) != 1:
            raise row.fail(f"an attribute's name is one word; got {name!r}")
    return {name: float(value) for name, value in found.items()}
