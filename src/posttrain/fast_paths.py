"""Fast paths: optimisations that do not change results, each with a switch.

All are on unless they are switched off. The tests of the correctness contract do that, `posttrain verify --without`
does it on a user's own model, and so may anyone who suspects one of them, for any command or in Python:

    POSTTRAIN_WITHOUT="shared prefix,lean head" posttrain rl ...

    with without("shared prefix", "lean head"):
        ...

A switch is read where the work is done; those marked *at loading* must be off while a model is loaded.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from posttrain.errors import unknown

FAST_PATHS: Mapping[str, str] = {
    "shared prefix": "an update computes a prompt once for all its completions, or for both responses of a pair",
    "skipped groups": "groups whose advantages are all zero are left out of an update",
    "recomputed attention": "on a CPU, attention keeps queries, keys and values alone for its backward pass",
    "whole rows": "on a GPU, attention takes a packed row at once, not sequence by sequence",
    "lean forms": "norms and MLPs keep less for their backward pass (at loading)",
    "lean head": "logprobs and entropy are computed without the logits of a batch",
    "sparse embedding": "the input embedding's gradient has a row per token, not per word (at loading)",
    "kept memory": "memory that a step has freed stays with the process for the next one",
    "packed weights": "sampling multiplies by weights that were cut into tiles once",
    "prefix cache": "in a conversation, what was computed for earlier turns is not computed again",
}
"""What is saved, by name."""

VARIABLE = "POSTTRAIN_WITHOUT"
_off: ContextVar[frozenset[str]] = ContextVar("fast_paths_off")


def parse(text: str) -> frozenset[str]:
    """Names of fast paths, separated by commas, or `all`."""
    names = {name.strip() for name in text.split(",")} - {""}
    for name in names - {"all"}:
        if name not in FAST_PATHS:
            raise unknown("fast path", name, ["all", *FAST_PATHS])
    return frozenset(FAST_PATHS if "all" in names else names)


def off() -> frozenset[str]:
    """What is switched off here: by `without`, else by the environment."""
    return _off.get(None) or parse(os.environ.get(VARIABLE, ""))


def on(name: str) -> bool:
    """Whether the fast path `name` may be taken."""
    assert name in FAST_PATHS, name
    return name not in off()


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Take none of these fast paths in this block, besides those that are off already."""
    token = _off.set(off() | parse(",".join(names)))
    try:
        yield
    finally:
        _off.reset(token)


def for_children() -> dict[str, str]:
    """The environment that makes a child process take the same paths as this one."""
    return {VARIABLE: ",".join(sorted(off()))}
