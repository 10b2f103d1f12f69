"""Exports of the database: rankings, and rows of a file."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store import conversations
from posttrain.annotation.store.tables import Assignment, Item, Project, Ruling
from posttrain.annotation.store.work import choices, done
from posttrain.annotation.task_kinds import KINDS, Answer
from posttrain.annotation.training_rows import Choice, Told

TURN = ("message", "replies", "shown", "taken", "said", "replied")  # of a turn, what is exported


def items(connection: Connection, project: Project) -> Sequence[Item]:
    """All of them, in the order in which they were added."""
    return connection.scalars(select(Item).where(Item.project_id == project.id).order_by(Item.id)).all()


def rulings(connection: Connection, project: Project) -> dict[str, Answer]:
    """By an item's name what a manager has decided, as it holds now."""
    query = select(Item.name, Ruling.answer).join(Ruling, Ruling.item_id == Item.id)
    query = query.where(Item.project_id == project.id).order_by(Ruling.version)
    return {row.name: row.answer for row in connection.execute(query)}


def rows(connection: Connection, project: Project, *, history: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each judgement, with all that is known of how it came about.

    `history` adds what was corrected later, and what was said of an item that came a second time.
    """
    decisions, talk = rulings(connection, project), KINDS[project.kind].goes_on is not None
    for one in done(connection, project):
        if one.repeat and not history:
            continue
        for said in one.judgements if history else one.judgements[-1:]:
            yield {
                "project": project.name,
                "kind": project.kind,
                "item": one.item.name,
                "annotator": one.user.name,
                **said.answer,
                "prompt": one.item.prompt,
                "completions": [
                    {"text": completion.text, "model": completion.model, **completion.details}
                    for completion in one.item.completions
                ],
                **({"turns": [{name: getattr(turn, name) for name in TURN} for turn in one.turns]} if talk else {}),
                "shown": one.shown,
                "repeat": one.repeat,
                "check": one.item.expected is not None,
                "ruling": decisions.get(one.item.name),
                "version": said.version,
                "sent": said.sent,
                # how long the last version took, or of a conversation all choices
                "seconds": sum(v.seconds for v in one.judgements) if talk and not history else said.seconds,
                "given": one.given,
                "time": said.said,
                "details": one.item.details,
            }


def told(connection: Connection, project: Project) -> Told:
    """Answers for training: what annotators say now of items that they met for the first time.

    Attention-check items are excluded.
    """
    said = [one for one in done(connection, project) if not one.repeat and one.item.expected is None]
    return Told(
        project.kind,
        {item.name: item for item in items(connection, project)},
        [(one.item.name, one.user.name, one.judgements[-1].answer) for one in said],
        [choice for one in said for choice in _choices(one)],
        project.settings.get("rules", ()),
        rulings(connection, project),
    )


def _choices(assignment: Assignment) -> Iterator[Choice]:
    """Each turn of a conversation that has a choice, with what the model had read."""
    who = assignment.user.name
    for turn, choice in zip(assignment.turns, choices(assignment), strict=False):
        replies = {number: conversations.reply_of(turn, number) for number in sorted(turn.shown)}
        name = f"{assignment.item.name}, {who}, turn {turn.number + 1}"
        yield Choice(name, who, conversations.transcript(turn), replies, choice)
