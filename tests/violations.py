"""What a conformance kit of `posttrain.testing` finds, as a list."""

from collections.abc import Callable
from typing import Any

from posttrain.testing import ConformanceError


def violations(check: Callable[..., None], *args: Any, **options: Any) -> list[str]:
    """One line each; empty where the object conforms."""
    try:
        check(*args, **options)
    except ConformanceError as error:
        assert str(error).splitlines() == "\n".join(error.violations).splitlines()
        return list(error.violations)
    return []
