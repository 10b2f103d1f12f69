"""Adjudication: managers decide items on which annotators disagree; the decision is the consensus."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store import exports
from posttrain.annotation.store.database import one_by_one, record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Item, Project, Ruling, User
from posttrain.annotation.store.work import Changed, asked
from posttrain.annotation.task_kinds import KINDS


def decidable(project: Project) -> bool:
    """Whether annotators can disagree: where everybody writes or talks on their own, they cannot."""
    kind = KINDS[project.kind]
    return kind.ranking is not None or kind.verdict is not None


def rule(
    connection: Connection, item: Item, user: User, sent: Mapping[str, Any], *, sending: str, version: int
) -> Ruling:
    """Store a manager's ruling: the first on an item, or a correction. Arguments are as those of `work.answer`.

    Raises:
        Refused: there is nothing to decide in projects of this kind, or the item has no judgements.
        NoAnswer: it does not answer the question.
        Changed: there is a decision that the page did not know of.
    """
    project = connection.get_one(Project, item.project_id)
    if not decidable(project):
        raise Refused("here everybody gives an answer of their own, and there is nothing to decide")
    one_by_one(connection, project.id)
    connection.refresh(item, ["rulings"])
    if (known := connection.scalar(select(Ruling).where(Ruling.sent == sending))) is not None:
        if known.item_id != item.id:
            raise Refused("this was sent already, for another item")
        if KINDS[project.kind].check(sent, asked(project, item)) != known.answer:
            raise Changed("another decision was kept for this page; load it again to see and change that one")
        return known
    if not exports.done(connection, project, item):
        raise Refused("nobody has judged this yet")
    answer = KINDS[project.kind].check(sent, asked(project, item))
    if version != len(item.rulings):
        raise Changed("somebody has decided this since the page was opened; load it again to see how")
    ruling = Ruling(user_id=user.id, version=version + 1, answer=answer, sent=sending)
    item.rulings.append(ruling)
    record(connection, user.id, "rule", f"item {item.id}", version=version + 1, answer=answer)
    connection.flush()
    return ruling


def said_of(connection: Connection, project: Project, item: Item) -> list[tuple[str, str]]:
    """Each annotator's answer to an item, and the ruling: a name, and the answer as text."""
    words = KINDS[project.kind].words
    if words is None:
        return []
    said = [one for one in exports.done(connection, project, item) if not one.repeat]
    found = [(one.user.name, words(one.judgements[-1].answer)) for one in said]
    return [*found, *((f"{one.user.name}, who decides", words(one.answer)) for one in item.rulings[-1:])]
