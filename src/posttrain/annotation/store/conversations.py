"""Conversations of annotators with a model: turns, candidate replies, choices.

Choosing between two replies is an answer as any other (`work.answer`), and the next version of it is the next turn's.
Messages that wait for replies are rows, so that none is lost with the process that should have answered.
"""

import random
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session as Connection

from posttrain.annotation.store.database import one_by_one, record
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Project, Turn, now
from posttrain.annotation.store.work import Changed, choices, take_up
from posttrain.annotation.task_kinds import KINDS, Answer, NoAnswer, storable

LONGEST = 10_000  # letters of a message
MOST = 50  # turns of a conversation


def say(connection: Connection, assignment: Assignment, message: str, *, sending: str, turn: int) -> Turn:
    """Store an annotator's message to the model; it has no replies yet.

    Arguments and errors are as those of `work.answer`; `turn` is how many turns the page knew of.
    """
    project = connection.get_one(Project, assignment.item.project_id)
    one_by_one(connection, project.id)
    connection.refresh(assignment)
    if KINDS[project.kind].goes_on is None:
        raise LookupError("there is no conversation here")
    if (known := connection.scalar(select(Turn).where(Turn.sent == sending))) is not None:
        if known.assignment_id != assignment.id:
            raise Refused("this was sent already, in another conversation")
        if known.message != message.strip():
            raise Changed("another message was kept for this page; load it again to see the replies to that")
        return known
    message = message.strip()
    storable(message)
    if not message or len(message) > LONGEST:
        raise NoAnswer(f"a message has 1 to {LONGEST:,} letters; this one has {len(message):,}")
    turns = assignment.turns
    if assignment.state == "done":
        raise Refused("this conversation has ended")
    if len(turns) >= MOST:
        raise Refused(f"a conversation has at most {MOST} turns; end it")
    chosen = choices(assignment)
    if turn != len(turns) or len(chosen) < len(turns):
        raise Changed("the conversation has gone on since this page was opened; load it again")
    take_up(assignment)
    if turns:
        turns[-1].taken = following(project, turns[-1], chosen[-1])
    shown = [2 * turn, 2 * turn + 1]
    random.SystemRandom().shuffle(shown)
    said = Turn(number=turn, message=message, sent=sending, shown=shown)
    turns.append(said)
    record(connection, assignment.user_id, "say", f"assignment {assignment.id}", turn=turn, message=message)
    connection.flush()
    return said


def following(project: Project, turn: Turn, choice: Answer) -> int:
    """The reply with which the conversation continues after a choice: the upper one for a tie."""
    goes_on = KINDS[project.kind].goes_on
    taken = goes_on(choice) if goes_on else None
    return turn.shown[0] if taken is None else taken


def transcript(turn: Turn) -> list[dict[str, str]]:
    """The model's context: the item's messages, those of earlier turns, and this turn's message."""
    messages = [dict(message) for message in turn.assignment.item.prompt]
    for before in turn.assignment.turns[: turn.number]:
        messages.append({"role": "user", "content": before.message})
        messages.append({"role": "assistant", "content": reply_of(before, before.taken)["text"]})
    return [*messages, {"role": "user", "content": turn.message}]


def reply_of(turn: Turn, number: int | None) -> dict[str, str]:
    """One of a turn's two replies, by its number: `text`, `model`, and why it stopped."""
    if turn.replies is None or number is None:
        raise LookupError(f"turn {turn.number} has no such reply")
    return turn.replies[number - 2 * turn.number]


def waiting(connection: Connection, most: int) -> Sequence[Turn]:
    """Turns without replies in conversations that go on, who has waited longest first."""
    query = select(Turn).join(Assignment, Assignment.id == Turn.assignment_id)
    query = query.where(Turn.replies.is_(None), Assignment.state != "done")
    return connection.scalars(query.order_by(Turn.id).limit(most)).all()


def reply(connection: Connection, number: int, replies: Sequence[tuple[str, str, str]]) -> None:
    """Keep two replies to a turn: text, model, and why it stopped. What has replies already keeps those."""
    turn = connection.get_one(Turn, number, with_for_update=True)
    if turn.replies is None:
        first, second = replies
        turn.replies = [{"text": text, "model": model, "stop": stop} for text, model, stop in (first, second)]
        turn.replied = now()
        record(connection, None, "reply", f"assignment {turn.assignment_id}", turn=turn.number)


def end(connection: Connection, assignment: Assignment) -> None:
    """End a conversation, after a choice between the last replies, or before there are any; it can be ended twice."""
    project = connection.get_one(Project, assignment.item.project_id)
    one_by_one(connection, project.id)
    connection.refresh(assignment)
    chosen = choices(assignment)
    if not chosen or (len(chosen) < len(assignment.turns) and assignment.turns[-1].replies is not None):
        raise Refused("choose between the two replies first; then the conversation can end")
    if assignment.state != "done":
        take_up(assignment, done=True)
        record(connection, assignment.user_id, "end", f"assignment {assignment.id}", turns=len(assignment.turns))
