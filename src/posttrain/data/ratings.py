"""Loading ratings of single responses by attribute, for multi-attribute reward models.

A row without any rating is dropped; a missing attribute is left out of its row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from posttrain.data.chat import ChatFormat
from posttrain.data.fields import as_answer, as_list, as_mapping, as_text
from posttrain.data.given import Source
from posttrain.data.layouts import turns_of
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

    def read(row: Record) -> list[Rated]:
        layout = next((read for fits, read in LAYOUTS if fits(row)), _own)
        found = [
            Rated(dress(prompt, system, prompt_template), response, ratings, row.place)
            for prompt, response, ratings in layout(row)
            if ratings and response.strip()
        ]
        if not found:
            raise Unusable("it has no rating, or no text")
        return found

    return read_all(source, read, **reading)


def graded_of(chat: ChatFormat, rated: Rated) -> Graded:
    """A rated response as tokens."""
    (example,) = responses_to(chat, rated.prompt, "", (Message("assistant", rated.response),), False)
    return Graded(example, rated.ratings)


Said = tuple[tuple[Message, ...], str, dict[str, float]]
"""A prompt, a response and its ratings."""


def _own(row: Record) -> list[Said]:
    if "ratings" not in row.fields:
        raise row.missing("ratings")
    given = as_mapping(row, row.get("ratings") or {}, "ratings")
    return [(row.prompt("prompt"), _response(row, "completion"), _numbers(row, given))]


def _helpsteer(row: Record) -> list[Said]:
    """A row for each response; a prompt may be a conversation in one text."""
    prompt = Record(dict(row.fields) | {"prompt": turns_of(row.text("prompt"))}, row.place, row.id, row.read).prompt(
        "prompt"
    )
    return [(prompt, _response(row, "response"), _numbers(row, {name: row.get(name) for name in HELPSTEER}))]


def _response(row: Record, field: str) -> str:
    """A response, which may say nothing."""
    return "" if row.get(field) == "" else as_answer(row, row.get(field), field)


def _ultrafeedback(row: Record) -> list[Said]:
    """`annotations` of each of the `completions`; what could not be rated is "N/A"."""
    prompt = row.prompt("instruction")
    found: list[Said] = []
    for one in as_list(row, row.get("completions"), "completions"):
        completion = as_mapping(row, one, "completions")
        given = as_mapping(row, completion.get("annotations") or {}, "completions annotations")
        aspects = {str(name): as_mapping(row, said or {}, f"annotations {name}") for name, said in given.items()}
        ratings = _numbers(row, {name: _spoken(said.get("Rating")) for name, said in aspects.items()})
        if completion.get("response"):
            found.append((prompt, as_text(row, completion["response"], "completions response"), ratings))
    return found


def _spoken(rating: Any) -> Any:
    """A number that is written as text; None for what says that there is none."""
    if not isinstance(rating, str):
        return rating
    try:
        return float(rating.replace("_", " "))
    except ValueError:
        return None


Read = Callable[[Record], list[Said]]
LAYOUTS: tuple[tuple[Callable[[Record], bool], Read], ...] = (
    (lambda row: row.fields.keys() >= {"prompt", "response", "helpfulness"}, _helpsteer),
    (lambda row: row.fields.keys() >= {"instruction", "completions"}, _ultrafeedback),
)
"""Public data sets: how each is recognised by its columns, and read."""


def _numbers(row: Record, given: Mapping[str, Any]) -> dict[str, float]:
    """The ratings that are there."""
    found = {str(name): value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
            raise row.fail(f"the rating of '{name}' must be a number, or null if it has none; got {value!r}")
        if not name.strip() or "=" in name or len(name.split()) != 1:
            raise row.fail(f"an attribute's name is one word; got {name!r}")
    return {name: float(value) for name, value in found.items()}
