"""What the applications of both servers have in common: guards, their start and end, and errors as JSON.

An error is {"error": what was given, what was expected}.
"""

import contextlib
import errno
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from posttrain.errors import UserError, described
from posttrain.serving.guard import Guard, TooLarge, TooMuch, refusal

if TYPE_CHECKING:
    from posttrain.serving.jobs.services import JobServices
    from posttrain.serving.services import Services


def application(
    title: str,
    services: "Services | JobServices",
    routers: Sequence[APIRouter],
    hosts: Collection[str] | None,
    **settings: Any,
) -> FastAPI:
    """An application over a server's parts, which it starts and closes.

    A client's mistakes are answered with 400, fields that are wrong with 422, and what is refused with its status.

    Args:
        title: what it is.
        services: the parts, an attribute of its state.
        routers: its routes.
        hosts: names of this machine, besides localhost and addresses; None for any.
        settings: of FastAPI.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.start()
        yield
        await run_in_threadpool(services.close)

    app = FastAPI(lifespan=lifespan, title=title, docs_url=None, redoc_url=None, openapi_url=None, **settings)
    app.state.services = services
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(UserError, answer(400))
    for refused in (TooLarge, TooMuch):
        app.add_exception_handler(refused, lambda request, error: refusal(error))
    app.add_exception_handler(OSError, _full_disk(getattr(services, "report", lambda text: None)))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_middleware(Guard, hosts=hosts, limits=services.limits, keys=services.keys)
    return app


def answer(status: int, text: str = "") -> Any:
    """A handler of an error: its text, or another one, with a status."""

    def handler(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": text or str(error)}, status)

    return handler


def _full_disk(report: Callable[[str], None]) -> Any:
    """A handler of errors of the system: of a disk that is full both sides read one line."""

    def handler(request: Request, error: Any) -> Response:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise error
        report(f"{request.url.path}: {described(error)}")
        return JSONResponse({"error": "the server's disk is full; try again when its operator has made room"}, 507)

    return handler


def _invalid(request: Request, error: Any) -> Response:
    return JSONResponse({"error": first_mistake(error)}, 422)


OTHER_KIND = ("missing", "extra_forbidden", "list_type", "model_type")
"""What pydantic says of the kinds of a union that a value is not."""


def first_mistake(error: Any) -> str:
    """The first field that pydantic refuses, and why; a wrong value comes before fields of other kinds of a union."""
    found = error.errors()
    first = next((each for each in found if each["type"] not in OTHER_KIND), found[0])
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    if not where and first["type"] == "model_attributes_type":  # also what a body of another Content-Type is
        return "the body is not a JSON object; send one, with Content-Type: application/json"
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _http(request: Request, error: Any) -> Response:
    text = "this server has no such route" if error.detail == "Not Found" else str(error.detail)
    return JSONResponse({"error": text}, error.status_code)
