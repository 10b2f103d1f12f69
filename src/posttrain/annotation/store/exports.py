"""What was said, taken out of the store: as rankings, as rows of a file, and as counts."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.kinds import KINDS, Answer
from posttrain.annotation.lessons import Choice, Told
from posttrain.annotation.store import conversations
from posttrain.annotation.store.projects import rules_of
from posttrain.annotation.store.tables import Assignment, Item, Project, Ruling, User
from posttrain.types import Ranking


def done(connection: Connection, project: Project) -> Sequence[Assignment]:
    """All that has been answered; of a conversation, as far as it has come."""
    query = select(Assignment).join(Item, Item.id == Assignment.item_id)
    query = query.where(Item.project_id == project.id, Assignment.judgements.any()).order_by(Assignment.id)
    return connection.scalars(query).all()


def first(connection: Connection, project: Project) -> list[Assignment]:
    """What teaches and is compared: what annotators said when they met an item first.

    Items whose answer is known are there to see who pays attention, and are not among them.
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


def verdicts(connection: Connection, project: Project) -> list[tuple[str, str, Hashable]]:
    """Item, annotator and what they say, as `rankings`, where the project's kind has a verdict and no order."""
    verdict = KINDS[project.kind].verdict
    if verdict is None:
        return []
    return [(one.item.name, one.user.name, verdict(one.judgements[-1].answer)) for one in first(connection, project)]


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


class Work(NamedTuple):
    """What one annotator has done."""

    done: int
    skipped: int
    seconds: float | None  # of an item, in the middle
    checks: tuple[int, int]  # items whose answer is known: how many were answered so, of how many
    repeats: tuple[int, int]  # items that came a second time: how many were answered alike, of how many


def work_of(connection: Connection, project: Project) -> dict[str, Work]:
    """By the annotators' names."""
    query = (
        select(Assignment, User.name)
        .join(Item, Item.id == Assignment.item_id)
        .join(User, User.id == Assignment.user_id)
    )
    query = query.where(Item.project_id == project.id).order_by(Assignment.id)
    mine: dict[str, list[Assignment]] = {}
    for assignment, name in connection.execute(query).unique():
        mine.setdefault(name, []).append(assignment)
    same = KINDS[project.kind].same
    found = {name: _work(assignments, same) for name, assignments in mine.items()}
    return {name: work for name, work in found.items() if work.done or work.skipped}


def _work(assignments: Sequence[Assignment], same: Callable[[Answer, Answer], bool]) -> Work:
    done = [one for one in assignments if one.judgements]
    before = {one.item_id: one.judgements[-1].answer for one in done if not one.repeat}
    again = [one for one in done if one.repeat and one.item_id in before]
    checks = [one for one in done if one.item.expected is not None and not one.repeat]
    return Work(
        len(done),
        sum(one.state == "skipped" and not one.judgements for one in assignments),
        median(map(_seconds, done)) if done else None,
        (sum(same(one.judgements[-1].answer, one.item.expected or {}) for one in checks), len(checks)),
        (sum(same(one.judgements[-1].answer, before[one.item_id]) for one in again), len(again)),
    )


def _seconds(assignment: Assignment) -> float:
    """How long an answer took: the last version of it, or of a conversation all choices."""
    said = assignment.judgements
    return sum(one.seconds for one in (said if "choices" in said[-1].answer else said[-1:]))
