"""Pages of annotation tasks."""

import secrets
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session as Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from posttrain.annotation.app import conversations
from posttrain.annotation.app.forms import READ
from posttrain.annotation.app.session import Asked, Desk, Doing, Number, OwnForm, Somebody, sent_by
from posttrain.annotation.store import work
from posttrain.annotation.store.tables import Assignment, Item, Member, Project, Session
from posttrain.annotation.task_kinds import KINDS, Question, steps_of

router = APIRouter()


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
            exchanges=conversations.exchanges(project, assignment),
            trouble=conversations.trouble(desk, assignment),
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
    here, versions = f"/work/{assignment.id}", len(assignment.judgements)
    skip = "" if versions else f"{here}/skip"
    if KINDS[project.kind].goes_on is not None:
        return conversations.doing(assignment, change=change)._replace(skip=skip)
    said = assignment.judgements[-1].answer if versions else None
    back = f"/work/{before}" if before else ""
    return Doing(project.kind, here, versions, said, "Change" if said else "Submit", here, back, skip)


@router.post("/work/{number}")
def judge(request: Request, desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """Store an answer. It is on disk before the response is sent."""
    sent = sent_by(form)
    with desk.store.write() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        project = connection.get_one(Project, assignment.item.project_id)
        said = work.answer(
            connection,
            assignment,
            sent.answer or READ[project.kind](form, work.question(project, assignment)),
            sending=sent.sending,
            version=sent.version,
            seconds=sent.seconds,
        )
        following = f"/work/{number}" if KINDS[project.kind].goes_on else f"/projects/{project.id}"
        version = said.version
    return desk.on(request, following, version=version)


@router.post("/work/{number}/skip")
def skip(desk: Asked, visitor: Somebody, number: Number, form: OwnForm) -> Response:
    """Skip an item."""
    with desk.store.write() as connection:
        assignment = work.assigned(connection, number, visitor.user)
        work.skip(connection, assignment, form.get("reason", ""))
        following = f"/projects/{assignment.item.project_id}"
    return RedirectResponse(following, 303)
