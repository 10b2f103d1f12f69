"""Who asks: an argument of routes."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request


def owner_of(request: Request) -> str:
    """Whose key a request has; `guard.Guard` has refused those that have none."""
    return request.state.owner


Owner = Annotated[str, Depends(owner_of)]
