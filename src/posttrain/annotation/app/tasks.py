"""Pages of annotation tasks, and of conversations with a model (converse and red-team projects)."""

import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import APIRouter
from sqlalchemy.orm import Session as Connection
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from posttrain.annotation.app.chat_worker import Partner
from posttrain.annotation.app.session import READ, Asked, Desk, Number, OwnForm, Somebody, sent_by
from posttrain.annotation.store import conversations, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Assignment, Item, Member, Project, Session, Turn
from posttrain.annotation.task_kinds import KINDS, Answer, NoAnswer, Question, steps_of
from posttrain.errors import as_typed

router = APIRouter()
NOBODY = "nobody replies here: whoever serves these pages must name a model, with `model`"


class Doing(NamedTuple):
    """What the form of a page of work is for."""

    kind: str  # of what is filled in
    action: str  # the path that it is sent to
    version: int  # how much the page knows of
    here: str  # the page's own path
    button: str = ""
    said: Answer | None = None  # what was said before, to be changed
    back: str = ""  # where what was said last can be changed
    skip: str = ""  # the path by which it is left to others
    new: bool = False  # whether they are new to this, and read the instructions first


def _project(connection: Connection, number: int, visitor: Session) -> Project:
    """A project of the user; any other gets 404."""
    if connection.get(Member, (number, visitor.user.id)) is None:
        raise LookupError("project")
    return connection.get_one(Project, number)


@router.get("/projects/{number}")
def following(request: Request, desk: Asked, visitor: Somebody, number: Number) -> Response:
    """To the next item, or to the page that says that all is done."""
    with desk.store.write() as connection:
        project = _project(connection, number, visitor)
        assignment = work.next_for(connection, project, visitor.user)
        done = work.mine(connection, project, visitor.user) if assignment is None else []
    if assignment is not None:
        return RedirectResponse(f"/work/{assignment.id}", 303)
    return desk.page(request, "done.html", visitor=visitor, project=project, done=len(done))


@router.get("/projects/{number}/mine")
def mine(request: Request, desk: Asked, visitor: Somebody, number: Number) -> Response:
    """The user's own answers, to review and correct."""
    with desk.store.read() as connection:
        project = _project(connection, number, visitor)
        done = work.mine(connection, project, visitor.user)
        return desk.page(request, "mine.html", visitor=visitor, project=project, done=done)


@router.get("/work/{number}")
def work_page(request: Request, desk: Asked, visitor: Somebody, number: Number, change: bool = False) -> Response:
    """One item, to judge or to judge again."""
    with desk.store.read() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        project = connection.get_one(Project, assignment.item.project_id)
        question = work.question(project, assignment)
        done, before = work.so_far(connection, project, visitor.user, number)
        return form_page(
            request,
            desk,
            visitor,
            project,
            assignment.item,
            question,
            assignment.shown,
            doing=_doing(project, assignment, before, change)._replace(new=not done and not assignment.turns),
            exchanges=_exchanges(project, assignment),
            trouble=_trouble(desk, assignment),
            done=done,
        )


def form_page(
    request: Request,
    desk: Desk,
    visitor: Session,
    project: Project,
    item: Item,
    question: Question,
    shown: Sequence[int],
    **more: Any,
) -> Response:
    """The page of an item, with the form of its kind and the completions in the order `shown`."""
    texts = {completion.number: completion.text for completion in item.completions}
    return desk.page(
        request,
        f"{project.kind}.html",
        visitor=visitor,
        project=project,
        item=item,
        shown=[(chr(ord("A") + place), number, texts[number]) for place, number in enumerate(shown)],
        attributes=question.attributes,
        rules=question.rules,
        steps=[step for text in question.texts.values() for step in steps_of(text)],
        sending=secrets.token_urlsafe(16),
        **more,
    )


def _doing(project: Project, assignment: Assignment, before: int | None, change: bool) -> Doing:
    """What comes next: an answer, or of a conversation the next step; `change` reopens its last choice."""
    here, version, turns = f"/work/{assignment.id}", len(assignment.judgements), assignment.turns
    skip = "" if version else f"{here}/skip"
    said = assignment.judgements[-1].answer if version else None
    if KINDS[project.kind].goes_on is None:
        back = f"/work/{before}" if before else ""
        return Doing(project.kind, here, version, here, "Change" if said else "Submit", said, back, skip)
    chosen = work.choices(assignment)
    whole = bool(turns) and len(chosen) == len(turns)
    if change and whole:
        return Doing("choose", here, version, here, "Change", chosen[-1], skip=skip)
    back = f"{here}?change=1" if whole else ""
    if assignment.state == "done":
        return Doing("ended", here, version, here, back=back, skip=skip)
    if whole or not turns:
        return Doing("say", f"{here}/say", len(turns), here, "Send", back=back, skip=skip)
    if turns[-1].replies is None:
        return Doing("wait", here, version, here, skip=skip)
    return Doing("choose", here, version, here, "Choose", skip=skip)


@router.post("/work/{number}")
def judge(request: Request, desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """Store an answer. It is on disk before the response is sent."""
    sent = sent_by(form)
    with desk.store.write() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        project = connection.get_one(Project, assignment.item.project_id)
        answer = sent.answer or READ[project.kind](form, work.question(project, assignment))
        kept = work.answer(
            connection, assignment, answer, sending=sent.sending, version=sent.version, seconds=sent.seconds
        )
        following = f"/work/{number}" if KINDS[project.kind].goes_on else f"/projects/{project.id}"
    return desk.on(request, following, version=kept.version)


@router.post("/work/{number}/skip")
def skip(desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """Skip an item."""
    with desk.store.write() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        work.skip(connection, assignment, form.get("reason", ""))
        following = f"/projects/{assignment.item.project_id}"
    return RedirectResponse(following, 303)


def _exchanges(project: Project, assignment: Assignment) -> list[dict[str, Any]]:
    """The turns of a conversation, as its page shows them; empty for other kinds."""
    chosen = work.choices(assignment)
    found: list[dict[str, Any]] = []
    for turn in assignment.turns:
        choice = chosen[turn.number] if turn.number < len(chosen) else None
        texts = [] if turn.replies is None else [conversations.reply_of(turn, number)["text"] for number in turn.shown]
        stops = enumerate(turn.replies or (), start=2 * turn.number)
        going_on = conversations.following(project, turn, choice) if choice and turn.taken is None else turn.taken
        found.append(
            {
                "message": turn.message,
                "replies": list(zip("AB", turn.shown, texts, strict=False)),
                "cut": {number for number, one in stops if one.get("stop") == "length"},  # they were too long
                "choice": choice,
                "followed": going_on,  # the reply with which the conversation continues, once chosen
            }
        )
    return found


def _trouble(desk: Desk, assignment: Assignment) -> str:
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
        return JSONResponse({"ready": turn.replies is not None, "trouble": _trouble(desk, turn.assignment)})


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
