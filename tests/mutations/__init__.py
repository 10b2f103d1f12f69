"""Mutations: small faults that the tests must notice. `make mutants` plants each in a copy of the source.

Every file here is a list, `MUTATIONS`, of the rooms where a fault is a number that looks right. Plant what people get
wrong: a sign, a bound, a mask, a denominator, a detach. The other rooms get generated mutants (`make mutants-nightly`).
"""

import importlib
import pkgutil
from typing import NamedTuple

ROOMS = ("objectives", "algorithms", "training")


class Mutation(NamedTuple):
    """One fault: in `file`, replace `old`, which is there exactly once, by `new`; then `tests` must turn red."""

    file: str  # below src/posttrain
    old: str
    new: str
    tests: str  # below tests; several, separated by spaces


def room_with_list(file: str) -> str:
    """The room of `ROOMS` that a file is in; "" if its mutants are generated."""
    return next((room for room in ROOMS if file.startswith(f"{room}/")), "")


def collect() -> list[Mutation]:
    """Gather the mutations of all lists. Raises ValueError if one is of a room whose mutants are generated."""
    lists = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [m for name in lists for m in importlib.import_module(f"{__name__}.{name}").MUTATIONS]
    if other := [m.file for m in found if not room_with_list(m.file)]:
        raise ValueError(f"{other[0]} gets generated mutants; those of {', '.join(ROOMS)} are written by hand")
    return found
