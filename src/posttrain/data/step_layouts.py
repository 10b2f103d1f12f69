"""Public data sets of labelled steps: TRL's, Math-Shepherd, PRM800K."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from posttrain.data.annotation_tools import Fields
from posttrain.data.records import Record, typed
from posttrain.types import Message

_STEP_TAG = "\u043a\u0438"  # Math-Shepherd's, in Cyrillic


def _steps(row: Record) -> Fields:
    """TRL's: `completions` are steps, `labels` say of each whether it is right."""
    steps = [row.as_text("completions", step) for step in row.as_list("completions")]
    labels = row.as_list("labels")
    if {-1, 0} <= {label for label in labels if isinstance(label, int | float)}:
        raise row.fail("field 'labels' has 0 beside -1: neither right nor wrong; remove such steps")
    if len(steps) != len(labels):
        raise row.fail(f"{len(steps)} 'completions' need as many 'labels'; got {len(labels)}")
    return {"prompt": row.get("prompt"), "steps": steps, "labels": labels}


def _math_shepherd(row: Record) -> Fields:
    """`input` with a tag behind each step, and `label`, the same text with + or - for each tag."""
    *texts, _ = row.text("input").split(_STEP_TAG)
    rest, labels = row.text("label"), list[bool]()
    for text in texts:
        if not rest.startswith(text) or rest[len(text) : len(text) + 1] not in ("+", "-"):
            raise row.fail("field 'label' must be the text of 'input' with + or - in place of each tag")
        labels.append(rest[len(text)] == "+")
        rest = rest[len(text) + 1 :]
    begins = re.search(r"Step 1:", texts[0]) if texts else None
    if begins is None:
        raise row.fail(
            f"field 'input' must have a question, and steps from 'Step 1:' on; got {row.text('input')[:40]!r}"
        )
    question, first = texts[0][: begins.start()].strip(), texts[0][begins.start() :]
    return {"prompt": question, "steps": [step.strip() for step in (first, *texts[1:])], "labels": labels}


STEPWISE: tuple[tuple[str, Callable[[Record], bool], Callable[[Record], Fields]], ...] = (
    ("stepwise labels (TRL)", lambda row: all(n in row for n in ("prompt", "completions", "labels")), _steps),
    ("Math-Shepherd", lambda row: "label" in row and _STEP_TAG in str(row.fields.get("input")), _math_shepherd),
)
"""By the name of each: how a row is recognised, and what it is with `prompt`, `steps` and `labels`."""


def until_wrong(read: Callable[[Record], Fields]) -> Callable[[Record], list[Fields]]:
    """A labelled step after those before it, up to the first wrong one: later ones follow from it."""

    def own(row: Record) -> list[Fields]:
        found, reasoning = list[Fields](), read(row)
        steps: Sequence[str] = reasoning["steps"]
        for place, (step, label) in enumerate(zip(steps, reasoning["labels"], strict=True)):
            before = {"prompt": reasoning["prompt"], "steps": list(steps[:place])}
            found.append({**before, "completion": step, "label": label})
            if typed(label) in (False, 0, -1):
                break
        return found

    return own


class RatedStep(NamedTuple):
    """A step of a derivation: its alternatives with their ratings (1, 0, -1 or None), and the one that was taken."""

    rated: list[tuple[str, int | None]]
    taken: str  # empty where it ends here
    chosen: int | None  # which of the alternatives that is; None for one that a person wrote


def is_prm800k(row: Record) -> bool:
    """Others have a `question` and a `label`, too, but as text."""
    return all(isinstance(row.fields.get(name), Mapping) for name in ("question", "label"))


def prm800k_problem(row: Record) -> tuple[Message, ...]:
    """The prompt of a row of PRM800K."""
    return (Message("user", row.as_text("question problem", row.as_mapping("question").get("problem"))),)


def prm800k_steps(row: Record) -> Iterator[RatedStep]:
    """The steps of a row of PRM800K, up to one after which a wrong or missing one was taken."""
    steps = row.as_list("label steps", row.as_mapping("label").get("steps"))
    for step in (row.as_mapping("label steps", one) for one in steps):
        seen = [row.as_mapping("completions", one) for one in step.get("completions") or ()]
        rated = [(str(one.get("text") or ""), one.get("rating")) for one in seen]
        if wrong := [rating for _, rating in rated if rating not in (-1, 0, 1, None)]:
            raise row.fail(f"the rating of a step must be -1, 0, 1 or null; got {wrong[0]!r}")
        chosen, human = step.get("chosen_completion"), step.get("human_completion")
        taken = human.get("text") if isinstance(human, Mapping) else human
        if isinstance(chosen, int):
            if not 0 <= chosen < len(rated):
                raise row.fail(f"'chosen_completion' is {chosen} of {len(rated)} completions")
            taken = rated[chosen][0] if rated[chosen][1] != -1 else None
        taken = taken if isinstance(taken, str) and taken.strip() else ""
        yield RatedStep(rated, taken, chosen if isinstance(chosen, int) and taken else None)
        if not taken:
            return
