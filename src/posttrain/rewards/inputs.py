"""Inputs of a reward function, by the names of its parameters; see `custom.py`."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal

from posttrain.errors import RewardError, UserError
from posttrain.types import Episode, Message, Task

Mode = Literal["single", "batch", "group"]

_PLURALS = {
    "completion": "completions",
    "prompt": "prompts",
    "answer": "answers",
    "task": "tasks",
    "episode": "episodes",
}
LOGS = ("log_extra", "log_metric")
"""Functions of TRL's trainers, which log nothing here."""
CONTEXT = "reward_context"
OURS = frozenset((*_PLURALS, *_PLURALS.values(), "gold", "id", "completion_ids", "group", CONTEXT, *LOGS))
"""Parameters that the run gives a value."""
_OF_ROWS = ("answer", "gold")  # those of them that a row may lack


def inputs_of(
    name: str, mode: Mode, needed: Sequence[str], wanted: Sequence[str], rest: bool, episodes: Sequence[Episode]
) -> dict[str, list[Any]]:
    """The arguments of a function, each as a list over `episodes`.

    Args:
        name: of the reward.
        mode: of the function.
        needed: the parameters that it must be given.
        wanted: those that it is given if the tasks have them.
        rest: whether it takes all other columns.
        episodes: at least one.

    Raises:
        RewardError: a task has no such column.
        UserError: the completions have no tokens, which it needs.
    """
    batch = mode != "single"
    ours: dict[str, list[Any]] = {
        "completion": [_said(episode) if batch else episode.completion for episode in episodes],
        "prompt": [_asked(episode) if batch else _question(episode) for episode in episodes],
        "answer": [episode.task.answer for episode in episodes],
        "task": [episode.task for episode in episodes],
        "episode": list(episodes),
        "gold": [episode.task.gold for episode in episodes],
        "id": [episode.task.id for episode in episodes],
    }
    if batch:
        ours |= {plural: ours[singular] for singular, plural in _PLURALS.items()}
    if all(episode.completion_ids is not None for episode in episodes):
        ours["completion_ids"] = [list(episode.completion_ids or ()) for episode in episodes]
    elif "completion_ids" in needed:
        raise UserError(
            f"reward '{name}' needs completion_ids, the tokens of completions, which completions that are "
            "read from a file do not have; use it in rl, evaluate or best-of-n"
        )
    shared = {key for key in episodes[0].task.metadata if all(key in e.task.metadata for e in episodes)}
    tasks = [episode.task for episode in episodes]
    missing = missing_columns(name, mode, [key for key in needed if key not in ours], tasks)
    if found := next((f"task {task.id!r}: {why}" for task, why in zip(tasks, missing, strict=True) if why), ""):
        raise RewardError(found)  # of an environment's own tasks; those of a data set were checked before
    named = {*needed, *wanted, *(shared if rest else ())}
    metadata = {key: [episode.task.metadata[key] for episode in episodes] for key in named & shared}
    given = {key: values for key, values in ours.items() if key in named or (rest and key in _usual(mode))}
    return metadata | given


def _usual(mode: str) -> set[str]:
    """Additional values of `**metadata`: TRL's functions find prompts there that they do not name."""
    if mode == "single":
        return {"prompt", "completion", "answer"}
    return {"prompts", "completions", "answers", "answer", "completion_ids"}


def _said(episode: Episode) -> Any:
    """The completion as TRL passes it: in the format of the data's prompt."""
    if not episode.task.conversational:
        return episode.completion
    return _as_dicts(episode.messages[len(episode.task.prompt) :])


def _asked(episode: Episode) -> Any:
    return _as_dicts(episode.task.prompt) if episode.task.conversational else _question(episode)


def _as_dicts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as TRL has them, with the arguments of calls as objects where they are JSON."""
    found: list[dict[str, Any]] = []
    for message in messages:
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": _object(call.arguments)}}
            for call in message.tool_calls
        ]
        own = {"tool_calls": calls, "name": message.name}
        found.append({"role": message.role, "content": message.content, **{k: v for k, v in own.items() if v}})
    return found


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _question(episode: Episode) -> str:
    return next((m.content for m in reversed(episode.task.prompt) if m.role == "user"), "")


def missing_columns(reward: str, mode: Mode, needed: Sequence[str], tasks: Sequence[Task]) -> list[str]:
    """For each task, why a function cannot score completions: no column for an argument; "" if there are all.

    A row may lack an `answer` or a `gold`, and give None, if another row has one.
    """
    common = ["prompt", *(name for name in _OF_ROWS if any(getattr(task, name) is not None for task in tasks))]
    return [_missing(reward, mode, needed, [*common, *task.metadata]) for task in tasks]


def _missing(reward: str, mode: Mode, needed: Sequence[str], has: Sequence[str]) -> str:
    singular = {} if mode == "single" else {plural: one for one, plural in _PLURALS.items()}
    for key in needed:
        column = singular.get(key, key)
        if column in has or (column in OURS.difference(_PLURALS.values(), _OF_ROWS)):
            continue
        near = get_close_matches(key, [*has, "completion", *singular], n=1, cutoff=0.5)
        return (
            f"reward '{reward}' needs the column '{column}', and the row has: {', '.join(has)}"
            f'{f" (did you mean {near[0]!r}?)" if near else ""}; type `columns="{column}=COLUMN"` to rename one, or '
            f"give the argument a default, {key}=None"
        )
    return ""
