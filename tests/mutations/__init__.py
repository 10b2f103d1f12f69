"""Mutations: small faults that the tests must notice. `make mutants` plants each in a copy of the source.

Every file here is one room's list, `MUTATIONS`; add lines to it, or a file for another room. Plant what people get
wrong: a sign, a bound, a mask, a denominator, a detach.
"""

import importlib
import pkgutil
from typing import NamedTuple


class Mutation(NamedTuple):
    """One fault: in `file`, replace `old`, which is there exactly once, by `new`; then `tests` must turn red."""

    file: str  # below src/posttrain
    old: str
    new: str
    tests: str  # below tests; several, separated by spaces


def collect() -> list[Mutation]:
    """Gather the mutations of all rooms."""
    rooms = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [m for room in rooms for m in importlib.import_module(f"{__name__}.{room}").MUTATIONS]
