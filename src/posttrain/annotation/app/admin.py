"""Pages of managers: projects, invitations, progress, agreement."""

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session as Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from posttrain.annotation.app.session import READ, Asked, Desk, Manager, Number, OwnForm, sent_by
from posttrain.annotation.app.tasks import Doing, form_page
from posttrain.annotation.store import people, projects, work
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Item, Project, Session
from posttrain.annotation.task_kinds import KINDS, instructions

router = APIRouter(prefix="/manage")
SHOWN = 20  # of the items on which people do not agree


@router.get("")
def overview(request: Request, desk: Asked, visitor: Manager) -> Response:
    """All projects, and a form for a new one."""
    with desk.store.read() as connection:
        found = [(project, projects.progress(connection, project)) for project in projects.everything(connection)]
    texts = {kind: instructions(kind) for kind in KINDS}
    return desk.page(request, "manage.html", visitor=visitor, projects=found, kinds=KINDS, texts=texts)


@router.post("")
def create(desk: Asked, visitor: Manager, form: OwnForm) -> Response:
    """A new project, of which its maker is a member."""
    with desk.store.write() as connection:
        project = projects.create(
            connection,
            form.get("name", ""),
            form.get("kind", "rank"),
            text=form.get("instructions", ""),
            annotators_per_item=_number(form, "annotators", 3),
            repeat_share=_number(form, "repeats", 0) / 100,
            attributes=form.get("attributes", "").split(),
            rules=form.get("rules", "").splitlines(),
            by=visitor.user.id,
        )
        people.admit(connection, visitor.user, project.id)
    return RedirectResponse(f"/manage/{project.id}", 303)


def _number(form: dict[str, str], name: str, otherwise: int) -> int:
    """A number of at most nine digits: a longer one cannot be a float, and a message would repeat all of it."""
    text = form.get(name, "").strip() or str(otherwise)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Refused(f"{name} must be a whole number of at most 9 digits")
    return int(text)


@router.get("/{number}")
def project_page(request: Request, desk: Asked, visitor: Manager, number: Number) -> Response:
    """Progress, agreement and disagreements of a project."""
    return _page(request, desk, visitor, number)


def _page(request: Request, desk: Desk, visitor: Session, number: int, link: str = "") -> Response:
    with desk.store.read() as connection:
        project = _project(connection, number)
        found = desk.statistics.read(connection, project)
        disputed = found.disputes[:SHOWN]
        numbers = [one.item for one in disputed]
        return desk.page(
            request,
            "project.html",
            visitor=visitor,
            project=project,
            progress=projects.progress(connection, project),
            found=found,
            agreement={str(one.annotator): one for one in found.annotators},
            disputed=disputed,
            items={item.id: item for item in connection.scalars(select(Item).where(Item.id.in_(numbers)))},
            link=link,
        )


@router.get("/{number}/items/{place}")
def item_page(request: Request, desk: Asked, visitor: Manager, number: Number, place: Number) -> Response:
    """An item on which annotators do not agree, what each of them says, and a form for the decision."""
    with desk.store.read() as connection:
        project, item = _item(connection, number, place)
        question = work.asked(project, item)
        here, versions = f"/manage/{number}/items/{place}", len(item.rulings)
        said = item.rulings[-1].answer if versions else None
        return form_page(
            request,
            desk,
            visitor,
            project,
            item,
            question,
            sorted(question.texts),
            doing=Doing(project.kind, here, versions, here, "Change" if said else "Decide", said),
            said_by=work.said_of(connection, project, item),
        )


@router.post("/{number}/items/{place}")
def decide(request: Request, desk: Asked, visitor: Manager, number: Number, place: Number, form: OwnForm) -> Response:
    """Keep a decision."""
    sent = sent_by(form)
    with desk.store.write() as connection:
        project, item = _item(connection, number, place)
        answer = sent.answer or READ[project.kind](form, work.asked(project, item))
        work.rule(connection, item, visitor.user, answer, sending=sent.sending, version=sent.version)
    return desk.on(request, f"/manage/{number}")


def _item(connection: Connection, number: int, place: int) -> tuple[Project, Item]:
    project, item = _project(connection, number), connection.get(Item, place)
    if item is None or item.project_id != project.id or not work.decidable(project):
        raise LookupError("item")
    return project, item


def _project(connection: Connection, number: int) -> Project:
    project = connection.get(Project, number)
    if project is None:
        raise LookupError("project")
    return project


@router.post("/{number}/invite")
def invite(request: Request, desk: Asked, visitor: Manager, number: Number, form: OwnForm) -> Response:
    """A link by which people join; it is shown once, since the store does not know it."""
    role = form.get("role", "annotator")
    uses, days = _number(form, "uses", 1), _number(form, "days", 7)
    if role not in people.ROLES or not 1 <= uses <= 1000 or not 1 <= days <= 365:
        raise Refused("an invitation is for an annotator or a manager, 1 to 1000 people and 1 to 365 days")
    with desk.store.write() as connection:
        project = _project(connection, number)
        secret = people.invite(connection, role, project=project.id, uses=uses, days=days, by=visitor.user.id)
    return _page(request, desk, visitor, number, link=f"{desk.url}/invite/{secret}")
