"""Texts that are structures: lists as JSON or as Python writes them, transcripts, renderings of a chat template."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from posttrain.errors import DataError

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

    A transcript that ends where the assistant is to speak ends with an empty message.

    Raises:
        DataError: a list of messages that cannot be read, or text that a chat template has rendered already.
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
