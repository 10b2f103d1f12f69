"""What a night found: the survivors, the share of them by room, and whether that is too many."""

import math
from collections.abc import Iterable

from tests.generated_mutants.examine import Examined
from tests.generated_mutants.selection import room_of

# The share of survivors that a room may have. Some change nothing that anybody can observe, so it cannot be 0:
# by the first samples (docs/LOG.md) 11 % survive, of which half are gaps.
MOST = 0.25


def counts(examined: Iterable[Examined]) -> dict[str, tuple[int, int]]:
    """Return survivors and mutants of every room. Those that cannot be imported prove nothing, and are not counted."""
    found: dict[str, tuple[int, int]] = {}
    for one in examined:
        survived = sum(mutant.found == "green" for mutant in one.planted)
        noticed = sum(mutant.found.startswith("red") for mutant in one.planted)
        if survived + noticed:
            before = found.get(room_of(one.file), (0, 0))
            found[room_of(one.file)] = before[0] + survived, before[1] + survived + noticed
    return dict(sorted(found.items()))


def at_least(survived: int, of: int) -> float:
    """Return the lower end of Wilson's 95 % interval of the share: a few mutants of a bad night condemn no room."""
    share, z2 = survived / of, 1.96**2
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * of)) / of)
    return (share + z2 / (2 * of) - half) / (1 + z2 / of)


def told(one: Examined) -> list[str]:
    """Return what to print of a file: its survivors as file:line and the change, or why it has none."""
    if one.trouble:
        return [f"{one.file}: {one.trouble}"]
    survivors = [mutant for mutant in one.planted if mutant.found == "green"]
    return [
        line
        for mutant in survivors
        for line in (f"SURVIVED  {one.file}:{mutant.line}", *(f"    {changed}" for changed in mutant.change))
    ]


def summary(examined: list[Examined]) -> list[str]:
    """Return a line for every room, and one of what was not planted or not counted."""
    lines = [
        f"{room:14} {survived:4} of {of:4} survived, {survived / of:4.0%} (at least {at_least(survived, of):.0%})"
        for room, (survived, of) in counts(examined).items()
    ]
    planted = [mutant for one in examined for mutant in one.planted]
    broken = sum(mutant.found.startswith("broken") for mutant in planted)
    endless = sum(mutant.found == "red by time" for mutant in planted)
    late = sum(one.unplanted for one in examined)
    lines.append(
        f"{len(planted)} planted: {broken} could not be imported and are not counted, {endless} were noticed by their "
        f"time alone; {late} were left when the time was up"
    )
    return lines


def failures(examined: list[Examined]) -> list[str]:
    """Return why the night failed, a line each."""
    rooms = counts(examined)
    lines = [f"{one.file}: its tests are red without a mutant" for one in examined if one.red]
    lines += [
        f"{room}: more than {MOST:.0%} survived, and not by chance"
        for room, (survived, of) in rooms.items()
        if at_least(survived, of) > MOST
    ]
    return lines if rooms else [*lines, "no mutant was planted"]
