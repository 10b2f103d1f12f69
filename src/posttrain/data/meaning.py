"""What names of columns and texts mean.

Names of columns and of keys of messages that change a conversation, or what is learned from it: a row that has one
which its reader does not know is refused; names that are not in this table are listed, never refused. Texts that are
structures: lists as JSON or as Python writes them, transcripts, renderings of a chat template.
"""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence, Sized
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


GOOD = frozenset(("good", "up", "thumbs_up", "thumbs up", "like", "liked", "desirable", "\U0001f44d"))
BAD = frozenset(("bad", "down", "thumbs_down", "thumbs down", "dislike", "disliked", "undesirable", "\U0001f44e"))


_CONVERSATION = (
    *("system", "system_prompt", "system_message", "history", "chat_history", "input", "context", "documents"),
    *("image", "images", "audio", "audios", "video", "videos", "tools", "functions", "function_calls"),
    *("chat_template_kwargs", "passage", "article", "document"),
)
_LEARNED = (
    *("weight", "weights", "train", "training", "trainable", "train_detail", "masked", "output_with_loss"),
    *("loss", "loss_mask", "loss_scale", "loss_weight"),
)
MEANT = (*_CONVERSATION, *_LEARNED, "label", "kto_tag")
"""Names whose value, if it is not empty, changes the conversation or what is learned; of the last two a thumb does."""


def is_meant(name: str, value: Any) -> bool:
    """Whether a value that is not empty changes the conversation, or what is learned."""
    thumb = value.strip().lower() in GOOD | BAD if isinstance(value, str) else isinstance(value, bool) or value == -1
    return name in MEANT and (thumb or name not in ("label", "kto_tag"))


_WHETHER_LEARNED = ("weight", "train", "loss")  # of OpenAI, axolotl and ms-swift
_KNOWN_KEYS = frozenset(
    ("role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name", *_WHETHER_LEARNED)
) | {"reasoning_content", "reasoning", "thinking"}


def is_learned(item: Mapping[str, Any], role: str, name: str) -> bool:
    """Whether a message is learned by its keys `weight`, `train` and `loss`: 0 or 1, false or true."""
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
    """The keys of a message with a value that are not read; one that changes what is learned is refused."""
    others = [key for key, value in item.items() if key not in _KNOWN_KEYS and not is_empty(value)]
    if key := next((key for key in others if is_meant(key, item[key])), ""):
        raise DataError(
            f"{name} has the key '{key}', which would change the conversation or what is learned from it, and is not "
            "read; remove it from the data"
        )
    if item.get("prefix") is True or item.get("partial") is True:
        raise DataError(f"{name} is a prefix to be continued, which is not supported; write it as a whole message")
    return others


_SAYS_WHO = re.compile(r"""['"](role|from)['"]\s*:""")
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")  # how HH-RLHF writes who speaks
_SPEAKERS = {"Human": "user", "Assistant": "assistant"}
# How a rendering begins, or ends before a response: ChatML, Llama 2 and 3, Gemma, Phi and Zephyr, DeepSeek, Alpaca.
_TEMPLATED = re.compile(
    r"\s*(<s>|<bos>|<\|endoftext\|>)?\s*(<\|im_start\|>|<\|begin_of_text\|>|<\|start_header_id\|>|\[INST\]"
    r"|<start_of_turn>|<\|(system|user|prompter|start)\|>|<\|START_OF_TURN_TOKEN\|>|<\uff5c"
    r"|### (Instruction|Human|User):|USER:[\s\S]*ASSISTANT:)"
)
_LOOKS = re.compile(r"\s*(array\()?[\[(]+\s*\{")  # a list of objects, cut off or with objects of numpy
_RESPONSE_FOLLOWS = ("### Response:", "### Assistant:", "\n\nAssistant:")


def list_in(text: str) -> list[Any] | None:
    """The list that text is, as JSON or as Python writes it; None if it is none."""
    value = structure_in(text)
    return cast(list[Any], value) if isinstance(value, list) else None


def structure_in(text: str) -> Any:
    """The list or object that text is, as JSON or as Python writes it; None if it is neither."""
    text = text.strip()
    if not text.startswith(("[", "{")):
        return None
    for read in (json.loads, ast.literal_eval):  # which reads literals only: nothing is evaluated
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list | dict) else None
    return None


def messages_in(text: str, name: str) -> list[Any] | None:
    """The messages that text says: a list of them, one alone, or a transcript; None for plain text.

    A transcript that ends where the assistant is to speak ends with an empty message. A list that cannot be read, and
    what a chat template has rendered already, are refused.
    """
    if text.lstrip().startswith(("[", "{", "(", "array(")) and _SAYS_WHO.search(text):
        value = structure_in(text)
        found = [value] if isinstance(value, dict) else value
        if isinstance(found, list) and found and all(map(_is_message, cast(list[Any], found))):
            return cast(list[Any], found)
        if value is None and _LOOKS.match(text):
            raise DataError(f"{name} looks like a list of messages, but is neither JSON nor Python's; write it as JSON")
    if text.startswith("\n\nHuman:") or (text.lstrip().startswith("Human:") and "\n\nAssistant:" in text):
        pieces = _TURN.split(text.strip())
        turns = zip(pieces[1::2], pieces[2::2], strict=True)
        return [{"role": _SPEAKERS[who], "content": said.strip()} for who, said in turns]
    if _TEMPLATED.match(text) or text.rstrip().endswith(_RESPONSE_FOLLOWS):
        raise DataError(
            f"{name} is rendered by a chat template already ({text.strip()[:30]!r}), and would be once more; give the "
            "plain text, or a list of messages"
        )
    return None


def _is_message(item: Any) -> bool:
    if not isinstance(item, Mapping):
        return False
    keys = cast(Mapping[Any, Any], item).keys()
    return {"role", "content"} <= keys or {"from", "value"} <= keys or {"role", "tool_calls"} <= keys
