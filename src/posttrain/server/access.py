"""The parts of the server as an argument of routes."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from posttrain.server.services import Services


def services_of(request: Request) -> Services:
    """The parts of the server."""
    return request.app.state.services


Served = Annotated[Services, Depends(services_of)]
