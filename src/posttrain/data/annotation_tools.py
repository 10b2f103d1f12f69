"""Exports of annotation tools, in posttrain's own columns: Argilla and Label Studio."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from posttrain.data.fields import as_list, as_mapping, as_number
from posttrain.data.meaning import MEANT
from posttrain.data.records import Record

Fields = dict[str, Any]
PROMPTS = ("prompt", "conversations", "messages", "instruction", "question", "query", "input")
"""Names of the column that two or several responses answer."""


def pair(prompt: Any, first: Any, second: Any, better: float, **more: Any) -> list[Fields]:
    """The first is chosen where `better` is above 0, the second below 0; at 0 it is a tie."""
    chosen, rejected = (second, first) if better < 0 else (first, second)
    asked = {} if prompt is None else {"prompt": prompt}
    return [asked | {"chosen": chosen, "rejected": rejected} | ({} if better else {"tie": True}) | more]


def scored(prompt: Any, responses: Any, scores: Any) -> Fields:
    """Responses to a prompt: the higher the score, the better."""
    return {"prompt": prompt, "responses": responses, "scores": scores}


def argilla_record(row: Record) -> list[Fields]:
    """A record: `fields` with the prompt and the responses, `responses` with each annotator's ranking or choice."""
    fields, found = as_mapping(row, row.get("fields"), "fields"), list[Fields]()
    prompt = next((name for name in PROMPTS if name in fields), "")
    said = [name for name in fields if name != prompt]
    if meant := [name for name in said if name in MEANT]:
        raise row.fail(
            f"the field '{meant[0]}' of this record of Argilla would change the conversation, and is not read"
        )
    for value in _argilla_values(row, row.get("responses")):
        ranked = [{"value": name, "rank": 1 if name == value else 2} for name in said] if value in said else []
        if isinstance(value, list):
            order = enumerate(cast(list[Any], value), 1)
            ranked = [one if isinstance(one, Mapping) else {"value": one, "rank": i} for i, one in order]
        names = [str(one.get("value")) for one in ranked]
        if not prompt or len(names) < 2 or not all(name in fields for name in names):
            raise row.fail(
                "this record of Argilla has no ranking of its fields, nor a choice of one; expected 'fields' with a "
                f"prompt ({', '.join(PROMPTS)}) and 'responses' that name the others; got {value!r:.60}"
            )
        ranks = [as_number(row, one.get("rank"), "responses rank") for one in ranked]
        found.append(scored(fields[prompt], [fields[name] for name in names], [-rank for rank in ranks]))
    return found


def _argilla_values(row: Record, responses: Any) -> Iterator[Any]:
    """The submitted values in version 1, `[{values: {question: {value}}}]`, and 2, `{question: [{value}]}`."""
    if isinstance(responses, Mapping):
        given = [
            one for said in cast(Mapping[str, Any], responses).values() for one in as_list(row, said or [], "responses")
        ]
        values = [(as_mapping(row, one, "responses"), one.get("value")) for one in given]
    else:
        given = [as_mapping(row, one, "responses") for one in as_list(row, responses or [], "responses")]
        values = [
            (one, as_mapping(row, said, "responses values").get("value"))
            for one in given
            for said in as_mapping(row, one.get("values") or {}, "responses values").values()
        ]
    yield from (value for one, value in values if one.get("status") in (None, "submitted"))


def label_studio_task(row: Record) -> list[Fields]:
    """A task with `annotations`: of two responses the `selected` one, or `items` in the order of a ranker."""
    data, found = as_mapping(row, row.get("data"), "data"), list[Fields]()
    annotations = [as_mapping(row, one, "annotations") for one in as_list(row, row.get("annotations"), "annotations")]
    for annotation in (one for one in annotations if not one.get("was_cancelled")):
        for result in (
            as_mapping(row, one, "result") for one in as_list(row, annotation.get("result") or [], "result")
        ):
            value = as_mapping(row, result.get("value") or {}, "value")
            if result.get("type") == "pairwise":
                found += _selected(row, data, value.get("selected"))
            elif result.get("type") == "ranker":
                found.append(_ranker(row, data, as_mapping(row, value.get("ranker"), "ranker")))
    if not found and any(one.get("result") for one in annotations if not one.get("was_cancelled")):
        raise row.fail("this task of Label Studio has no result of the type pairwise or ranker")
    return found


def _selected(row: Record, data: Mapping[str, Any], selected: Any) -> list[Fields]:
    prompt = next((name for name in PROMPTS if name in data), "")
    two = [name for name, value in data.items() if name != prompt and isinstance(value, str)]
    sides = {"left": 1, "right": -1} | ({two[0]: 1, two[1]: -1} if len(two) == 2 else {})
    if not prompt or len(two) != 2 or selected not in sides:
        raise row.fail(
            f"a comparison of Label Studio needs a prompt ({', '.join(PROMPTS)}) and two texts in its data, and "
            f"'selected' that is left or right; got {', '.join(data)} and {selected!r}"
        )
    return pair(data[prompt], data[two[0]], data[two[1]], sides[selected])


def _ranker(row: Record, data: Mapping[str, Any], ranker: Mapping[str, Any]) -> Fields:
    buckets = [ids for name, ids in ranker.items() if name != "_"]
    prompt = next((name for name in PROMPTS if name in data), "")
    given = [as_mapping(row, one, "data items") for one in as_list(row, data.get("items"), "data items")]
    items = {str(one.get("id")): one for one in given}
    if len(buckets) != 1 or not prompt or not all(str(name) in items for name in buckets[0]):
        raise row.fail(
            f"a ranking of Label Studio needs one list of the ids of 'items', best first, and a prompt; got "
            f"{len(buckets)} lists"
        )
    said = [items[str(name)] for name in buckets[0]]
    texts = [one.get("body") or one.get("html") or one.get("text") for one in said]
    return scored(data[prompt], texts, [-float(place) for place in range(len(said))])


def is_label_studio_min(row: Record) -> bool:
    """Whether a row is a comparison as Label Studio's JSON-MIN and CSV have it."""
    return {"annotator", "annotation_id"} <= row.fields.keys() and any(map(_side, row.fields.values()))


def _side(value: Any) -> Any:
    """`left` or `right` in a value of JSON-MIN, which may be {selected}."""
    said = value.get("selected") if isinstance(value, Mapping) else value
    return said if said in ("left", "right") else None


def label_studio_min(row: Record) -> list[Fields]:
    """The data and the verdict stand side by side."""
    about = ("annotator", "annotation_id", "id", "created_at", "updated_at", "lead_time")
    said = {name: value for name, value in row.fields.items() if name not in about}
    verdict = next(name for name, value in said.items() if _side(value))
    return _selected(row, {name: row.get(name) for name in said if name != verdict}, _side(row.get(verdict)))
