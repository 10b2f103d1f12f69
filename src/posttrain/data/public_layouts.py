"""Rows of public data sets and annotation tools, in posttrain's own columns.

Only names, nesting and directions change here. What the columns mean is said where they are read: demonstrations.py,
preferences.py, layouts.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, cast

from posttrain.data.annotation_tools import (
    PROMPTS,
    Fields,
    argilla_record,
    is_label_studio_min,
    label_studio_min,
    label_studio_task,
    pair,
    scored,
)
from posttrain.data.fields import as_list, as_mapping, as_number, as_text
from posttrain.data.meaning import is_empty
from posttrain.data.records import Record, typed
from posttrain.data.structures import list_in
from posttrain.data.trees import is_tree, ranked_replies


class PublicLayout(NamedTuple):
    """How the rows of a data set are recognised, and what they are in posttrain's columns."""

    name: str
    fits: Callable[[Record], bool]
    own: Callable[[Record], Sequence[Fields]]


def own_rows(row: Record) -> list[Record]:
    """A row in posttrain's columns, which may be several; itself where no public layout fits."""
    layout = next((layout for layout in PUBLIC_LAYOUTS if layout.fits(row)), None)
    if layout is None:
        return [row]
    before = set(row.read)
    found = layout.own(row)
    lost = {name for fields in found for name in fields if name not in row.read and not is_empty(row.fields.get(name))}
    if lost:  # the layout has no place for one of its columns
        row.read.intersection_update(before)
        return [row]
    return [row.replaced(fields) for fields in found]


def _has(*names: str) -> Callable[[Record], bool]:
    return lambda row: all(name in row for name in names)


def _first(row: Record, *names: str) -> str:
    return next((name for name in names if not is_empty(row.fields.get(name))), "")


# --- a prompt and a response by other names

_TEXTS = (
    ("inputs", "targets"),
    ("query", "response"),
    ("question", "response"),
    ("prompt", "response"),
    ("input", "output"),
)
_TAKEN = ("completion", "messages", "conversations", "instruction", "chosen", "rejected", "responses")


def _names_of_texts(row: Record) -> tuple[str, str] | None:
    if any(name in row for name in _TAKEN) or "helpfulness" in row.fields:  # HelpSteer's
        return None
    return next((names for names in _TEXTS if all(name in row for name in names)), None)


def _texts(row: Record) -> list[Fields]:
    names = _names_of_texts(row)
    assert names is not None
    return [{"prompt": row.get(names[0]), "completion": row.get(names[1])}]


def _are_texts(row: Record) -> bool:
    return _names_of_texts(row) is not None


def _is_dolly(row: Record) -> bool:
    return "instruction" in row and "response" in row and "output" not in row and "input" not in row


def _is_conversation(row: Record) -> bool:
    return "conversation" in row and not any(name in row for name in ("messages", "conversations", "prompt", "chosen"))


def _dolly(row: Record) -> list[Fields]:
    return [{"instruction": row.get("instruction"), "input": row.get("context"), "output": row.get("response")}]


def _conversation(row: Record) -> list[Fields]:
    """WildChat's list of messages, or Capybara's of {input, output}."""
    messages: list[Any] = []
    for turn in as_list(row, row.get("conversation"), "conversation"):
        said = cast(Mapping[str, Any], turn) if isinstance(turn, Mapping) else {}
        if {"input", "output"} <= said.keys():
            others = {key: value for key, value in said.items() if key not in ("input", "output", "system")}
            system = [] if is_empty(said.get("system")) else [{"role": "system", "content": said["system"]}]
            messages += [*system, {"role": "user", "content": said["input"]}]
            messages.append({"role": "assistant", "content": said["output"], **others})
        else:
            messages.append(turn)
    return [{"messages": messages}]


# --- labelled responses


def _is_labelled(row: Record) -> bool:
    label = _first(row, "label", "kto_tag")
    whole = _first(row, "messages", "conversations", "output")
    return bool(whole and label and "completion" not in row and isinstance(typed(row.fields[label]), bool))


def _kto(row: Record) -> list[Fields]:
    """LLaMA-Factory's: a conversation that ends with the labelled response, or an instruction and its output."""
    named = _first(row, "label", "kto_tag")
    label = {named: row.get(named)}
    if name := _first(row, "messages", "conversations"):
        turns = as_list(row, row.get(name), name)
        return [{"prompt": turns[:-1], "completion": turns[-1:]} | label]
    prompt = asked(row, "instruction")
    return [{"prompt": prompt, "completion": row.get("output")} | label]


def asked(row: Record, name: str) -> Any:
    """A prompt; of an instruction with its `input`."""
    said, more = row.get(name), row.get("input") if name == "instruction" else None
    return said if is_empty(more) else f"{said}\n\n{more}"


def _steps(row: Record) -> Fields:
    """TRL's stepwise labels: `completions` are steps, `labels` say of each whether it is right."""
    steps = [as_text(row, step, "completions") for step in as_list(row, row.get("completions"), "completions")]
    labels = as_list(row, row.get("labels"), "labels")
    if {-1, 0} <= {label for label in labels if isinstance(label, int | float)}:
        raise row.fail("field 'labels' has 0 beside -1: neither right nor wrong; remove such steps")
    if len(steps) != len(labels):
        raise row.fail(f"{len(steps)} 'completions' need as many 'labels'; got {len(labels)}")
    return {"prompt": row.get("prompt"), "steps": steps, "labels": labels}


def _until_wrong(reasoning: Fields) -> list[Fields]:
    """A labelled step after those before it, up to the first wrong one: later ones follow from it."""
    found: list[Fields] = []
    steps: Sequence[str] = reasoning["steps"]
    for place, (step, label) in enumerate(zip(steps, reasoning["labels"], strict=True)):
        before = {"prompt": reasoning["prompt"], "steps": list(steps[:place])}
        found.append({**before, "completion": step, "label": label})
        if typed(label) in (False, 0, -1):
            break
    return found


def _is_math_shepherd(row: Record) -> bool:
    return _has("input", "label")(row) and _STEP_TAG in str(row.fields["input"])


_STEP_TAG = "\u043a\u0438"  # Math-Shepherd's, in Cyrillic


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


_STEPWISE: tuple[tuple[Callable[[Record], bool], Callable[[Record], Fields]], ...] = (
    (_has("prompt", "completions", "labels"), _steps),
    (_is_math_shepherd, _math_shepherd),
)


def labelled_steps(row: Record) -> Record:
    """A row of stepwise labels (TRL, Math-Shepherd) with `prompt`, `steps` and `labels`; others as they are."""
    return next((row.replaced(read(row)) for fits, read in _STEPWISE if fits(row)), row)


# --- two responses and a verdict


def _helpsteer3(row: Record) -> list[Fields]:
    """From -3, the first response is much better, to 3, the second is."""
    score = as_number(row, row.get("overall_preference"), "overall_preference")
    one, other = row.get("response1"), row.get("response2")
    return pair(row.get("context"), one, other, -score, **({"strength": abs(score)} if score else {}))


def _safe_rlhf(row: Record) -> list[Fields]:
    """By `better_response_id`, the more helpful one; map `safer_response_id` to it to learn the safer one."""
    better = as_number(row, row.get("better_response_id"), "better_response_id")
    if better not in (0, 1):
        raise row.fail(f"field 'better_response_id' must be 0 or 1; got {better:g}")
    return pair(row.get("prompt"), row.get("response_0"), row.get("response_1"), 1 - 2 * better)


def _shp(row: Record) -> list[Fields]:
    """`history` is the post; `labels` is 1 where A is preferred."""
    label = as_number(row, row.get("labels"), "labels")
    if label not in (0, 1):
        raise row.fail(f"field 'labels' must be 1 where A is preferred and 0 where B is; got {label:g}")
    return pair(row.get("history"), row.get("human_ref_A"), row.get("human_ref_B"), 2 * label - 1)


_WINNERS = {"model_a": 1, "a": 1, "model_b": -1, "b": -1, "tie": 0, "tie (bothbad)": 0, "both_bad": 0, "bothbad": 0}


def _arena(row: Record) -> list[Fields]:
    """Two conversations, each with its model."""
    winner = str(row.get("winner")).lower()
    if winner not in _WINNERS:
        raise row.fail(f"field 'winner' must be one of {', '.join(_WINNERS)}; got {winner!r}")
    return pair(None, row.get("conversation_a"), row.get("conversation_b"), _WINNERS[winner])


def _arena_turns(row: Record) -> list[Fields]:
    """`prompt` and the responses are lists of turns, as JSON; `winner_model_a`, `winner_model_b` are 0 or 1."""
    turns = [as_list(row, row.get(name), name) for name in ("prompt", "response_a", "response_b")]
    a, b = (as_number(row, typed(row.get(f"winner_model_{one}")), f"winner_model_{one}") for one in "ab")
    tie = as_number(row, typed(row.get("winner_tie") or 0), "winner_tie")
    conversations = [
        [
            {"role": role, "content": text}
            for asked, said in zip_longest(turns[0], side)
            for role, text in (("user", asked), ("assistant", said or ""))
        ]
        for side in turns[1:]
    ]
    return pair(None, conversations[0], conversations[1], 0 if tie else a - b)


def _openai(row: Record) -> list[Fields]:
    asked = as_mapping(row, row.get("input"), "input")
    tools = {"tools": asked["tools"]} if asked.get("tools") else {}
    return pair(asked.get("messages"), row.get("preferred_output"), row.get("non_preferred_output"), 1, **tools)


def _chosen_response(row: Record) -> list[Fields]:
    prompt = asked(row, _first(row, *PROMPTS))
    return pair(prompt, row.get("chosen_response"), row.get("rejected_response"), 1)


def _prompt_elsewhere(row: Record) -> bool:
    """`chosen` and `rejected` without what they answer, which another column says."""
    alone = all(_says_response(row.fields.get(name)) for name in ("chosen", "rejected"))
    return alone and "prompt" not in row and bool(_first(row, *PROMPTS))


def _says_response(value: Any) -> bool:
    """Whether a value is a response without the prompt: text that is no transcript, or messages of the assistant."""
    if isinstance(value, list):
        said = cast(list[Any], value)
        return all(
            isinstance(one, Mapping) and one.get("role", one.get("from")) in ("assistant", "gpt") for one in said
        )
    return isinstance(value, Mapping) or (
        isinstance(value, str) and "\n\nAssistant:" not in value and not list_in(value)
    )


def _with_prompt(row: Record) -> list[Fields]:
    return pair(asked(row, _first(row, *PROMPTS)), row.get("chosen"), row.get("rejected"), 1)


# --- several responses in an order


def _is_nectar(row: Record) -> bool:
    answers = row.fields.get("answers")
    first = answers[0] if isinstance(answers, list) and answers else None
    return "prompt" in row and isinstance(first, Mapping) and {"answer", "rank"} <= first.keys()


def _is_rated(row: Record) -> bool:
    return "generations" in row and "chosen" not in row and bool(_first(row, "ratings", "rating"))


def _nectar(row: Record) -> list[Fields]:
    """`answers` with a `rank` from 1, the best; those of one rank are as good as each other."""
    answers = [as_mapping(row, one, "answers") for one in as_list(row, row.get("answers"), "answers")]
    ranks = [as_number(row, one.get("rank"), "answers rank") for one in answers]
    return [scored(row.get("prompt"), [one.get("answer") for one in answers], [-rank for rank in ranks])]


def _generations(row: Record) -> list[Fields]:
    """Distilabel's and Argilla's `generations` with their `ratings`."""
    prompt = asked(row, _first(row, *PROMPTS))
    return [scored(prompt, row.get("generations"), row.get(_first(row, "ratings", "rating")))]


PUBLIC_LAYOUTS = (
    PublicLayout("WildChat, Capybara: messages in a column of another name", _is_conversation, _conversation),
    PublicLayout("Dolly", _is_dolly, _dolly),
    PublicLayout("a prompt and a response by usual names (FLAN, MetaMathQA, OpenOrca)", _are_texts, _texts),
    PublicLayout("labelled conversations (LLaMA-Factory)", _is_labelled, _kto),
    PublicLayout(
        "stepwise labels (TRL)", _has("prompt", "completions", "labels"), lambda row: _until_wrong(_steps(row))
    ),
    PublicLayout("Math-Shepherd", _is_math_shepherd, lambda row: _until_wrong(_math_shepherd(row))),
    PublicLayout("HelpSteer3", _has("response1", "response2", "overall_preference"), _helpsteer3),
    PublicLayout("PKU-SafeRLHF", _has("response_0", "response_1", "better_response_id"), _safe_rlhf),
    PublicLayout("SHP", _has("history", "human_ref_A", "human_ref_B", "labels"), _shp),
    PublicLayout("LMSYS arena, conversations", _has("conversation_a", "conversation_b", "winner"), _arena),
    PublicLayout("LMSYS arena, turns", _has("prompt", "response_a", "response_b", "winner_model_a"), _arena_turns),
    PublicLayout("OpenAI's preferences", _has("input", "preferred_output", "non_preferred_output"), _openai),
    PublicLayout("Argilla, pairs", _has("chosen_response", "rejected_response"), _chosen_response),
    PublicLayout("Argilla, distilabel: rated generations", _is_rated, _generations),
    PublicLayout("Argilla, records", _has("fields", "responses"), argilla_record),
    PublicLayout("Nectar", _is_nectar, _nectar),
    PublicLayout("Label Studio", _has("data", "annotations"), label_studio_task),
    PublicLayout("Label Studio, JSON-MIN", is_label_studio_min, label_studio_min),
    PublicLayout("OpenAssistant", is_tree, ranked_replies),
    PublicLayout("responses whose prompt is another column (Orca, LLaMA-Factory)", _prompt_elsewhere, _with_prompt),
)
