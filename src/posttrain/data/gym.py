"""Procedural tasks of Reasoning Gym: `gym:NAME?option=value&option=value`.

Stojanovski et al. 2025, "Reasoning Gym" (https://arxiv.org/abs/2505.24760).

Two seeds do not make two splits: small families repeat their questions. Here the hash of a question's text decides
whether it belongs to the training or to the held-out split, so the two are disjoint for all seeds, sizes and options.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from posttrain.data.order import seed_for
from posttrain.errors import UserError, unknown
from posttrain.types import Message, Task

SPLITS = ("train", "heldout")
_HELDOUT_SHARE = 5  # one question in five is held out
_MOST_CHUNKS = 60  # of `size` draws each, before a family counts as exhausted
_OURS = {"seed": "seed", "size": "limit"}


def load_gym(spec: str, *, size: int, seed: int = 0, split: str = "train") -> list[Task]:
    """Tasks of a procedural family; the same ones for the same arguments.

    `metadata` has what the family's own scorer needs: `dataset` (its name), `options` and `entry` (as it
    was made). The questions of "train" and "heldout" are disjoint by construction; those of "heldout" all differ.
    `spec` is as `gym:chain_sum?min_terms=3&max_terms=4`; lists are separated by commas.
    """
    name, options = parse_gym(spec)
    if split not in SPLITS:
        raise unknown("split of a gym: source", split, SPLITS)
    if size < 1:
        raise UserError(f"the number of tasks must be 1 or more; got {size}")
    tasks: list[Task] = []
    seen: set[str] = set()
    for number, entry in enumerate(_draw(spec, name, options, size=size, seed=seed, split=split)):
        question = " ".join(str(entry["question"]).split())
        if split_of(question) != split or (split == "heldout" and question in seen):
            continue
        seen.add(question)
        metadata = {"dataset": name, "options": options, "entry": entry}
        prompt = (Message("user", entry["question"]),)
        tasks.append(Task(prompt, answer=entry["answer"], metadata=metadata, id=f"{name}/{split}/{seed}/{number}"))
        if len(tasks) == size:
            return tasks
    raise UserError(
        f"'{spec}' gave only {len(tasks)} {split} questions in {size * _MOST_CHUNKS} draws, {size} were requested; "
        "request fewer, or set options with more questions"
    )


def split_of(question: str) -> str:
    """The split to which a question belongs, by the hash of its text; spacing does not count."""
    digest = hashlib.sha256(" ".join(question.split()).encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % _HELDOUT_SHARE == 0 else "train"


def parse_gym(spec: str) -> tuple[str, dict[str, Any]]:
    """The family and the options of a `gym:` source.

    Example:
        >>> parse_gym("gym:chain_sum?min_terms=3&allow_negation=true")
        ('chain_sum', {'min_terms': 3, 'allow_negation': True})
    """
    prefix, _, rest = spec.partition(":")
    name, _, query = rest.partition("?")
    if prefix != "gym" or not name:
        raise UserError(f"cannot read '{spec}'; write gym:NAME or gym:NAME?option=value&option=value")
    from reasoning_gym.factory import DATASETS  # takes a second: not every command needs it

    if name not in DATASETS:
        raise unknown("gym: task", name, DATASETS)
    config: Any = DATASETS[name][1]()
    defaults = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    options: dict[str, Any] = {}
    for pair in query.split("&") if query else ():
        option, equals, text = pair.partition("=")
        if not (option and equals and text):
            raise UserError(f"cannot read the option '{pair}' of '{spec}'; write gym:{name}?option=value&option=value")
        if option in _OURS:
            raise UserError(f"the option '{option}' of '{spec}' is set by `{_OURS[option]}`; leave it out here")
        if option not in defaults:
            raise unknown(f"option of gym:{name}", option, defaults.keys() - _OURS)
        options[option] = _value(f"{option}={text}", text, defaults[option])
    return name, options


def _value(shown: str, text: str, default: Any) -> Any:
    if isinstance(default, str):
        return text
    if isinstance(default, (list, tuple)):
        value = _json(text, None) if text.startswith("[") else [_json(part, part) for part in text.split(",")]
        if value is None:
            raise UserError(f"cannot read '{shown}' of a gym: source; expected a list such as a,b")
        return type(cast(Any, default))(value)
    value = _json(text.lower(), None)
    wanted = {bool: (bool,), int: (int,), float: (int, float)}.get(type(default), (bool, int, float))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        expected = "a number, true or false" if default is None else f"a value like its default, {default!r}"
        raise UserError(f"cannot read '{shown}' of a gym: source; expected {expected}")
    return value


def _json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return otherwise


def _draw(
    spec: str, name: str, options: Mapping[str, Any], *, size: int, seed: int, split: str
) -> Iterator[dict[str, Any]]:
    """Questions of both splits, in chunks, since some families make no more than the size that they were told."""
    from reasoning_gym import create_dataset

    for chunk in range(_MOST_CHUNKS):
        # Item i of a family is drawn from seed + i, so neighbouring seeds would share all but one of their questions.
        start = seed_for(name, split, seed, chunk) % 2**31
        try:
            yield from create_dataset(name, seed=start, size=size, **options)
        except (AssertionError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"'{spec}' is refused by reasoning-gym: {reason}; change its options") from error
