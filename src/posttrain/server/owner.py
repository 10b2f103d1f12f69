"""Who asks: what routes that need a key take as an argument. Any server with `services.keys` has it."""

from typing import Annotated

from fastapi import Depends, Header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from posttrain.server.keys import Keys


def owner_of(request: Request, x_api_key: Annotated[str, Header()] = "") -> str:
    """Whose key a request has."""
    keys: Keys = request.app.state.services.keys
    owner = keys.owner(x_api_key)
    if owner is None:
        raise HTTPException(401, "this server does not know the key in X-API-Key")
    return owner


Owner = Annotated[str, Depends(owner_of)]
