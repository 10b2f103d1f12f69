"""OpenAssistant: trees of messages, or a row for each message of a tree."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from posttrain.data.annotation_tools import Fields, scored
from posttrain.data.fields import as_mapping, as_number
from posttrain.data.meaning import other_keys
from posttrain.data.records import Record

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


def ranked_replies(row: Record) -> list[Fields]:
    """At each place of a tree the assistant's replies by their `rank`, from 0, the best."""
    return [
        scored(
            [_message(row, one) for one in path],
            [_message(row, one)["content"] for one in replies],
            [-as_number(row, one["rank"], "rank") for one in replies],
        )
        for path, replies in _places(_root(row), [])
    ] or [scored([_message(row, _root(row))], [], [])]


def best_conversation(row: Record) -> Record:
    """The conversation of a tree that follows the best reply at each place, up to the assistant's last."""
    path, node = list[Node](), _root(row)
    while node:
        path.append(node)
        replies = _kept(node)
        node = min(
            replies,
            key=lambda one: len(replies) if one.get("rank") is None else as_number(row, one["rank"], "rank"),
            default={},
        )
    while path and path[-1].get("role") != "assistant":
        path.pop()
    return row.replaced({"messages": [_message(row, one) for one in path]})


def _root(row: Record) -> Node:
    row.read.update(("message_tree_id", "tree_state"))
    return as_mapping(row, row.get("prompt"), "prompt")


def _places(node: Node, before: list[Node]) -> Iterator[tuple[list[Node], list[Node]]]:
    """Each path that ends with a user's message, and the ranked replies to it."""
    path = [*before, node]
    ranked = [one for one in _kept(node) if one.get("role") == "assistant" and one.get("rank") is not None]
    if len(ranked) > 1:
        yield path, ranked
    for reply in _kept(node):
        yield from _places(reply, path)


def _kept(node: Node) -> list[Node]:
    return [one for one in node.get("replies") or () if isinstance(one, Mapping) and not one.get("deleted")]


def _message(row: Record, node: Node) -> dict[str, Any]:
    if not isinstance(node.get("text"), str) or node.get("role") not in ("prompter", "user", "assistant"):
        raise row.fail(f"a message of a tree must have text and a role, prompter or assistant; got {str(node)[:60]}")
    if node.get("deleted"):
        raise row.fail("the first message of this tree is deleted; remove the tree")
    other_keys(node, "a message of this tree")  # which refuses those that change what is learned
    return {"role": node["role"], "content": node["text"]}
