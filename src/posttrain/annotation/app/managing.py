"""The pages of managers: projects, invitations, how far the work is and how far people agree."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from posttrain.annotation import agreement
from posttrain.annotation.aggregation import majority
from posttrain.annotation.app.visitor import Asked, Desk, Form, Manager, Number, allowed
from posttrain.annotation.consensus import agree
from posttrain.annotation.kinds import KINDS, instructions
from posttrain.annotation.store import exports, people, projects
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Member, Project

router = APIRouter(prefix="/manage")


@router.get("")
def overview(request: Request, desk: Asked, visitor: Manager, words: str = "") -> Response:
    """All projects, and a form for a new one."""
    with desk.store.read() as connection:
        found = [(project, projects.progress(connection, project)) for project in projects.everything(connection)]
    texts = {kind: instructions(kind) for kind in KINDS}
    return desk.page(request, "manage.html", visitor=visitor, projects=found, kinds=KINDS, texts=texts, words=words)


@router.post("")
def create(desk: Asked, visitor: Manager, form: Form) -> Response:
    """A new project, of which its maker is a member."""
    allowed(desk, visitor, form)
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
        connection.add(Member(project_id=project.id, user_id=visitor.user.id))
    return RedirectResponse(f"/manage/{project.id}", 303)


def _number(form: dict[str, str], name: str, otherwise: int) -> int:
    try:
        return int(form.get(name) or otherwise)
    except ValueError as problem:
        raise Refused(f"{name} must be a whole number") from problem


@router.get("/{number}")
def project_page(request: Request, desk: Asked, visitor: Manager, number: Number) -> Response:
    """How far a project is, who agrees with whom, and where they do not."""
    return _page(request, desk, visitor, number)


def _page(request: Request, desk: Desk, visitor: Manager, number: int, link: str = "") -> Response:
    with desk.store.read() as connection:
        project = _project(connection, number)
        progress = projects.progress(connection, project)
        rankings = exports.rankings(connection, project)
        names = exports.names(connection, project)
        agreed = agree(rankings, majority.beliefs(rankings))
        annotators = agreement.annotators(rankings, agreed, majority.beliefs)
        return desk.page(
            request,
            "project.html",
            visitor=visitor,
            project=project,
            progress=progress,
            alpha=agreement.alpha(rankings),
            kendall_w=agreement.mean_kendall_w(rankings),
            annotators=annotators,
            work=exports.work_of(connection, project),
            disagreed=exports.disagreements(rankings)[:20],
            names=names,
            link=link,
        )


def _project(connection: exports.Connection, number: int) -> Project:
    project = connection.get(Project, number)
    if project is None:
        raise LookupError("project")
    return project


@router.post("/{number}/invite")
def invite(request: Request, desk: Asked, visitor: Manager, number: Number, form: Form) -> Response:
    """A link by which people join; it is shown once, since the store does not know it."""
    allowed(desk, visitor, form)
    role = form.get("role", "annotator")
    uses, days = _number(form, "uses", 1), _number(form, "days", 7)
    if role not in people.ROLES or not 1 <= uses <= 1000 or not 1 <= days <= 365:
        raise Refused("an invitation is for an annotator or a manager, 1 to 1000 people and 1 to 365 days")
    with desk.store.write() as connection:
        project = _project(connection, number)
        secret = people.invite(connection, role, project=project.id, uses=uses, days=days, by=visitor.user.id)
    return _page(request, desk, visitor, number, link=f"{request.base_url}invite/{secret}")
