"""Loading ratings of single responses by attribute, and reasonings whose steps are labelled, for reward models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

from posttrain.data.annotation_tools import is_prm800k, labelled_steps, prm800k_problem, prm800k_steps
from posttrain.data.chat import ChatFormat
from posttrain.data.files import Source
from posttrain.data.layouts import own_rows, turns_of
from posttrain.data.loaded import Loaded, Reading, Unusable, read_all
from posttrain.data.packing import Example, Graded, Stepwise
from posttrain.data.preferences import responses_to
from posttrain.data.records import Record, typed
from posttrain.data.tasks import dress
from posttrain.types import Message, steps_in


@dataclass(frozen=True, slots=True)
class Rated:
    """One response to a prompt, with ratings of several attributes, each on its own scale."""

    prompt: tuple[Message, ...]
    response: str
    ratings: Mapping[str, float]  # by attribute name; unrated attributes are absent
    source: str = ""  # where it was read: file and line


HELPSTEER = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")


def load_ratings(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[Rated]:
    """The rated responses of a data set.

    A row has `prompt`, `completion` and `ratings`, an object with a number for each attribute, of which some may be
    null; or it is one of HelpSteer, HelpSteer2 or UltraFeedback, whose columns say so. Rows without any rating, or
    whose response says nothing, are left out, and named in the result. Arguments and errors are those of
    `load_preferences`.
    """

    def layout_of(row: Record) -> Callable[[Record], list[Said]]:
        if row.fields.keys() >= {"prompt", "response", "helpfulness"}:
            return _helpsteer
        return _ultrafeedback if row.fields.keys() >= {"instruction", "completions"} else _own

    def read(row: Record) -> list[Rated]:
        found = [
            Rated(dress(prompt, system, prompt_template), response, ratings, row.place)
            for prompt, response, ratings in layout_of(row)(row)
            if ratings and response.strip()
        ]
        if not found:
            raise Unusable("it has no rating, or no text")
        return found

    return read_all(source, read, own=lambda row: own_rows(row) if layout_of(row) is _own else [row], **reading)


def graded_of(chat: ChatFormat, rated: Rated) -> Graded:
    """A rated response as tokens."""
    (example,) = responses_to(chat, rated.prompt, "", (Message("assistant", rated.response),), False)
    return Graded(example, rated.ratings)


Said = tuple[tuple[Message, ...], str, dict[str, float]]  # a prompt, a response and its ratings


def _own(row: Record) -> list[Said]:
    if "ratings" not in row.fields:
        raise row.missing("ratings")
    given = row.as_mapping("ratings", row.get("ratings") or {})
    return [(row.prompt("prompt"), _response(row, "completion"), _numbers(row, given))]


def _helpsteer(row: Record) -> list[Said]:
    fields = {**row.fields, "prompt": turns_of(row.text("prompt"))}
    prompt = Record(fields, row.place, row.id, row.read).prompt("prompt")
    return [(prompt, _response(row, "response"), _numbers(row, {name: row.get(name) for name in HELPSTEER}))]


def _response(row: Record, field: str) -> str:
    return "" if row.get(field) == "" else row.as_answer(field, row.get(field))  # it may say nothing


def _ultrafeedback(row: Record) -> list[Said]:
    """`annotations` of each of the `completions`; what could not be rated is "N/A"."""
    prompt = row.prompt("instruction")
    found: list[Said] = []
    for one in row.as_list("completions"):
        completion = row.as_mapping("completions", one)
        given = row.as_mapping("completions annotations", completion.get("annotations") or {})
        aspects = {str(name): row.as_mapping(f"annotations {name}", said or {}) for name, said in given.items()}
        ratings = _numbers(row, {name: _spoken(said.get("Rating")) for name, said in aspects.items()})
        if completion.get("response"):
            found.append((prompt, row.as_text("completions response", completion["response"]), ratings))
    return found


def _spoken(rating: Any) -> Any:
    """A number that is written as text; None for what says that there is none."""
    if not isinstance(rating, str):
        return rating
    try:
        return float(rating.replace("_", " "))
    except ValueError:
        return None


def _numbers(row: Record, given: Mapping[str, Any]) -> dict[str, float]:
    found = {str(name): value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
            raise row.fail(f"the rating of '{name}' must be a number, or null if it has none; got {value!r}")
        if not name.strip() or "=" in name or len(name.split()) != 1:
            raise row.fail(f"an attribute's name is one word; got {name!r}")
    return {name: float(value) for name, value in found.items()}


_PLAIN = (Message("user", "1"), Message("assistant", "2"))


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A response in steps, of which some are labelled right or wrong; none follows the first wrong one."""

    prompt: tuple[Message, ...]
    steps: tuple[str, ...]
    # one for each step: whether it is right, or how likely that is; None where that was not labelled
    labels: tuple[float | None, ...]
    source: str = ""  # where it was read: file and line


def load_steps(
    source: Source, *, system: str | None = None, prompt_template: str = "{prompt}", **reading: Unpack[Reading]
) -> Loaded[Reasoning]:
    """The labelled reasonings of a data set.

    A row has `prompt`, `steps` and `labels`, as `annotate export --to steps` writes them: for each step true (or 1),
    false (or 0, -1), a probability between them, or null where nobody labelled it. Or it is one of PRM800K, of TRL's
    stepwise labels, of Math-Shepherd or of ProcessBench, whose columns say so. Steps after the first wrong one are left
    out: they follow from it. Arguments and errors are those of `load_preferences`.
    """

    def read(row: Record) -> list[Reasoning]:
        prompt = prm800k_problem(row) if is_prm800k(row) else row.prompt("prompt")
        found = [one for one in (_prm800k(row) if is_prm800k(row) else [_own_steps(row)]) if set(one[1]) != {None}]
        if not found:
            raise Unusable("none of its steps is labelled")
        dressed = dress(prompt, system, prompt_template)
        return [Reasoning(dressed, tuple(steps), tuple(labels), row.place) for steps, labels in found]

    return read_all(source, read, gather=_gathered, **reading)


def _gathered(rows: Sequence[Record]) -> list[Record]:
    """Rows with `steps` and `labels`; beside -1 a label of 0 is neither right nor wrong, and is refused."""
    found = [row.replaced(own) if (own := labelled_steps(row)) else row for row in rows]
    numbers = set[float]()
    for row in found:
        labels = row.fields.get("labels")
        said = cast("list[Any]", labels) if isinstance(labels, list) else []
        numbers |= {one for one in said if isinstance(one, int | float) and not isinstance(one, bool)}
        if {-1, 0} <= numbers:
            raise row.fail("field 'labels' has 0 where others have -1: neither right nor wrong; write null there")
    return found


Labelled = tuple[list[str], list[float | None]]  # steps, and the label of each


def _own_steps(row: Record) -> Labelled:
    for name in ("steps", "labels"):
        if name not in row:
            raise row.missing(name)
    steps = [row.as_text("steps", step) for step in row.as_list("steps")]
    given = row.as_list("labels")
    if len(steps) != len(given):
        raise row.fail(f"{len(steps)} 'steps' need as many 'labels'; got {len(given)}")
    said = [typed(label) for label in given]
    if not steps:
        raise row.fail("'steps' must be a list of one or more texts; it is empty")
    if wrong := [one for one in said if one not in (None, -1) and not (isinstance(one, int | float) and 0 <= one <= 1)]:
        raise row.fail(
            f"a label of a step must be true (or 1), false (or 0, -1), a number between or null; got {wrong[0]!r:.60}"
        )
    labels = [None if label is None else label if 0 < label < 1 else label > 0 for label in said]
    until = labels.index(False) + 1 if False in labels else len(labels)
    return steps[:until], labels[:until]


def _prm800k(row: Record) -> list[Labelled]:
    """The derivation that was taken, and each alternative behind the steps before it, whose labels that one has.

    A rating of 0, neutral, counts as right: such a step is no mistake, though it may not help. Only -1 ends a
    reasoning. (Lightman et al. 2023, https://arxiv.org/abs/2305.20050, have the three ratings.)
    """
    found: list[Labelled] = []
    steps, labels = list[str](), list[float | None]()
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
    tokens that it spells are ordinary text. A labelled step without tokens is `Unusable`: it cannot be located.
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
