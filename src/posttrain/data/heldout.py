"""Training rows and held-out rows, divided by prompt."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from posttrain.data.annotation_tools import PROMPTS
from posttrain.data.layouts import asked, own_rows
from posttrain.data.loaded import Unusable
from posttrain.data.order import seed_for
from posttrain.data.preferences import is_preference, preferences_in
from posttrain.data.records import Record
from posttrain.data.sources import numbered
from posttrain.errors import UserError
from posttrain.types import Message, Task


def split(
    rows: Iterable[Mapping[str, Any]], heldout: float = 0.2, seed: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Divide rows into training rows and about the share `heldout` of them, by the rule of `hold_out`.

    Rows of one prompt stay together, so that none is on both sides.

    Args:
        rows: of any layout that is read; see `load_rows` for what they may be.
        heldout: share of the prompts to hold out, above 0 and below 1.
        seed: which ones.

    Raises:
        UserError: a share out of its range, or one of the two sides is empty.
        DataError: a row in which no prompt is found.

    Example:
        >>> train, heldout = split([{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(9) for b in range(9)])
        >>> len(train), len(heldout)
        (70, 11)
    """
    if not 0 < heldout < 1:
        raise UserError(f"the share to hold out must be above 0 and below 1; got {heldout}")
    tasks = [Task(_asked(row), answer=row.fields) for row in numbered(rows)]
    learned, held = hold_out(tasks, heldout, seed)
    return [task.answer for task in learned], [task.answer for task in held]


def disjoint(train: Sequence[Task], heldout: Sequence[Task]) -> tuple[list[Task], int]:
    """`heldout` without the tasks whose question is also in `train` and repeats of its own, and how many those were.

    Questions are compared by their text, whatever its spacing; system messages do not count.
    """
    seen = {question_of(task.prompt) for task in train}
    kept: list[Task] = []
    for task in heldout:
        question = question_of(task.prompt)
        if question not in seen:
            seen.add(question)
            kept.append(task)
    if not kept:
        raise UserError(
            f"all {len(heldout)} held-out tasks are also in the training data; hold out another file or split"
        )
    return kept, len(heldout) - len(kept)


def hold_out(tasks: Sequence[Task], share: float, seed: int) -> tuple[list[Task], list[Task]]:
    """Split tasks into training tasks and about `share` of them held out.

    The side depends on the seed and the question, so that the same question never stands on both, and a row that is
    added changes no other row's side.
    """
    sides: tuple[list[Task], list[Task]] = ([], [])
    for task in tasks:
        sides[seed_for(seed, "held out", *question_of(task.prompt)) < share * 2**63].append(task)
    if not all(sides):
        raise UserError(
            f"a held-out share of {share} of {len(tasks)} rows leaves no rows "
            f"{'to hold out' if sides[0] else 'to train on'}; give another share (`eval_share`), or `eval_dataset`"
        )
    return sides


def divide(
    tasks: Sequence[Task], *, share: float, offered: Callable[[], Sequence[Task]] | None, limit: int, seed: int
) -> tuple[list[Task], list[Task], tuple[str, ...]]:
    """Training tasks, at most `limit` held-out ones (a share, those `offered`, or none), and notes on dropped rows."""
    learned, heldout, removed = list(tasks), list[Task](), 0
    if share:
        learned, heldout = hold_out(tasks, share, seed)
    elif offered is not None:
        heldout, removed = disjoint(tasks, offered())
    surplus = [f"of {len(heldout)} held-out rows the first {limit} are used (`eval_limit`)"]
    return learned, heldout[:limit], (*met_before(removed), *(surplus if len(heldout) > limit else ()))


def met_before(removed: int) -> list[str]:
    """Message about held-out rows that `disjoint` removed."""
    return [f"{removed} held-out rows are also in the training data, or twice, and were left out"] if removed else []


def question_of(prompt: Sequence[Message]) -> tuple[str, ...]:
    """The text by which prompts are compared: without system message and white space."""
    return tuple(" ".join(m.text.split()) for m in prompt if m.role != "system")


def _asked(row: Record) -> tuple[Message, ...]:
    """What a row of any layout asks; of a row from which nothing can be learned, its text."""
    if "message_tree_id" in row:  # a message of OpenAssistant's: trees stay whole
        return (Message("user", row.text("message_tree_id")),)
    own = next(iter(own_rows(row)), row)
    if is_preference(own):
        try:
            return preferences_in(own)[0].prompt
        except Unusable:
            return (Message("user", repr(row.fields)),)
    if name := next((name for name in (*PROMPTS, "text") if name in own), ""):
        own = own.replaced({"prompt": asked(own, name)})
    said = own.messages("prompt")
    before = next((number for number, message in enumerate(said) if message.role == "assistant"), 0)
    return own.begun(said[:before] if before else said)
