"""The session of a request, and what its form says."""

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Path
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.templating import Jinja2Templates

from posttrain.annotation.app.chat_worker import Partner
from posttrain.annotation.app.security import Forbidden, Limit, from_here
from posttrain.annotation.store import people
from posttrain.annotation.store.database import Store
from posttrain.annotation.store.project_statistics import StatisticsCache
from posttrain.annotation.store.tables import Session
from posttrain.annotation.task_kinds import NoAnswer, Question, storable

COOKIE = "posttrain_session"
Fields = Mapping[str, str]


class LoggedOut(Exception):
    """No user is logged in."""


@dataclass(frozen=True)
class Desk:
    """Shared state of all pages."""

    store: Store
    templates: Jinja2Templates
    url: str  # where browsers find these pages, without a slash at the end; invitations begin with it
    https: bool
    failures: Limit  # wrong passwords and unknown invitations, by address
    writes: Limit  # by user
    statistics: StatisticsCache  # of every project, for managers
    partner: Partner | None = None  # who replies in conversations

    def page(self, request: Request, template: str, *, code: int = 200, **values: Any) -> Response:
        """A page; templates escape whatever is put into them."""
        values.setdefault("visitor", None)
        return self.templates.TemplateResponse(request, template, {"code": code, **values}, status_code=code)

    def on(self, request: Request, path: str, **kept: Any) -> Response:
        """What was sent is kept, and `path` comes next: for a script, or for a browser without one."""
        if wants_json(request):
            return JSONResponse(kept | {"next": path})
        return RedirectResponse(path, 303)


def wants_json(request: Request) -> bool:
    """Whether a script asks, and not a browser on its own."""
    return "application/json" in request.headers.get("accept", "")


def desk_of(request: Request) -> Desk:
    """The desk of the application that was asked."""
    return request.app.state.desk


def visitor_of(request: Request) -> Session:
    """The session of the logged-in user; raises `LoggedOut` if there is none."""
    if cookie := request.cookies.get(COOKIE):
        with desk_of(request).store.read() as connection:
            if found := people.session(connection, cookie):
                connection.expunge_all()
                return found
    raise LoggedOut


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form from one of our own pages, each once; files are left out."""
    from_here(request, desk_of(request).url)
    async with request.form(max_files=0, max_fields=1000) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
    for value in fields.values():
        storable(value)
    return fields


Asked = Annotated[Desk, Depends(desk_of)]
Form = Annotated[dict[str, str], Depends(form_of)]
Somebody = Annotated[Session, Depends(visitor_of)]
Number = Annotated[int, Path(ge=1, lt=2**31)]


def manager_of(visitor: Somebody) -> Session:
    """The logged-in manager; anybody else gets 404."""
    if visitor.user.role != "manager":
        raise LookupError("manage")
    return visitor


def own_form_of(desk: Asked, visitor: Somebody, form: Form) -> dict[str, str]:
    """A form from the user's own page, which may write within the rate limit."""
    if not hmac.compare_digest(visitor.csrf.encode(), form.get("csrf", "").encode()):
        raise Forbidden("this page is out of date; load it again")
    desk.writes.check(str(visitor.user.id))
    desk.writes.count(str(visitor.user.id))
    return form


Manager = Annotated[Session, Depends(manager_of)]
OwnForm = Annotated[dict[str, str], Depends(own_form_of)]


class Sent(NamedTuple):
    """The form data of a task page."""

    answer: dict[str, Any]  # what its script made of the form; empty where no script runs
    sending: str  # a name for this sending
    version: int  # how much the page knew of
    seconds: float


def sent_by(form: dict[str, str]) -> Sent:
    """Parse it; raises `NoAnswer` for malformed data."""
    try:
        version, seconds = int(form.get("version", "0")), float(form.get("seconds", "0"))
        answer = json.loads(form["answer"]) if form.get("answer") else {}
    except (ValueError, RecursionError) as problem:
        raise NoAnswer("that is not what this page sends") from problem
    sending = form.get("sending", "")
    if not isinstance(answer, dict) or not 8 <= len(sending) <= 64:
        raise NoAnswer("that is not what this page sends")
    return Sent(answer, sending, version, seconds if 0 <= seconds < 1e6 else 0.0)


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _rank(fields: Fields, question: Question) -> dict[str, Any]:
    places: dict[str, list[int]] = {}
    for number in question.texts:
        places.setdefault(fields.get(f"place-{number}", ""), []).append(number)
    if "" in places:
        return {}
    failed = places.pop("F", [])
    return {"ranking": [places[place] for place in sorted(places)], "failed": failed}


def _compare(fields: Fields, question: Question) -> dict[str, Any]:
    better, _, strength = fields.get("choice", "").partition(":")
    return {"better": _int(better), "strength": _int(strength)}


def _thumbs(fields: Fields, question: Question) -> dict[str, Any]:
    thumbs = {number: fields.get(f"thumb-{number}") for number in question.texts}
    return {value: [number for number, thumb in thumbs.items() if thumb == value] for value in ("good", "bad")}


def _score(fields: Fields, question: Question) -> dict[str, Any]:
    names = question.attributes
    scores = {str(one): {name: _int(fields.get(f"score-{one}-{name}")) for name in names} for one in question.texts}
    return {"scores": scores}


def _steps(fields: Fields, question: Question) -> dict[str, Any]:
    wrong = fields.get("wrong")
    if wrong is None:
        return {}
    number = _int(wrong)
    return {"wrong": None if wrong == "none" else -1 if number is None else number}


def _choose(fields: Fields, question: Question) -> dict[str, Any]:
    broken = {
        str(number): [rule for rule in range(len(question.rules)) if fields.get(f"broken-{number}-{rule}")]
        for number in sorted(question.texts)[-2:]
    }
    return _compare(fields, question) | {"turn": _int(fields.get("turn")), "broken": broken}


READ: dict[str, Callable[[Fields, Question], dict[str, Any]]] = {
    "rank": _rank,
    "compare": _compare,
    "thumbs": _thumbs,
    "score": _score,
    "steps": _steps,
    "demonstrate": lambda fields, question: {"text": fields.get("text", "")},
    "converse": _choose,
    "red-team": _choose,
}
"""By kind of question: the answer in the fields of a form, for browsers without scripts; `task_kinds` validates it."""
