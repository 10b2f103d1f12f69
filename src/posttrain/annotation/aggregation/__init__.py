"""Aggregation methods: from rankings by several annotators to an estimate per item."""

import importlib
from collections.abc import Callable, Mapping, Sequence

from posttrain.annotation.consensus import Belief
from posttrain.errors import unknown
from posttrain.types import Ranking

Method = Callable[[Sequence[Ranking]], Mapping[str | int, Belief]]

METHODS = ("majority", "dawid-skene", "bradley-terry", "plackett-luce")


def method(name: str) -> Method:
    """The method of this name; raises `UserError` for one that there is not. Each loads its own library."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}").beliefs
