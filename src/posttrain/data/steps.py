"""Loading reasonings whose steps are labelled right or wrong, for process reward models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

from posttrain.data.chat import ChatFormat
from posttrain.data.given import Source
from posttrain.data.loaded import Loaded, Reading, Unusable, read_all
from posttrain.data.packing import Example, Stepwise
from posttrain.data.records import Record, typed
from posttrain.data.step_layouts import STEPWISE, is_prm800k, prm800k_problem, prm800k_steps
from posttrain.data.tasks import dress
from posttrain.types import Message, steps_in

_PLAIN = (Message("user", "1"), Message("assistant", "2"))


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A response in steps, of which some are labelled right or wrong; none follows the first wrong one."""

    prompt: tuple[Message, ...]
    steps: tuple[str, ...]
    labels: tuple[bool | None, ...]  # one for each step: whether it is right; None where that was not labelled
    source: str = ""  # where it was read: file and line


def load_steps(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[Reasoning]:
    """The labelled reasonings of a data set.

    A row has `prompt`, `steps` and `labels`, as `annotate export --to steps` writes them: for each step true (or 1),
    false (or 0, -1), or null where nobody labelled it. Or it is one of PRM800K, of TRL's stepwise labels, or of
    Math-Shepherd, whose columns say so. Steps after the first wrong one are left out: they follow from it. Arguments
    are those of `load_preferences`.

    Raises:
        DataError: as `load_rows`; a row that is no labelled reasoning, by file, line and field; or none has a label.
    """

    def read(row: Record) -> list[Reasoning]:
        prompt = prm800k_problem(row) if is_prm800k(row) else row.prompt("prompt")
        found = [one for one in (_prm800k(row) if is_prm800k(row) else [_own(row)]) if set(one[1]) != {None}]
        if not found:
            raise Unusable("none of its steps is labelled")
        dressed = dress(prompt, system, prompt_template)
        return [Reasoning(dressed, tuple(steps), tuple(labels), row.place) for steps, labels in found]

    return read_all(source, read, gather=_gathered, **reading)


def _gathered(rows: Sequence[Record]) -> list[Record]:
    """Rows with `steps` and `labels`; beside -1 a label of 0 is neither right nor wrong, and is refused."""
    found = [next((row.replaced(read(row)) for _, fits, read in STEPWISE if fits(row)), row) for row in rows]
    numbers = set[float]()
    for row in found:
        labels = row.fields.get("labels")
        said = cast("list[Any]", labels) if isinstance(labels, list) else []
        numbers |= {one for one in said if isinstance(one, int | float) and not isinstance(one, bool)}
        if {-1, 0} <= numbers:
            raise row.fail("field 'labels' has 0 where others have -1: neither right nor wrong; write null there")
    return found


Labelled = tuple[list[str], list[bool | None]]
"""Steps, and the label of each."""


def _own(row: Record) -> Labelled:
    for name in ("steps", "labels"):
        if name not in row:
            raise row.missing(name)
    steps = [row.as_text("steps", step) for step in row.as_list("steps")]
    given = row.as_list("labels")
    if len(steps) != len(given):
        raise row.fail(f"{len(steps)} 'steps' need as many 'labels'; got {len(given)}")
    said = [typed(label) for label in given]
    if wrong := [label for label in said if label is not None and label not in (True, False, -1)]:
        raise row.fail(f"a label of a step must be true (or 1), false (or 0, -1) or null; got {wrong[0]!r:.60}")
    labels = [None if label is None else label > 0 for label in said]
    until = labels.index(False) + 1 if False in labels else len(labels)
    return steps[:until], labels[:until]


def _prm800k(row: Record) -> list[Labelled]:
    """The derivation that was taken, and each alternative behind the steps before it, whose labels that one has.

    A rating of 0, neutral, counts as right: such a step is no mistake, though it may not help. Only -1 ends a
    reasoning. (Lightman et al. 2023, https://arxiv.org/abs/2305.20050, have the three ratings.)
    """
    found: list[Labelled] = []
    steps, labels = list[str](), list[bool | None]()
    for step in prm800k_steps(row):
        said = [(text, None if rating is None else rating >= 0) for text, rating in step.rated]
        others = [one for place, one in enumerate(said) if place != step.chosen and one[0].strip()]
        taken = said[step.chosen] if step.chosen is not None else (step.taken, None)
        if not step.taken and others:  # it ends with one of them
            taken = others.pop()
        found += [([*steps, text], [*[None] * len(steps), label]) for text, label in others]
        if taken[0]:
            steps.append(taken[0])
            labels.append(taken[1])
    return [(steps, labels), *found]


def stepwise_of(chat: ChatFormat, reasoning: Reasoning) -> Stepwise:
    """A reasoning as tokens: each line of a step by itself, with the line's end; one token more is behind them all.

    So a step has the same tokens wherever it stands and whatever follows, in training and when it is scored. Special
    tokens that it spells are ordinary text.

    Raises:
        Unusable: a labelled step cannot be located, since it has no tokens.
    """
    ids, ends = list[int](), list[int]()
    for number, (step, label) in enumerate(zip(reasoning.steps, reasoning.labels, strict=True), 1):
        lines = (chat.in_words(Message("assistant", step[a:b])).content for a, b in steps_in(step))
        said = [token for line in lines for token in chat.text_ids(f"{line}\n")]
        if not said and label is not None:
            raise Unusable(f"{reasoning.source}: step {number} ({step!r:.40}) cannot be located: it has no tokens")
        ids += said
        ends += [len(ids)] if label is not None else []
    ids.append(chat.training_ids(_PLAIN, train_on="last").token_ids[-1])
    learned = [place in set(ends) for place in range(len(ids))]
    example = Example(tuple(chat.prompt_ids(reasoning.prompt)), tuple(ids), tuple(learned))
    return Stepwise(example, tuple(label for label in reasoning.labels if label is not None))


def first_steps(stepwise: Stepwise, longest: int) -> Stepwise | None:
    """The steps that end within `longest` tokens; None where no labelled one does."""
    prefix, ids, learned = stepwise.example.prefix, stepwise.example.continuation, stepwise.example.learned
    ends = [place + 1 for place in range(min(len(ids), longest - len(prefix))) if learned[place]]
    if not ends:
        return None
    return Stepwise(Example(prefix, ids[: ends[-1]], learned[: ends[-1]]), stepwise.right[: len(ends)])
