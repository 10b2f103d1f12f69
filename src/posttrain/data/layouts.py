"""Rows of public data sets and annotation tools in posttrain's own columns.

Only names, nesting and directions change here. What the columns mean is said where they are read: tasks.py,
preferences.py, ratings.py. Of several layouts that fit a row the first one in this file is meant.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any, cast

from posttrain.data import annotation_tools as tools
from posttrain.data import judge_benchmarks as benchmarks
from posttrain.data.annotation_tools import PROMPTS, Fields, pair, scored
from posttrain.data.meaning import MEANT, is_empty, list_in
from posttrain.data.records import Record, typed

_Own = Callable[[Record], Sequence[Fields] | None]
_LAYOUTS: list[tuple[Sequence[str], Sequence[str], _Own]] = []  # columns that a row has, does not have, and its reader


def own_rows(row: Record) -> list[Record]:
    """A row in posttrain's columns, which may be several; itself where no public layout fits."""
    before = set(row.read)
    readers = (
        own
        for names, without, own in _LAYOUTS
        if all(name in row for name in names) and not any(name in row for name in without)
    )
    found = next((fields for own in readers if (fields := own(row)) is not None), None)
    columns = {name for fields in found or () for name in fields if not is_empty(row.fields.get(name))}
    if found is None or columns - row.read:  # or the layout has no place for one of its columns
        row.read.intersection_update(before)
        return [row]
    return [row.replaced(fields) for fields in found]


def _layout(*names: str, without: Sequence[str] = ()) -> Callable[[_Own], _Own]:
    """Register what reads rows with the columns `names` and none of `without`; it returns None for another layout's."""

    def register(own: _Own) -> _Own:
        _LAYOUTS.append((names, without, own))
        return own

    return register


def asked(row: Record, name: str) -> Any:
    """A prompt; of an instruction with its `input`."""
    said, more = row.get(name), row.get("input") if name == "instruction" else None
    return said if is_empty(more) else f"{said}\n\n{more}"


def gathered(rows: Sequence[Record]) -> list[Record]:
    """Rows of HelpSteer2, one for each response, that follow each other with the same prompt become one row."""
    if not rows or not {"prompt", "response", "helpfulness"} <= rows[0].fields.keys():
        return list(rows)
    found: list[Record] = []
    meant = [name for name in MEANT if any(name in row for row in rows)]  # rows that differ in them are others
    for _, group in groupby(rows, key=lambda row: [row.fields.get(name) for name in ("prompt", *meant)]):
        members = list(group)
        responses = [row.text("response") for row in members]
        scores = [row.as_number("helpfulness") for row in members]
        others = {name: row.fields[name] for row in members for name in row.fields if not is_empty(row.fields[name])}
        rest = {name: value for name, value in others.items() if name not in ("response", "helpfulness")}
        fields = rest | scored(turns_of(members[0].text("prompt")), responses, scores)
        found.append(Record(fields, members[0].place, members[0].id))
    return found


def turns_of(prompt: str) -> str | list[dict[str, str]]:
    """A prompt of HelpSteer2: text, or a conversation in which `<extra_id_1>` and a name mark the speaker."""
    first, *following = re.split(r"<extra_id_1>(User|Assistant)\n", prompt)
    if not following:
        return prompt
    said = zip(following[::2], following[1::2], strict=True)
    turns = [("user", first), *((speaker.lower(), text) for speaker, text in said)]
    return [{"role": role, "content": text.strip()} for role, text in turns]


def _first(row: Record, *names: str) -> str:
    return next((name for name in names if not is_empty(row.fields.get(name))), "")


# --- a prompt and a response by other names


@_layout("conversation", without=("messages", "conversations", "prompt", "chosen"))
def _conversation(row: Record) -> list[Fields]:
    """WildChat, Capybara: messages in a column of another name."""
    messages: list[Any] = []
    for turn in row.as_list("conversation"):
        said = cast(Mapping[str, Any], turn) if isinstance(turn, Mapping) else {}
        if {"input", "output"} <= said.keys():
            others = {key: value for key, value in said.items() if key not in ("input", "output", "system")}
            system = [] if is_empty(said.get("system")) else [{"role": "system", "content": said["system"]}]
            messages += [*system, {"role": "user", "content": said["input"]}]
            messages.append({"role": "assistant", "content": said["output"], **others})
        else:
            messages.append(turn)
    return [{"messages": messages}]


@_layout("instruction", "response", without=("output", "input"))
def _dolly(row: Record) -> list[Fields]:
    return [{"instruction": row.get("instruction"), "input": row.get("context"), "output": row.get("response")}]


_TEXTS = (
    ("inputs", "targets"),
    ("query", "response"),
    ("question", "response"),
    ("prompt", "response"),
    ("input", "output"),
)


@_layout(without=("completion", "messages", "conversations", "instruction", "chosen", "rejected", "responses"))
def _texts(row: Record) -> list[Fields] | None:
    """A prompt and a response by usual names (FLAN, MetaMathQA, OpenOrca)."""
    names = next((names for names in _TEXTS if all(name in row for name in names)), None)
    if names is None or "helpfulness" in row.fields:  # HelpSteer's
        return None
    return [{"prompt": row.get(names[0]), "completion": row.get(names[1])}]


# --- labelled responses


@_layout(without=("completion",))
def _kto(row: Record) -> list[Fields] | None:
    """LLaMA-Factory's: a conversation that ends with the labelled response, or an instruction and its output."""
    named, name = _first(row, "label", "kto_tag"), _first(row, "messages", "conversations", "output")
    if not named or not name or not isinstance(typed(row.fields[named]), bool):
        return None
    label = {named: row.get(named)}
    if name == "output":
        return [{"prompt": asked(row, "instruction"), "completion": row.get("output")} | label]
    turns = row.as_list(name)
    return [{"prompt": turns[:-1], "completion": turns[-1:]} | label]


_layout()(tools.until_wrong)


# --- two responses and a verdict


@_layout("response1", "response2", "overall_preference")
def _helpsteer3(row: Record) -> list[Fields]:
    """HelpSteer3: from -3, the first response is much better, to 3, the second is."""
    score = row.as_number("overall_preference")
    one, other = row.get("response1"), row.get("response2")
    return pair(row.get("context"), one, other, -score, **({"strength": abs(score)} if score else {}))


def _verdict(
    prompt: str, first: str, second: str, verdict: str, better: Mapping[Any, int], subset: tuple[str, str] | None = None
) -> None:
    """Columns of a prompt ("" where it is in the responses), two responses, and what says which: 1 for the first.

    `subset` is what the labels are of, and the column of the part of a benchmark.
    """
    winners = {1: first, -1: second, 0: "a tie"}

    @_layout(first, second, verdict, *(subset or ())[1:])
    def _own(row: Record) -> list[Fields]:
        said = typed(row.get(verdict))
        said = said.lower() if isinstance(said, str) else said
        if isinstance(said, bool) or said not in [*better]:
            known = ", ".join(f"{known} ({winners[which]})" for known, which in better.items())
            raise row.fail(f"field '{verdict}' must be one of {known}; got {said!r}")
        asked = row.get(prompt) if prompt else None
        if subset:
            asked, more = benchmarks.plain(row.text(prompt)), benchmarks.category(row, *subset)
            return pair(asked, row.get(first), row.get(second), better[said], **more)
        return pair(asked, row.get(first), row.get(second), better[said])


# PKU-SafeRLHF, by the more helpful one; map `safer_response_id` to `better_response_id` to learn the safer one
_verdict("prompt", "response_0", "response_1", "better_response_id", {0: 1, 1: -1})
_verdict("history", "human_ref_A", "human_ref_B", "labels", {1: 1, 0: -1})  # SHP
_verdict(  # Auto-J
    "prompt", "response 1", "response 2", "label", {0: 1, 1: -1, 2: 0}, (benchmarks.PEOPLE, "scenario")
)
_verdict(  # JudgeBench
    "question", "response_A", "response_B", "label", {"a>b": 1, "b>a": -1}, (benchmarks.OBJECTIVE, "source")
)
_layout("chosen_instruction", "rejected_instruction", "source")(benchmarks.hhh_alignment)
_layout("instruction", "gpt4_score")(benchmarks.gpt4_rated)
_ARENA = {"model_a": 1, "a": 1, "model_b": -1, "b": -1, "tie": 0, "tie (bothbad)": 0, "both_bad": 0, "bothbad": 0}
_verdict("", "conversation_a", "conversation_b", "winner", _ARENA)  # LMSYS


@_layout("prompt", "response_a", "response_b", "winner_model_a")
def _arena_turns(row: Record) -> list[Fields]:
    """LMSYS arena: `prompt` and the responses are lists of turns; `winner_model_a`, `winner_model_b` are 0 or 1."""
    questions, *sides = (row.as_list(name) for name in ("prompt", "response_a", "response_b"))
    a, b = (row.as_number(f"winner_model_{one}") for one in "ab")
    tie = row.as_number("winner_tie", row.get("winner_tie") or 0)
    one, other = (
        [
            {"role": role, "content": text}
            for question, said in zip_longest(questions, side)
            for role, text in (("user", question), ("assistant", said or ""))
        ]
        for side in sides
    )
    return pair(None, one, other, 0 if tie else a - b)


@_layout("input", "preferred_output", "non_preferred_output")
def _openai(row: Record) -> list[Fields]:
    asked = row.as_mapping("input")
    tools = {"tools": asked["tools"]} if asked.get("tools") else {}
    return pair(asked.get("messages"), row.get("preferred_output"), row.get("non_preferred_output"), 1, **tools)


@_layout("info", "summaries", "choice", without=("chosen", "rejected", "output"))
def _tldr(row: Record) -> list[Fields]:
    """OpenAI's comparisons of summaries, with the prompt of Stiennon et al. 2020 (arXiv 2009.01325), appendix B."""
    info = row.as_mapping("info")
    title = f"TITLE: {info['title']}\n\n" if info.get("title") else ""
    if info.get("post"):
        where = f"SUBREDDIT: r/{info['subreddit']}\n\n" if info.get("subreddit") else ""
        prompt = f"{where}{title}POST: {row.as_text('info post', info['post'])}\n\nTL;DR:"
    else:  # the news articles of the validation split
        prompt = f"{title}ARTICLE: {row.as_text('info post or article', info.get('article'))}\n\nTL;DR:"
    summaries = [row.as_mapping("summaries", one).get("text") for one in row.as_list("summaries")]
    texts = [row.as_text("summaries text", one).strip() for one in summaries]
    choice = row.get("choice")
    if len(texts) != 2 or choice not in (0, 1):
        raise row.fail(f"two 'summaries' and a 'choice' of 0 or 1 make a comparison; got {len(texts)} and {choice!r}")
    return pair(prompt, texts[0], texts[1], 1 - 2 * int(choice))


@_layout("chosen_response", "rejected_response")
def _argilla_pairs(row: Record) -> list[Fields]:
    return pair(asked(row, _first(row, *PROMPTS)), row.get("chosen_response"), row.get("rejected_response"), 1)


# --- several responses in an order


@_layout("instruction", "completions", without=("chosen", "rejected", "output"))
def _ultrafeedback(row: Record) -> list[Fields]:
    """`completions` by their `fine-grained_score`; their `overall_score` is wrong for some."""
    completions = [row.as_mapping("completions", one) for one in row.as_list("completions")]
    rated = [one for one in completions if one.get("response") and one.get("fine-grained_score") is not None]
    said = [row.as_text("completions response", one["response"]) for one in rated]
    scores = [row.as_number("completions fine-grained_score", one["fine-grained_score"]) for one in rated]
    return [scored(row.get("instruction"), said, scores)]


@_layout("generations", without=("chosen",))
def _generations(row: Record) -> list[Fields] | None:
    """Argilla's distilabel."""
    if not (ratings := _first(row, "ratings", "rating")):
        return None
    return [scored(asked(row, _first(row, *PROMPTS)), row.get("generations"), row.get(ratings))]


_layout("fields", "responses")(tools.argilla_record)


@_layout("prompt", "answers")
def _nectar(row: Record) -> list[Fields] | None:
    """`answers` with a `rank` from 1, the best; those of one rank are as good as each other."""
    said = row.fields["answers"]
    first = said[0] if isinstance(said, list) and said else None
    if not isinstance(first, Mapping) or not {"answer", "rank"} <= first.keys():
        return None
    answers = [row.as_mapping("answers", one) for one in row.as_list("answers")]
    ranks = [row.as_number("answers rank", one.get("rank")) for one in answers]
    return [scored(row.get("prompt"), [one.get("answer") for one in answers], [-rank for rank in ranks])]


_layout("data", "annotations")(tools.label_studio_task)
_layout()(tools.label_studio_min)
_layout("prompt")(tools.ranked_replies)


# --- responses whose prompt is another column (Orca, LLaMA-Factory)


@_layout("chosen", "rejected", without=("prompt",))
def _responses(row: Record) -> list[Fields] | None:
    prompt = _first(row, *PROMPTS)
    if not prompt or not all(_says_response(row.fields[name]) for name in ("chosen", "rejected")):
        return None
    return pair(asked(row, prompt), row.get("chosen"), row.get("rejected"), 1)


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
