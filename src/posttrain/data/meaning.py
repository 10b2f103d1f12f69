"""Names of columns and of keys of messages that change a conversation, or what is learned from it.

A row that has one which its reader does not know is refused; names that are not in this table are listed, never
refused.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Any, cast

from posttrain.errors import DataError


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: null, NaN (what pandas has for null), white space, or a list or object of such."""
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, Mapping):
        return all(map(is_empty, cast(Mapping[Any, Any], value).values()))
    if isinstance(value, Sequence | set | frozenset):
        return all(map(is_empty, cast("Sequence[Any]", value)))
    return value is None or (isinstance(value, Sized) and len(value) == 0)


def _always(value: Any) -> bool:
    return True


GOOD = frozenset(("good", "up", "thumbs_up", "thumbs up", "like", "liked", "desirable", "\U0001f44d"))
BAD = frozenset(("bad", "down", "thumbs_down", "thumbs down", "dislike", "disliked", "undesirable", "\U0001f44e"))


def _is_thumb(value: Any) -> bool:
    """Whether a label says good or bad; a class number or name does not."""
    return isinstance(value, bool) or value == -1 or (isinstance(value, str) and value.strip().lower() in GOOD | BAD)


_CONVERSATION = (
    *("system", "system_prompt", "system_message", "history", "chat_history", "input", "context", "documents"),
    *("image", "images", "audio", "audios", "video", "videos", "tools", "functions", "function_calls"),
    *("chat_template_kwargs", "passage", "article", "document"),
)
_LEARNED = (
    *("weight", "weights", "train", "training", "trainable", "train_detail", "masked", "output_with_loss"),
    *("loss", "loss_mask", "loss_scale", "loss_weight"),
)
MEANT: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    dict.fromkeys((*_CONVERSATION, *_LEARNED), _always) | dict.fromkeys(("label", "kto_tag"), _is_thumb)
)
"""By name, whether a value that is not empty changes the conversation, or what is learned."""

_WHETHER_LEARNED = ("weight", "train", "loss")  # of OpenAI, axolotl and ms-swift
_KNOWN_KEYS = frozenset(
    ("role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name", *_WHETHER_LEARNED)
) | {"reasoning_content", "reasoning", "thinking"}


def is_learned(item: Mapping[str, Any], role: str, name: str) -> bool:
    """Whether a message is learned by its keys `weight`, `train` and `loss`: 0 or 1, false or true.

    Raises:
        DataError: another value, or a message that is to be learned and is not the assistant's.
    """
    said = {key: item[key] for key in _WHETHER_LEARNED if item.get(key) is not None}
    for key, value in said.items():
        if value not in (0, 1):
            raise DataError(
                f"{name} has the {key} {value!r}; only 0 or false (given, not learned) and 1 or true are read"
            )
        if value and role != "assistant":
            raise DataError(f"{name} has the {key} {value!r} and the role '{role}'; only the assistant's are learned")
    return role != "assistant" or all(said.values())


def other_keys(item: Mapping[str, Any], name: str) -> list[str]:
    """The keys of a message with a value that are not read.

    Raises:
        DataError: one of them changes the conversation, or what is learned from it.
    """
    others = [key for key, value in item.items() if key not in _KNOWN_KEYS and not is_empty(value)]
    if key := next((key for key in others if key in MEANT and MEANT[key](item[key])), ""):
        raise DataError(
            f"{name} has the key '{key}', which would change the conversation or what is learned from it, and is not "
            "read; remove it from the data"
        )
    if item.get("prefix") is True or item.get("partial") is True:
        raise DataError(f"{name} is a prefix to be continued, which is not supported; write it as a whole message")
    return others
