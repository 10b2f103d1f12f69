"""The web application: login, invitations and the first page; middleware and error pages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path
from threading import Thread

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session as Connection
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from posttrain.annotation.app import admin, tasks
from posttrain.annotation.app.chat_worker import Partner, Speak
from posttrain.annotation.app.security import Forbidden, Guard, Limit, TooOften, rendered
from posttrain.annotation.app.session import (
    COOKIE,
    Asked,
    Desk,
    Form,
    LoggedOut,
    OwnForm,
    Somebody,
    visitor_of,
    wants_json,
)
from posttrain.annotation.store import people
from posttrain.annotation.store.database import Store
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.project_statistics import StatisticsCache
from posttrain.annotation.store.tables import Invite, Member, Project
from posttrain.annotation.store.work import Changed
from posttrain.annotation.task_kinds import NoAnswer
from posttrain.errors import as_typed

HERE = Path(__file__).parent
NOTHING = "there is nothing here"
ERRORS: dict[type[Exception], tuple[int, str]] = {
    Changed: (409, ""),
    NoAnswer: (422, ""),
    RequestValidationError: (422, "that is not what this page sends"),
    Refused: (400, ""),
    Forbidden: (403, ""),
    TooOften: (429, "too often; wait a minute"),
    LookupError: (404, NOTHING),
    LoggedOut: (401, "you are logged out; log in in another tab, then send again"),
}
"""The status of an error and what is said of it; "" for its own message. The first that fits holds."""

router = APIRouter()


def create_app(
    store: Store,
    *,
    url: str = "http://localhost:8400",
    hosts: Collection[str] | None = None,
    https: bool = False,
    speak: Speak | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> FastAPI:
    """The application over a store.

    `url` is where browsers find the pages; invitations begin with it, whatever a request says. `hosts` are names by
    which browsers may ask for them, besides localhost and IP addresses; None for any. With `https` cookies go by TLS
    alone. `speak` replies in conversations, and `say` prints messages for the operator.
    """
    partner = Partner(store, speak, say) if speak else None
    statistics = StatisticsCache()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if partner:
            partner.start()
        Thread(target=statistics.warm, args=(store,), daemon=True).start()
        yield
        if partner:
            await asyncio.to_thread(partner.close)

    app = FastAPI(lifespan=lifespan, openapi_url=None, redirect_slashes=False)  # without openapi there are no docs
    templates = Jinja2Templates(directory=HERE / "templates")
    templates.env.filters["markdown"] = rendered
    app.state.desk = Desk(store, templates, url, https, Limit(20, 60), Limit(300, 60), statistics, partner)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    for part in (router, tasks.router, admin.router):
        app.include_router(part)
    for kind in (HTTPException, *ERRORS):
        app.add_exception_handler(kind, _show)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _show(request: Request, error: Exception) -> Response:
    """What went wrong, for a script or for a person."""
    if isinstance(error, HTTPException):
        code, words = error.status_code, NOTHING if error.status_code == 404 else str(error.detail)
    else:
        code, words = next(answer for kind, answer in ERRORS.items() if isinstance(error, kind))
        words = words or as_typed(str(error))
    if wants_json(request):
        return JSONResponse({"error": words}, code)
    if isinstance(error, LoggedOut):
        return RedirectResponse("/login", 303)
    return request.app.state.desk.page(request, "error.html", code=code, words=words)


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


def _invited(request: Request, desk: Desk, secret: str) -> tuple[Invite, Project | None]:
    """An invitation, and its project; that there is none is counted against those who guess."""
    desk.failures.check(_address(request))
    with desk.store.read() as connection:
        if (found := people.invitation(connection, secret)) is None:
            desk.failures.count(_address(request))
            raise LookupError("invitation")
        return found, connection.get(Project, found.project_id) if found.project_id else None


@router.get("/invite/{secret}")
def invitation_page(request: Request, desk: Asked, secret: str) -> Response:
    """The form of an invitation: sign up, or join another project."""
    found, project = _invited(request, desk, secret)
    try:
        visitor = visitor_of(request)
    except LoggedOut:
        visitor = None
    return desk.page(request, "invite.html", visitor=visitor, invite=found, project=project)


@router.post("/invite/{secret}")
def accept(request: Request, desk: Asked, secret: str, form: Form) -> Response:
    """Become a user."""
    (found, project), name = _invited(request, desk, secret), form.get("name", "")
    try:
        kept = people.sealed(form.get("password", ""))  # before the write, as at login
        with desk.store.write() as connection:
            user = people.accept(connection, secret, name, kept)
            _leave(connection, request)
            cookie = people.enter(connection, user)
    except Refused as problem:
        words = str(problem)
        return desk.page(request, "invite.html", code=400, invite=found, words=words, name=name, project=project)
    return _inside(desk, cookie)


@router.post("/invite/{secret}/join")
def join(request: Request, desk: Asked, visitor: Somebody, secret: str, form: OwnForm) -> Response:
    """Work in one more project, or become a manager, as the user that one is."""
    _invited(request, desk, secret)
    with desk.store.write() as connection:
        cookie = people.enter(connection, visitor.user) if people.join(connection, secret, visitor.user) else None
    return _inside(desk, cookie) if cookie else RedirectResponse("/", 303)
