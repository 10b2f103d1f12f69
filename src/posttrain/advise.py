"""Which method fits a kind of feedback and hardware; advice.toml has the methods with their reasons."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from posttrain import errors

_TABLE = tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))
FEEDBACK: Mapping[str, str] = MappingProxyType(_TABLE["feedback"])
COMPUTE: Mapping[str, str] = MappingProxyType(_TABLE["compute"])


@dataclass(frozen=True)
class Advice:
    """One method, why, and when to choose another."""

    method: str  # an algorithm's name, or a command's
    command: str
    because: tuple[str, ...]
    instead: tuple[str, ...]


def advise(have: Collection[str], compute: str, *, long: bool = False) -> list[Advice]:
    """The methods for what there is, in the order in which they are run.

    Args:
        have: names in `FEEDBACK`.
        compute: a name in `COMPUTE`.
        long: completions are long chains of thought.

    Raises:
        UserError: no feedback, or an unknown name.

    Example:
        >>> [advice.method for advice in advise(["thumbs"], "laptop")]
        ['kto']
    """
    for name in have:
        if name not in FEEDBACK:
            raise errors.unknown("kind of feedback", name, FEEDBACK)
    if compute not in COMPUTE:
        raise errors.unknown("compute", compute, COMPUTE)
    if not have:
        raise errors.UserError(
            f"every method needs feedback: one of {', '.join(FEEDBACK)}; the cheapest is a function that scores an "
            "answer, FILE.py:function"
        )
    kinds = set(have) - ({"reward-model"} if "verifiable" in have else set())  # a verifier cannot be hacked
    found: dict[str, Mapping[str, Any]] = {}
    for row in _TABLE["method"]:
        if row["have"] in kinds and row.get("compute", compute) == compute and row.get("long", long) == long:
            found.setdefault(row["have"], row)
    adapter = " --lora-rank 16 --lr 1e-4" if compute == "laptop" else ""
    return [
        Advice(row["method"], row["command"].format(adapter=adapter), tuple(row["because"]), tuple(row["instead"]))
        for row in found.values()
    ]
