"""Assignment of items to annotators, storage of their answers, and what managers decide where these differ.

Work of a project is given out one by one (`one_by_one`), so that no item goes to more people than it should. An answer
is kept when the transaction that holds it is on the disk, and not before that is it acknowledged; one that is sent a
second time, because the acknowledgement was lost on the way, is recognised by the name of its sending.
"""

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select, update
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store.database import one_by_one, record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Item, Judgement, Member, Project, Ruling, Turn, User
from posttrain.annotation.task_kinds import KINDS, Answer, Question

APART = 5  # items at least between the first and the second time
HELD = timedelta(hours=12)  # how long an item waits for whoever it was given to, if others have nothing else to do


class Changed(Refused):
    """The answer was changed elsewhere since this page was opened."""


def next_for(connection: Connection, project: Project, user: User) -> Assignment | None:
    """The next item for a user: the one that they have begun, or a new one; None if there is none left.

    Items of the highest priority come first, then those that others have begun, then any. Those whose answer is known
    are mixed among them, for everybody as often as their share of all items, while there is something else to do (or
    where there is nothing else at all).
    """
    one_by_one(connection, project.id)
    begun = given_of(project, Assignment.user_id == user.id, Assignment.state == "open")
    if (found := connection.scalar(begun)) is not None:
        return found
    again = _again(connection, project, user)
    item = again or _new(connection, project, user)
    if item is None and _release(connection, project):
        item = _new(connection, project, user)
    if item is None:
        return None
    shown = [completion.number for completion in item.completions]
    random.SystemRandom().shuffle(shown)
    assignment = Assignment(item=item, user_id=user.id, repeat=again is not None, shown=shown)
    connection.add(assignment)
    if again is None:
        item.given += 1
    connection.flush()
    record(connection, user.id, "give", f"assignment {assignment.id}", item=item.name, shown=shown)
    return assignment


def _new(connection: Connection, project: Project, user: User) -> Item | None:
    unseen = Item.id.not_in(select(Assignment.item_id).where(Assignment.user_id == user.id))
    checks = (Item.project_id == project.id, Item.expected.is_not(None))
    plain = (Item.project_id == project.id, Item.expected.is_(None))
    wanted = select(Item).where(*plain, unseen, Item.given < project.annotators_per_item)
    order = (Item.priority.desc(), Item.given.desc(), func.random())
    item = connection.scalar(wanted.order_by(*order).limit(1))
    known = _count(connection, *checks, unseen)
    if known and (item or not _count(connection, *plain)):
        others = _count(connection, *plain, unseen)  # also those that enough people have judged
        if random.random() * (known + others) < known:
            return connection.scalar(select(Item).where(*checks, unseen).order_by(func.random()).limit(1))
    return item


def _count(connection: Connection, *which: ColumnElement[bool]) -> int:
    return connection.scalar(select(func.count(Item.id)).where(*which)) or 0


def given_of(project: Project, *which: ColumnElement[bool]) -> Select[Assignment]:
    """A project's assignments, the oldest first."""
    query = select(Assignment).join(Assignment.item).where(Item.project_id == project.id, *which)
    return query.order_by(Assignment.id)


def _release(connection: Connection, project: Project) -> int:
    """Release stale assignments, which may still be answered. Returns their number."""
    before = (datetime.now(UTC) - HELD).isoformat(timespec="milliseconds")
    recent = (select(table.assignment_id).where(table.said >= before) for table in (Turn, Judgement))
    stale = (Assignment.given < before, *(Assignment.id.not_in(query) for query in recent))
    held = connection.scalars(given_of(project, Assignment.state == "open", *stale)).all()
    for one in held:
        one.state = "lapsed"
        one.item.given -= not one.repeat
        record(connection, one.user_id, "lapse", f"assignment {one.id}")
    connection.flush()
    return len(held)


def _again(connection: Connection, project: Project, user: User) -> Item | None:
    """An item that they have judged some time ago, if one is due a second time."""
    if not project.repeat_share:
        return None
    given = connection.scalars(given_of(project, Assignment.user_id == user.id)).all()
    first = [one for one in given if one.state == "done" and not one.repeat]
    twice = {one.item_id for one in given if one.repeat}  # those that were skipped, too
    if len(twice) >= project.repeat_share * len(first) or len(first) <= APART:
        return None
    due = [one.item for one in first[:-APART] if one.item_id not in twice]
    return random.SystemRandom().choice(due) if due else None


def assigned(connection: Connection, number: int, user: User) -> Assignment:
    """A user's assignment; raises `LookupError` if it is another's, as for a missing one."""
    found = connection.get(Assignment, number)
    if found is None or found.user_id != user.id or connection.get(Member, (found.item.project_id, user.id)) is None:
        raise LookupError(f"assignment {number}")
    return found


def answer(
    connection: Connection,
    assignment: Assignment,
    sent: Mapping[str, Any],
    *,
    sending: str,
    version: int,
    seconds: float,
) -> Judgement:
    """Keep an answer: the first, or one that corrects what was said before.

    `sending` is a name that the page made up for this sending; if it is known, what was kept then is returned.
    `version` is how many answers the page knew of: where there are others, `Changed` is raised. `seconds` is how
    long it was before their eyes.
    """
    project = connection.get_one(Project, assignment.item.project_id)
    one_by_one(connection, project.id)
    connection.refresh(assignment)
    if (known := connection.scalar(select(Judgement).where(Judgement.sent == sending))) is not None:
        if known.assignment_id != assignment.id:
            raise Refused("this was sent already, for another item")
        then = question(project, assignment)
        if chosen := known.answer.get("choices"):  # a conversation may have gone on since
            texts = {number: text for number, text in then.texts.items() if number < 2 * len(chosen)}
            then = then._replace(texts=texts, before=chosen[:-1])
        if KINDS[project.kind].check(sent, then) != known.answer:
            raise Changed("another answer was kept for this page; load it again to see that answer and change it")
        return known
    said = KINDS[project.kind].check(sent, question(project, assignment))
    if version != len(assignment.judgements):
        raise Changed("you have answered this elsewhere since this page was opened; load it again to see that answer")
    judgement = Judgement(
        assignment_id=assignment.id, version=version + 1, answer=said, seconds=max(0.0, seconds), sent=sending
    )
    connection.add(judgement)
    take_up(assignment, done=KINDS[project.kind].goes_on is None)
    record(connection, assignment.user_id, "judge", f"assignment {assignment.id}", version=version + 1, answer=said)
    connection.flush()
    return judgement


def take_up(assignment: Assignment, *, done: bool = False) -> None:
    """What was given back is theirs again; it may be `done` with this."""
    if assignment.state in ("skipped", "lapsed"):
        if not assignment.repeat:
            assignment.item.given = Item.given + 1  # in the database, where somebody else may have changed it
        assignment.state = "open"
    if done:
        assignment.state = "done"


def asked(project: Project, item: Item) -> Question:
    """The question of an item."""
    texts = {completion.number: completion.text for completion in item.completions}
    return Question(texts, project.settings.get("attributes", ()), project.settings.get("rules", ()))


def question(project: Project, assignment: Assignment) -> Question:
    """What an assignment asks: the same of everybody, or what its annotator's conversation has come to."""
    replies = {
        2 * turn.number + place: reply["text"]
        for turn in assignment.turns
        for place, reply in enumerate(turn.replies or ())
    }
    found = asked(project, assignment.item)
    before = choices(assignment)[: max(0, len(assignment.turns) - 1)]
    return found._replace(texts={**found.texts, **replies}, before=before)


def choices(assignment: Assignment) -> list[Answer]:
    """Of a conversation, what was chosen at each turn, as its annotator says now; nothing for other kinds."""
    return assignment.judgements[-1].answer.get("choices", []) if assignment.judgements else []


def decidable(project: Project) -> bool:
    """Whether annotators can disagree: where everybody writes or talks on their own, they cannot."""
    return (KINDS[project.kind].ranking or KINDS[project.kind].verdict) is not None


def rule(
    connection: Connection, item: Item, user: User, sent: Mapping[str, Any], *, sending: str, version: int
) -> Ruling:
    """Store a manager's ruling: the first on an item, or a correction; arguments are as those of `answer`."""
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
    if not done(connection, project, item):
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
    said = [one for one in done(connection, project, item) if not one.repeat]
    found = [(one.user.name, words(one.judgements[-1].answer)) for one in said]
    return [*found, *((f"{one.user.name}, who decides", words(one.answer)) for one in item.rulings[-1:])]


def done(connection: Connection, project: Project, item: Item | None = None) -> Sequence[Assignment]:
    """All that has been answered, or all of one item; of a conversation, as far as it has come."""
    query = given_of(project, Assignment.judgements.any())
    return connection.scalars(query if item is None else query.where(Item.id == item.id)).all()


def skip(connection: Connection, assignment: Assignment, reason: str) -> None:
    """Skip an item, so that another annotator gets it."""
    reason = reason.strip()
    if not reason:
        raise Refused("say why you skip this one")
    one_by_one(connection, assignment.item.project_id)
    connection.refresh(assignment)
    if assignment.state == "done":
        raise Refused("you have answered this one; change the answer instead")
    if assignment.state == "open" and not assignment.repeat:
        connection.execute(update(Item).where(Item.id == assignment.item_id).values(given=Item.given - 1))
    assignment.state, assignment.reason = "skipped", reason[:2000]
    record(connection, assignment.user_id, "skip", f"assignment {assignment.id}", reason=assignment.reason)


def mine(connection: Connection, project: Project, user: User) -> list[Assignment]:
    """An annotator's answers in a project, the latest first."""
    seen = Assignment.state.in_(("done", "skipped")) | Assignment.judgements.any()
    return list(connection.scalars(given_of(project, Assignment.user_id == user.id, seen)))[::-1]


def so_far(connection: Connection, project: Project, user: User, number: int) -> tuple[int, int | None]:
    """Number of items a user has answered in a project, and the last answered one before assignment `number`."""
    query = select(func.count(Assignment.id), func.max(case((Assignment.id < number, Assignment.id))))
    mine = (Item.project_id == project.id, Assignment.user_id == user.id, Assignment.state == "done")
    count, before = connection.execute(query.join(Assignment.item).where(*mine)).one()
    return count, before
