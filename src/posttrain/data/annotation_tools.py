"""Feedback of other tools in posttrain's columns: Argilla, Label Studio, OpenAssistant's trees, labelled steps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from posttrain.data.meaning import MEANT, other_keys
from posttrain.data.records import Record, typed
from posttrain.types import Message

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
    fields, found = row.as_mapping("fields"), list[Fields]()
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
        ranks = [row.as_number("responses rank", one.get("rank")) for one in ranked]
        found.append(scored(fields[prompt], [fields[name] for name in names], [-rank for rank in ranks]))
    return found


def _argilla_values(row: Record, responses: Any) -> Iterator[Any]:
    """The submitted values in version 1, `[{values: {question: {value}}}]`, and 2, `{question: [{value}]}`."""
    if isinstance(responses, Mapping):
        answers = cast(Mapping[str, Any], responses).values()
        given = [one for said in answers for one in row.as_list("responses", said or [])]
        values = [(row.as_mapping("responses", one), one.get("value")) for one in given]
    else:
        given = [row.as_mapping("responses", one) for one in row.as_list("responses", responses or [])]
        values = [
            (one, row.as_mapping("responses values", said).get("value"))
            for one in given
            for said in row.as_mapping("responses values", one.get("values") or {}).values()
        ]
    yield from (value for one, value in values if one.get("status") in (None, "submitted"))


def label_studio_task(row: Record) -> list[Fields]:
    """A task with `annotations`: of two responses the `selected` one, or `items` in the order of a ranker."""
    data, found = row.as_mapping("data"), list[Fields]()
    annotations = [row.as_mapping("annotations", one) for one in row.as_list("annotations")]
    given = [one.get("result") or [] for one in annotations if not one.get("was_cancelled")]
    for result in (row.as_mapping("result", one) for results in given for one in row.as_list("result", results)):
        value = row.as_mapping("value", result.get("value") or {})
        if result.get("type") == "pairwise":
            found += _selected(row, data, value.get("selected"))
        elif result.get("type") == "ranker":
            found.append(_ranker(row, data, row.as_mapping("ranker", value.get("ranker"))))
    if not found and any(given):
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
    given = [row.as_mapping("data items", one) for one in row.as_list("data items", data.get("items"))]
    items = {str(one.get("id")): one for one in given}
    if len(buckets) != 1 or not prompt or not all(str(name) in items for name in buckets[0]):
        raise row.fail(
            f"a ranking of Label Studio needs one list of the ids of 'items', best first, and a prompt; got "
            f"{len(buckets)} lists"
        )
    said = [items[str(name)] for name in buckets[0]]
    texts = [one.get("body") or one.get("html") or one.get("text") for one in said]
    return scored(data[prompt], texts, [-float(place) for place in range(len(said))])


def label_studio_min(row: Record) -> list[Fields] | None:
    """A comparison as Label Studio's JSON-MIN and CSV have it: the data and the verdict stand side by side."""
    about = ("annotator", "annotation_id", "id", "created_at", "updated_at", "lead_time")
    said = {name: value for name, value in row.fields.items() if name not in about}
    verdict = next((name for name, value in said.items() if _side(value)), "")
    if not verdict or not {"annotator", "annotation_id"} <= row.fields.keys():
        return None
    return _selected(row, {name: row.get(name) for name in said if name != verdict}, _side(row.get(verdict)))


def _side(value: Any) -> Any:
    said = value.get("selected") if isinstance(value, Mapping) else value
    return said if said in ("left", "right") else None


Node = Mapping[str, Any]


def gathered_trees(rows: Sequence[Record]) -> list[Record]:
    """The rows of each tree's messages as one row with the tree; other rows stay."""
    if not rows or not {"message_id", "message_tree_id", "parent_id", "text", "role"} <= rows[0].fields.keys():
        return list(rows)
    nodes = {row.text("message_id"): {**row.fields, "replies": list[Any]()} for row in rows}
    trees: list[Record] = []
    for row in rows:
        parent, node = row.fields.get("parent_id"), nodes[row.text("message_id")]
        if parent in nodes:
            nodes[parent]["replies"].append(node)
        elif parent is None:
            trees.append(Record({"prompt": node}, row.place, row.id))
        else:
            raise row.fail(
                f"the message that this one answers, {parent!r}, is not in the data; remove its replies, too"
            )
    return trees or list(rows)


def is_tree(row: Record) -> bool:
    """Whether a row's prompt is the root of a tree."""
    prompt = row.fields.get("prompt")
    return isinstance(prompt, Mapping) and {"text", "replies"} <= cast(Node, prompt).keys()


def ranked_replies(row: Record) -> list[Fields] | None:
    """At each place of OpenAssistant's tree the assistant's replies by their `rank`, from 0, the best."""
    if not is_tree(row):
        return None
    found: list[Fields] = []

    def visit(node: Node, before: list[Node]) -> None:
        path, kept = [*before, node], _kept(node)
        ranked = [one for one in kept if one.get("role") == "assistant" and one.get("rank") is not None]
        if len(ranked) > 1:
            said = [_message(row, one)["content"] for one in ranked]
            scores = [-row.as_number("rank", one["rank"]) for one in ranked]
            found.append(scored([_message(row, one) for one in path], said, scores))
        for reply in kept:
            visit(reply, path)

    visit(_root(row), [])
    return found or [scored([_message(row, _root(row))], [], [])]


def best_conversation(row: Record) -> Record:
    """The conversation of a tree that follows the best reply at each place, up to the assistant's last."""
    path, node = list[Node](), _root(row)
    while node:
        path.append(node)
        replies = _kept(node)
        ranks = [len(replies) if one.get("rank") is None else row.as_number("rank", one["rank"]) for one in replies]
        node = replies[ranks.index(min(ranks))] if replies else {}
    while path and path[-1].get("role") != "assistant":
        path.pop()
    return row.replaced({"messages": [_message(row, one) for one in path]})


def _root(row: Record) -> Node:
    row.read.update(("message_tree_id", "tree_state"))
    return row.as_mapping("prompt")


def _kept(node: Node) -> list[Node]:
    return [one for one in node.get("replies") or () if isinstance(one, Mapping) and not one.get("deleted")]


def _message(row: Record, node: Node) -> dict[str, Any]:
    if not isinstance(node.get("text"), str) or node.get("role") not in ("prompter", "user", "assistant"):
        raise row.fail(f"a message of a tree must have text and a role, prompter or assistant; got {str(node)[:60]}")
    if node.get("deleted"):
        raise row.fail("the first message of this tree is deleted; remove the tree")
    other_keys(node, "a message of this tree")  # which refuses those that change what is learned
    return {"role": node["role"], "content": node["text"]}


_STEP_TAG = "\u043a\u0438"  # Math-Shepherd's, in Cyrillic


def labelled_steps(row: Record) -> Fields | None:
    """`prompt`, `steps` and `labels` of a row of TRL's, Math-Shepherd's or ProcessBench's; None of another one."""
    if {"problem", "steps", "label"} <= row.fields.keys():
        return _process_bench(row)
    if not all(name in row for name in ("prompt", "completions", "labels")):
        return _math_shepherd(row) if "label" in row and _STEP_TAG in str(row.fields.get("input")) else None
    steps = [row.as_text("completions", step) for step in row.as_list("completions")]
    labels = row.as_list("labels")
    if {-1, 0} <= {label for label in labels if isinstance(label, int | float)}:
        raise row.fail("field 'labels' has 0 beside -1: neither right nor wrong; remove such steps")
    if len(steps) != len(labels):
        raise row.fail(f"{len(steps)} 'completions' need as many 'labels'; got {len(labels)}")
    return {"prompt": row.get("prompt"), "steps": steps, "labels": labels}


def _process_bench(row: Record) -> Fields:
    """`label`: the number of the first wrong step, from 0; -1 where all are right."""
    steps, label = row.as_list("steps"), row.get("label")
    if not isinstance(label, int) or not -1 <= label < len(steps):
        raise row.fail(f"field 'label' must be -1 or the number of a step, below {len(steps)}; got {label!r:.60}")
    labels = [place != label for place in range(len(steps) if label < 0 else label + 1)]
    return {"prompt": row.get("problem"), "steps": steps[: len(labels)], "labels": labels}


def _math_shepherd(row: Record) -> Fields:
    """`input` with a tag behind each step, and `label`, the same text with + or - for each tag."""
    *texts, _ = row.text("input").split(_STEP_TAG)
    rest, labels = row.text("label"), list[bool]()
    for text in texts:
        if not rest.startswith(text) or rest[len(text) : len(text) + 1] not in ("+", "-"):
            raise row.fail("field 'label' must be the text of 'input' with + or - in place of each tag")
        labels.append(rest[len(text)] == "+")
        rest = rest[len(text) + 1 :]
    begins = re.search(r"Step 1:", texts[0]) if texts else None
    if begins is None:
        raise row.fail(
            f"field 'input' must have a question, and steps from 'Step 1:' on; got {row.text('input')[:40]!r}"
        )
    question, first = texts[0][: begins.start()].strip(), texts[0][begins.start() :]
    return {"prompt": question, "steps": [step.strip() for step in (first, *texts[1:])], "labels": labels}


def until_wrong(row: Record) -> list[Fields] | None:
    """A labelled step after those before it, up to the first wrong one: later ones follow from it."""
    if (reasoning := labelled_steps(row)) is None:
        return None
    found, steps = list[Fields](), reasoning["steps"]
    for place, (step, label) in enumerate(zip(steps, reasoning["labels"], strict=True)):
        before = {"prompt": reasoning["prompt"], "steps": list(steps[:place])}
        found.append({**before, "completion": step, "label": label})
        if typed(label) in (False, 0, -1):
            break
    return found


class RatedStep(NamedTuple):
    """A step of a derivation: its alternatives with their ratings (1, 0, -1 or None), and the one that was taken."""

    rated: list[tuple[str, int | None]]
    taken: str  # empty where it ends here
    chosen: int | None  # which of the alternatives that is; None for one that a person wrote


def is_prm800k(row: Record) -> bool:
    """Others have a `question` and a `label`, too, but as text."""
    return all(isinstance(row.fields.get(name), Mapping) for name in ("question", "label"))


def prm800k_problem(row: Record) -> tuple[Message, ...]:
    """The prompt of a row of PRM800K."""
    return (Message("user", row.as_text("question problem", row.as_mapping("question").get("problem"))),)


def prm800k_steps(row: Record) -> Iterator[RatedStep]:
    """The steps of a row of PRM800K, up to one after which a wrong or missing one was taken."""
    steps = row.as_list("label steps", row.as_mapping("label").get("steps"))
    for step in (row.as_mapping("label steps", one) for one in steps):
        seen = [row.as_mapping("completions", one) for one in step.get("completions") or ()]
        rated = [(str(one.get("text") or ""), one.get("rating")) for one in seen]
        if wrong := [rating for _, rating in rated if rating not in (-1, 0, 1, None)]:
            raise row.fail(f"the rating of a step must be -1, 0, 1 or null; got {wrong[0]!r}")
        chosen, human = step.get("chosen_completion"), step.get("human_completion")
        taken = human.get("text") if isinstance(human, Mapping) else human
        if isinstance(chosen, int):
            if not 0 <= chosen < len(rated):
                raise row.fail(f"'chosen_completion' is {chosen} of {len(rated)} completions")
            taken = rated[chosen][0] if rated[chosen][1] != -1 else None
        taken = taken if isinstance(taken, str) and taken.strip() else ""
        yield RatedStep(rated, taken, chosen if isinstance(chosen, int) and taken else None)
        if not taken:
            return
