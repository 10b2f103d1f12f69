"""Exports of the database: rankings, and rows of a file."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store import conversations
from posttrain.annotation.store.projects import rules_of
from posttrain.annotation.store.tables import Assignment, Item, Project, Ruling
from posttrain.annotation.task_kinds import KINDS, Answer
from posttrain.annotation.training_rows import Choice, Told
from posttrain.types import Ranking


def done(connection: Connection, project: Project, item: Item | None = None) -> Sequence[Assignment]:
    """All that has been answered, or all of one item; of a conversation, as far as it has come."""
    query = select(Assignment).join(Item, Item.id == Assignment.item_id)
    query = query if item is None else query.where(Item.id == item.id)
    query = query.where(Item.project_id == project.id, Assignment.judgements.any()).order_by(Assignment.id)
    return connection.scalars(query).all()


def first(connection: Connection, project: Project) -> list[Assignment]:
    """Answers for training and agreement: annotators' first encounters with each item.

    Attention-check items are excluded.
    """
    return [one for one in done(connection, project) if not one.repeat and one.item.expected is None]


def rankings(connection: Connection, project: Project) -> list[Ranking]:
    """What each annotator says now of the order of each item's completions, as in `first`.

    Empty where the project's kind says nothing of an order.
    """
    ranking = KINDS[project.kind].ranking
    if ranking is None:
        return []
    said = [(one, one.judgements[-1]) for one in first(connection, project)]
    return [
        Ranking(one.item.name, one.user.name, *ranking(last.answer), source=f"assignment {one.id}", time=last.said)
        for one, last in said
    ]


def items(connection: Connection, project: Project) -> Sequence[Item]:
    """All of them, in the order in which they were added."""
    return connection.scalars(select(Item).where(Item.project_id == project.id).order_by(Item.id)).all()


def rulings(connection: Connection, project: Project) -> dict[str, Answer]:
    """By an item's name what a manager has decided, as it holds now."""
    query = select(Item.name, Ruling.answer).join(Ruling, Ruling.item_id == Item.id)
    query = query.where(Item.project_id == project.id).order_by(Ruling.version)
    return {row.name: row.answer for row in connection.execute(query)}


def decided(connection: Connection, project: Project) -> dict[str, Ranking]:
    """The same as an order, where the project's kind says one."""
    ranking = KINDS[project.kind].ranking
    if ranking is None:
        return {}
    return {name: Ranking(name, "", *ranking(answer)) for name, answer in rulings(connection, project).items()}


def rows(connection: Connection, project: Project, *, history: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each judgement, with all that is known of how it came about.

    Args:
        connection: to read.
        project: whose.
        history: also what was corrected later, and what was said of an item that came a second time.
    """
    decisions = rulings(connection, project)
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
                **({"turns": _turns(one)} if KINDS[project.kind].goes_on else {}),
                "shown": one.shown,
                "repeat": one.repeat,
                "check": one.item.expected is not None,
                "ruling": decisions.get(one.item.name),
                "version": said.version,
                "sent": said.sent,
                "seconds": said.seconds if history else _seconds(one),
                "given": one.given,
                "time": said.said,
                "details": one.item.details,
            }


def _turns(assignment: Assignment) -> list[dict[str, Any]]:
    fields = ("message", "replies", "shown", "taken", "said", "replied")
    return [{name: getattr(turn, name) for name in fields} for turn in assignment.turns]


def told(connection: Connection, project: Project) -> Told:
    """All that was said, as in `first`, as they say it now."""
    every, said, talk = items(connection, project), first(connection, project), KINDS[project.kind].goes_on is not None
    answers = [(one.item.name, one.user.name, one.judgements[-1].answer) for one in said]
    return Told(
        project.kind,
        {item.name: item.prompt for item in every},
        {item.name: {completion.number: completion.text for completion in item.completions} for item in every},
        {item.name: {completion.number: completion.model for completion in item.completions} for item in every},
        answers,
        rankings(connection, project),
        [choice for one in said for choice in _choices(one)] if talk else [],
        rules_of(project),
        rulings(connection, project),
        decided(connection, project),
    )


def _choices(assignment: Assignment) -> Iterator[Choice]:
    for turn, read, choice in conversations.chosen_at(assignment):
        replies = {number: conversations.reply_of(turn, number) for number in sorted(turn.shown)}
        texts = {number: reply["text"] for number, reply in replies.items()}
        models = {number: reply["model"] for number, reply in replies.items()}
        name = f"{assignment.item.name}, {assignment.user.name}, turn {turn.number + 1}"
        yield Choice(name, assignment.user.name, read, texts, choice, models)


def _seconds(assignment: Assignment) -> float:
    """How long an answer took: the last version of it, or of a conversation all choices."""
    said = assignment.judgements
    return sum(one.seconds for one in (said if "choices" in said[-1].answer else said[-1:]))
