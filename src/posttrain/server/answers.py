"""Errors of a server's routes as JSON: {"error": what was given, what was expected}."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from posttrain.errors import UserError


def answer_errors(app: FastAPI) -> None:
    """Answer a client's mistakes with 400, fields that are wrong with 422, and what is refused with its status."""
    app.add_exception_handler(UserError, answer(400))
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def answer(status: int, text: str = "") -> Any:
    """A handler of an error: its text, or another one, with a status."""

    def handler(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": text or str(error)}, status)

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
    text = "this server has no such route" if error.status_code == 404 else str(error.detail)
    return JSONResponse({"error": text}, error.status_code)
