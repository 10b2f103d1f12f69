"""Loading preferences: pairs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, groupby
from typing import Any, Unpack

from posttrain.data.annotation_tools import gathered_trees, is_prm800k, prm800k_problem, prm800k_steps
from posttrain.data.chat import ChatFormat
from posttrain.data.files import Source
from posttrain.data.layouts import gathered
from posttrain.data.loaded import Loaded, Reading, Unusable, read_all
from posttrain.data.meaning import is_empty, list_in
from posttrain.data.packing import Example, Pair, Ranked, size_of
from posttrain.data.records import Record, typed
from posttrain.data.tasks import answer_in, dress
from posttrain.types import Message, Preference, Task

_TURN = re.compile(r"\n\n(Human|Assistant):")  # how HH-RLHF writes who speaks
SAME = "'chosen' and 'rejected' are the same tokens"


def load_preferences(
    source: Source,
    *,
    system: str | None = None,
    prompt_template: str = "{prompt}",
    ties: bool = False,
    **reading: Unpack[Reading],
) -> Loaded[Preference]:
    r"""The preferences of a data set.

    A row has `chosen` and `rejected`, and either a `prompt` that both answer (text, or a list of {role, content}) or
    whole conversations that differ in their last message only: lists of {role, content}, or text in which
    "\n\nHuman:" and "\n\nAssistant:" say who speaks, as HH-RLHF has it. Two responses that answer different prompts,
    that are the same, or that say nothing cannot be learned from; HH-RLHF has two in a thousand. They are left out, and
    named in the result.

    Or it has `prompt`, `responses` and their `scores`, of which every two that differ make a preference, with the
    difference as its strength. The layouts of UltraFeedback, HelpSteer2, PRM800K and others are recognised
    (data/layouts.py).

    `strength` (or `margin`) is how much better the chosen one was found, and `subset` (or `category`) which part of a
    benchmark the row belongs to, as in RewardBench. The two last messages may call tools (`tool_calls`), whose schemas
    are in the column `tools`.

    `steps` (or `initial_reason_steps`, as in Step-DPO's own data) is what both go on from: given, not learned. The two
    responses are steps then, after which more follows: that they stop is not learned.

    Where `tie` is true people found the two equally good, and which one is called chosen says nothing: there is nothing
    to learn, and the row is left out; with `ties` all others are.

    `source` is as in `read_all`; preferences about one prompt that follow each other stay together in a mixture.
    `system` takes the place of a system message in the data, `prompt_template` is the text around each user message,
    which stands at `{prompt}`.
    A row that is no preference is a `DataError` by file, line and field.
    """

    def read(row: Record) -> list[Preference]:
        refuse_others(row, ties)
        return [replace(one, prompt=dress(one.prompt, system, prompt_template)) for one in preferences_in(row)]

    return read_all(source, read, gather=gather_pairs, together=together, **reading)


def load_judged(source: Source, *, ties: bool = False, **reading: Unpack[Reading]) -> Loaded[tuple[Preference, Task]]:
    """As `load_preferences`, each with what a judge may be shown besides: the answer and all columns of its row."""

    def read(row: Record) -> list[tuple[Preference, Task]]:
        refuse_others(row, ties)
        columns, answer = dict(row.source or row.fields), answer_in(row)
        return [(one, Task(one.prompt, answer, metadata=columns, id=one.source)) for one in preferences_in(row)]

    return read_all(source, read, gather=gather_pairs, **reading)


def gather_pairs(rows: Sequence[Record]) -> list[Record]:
    """Rows of a public layout as rows of preferences."""
    return gathered_trees(gathered(rows))


def refuse_others(row: Record, ties: bool) -> None:
    """Leave out ties, or with `ties` all others."""
    value = typed(row.get("tie"))
    if not is_empty(value) and value not in (0, 1):
        raise row.fail(f"field 'tie' must be true or false; got {value!r}")
    if (value == 1) != ties:
        raise Unusable("no tie: one of the two was chosen" if ties else "a tie: neither of the two was preferred")


def is_judged(row: Record) -> bool:
    """Whether a row has one response."""
    return "completion" in row and "chosen" not in row and "rejected" not in row


def preferences_in(row: Record) -> list[Preference]:
    """What a row says, in posttrain's own layout or a public one."""
    if is_judged(row):
        if "ratings" in row:
            raise row.fail("a response that was rated alone; give it to audit-judge as `ratings`")
        raise row.fail(
            'a response that was judged alone, not two of which one was chosen; use `algorithm="kto"`, or of convert '
            '`to="judgements"` or `to="demonstrations"`'
        )
    if "chosen" in row or "rejected" in row or not is_preference(row):
        return [_preference(row)]
    found = [one for one in (_prm800k if is_prm800k(row) else _scored)(row) if one.chosen != one.rejected]
    if not found:
        raise Unusable("no two responses of which one was found better")
    return found


def is_preference(row: Record) -> bool:
    """Whether the columns of a row say which of several responses is better."""
    scored = "responses" in row and "scores" in row
    return "chosen" in row or "rejected" in row or scored or is_prm800k(row)


def _scored(row: Record) -> list[Preference]:
    responses, scores = row.as_list("responses"), row.as_list("scores")
    if len(responses) != len(scores):
        raise row.fail(f"{len(responses)} 'responses' need as many 'scores'; got {len(scores)}")
    prompt, found = row.prompt("prompt"), list[Preference]()
    said = [row.as_answer("responses", response) for response in responses]
    rated = zip(said, [row.as_number("scores", score) for score in scores], strict=True)
    for (one, first), (other, second) in combinations(rated, 2):
        if first != second:
            chosen, rejected = (one, other) if first > second else (other, one)
            found.append(Preference(prompt, chosen, rejected, abs(first - second), source=row.place))
    return found


def _prm800k(row: Record) -> list[Preference]:
    """A derivation with rated steps: a right step against each of its wrong alternatives."""
    prompt = prm800k_problem(row)
    annotator, time = (str(row.get(name) or "") for name in ("labeler", "timestamp"))
    found, before = list[Preference](), ""
    for step in prm800k_steps(row):
        right, wrong = ([text for text, rating in step.rated if text.strip() and rating == one] for one in (1, -1))
        found += [
            Preference(prompt, good, bad, 1.0, annotator, row.place, time, opening=before, partial=True)
            for good in right
            for bad in wrong
        ]
        before += f"{step.taken}\n"
    return found


def _preference(row: Record) -> Preference:
    chosen, rejected = (conversation_in(row, field) for field in ("chosen", "rejected"))
    before = row.begun(row.messages("prompt")) if "prompt" in row else ()
    if before and len(chosen) == len(rejected) == 1:
        prompt = before
    else:
        prompt = chosen[:-1]
        if rejected[:-1] != prompt:
            raise Unusable("'chosen' and 'rejected' answer different prompts")
        if before and prompt and prompt[0].role == "assistant":  # they go on from the prompt
            prompt = (*before, *prompt)
        elif before and isinstance(row.fields["prompt"], str):
            if not any(message.content.strip() == before[-1].content.strip() for message in prompt):
                raise Unusable("'chosen' does not continue 'prompt'")
            prompt = row.begun(prompt)
        elif before:
            if before[len(before) - len(prompt) :] != prompt:
                raise Unusable("'chosen' does not continue 'prompt'")
            prompt = before  # which may have a system message that the responses do not repeat
        elif prompt:
            prompt = row.begun(prompt)
    if not prompt or prompt[-1].role == "assistant":
        raise row.fail(
            f"there is no prompt before the two responses; this row has: {', '.join(row.source or row.fields)}; add a "
            "column 'prompt', or map the one that is it, such as `columns=\"prompt=question\"`"
        )
    last = (chosen[-1], rejected[-1])
    for name, message in zip(("chosen", "rejected"), last, strict=True):
        if message.role != "assistant":
            raise row.fail(f"field '{name}' must end with an assistant message; it ends with the role '{message.role}'")
        refuse_unlearned(row, name, message)
    if replace(last[0], tools=()) == replace(last[1], tools=()):
        raise Unusable("'chosen' and 'rejected' are the same")
    # which part of a benchmark it belongs to: RewardBench calls it `subset`
    category = next((row.get(name) for name in ("subset", "category") if name in row), "")
    return Preference(
        prompt,
        last[0].content,
        last[1].content,
        strength=_strength(row),
        source=row.place,
        category=category if isinstance(category, str) else "",
        chosen_calls=last[0].tool_calls,
        rejected_calls=last[1].tool_calls,
        **opening_in(row, "steps", "initial_reason_steps"),
    )


def refuse_unlearned(row: Record, field: str, message: Message) -> None:
    """Raise for a response with reasoning apart from its content, or with a weight of 0."""
    if message.reasoning:
        raise row.fail(f"field '{field}' has its reasoning apart from the content; write it there, as models do")
    if not message.learned:
        raise row.fail(f"field '{field}' ends with a message that is not to be learned, by its weight; remove the row")


def _strength(row: Record) -> float:
    field = next((field for field in ("strength", "margin") if row.fields.get(field) is not None), "")
    if not field:
        return 1.0
    value = typed(row.get(field))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise row.fail(
            f"field '{field}' must be how much better the chosen response was found, a number of 0 or more; got "
            f'{value!r}; if it is something else, give it another name with `columns="other={field}"`'
        )
    return float(value)


def opening_in(row: Record, *fields: str) -> dict[str, Any]:
    """Of responses that are steps the ones before them, as text or a list in one of these fields."""
    field = next((field for field in fields if field in row), "")
    if not field:
        return {}
    value = row.get(field)
    if isinstance(value, str):
        value = list_in(value) or value
    steps = [value] if isinstance(value, str) else value
    if not isinstance(steps, Sequence) or not all(isinstance(step, str) for step in steps):
        raise row.fail(
            f"field '{field}' must be the steps before the two responses, text or a list of texts; if it is something "
            f'else, give it another name with `columns="other={field}"`'
        )
    text = value if isinstance(value, str) else "".join(f"{step}\n" for step in steps)
    return {"opening": text, "partial": True}


def conversation_in(row: Record, field: str) -> tuple[Message, ...]:
    """A response, or the conversation that it ends."""
    value = said = row.get(field)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        said = None if value[-1].get("tool_calls") else value[-1].get("content", value[-1].get("value"))
    if isinstance(said, str) and not said.strip():
        raise Unusable(f"'{field}' says nothing")
    if not isinstance(value, str):
        return row.messages(field)
    turns = row.structure(field)
    if turns is not None:
        if any(turn.get("content") == "" and not turn.get("tool_calls") for turn in turns):
            raise Unusable(f"'{field}' has an empty turn")
        return row.messages(field)
    text = row.answer(field)
    if "prompt" not in row and (turn := _TURN.search(text)):
        raise row.fail(f"field '{field}' has words before the first turn: {text[: turn.start()].strip()[:40]!r}")
    return (Message("assistant", text),)


def pair_of(chat: ChatFormat, preference: Preference) -> Pair:
    """A preference as tokens: two sequences that share their prompt, each learned from its first token to its stop.

    They share the opening of the responses too, where there is one, and it is not learned. Of responses after which
    more follows the stop is not there. Two that are the same tokens, as a template that trims them makes them, are
    `Unusable`.
    """
    p = preference
    pair = Pair(*responses_to(chat, p.prompt, p.opening, p.responses, p.partial))
    if pair.chosen == pair.rejected:
        raise Unusable(SAME)
    return pair


def ranked_of(chat: ChatFormat, preferences: Sequence[Preference]) -> Ranked:
    """Preferences about one prompt as tokens: each response once, and which two of them were compared.

    Two that are the same tokens are not; raises `Unusable` where no others are left.
    """
    p = preferences[0]
    said = list(dict.fromkeys(response for one in preferences for response in one.responses))
    answers = [(*one.responses, one.strength) for one in preferences]
    examples = responses_to(chat, p.prompt, p.opening, said, p.partial)
    pairs = ((said.index(chosen), said.index(rejected), strength) for chosen, rejected, strength in answers)
    differing = tuple(pair for pair in pairs if examples[pair[0]] != examples[pair[1]])
    if not differing:
        raise Unusable(SAME)
    return Ranked(tuple(examples), differing)


def shortened(ranked: Ranked, longest: int) -> Ranked | None:
    """A ranking without the responses of more than `longest` tokens and their pairs; None where no pair is left."""
    kept = [place for place, example in enumerate(ranked.examples) if size_of(example) <= longest]
    at = {place: number for number, place in enumerate(kept)}
    pairs = tuple((at[a], at[b], strength) for a, b, strength in ranked.pairs if a in at and b in at)
    return Ranked(tuple(ranked.examples[place] for place in kept), pairs, ranked.bag) if pairs else None


def together(preferences: Sequence[Preference]) -> list[tuple[Preference, ...]]:
    """Consecutive preferences of one prompt: from one ranking, or several."""
    groups = groupby(preferences, key=lambda one: (one.prompt, one.opening, one.partial))
    return [tuple(group) for _, group in groups]


def responses_to(
    chat: ChatFormat, prompt: Sequence[Message], opening: str, responses: Sequence[Message], partial: bool
) -> list[Example]:
    """Responses to one prompt with one opening, which is given as far as its tokens are the same in all of them.

    Its last token may differ by what follows it.
    """
    given = tuple(chat.prompt_ids(prompt))

    def tokens(response: Message) -> tuple[int, ...]:
        ids = chat.training_ids([*prompt, replace(response, content=opening + response.content)], train_on="last")
        return tuple(ids.token_ids[len(given) :])

    said = [tokens(response)[: -1 if partial else None] for response in responses]
    start = 0
    if opening:
        aligned = enumerate(zip(tokens(Message("assistant", "")), *said, strict=False))
        differing = (place for place, alike in aligned if len(set(alike)) > 1)
        start = next(differing, min(map(len, said)) - 1)  # where nothing is said after the opening: the stop alone
    return [Example(given + ids[:start], ids[start:], (True,) * len(ids[start:])) for ids in said]
