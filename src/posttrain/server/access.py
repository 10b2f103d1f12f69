"""Who asks, and the parts of the server: what routes take as arguments."""

from typing import Annotated

from fastapi import Depends, Header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from posttrain.server.services import Services


def services_of(request: Request) -> Services:
    """The parts of the server."""
    return request.app.state.services


Served = Annotated[Services, Depends(services_of)]


def owner_of(served: Served, x_api_key: Annotated[str, Header()] = "") -> str:
    """Whose key a request has."""
    owner = served.keys.owner(x_api_key)
    if owner is None:
        raise HTTPException(401, "this server does not know the key in X-API-Key")
    return owner


Owner = Annotated[str, Depends(owner_of)]
