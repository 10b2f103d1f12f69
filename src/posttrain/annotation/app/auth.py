"""Authentication: invitations, login, logout, and the first page."""

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session as Connection
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from posttrain.annotation.app.session import COOKIE, Asked, Desk, Form, LoggedOut, OwnForm, Somebody, visitor_of
from posttrain.annotation.store import people
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.tables import Member, Project

router = APIRouter()


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _leave(connection: Connection, request: Request) -> None:
    """End the session that a browser has, whose cookie is about to be replaced or removed."""
    if cookie := request.cookies.get(COOKIE):
        people.leave(connection, cookie)


def _inside(desk: Desk, cookie: str) -> Response:
    """To the first page, with a session.

    The cookie comes along when a link is followed from elsewhere, such as an invitation in a mail; what another site
    would have a form of its own do is refused by origin and token.
    """
    response = RedirectResponse("/", 303)
    response.set_cookie(COOKIE, cookie, max_age=30 * 86400, httponly=True, samesite="lax", secure=desk.https, path="/")
    return response


@router.get("/")
def home(request: Request, desk: Asked, visitor: Somebody) -> Response:
    """The user's projects."""
    with desk.store.read() as connection:
        query = select(Project).join(Member, Member.project_id == Project.id).where(Member.user_id == visitor.user.id)
        projects = list(connection.scalars(query.order_by(Project.id)))
    return desk.page(request, "home.html", visitor=visitor, projects=projects)


@router.get("/login")
def login_page(request: Request, desk: Asked) -> Response:
    """The form."""
    return desk.page(request, "login.html")


@router.post("/login")
def login(request: Request, desk: Asked, form: Form) -> Response:
    """Begin a session, if name and password are right."""
    desk.failures.check(_address(request))
    with desk.store.read() as connection:  # hashing takes a while, and must not keep others from writing
        user = people.known(connection, form.get("name", ""), form.get("password", ""))
    if user is None:
        desk.failures.count(_address(request))
        return desk.page(request, "login.html", code=403, words="name or password is wrong", name=form.get("name", ""))
    with desk.store.write() as connection:
        _leave(connection, request)
        cookie = people.enter(connection, user)
    return _inside(desk, cookie)


@router.post("/logout")
def logout(request: Request, desk: Asked, visitor: Somebody, form: OwnForm) -> Response:
    """End the session."""
    with desk.store.write() as connection:
        _leave(connection, request)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return response


@router.get("/invite/{secret}")
def invitation_page(request: Request, desk: Asked, secret: str) -> Response:
    """The form of an invitation: sign up, or join another project."""
    desk.failures.check(_address(request))
    with desk.store.read() as connection:
        found = people.invitation(connection, secret)
        project = connection.get(Project, found.project_id) if found and found.project_id else None
    if found is None:
        desk.failures.count(_address(request))
        raise LookupError("invitation")
    try:
        visitor = visitor_of(request)
    except LoggedOut:
        visitor = None
    return desk.page(request, "invite.html", visitor=visitor, invite=found, project=project)


def _invited(request: Request, desk: Desk, secret: str) -> None:
    """Raise, and count it against those who guess, unless there is such an invitation."""
    with desk.store.read() as connection:
        if people.invitation(connection, secret) is None:
            desk.failures.count(_address(request))
            raise LookupError("invitation")


@router.post("/invite/{secret}")
def accept(request: Request, desk: Asked, secret: str, form: Form) -> Response:
    """Become a user."""
    desk.failures.check(_address(request))
    try:
        _invited(request, desk, secret)
        kept = people.sealed(form.get("password", ""))  # before the write, as at login
        with desk.store.write() as connection:
            user = people.accept(connection, secret, form.get("name", ""), kept)
            _leave(connection, request)
            cookie = people.enter(connection, user)
    except Refused as problem:
        with desk.store.read() as connection:
            found = people.invitation(connection, secret)
        return desk.page(
            request, "invite.html", code=400, invite=found, words=str(problem), name=form.get("name", ""), project=None
        )
    return _inside(desk, cookie)


@router.post("/invite/{secret}/join")
def join(request: Request, desk: Asked, visitor: Somebody, secret: str, form: OwnForm) -> Response:
    """Work in one more project, or become a manager, as the user that one is."""
    desk.failures.check(_address(request))
    _invited(request, desk, secret)
    with desk.store.write() as connection:
        cookie = people.enter(connection, visitor.user) if people.join(connection, secret, visitor.user) else None
    return _inside(desk, cookie) if cookie else RedirectResponse("/", 303)
