"""How long threads of torch wait for each other in a loop. The setting is read when torch is imported.

Threads of GNU's OpenMP wait in a loop of 300,000 turns, which is some milliseconds. Beside another busy process that
loop keeps the core which the thread that is waited for needs: docs/LOG.md.
"""

import os
import sys

SPINCOUNT = "2500"
"""Turns of that loop, after which a thread sleeps."""
_NAMES = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
_late = "torch" in sys.modules and not _NAMES & os.environ.keys()


def sleep_sooner() -> None:
    """Have threads sleep after a short loop, unless the user has said otherwise."""
    if not _NAMES & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = SPINCOUNT


def late() -> str:
    """Why the setting has no effect, said once; "" where it has."""
    global _late
    said, _late = _late, False
    return (
        "torch was imported before posttrain, so its threads spin while they wait: beside other load training is "
        f"slower; import posttrain first, or set GOMP_SPINCOUNT={SPINCOUNT}"
        if said
        else ""
    )
