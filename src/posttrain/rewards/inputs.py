"""What the run gives a reward function: inputs by the names of its parameters (see `custom.py`), judges, its seed."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, Protocol, runtime_checkable

from posttrain.errors import RewardError, UserError, unknown
from posttrain.types import ChatModel, Episode, Message, Task

Mode = Literal["single", "batch", "group"]

_SINGULARS = {f"{one}s": one for one in ("completion", "prompt", "answer", "task", "episode")}
LOGS = ("log_extra", "log_metric")
"""Functions of TRL's trainers, which log nothing here."""
CONTEXT = "reward_context"
OURS = frozenset((*_SINGULARS.values(), *_SINGULARS, "gold", "id", "completion_ids", "group", CONTEXT, *LOGS))
"""Parameters that the run gives a value."""
_OF_ROWS = ("answer", "gold")  # those of them that a row may lack


def inputs_of(
    name: str, mode: Mode, needed: Sequence[str], wanted: Sequence[str], rest: bool, episodes: Sequence[Episode]
) -> dict[str, list[Any]]:
    """The arguments of a function, each as a list over `episodes`.

    It must be given the parameters that are `needed`, those `wanted` if the tasks have them; `rest` are other columns.
    """
    batch, tasks = mode != "single", [episode.task for episode in episodes]
    ours: dict[str, list[Any]] = {
        "completion": [episode.completion for episode in episodes],
        "prompt": [next((m.content for m in reversed(task.prompt) if m.role == "user"), "") for task in tasks],
        "answer": [task.answer for task in tasks],
        "task": tasks,
        "episode": list(episodes),
        "gold": [task.gold for task in tasks],
        "id": [task.id for task in tasks],
    }
    if batch:  # as TRL passes them: in the format of the data's prompt
        for number, task in enumerate(tasks):
            if task.conversational:
                ours["completion"][number] = _as_dicts(episodes[number].messages[len(task.prompt) :])
                ours["prompt"][number] = _as_dicts(task.prompt)
        ours |= {plural: ours[singular] for plural, singular in _SINGULARS.items()}
    if all(episode.completion_ids is not None for episode in episodes):
        ours["completion_ids"] = [list(episode.completion_ids or ()) for episode in episodes]
    elif "completion_ids" in needed:
        raise UserError(
            f"reward '{name}' needs completion_ids, the tokens of completions, which completions that are "
            "read from a file do not have; use it in rl, evaluate or best-of-n"
        )
    shared = {key for key in tasks[0].metadata if all(key in task.metadata for task in tasks)}
    missing = missing_columns(name, mode, [key for key in needed if key not in ours], tasks)
    if found := next((f"task {task.id!r}: {why}" for task, why in zip(tasks, missing, strict=True) if why), ""):
        raise RewardError(found)  # of an environment's own tasks; those of a data set were checked before
    named = {*needed, *wanted, *(shared if rest else ())}
    metadata = {key: [task.metadata[key] for task in tasks] for key in named & shared}
    if rest:  # TRL's functions find values in **metadata that they do not name
        named |= {"prompts", "completions", "answers", "completion_ids"} if batch else {"prompt", "completion"}
        named.add("answer")
    return metadata | {key: values for key, values in ours.items() if key in named}


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


def missing_columns(reward: str, mode: Mode, needed: Sequence[str], tasks: Sequence[Task]) -> list[str]:
    """For each task, which column is missing for an argument; a row may lack `answer` or `gold` if another has one."""
    common = ["prompt", *(name for name in _OF_ROWS if any(getattr(task, name) is not None for task in tasks))]
    singular = {} if mode == "single" else _SINGULARS

    def missing(has: Sequence[str]) -> str:
        for key in needed:
            column = singular.get(key, key)
            if column in has or (column in OURS.difference(_SINGULARS, _OF_ROWS)):
                continue
            near = get_close_matches(key, [*has, "completion", *singular], n=1, cutoff=0.5)
            return (
                f"reward '{reward}' needs the column '{column}', and the row has: {', '.join(has)}"
                f'{f" (did you mean {near[0]!r}?)" if near else ""}; type `columns="{column}=COLUMN"` to rename one, '
                f"or give the argument a default, {key}=None"
            )
        return ""

    return [missing([*common, *task.metadata]) for task in tasks]


@runtime_checkable
class ContinuationScorer(Protocol):
    """A chat model that gives logprobs of given answers: models that run here, not those behind an API."""

    async def logprobs(self, messages: Sequence[Message], continuations: Sequence[str]) -> list[tuple[float, ...]]:
        """The logprob of each token of how the assistant's next message may begin, in nats, at temperature 1.

        That of a continuation is their sum; it has no stop token. If the conversation ends with the assistant, they go
        on in that message.

        Raises:
            UserError: a continuation has no tokens, or the conversation leaves no room for it.
        """
        ...


@dataclass(frozen=True)
class RewardContext:
    """Given to a reward function with a parameter `reward_context`."""

    seed: int = 0  # of the run
    judges: Mapping[str, ChatModel] = field(default_factory=dict[str, ChatModel])  # by the names that the run gives
    policy: ChatModel | None = None  # whose episodes are scored, with the weights that sampled them, if any

    def judge(self, name: str) -> ChatModel:
        """The judge of that name; raises `UserError` where there is none (nearest name given)."""
        if name in self.judges:
            return self.judges[name]
        if not self.judges:
            raise UserError(f"a reward asks the judge '{name}', and there are none; type `judge=\"{name}=MODEL\"`")
        raise unknown("judge", name, self.judges)

    def scorer(self, name: str) -> ContinuationScorer:
        """The judge of that name, for the logprobs of given answers; raises `UserError` where it gives none."""
        model = self.judge(name)
        if isinstance(model, ContinuationScorer):
            return model
        raise UserError(
            f"the judge '{name}' gives no logprobs of given answers, as models behind an API do not; name a model that "
            f'runs here: `judge="{name}=MODEL"`'
        )

    def seed_for(self, *parts: int | str) -> int:
        """A seed of the run's and all parts, not of the order of requests: a resumed run repeats those in the cache."""
        return seed_of(self.seed, *parts)


def seed_of(*parts: int | str) -> int:
    """63 bits that depend on all parts and their order."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
