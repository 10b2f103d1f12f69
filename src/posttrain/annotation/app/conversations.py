"""Pages of conversations with a model (converse and red-team projects)."""

from typing import NamedTuple

from fastapi import APIRouter
from sqlalchemy.orm import Session as Connection
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from posttrain.annotation.app.chat_worker import Partner
from posttrain.annotation.app.session import Asked, Desk, Doing, Number, OwnForm, Somebody, sent_by
from posttrain.annotation.store import conversations, work
from posttrain.annotation.store.conversations import following
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Project, Session, Turn
from posttrain.annotation.task_kinds import Answer, NoAnswer
from posttrain.errors import as_typed

router = APIRouter()
NOBODY = "nobody replies here: whoever serves these pages must name a model, with `model`"


class Exchange(NamedTuple):
    """One turn, as its page shows it."""

    message: str
    replies: list[tuple[str, int, str]]  # a letter, the number, the text; none yet
    cut: frozenset[int]  # those that broke off because they were too long
    choice: Answer | None
    followed: int | None  # the reply with which the conversation continues, once chosen


def exchanges(project: Project, assignment: Assignment) -> list[Exchange]:
    """The turns of a conversation; empty for other kinds."""
    chosen = work.choices(assignment)
    found: list[Exchange] = []
    for turn in assignment.turns:
        choice = chosen[turn.number] if turn.number < len(chosen) else None
        followed = turn.taken if choice is None or turn.taken is not None else following(project, turn, choice)
        texts = [] if turn.replies is None else [conversations.reply_of(turn, number)["text"] for number in turn.shown]
        replies = list(zip("AB", turn.shown, texts, strict=False))
        cut = frozenset(2 * turn.number + n for n, one in enumerate(turn.replies or ()) if one.get("stop") == "length")
        found.append(Exchange(turn.message, replies, cut, choice, followed))
    return found


def doing(assignment: Assignment, *, change: bool) -> Doing:
    """The next action in a conversation; `change` reopens the last choice."""
    turns, here, versions = assignment.turns, f"/work/{assignment.id}", len(assignment.judgements)
    chosen, ended = work.choices(assignment), assignment.state == "done"
    whole = bool(turns) and len(chosen) == len(turns)
    if change and whole:
        return Doing("choose", here, versions, chosen[-1], "Change", here)
    back = f"{here}?change=1" if whole else ""
    if ended:
        return Doing("ended", here, versions, None, "", here, back)
    if whole or not turns:
        return Doing("say", f"{here}/say", len(turns), None, "Send", here, back)
    if turns[-1].replies is None:
        return Doing("wait", here, versions, None, "", here)
    return Doing("choose", here, versions, None, "Choose", here)


def trouble(desk: Desk, assignment: Assignment) -> str:
    """Why the last message of a conversation has no replies; "" where they are there, or still to come."""
    if not assignment.turns or assignment.turns[-1].replies is not None:
        return ""
    return as_typed(NOBODY if desk.partner is None else desk.partner.trouble(assignment.turns[-1].id))


@router.post("/work/{number}/say")
def say(request: Request, desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """Keep a message. It is on the disk when this is answered; the replies come later."""
    partner = _partner(desk)
    sent = sent_by(form)
    message = sent.answer.get("text", "") if sent.answer else form.get("text", "")
    if not isinstance(message, str):
        raise NoAnswer("that is not what this page sends")
    with desk.store.write() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        turn = conversations.say(connection, assignment, message, sending=sent.sending, turn=sent.version)
    partner.wake(turn.id)
    return desk.on(request, f"/work/{number}", turn=turn.number)


@router.get("/work/{number}/replies")
def replies(desk: Asked, visitor: Somebody, number: Number) -> Response:
    """Whether the replies to the last message are there."""
    with desk.store.read() as connection:
        turn = _last(connection, number, visitor)
        return JSONResponse({"ready": turn.replies is not None, "trouble": trouble(desk, turn.assignment)})


@router.post("/work/{number}/again")
def again(request: Request, desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """Let the model try once more."""
    with desk.store.read() as connection:
        turn = _last(connection, number, visitor)
    _partner(desk).wake(turn.id)
    return desk.on(request, f"/work/{number}")


@router.post("/work/{number}/end")
def end(request: Request, desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """End a conversation."""
    with desk.store.write() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        conversations.end(connection, assignment)
        following = f"/projects/{assignment.item.project_id}"
    return desk.on(request, following)


def _last(connection: Connection, number: int, visitor: Session) -> Turn:
    turns = work.assigned(connection, number, visitor.user).turns
    if not turns:
        raise LookupError("no message")
    return turns[-1]


def _partner(desk: Desk) -> Partner:
    if desk.partner is None:
        raise Refused(NOBODY)
    return desk.partner
