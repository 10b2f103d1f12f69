"""The web application: routes, middleware, error pages."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from posttrain.annotation.app import admin, auth, conversations, tasks
from posttrain.annotation.app.chat_worker import Partner, Speak
from posttrain.annotation.app.markdown import rendered
from posttrain.annotation.app.security import Forbidden, Guard, Limit, TooOften
from posttrain.annotation.app.session import Desk, LoggedOut, wants_json
from posttrain.annotation.store.database import Store
from posttrain.annotation.store.people import Refused
from posttrain.annotation.store.project_statistics import StatisticsCache
from posttrain.annotation.store.work import Changed
from posttrain.annotation.task_kinds import NoAnswer
from posttrain.errors import as_typed

HERE = Path(str(files("posttrain.annotation.app")))


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

    Args:
        store: where everything is kept.
        url: where browsers find the pages; invitations begin with it, whatever a request says.
        hosts: names by which browsers may ask for them, besides localhost and IP addresses; None for any.
        https: browsers reach it by TLS, so that cookies go no other way.
        speak: who replies in conversations.
        say: prints messages for the operator.
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

    app = FastAPI(
        lifespan=lifespan,
        title="posttrain annotate",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    templates = Jinja2Templates(directory=HERE / "templates")
    templates.env.filters["markdown"] = rendered
    failures, writes = Limit(20, 60), Limit(300, 60)
    app.state.desk = Desk(
        store, templates, url=url, https=https, failures=failures, writes=writes, statistics=statistics, partner=partner
    )
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    for part in (auth, tasks, conversations, admin):
        app.include_router(part.router)
    _answer_errors(app)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _answer_errors(app: FastAPI) -> None:
    """Error pages."""
    answers: dict[type[Exception] | int, tuple[int, str]] = {
        Changed: (409, ""),
        NoAnswer: (422, ""),
        RequestValidationError: (422, "that is not what this page sends"),
        Refused: (400, ""),
        Forbidden: (403, ""),
        TooOften: (429, "too often; wait a minute"),
        LookupError: (404, "there is nothing here"),
    }
    for kind, (code, words) in answers.items():
        app.add_exception_handler(kind, _answer(code, words))
    app.add_exception_handler(LoggedOut, _to_login)
    app.add_exception_handler(HTTPException, _http)


def _answer(code: int, words: str) -> Any:
    def handler(request: Request, error: Exception) -> Response:
        return show(request, code, words or as_typed(str(error)))

    return handler


def _http(request: Request, error: Any) -> Response:
    return show(request, error.status_code, "there is nothing here" if error.status_code == 404 else str(error.detail))


def _to_login(request: Request, error: Exception) -> Response:
    if wants_json(request):
        return JSONResponse({"error": "you are logged out; log in in another tab, then send again"}, 401)
    return RedirectResponse("/login", 303)


def show(request: Request, code: int, words: str) -> Response:
    """What went wrong, for a script or for a person."""
    if wants_json(request):
        return JSONResponse({"error": words}, code)
    return request.app.state.desk.page(request, "error.html", code=code, words=words)
