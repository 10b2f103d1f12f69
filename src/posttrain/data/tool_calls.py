"""Tool-call parsing, in the format of the model's chat template.

The format is inferred from the template, never from its name: a call with known name, keys and values is
rendered, and the text around them is the format. Two kinds exist: arguments as a JSON object, and arguments one by one
in tags. A value between tags ends at its first closing tag, whatever it quotes: the format has no other end.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from posttrain.errors import TemplateError
from posttrain.json_schema import misfit
from posttrain.types import Message, ToolCall

_NAMES = ("nameqzfirst", "nameqzsecond")
_KEYS, _VALUES = ("keyqzone", "keyqztwo"), ("valueqzone", "valueqztwo")
_ID = "idqz0000"  # nine letters and digits with its number: what Mistral's templates ask for
_ABOUT = {
    "description": "A function.",
    "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in _KEYS}},
}
_TOOLS = tuple(json.dumps({"type": "function", "function": {"name": name, **_ABOUT}}) for name in _NAMES)
_DECODER = json.JSONDecoder()
_REASONING = r"<(?P<tag>think|thinking|reasoning)>.*?(?:</(?P=tag)>|\Z)|(?P<closed></(?:think|thinking|reasoning)>)"


@dataclass(frozen=True)
class CallForm:
    """The text around the parts of a call, as regular expressions with flexible white space."""

    lead: str  # before the name
    after_name: str  # between the name and the arguments; of pairs, between the name and the first of them
    end: str  # behind the arguments
    first: str = ""  # before the lead of the first call alone, such as the bracket of a list
    last: str = ""  # behind the end of the last call alone
    separator: str = ""  # between two calls
    # of arguments that are no JSON object: before a key, between key and value, behind a value; of the white space next
    # to the value they take what the template writes there, or none
    pair: tuple[str, str, str] | None = None

    def calls(self, text: str, prefix: str = "call", tools: Sequence[str] = ()) -> tuple[str, tuple[ToolCall, ...]]:
        """The text of a turn without its calls, and the calls.

        An incomplete call stays in the text, and so does one within the reasoning: in `<think>`, closed or not, or
        before a `</think>` whose block the prompt has opened. `tools` are JSON schemas.
        """
        functions = [each.get("function", each) for each in map(json.loads, tools)]
        parameters = {function.get("name"): function.get("parameters") for function in functions}
        # from where white space begins, so that a long run of it is read once
        before = rf"(?:(?<!\s)(?:{self.first}|{self.separator}))?"
        call = f'{before}{self.lead}(?P<name>[^\\s"<>{{}}()]+?){self.after_name}'
        one = re.compile(f"{call}|(?s:{_REASONING})")
        said, calls, at, start = list[str](), list[ToolCall](), 0, 0
        while found := one.search(text, start):
            start = found.end()
            if not (name := found["name"]):
                said, calls, at = ([], [], 0) if found["closed"] else (said, calls, at)
                continue
            schema = parameters.get(name) or {}
            read = self._object(text, start) if self.pair is None else self._pairs(text, start, schema)
            if read is not None:
                calls.append(ToolCall(f"{prefix}{len(calls):03d}", name, read[0]))
                said.append(text[at : found.start()].strip())
                at = start = read[1]
        said.append(text[at:].strip())
        return "\n".join(filter(None, said)) if calls else text, tuple(calls)

    def _object(self, text: str, start: int) -> tuple[str, int] | None:
        start += len(text[start:]) - len(text[start:].lstrip())
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        closed = re.compile(f"{self.end}(?:{self.last})?").match(text, end)
        return text[start:end], closed.end() if closed else end

    def _pairs(self, text: str, start: int, parameters: dict[str, Any]) -> tuple[str, int] | None:
        assert self.pair is not None
        before, between, behind = self.pair
        one = re.compile(f"{before}(?P<key>[^\\s<>]+?){between}(?P<value>.*?){behind}", re.DOTALL)
        found: dict[str, Any] = {}
        while match := one.match(text, start):
            found[match["key"]] = _value(match["key"], match["value"], parameters)
            start = match.end()
        closed = re.compile(f"{self.end}(?:{self.last})?").match(text, start)
        return (json.dumps(found, ensure_ascii=False), closed.end()) if closed else None


def _value(key: str, text: str, parameters: dict[str, Any]) -> Any:
    """A value between tags, of the type that the schema of the tool's parameters gives it.

    `null` where null is admitted; else text where text is admitted, or where there is no schema; else what the text is
    as JSON. Text that is none stays text, and is the policy's error.
    """
    schema = (parameters.get("properties") or {}).get(key, parameters.get("additionalProperties"))
    word = text.strip()
    try:
        if isinstance(schema, dict) and word in ("null", "None") and not misfit(None, schema, root=parameters):
            return None
        if not misfit(text, schema, root=parameters):
            return text
        # Qwen3-Coder's template writes booleans as Python does
        found = json.loads({"True": "true", "False": "false"}.get(word, text))
    except (ValueError, RecursionError):
        return text
    return text if isinstance(found, str) else found


Written = Callable[[Sequence[Message]], str]


def learn_form(written: Written) -> CallForm:
    """How a template writes calls; `written` is what the assistant writes last, as sampled text shows it."""
    one = _render(written, 1)
    if one is None:
        raise TemplateError("the chat template writes no calls of tools; give one that does with `chat_template`")
    lead, _, rest = one.partition(_NAMES[0])
    if (closed := list(re.finditer(_REASONING, lead, re.DOTALL))) and closed[-1]["closed"]:
        lead = lead[closed[-1].end() :]  # of a block that the prompt opened, which is the reasoning's
    tail = rest[rest.rfind(_VALUES[1]) + len(_VALUES[1]) :]
    two = _render(written, 2) or ""
    second = two.find(_NAMES[1])  # between the first call's arguments and the second call's name
    between = two[two.rfind(_VALUES[1], 0, second) + len(_VALUES[1]) : second] if second > 0 else ""
    between = between or (tail + lead)
    own = _common_end(lead, between)  # the text before every call, not only the first
    ends = _common_end(tail[::-1], between[::-1])[::-1]
    separator = _open(between[len(ends) : len(between) - len(own)])
    form = CallForm(
        _open(own, before=False), "", "", _open(lead[: len(lead) - len(own)]), _open(tail[len(ends) :]), separator
    )
    try:
        return _of_object(form, rest, ends) or _of_pairs(form, rest, ends)
    except ValueError:
        raise TemplateError(
            f"the chat template writes a call as {one[:120]!r}, which is no form that can be read back; give one that "
            "writes its arguments as a JSON object with `chat_template`"
        ) from None


def _render(written: Written, calls: int) -> str | None:
    arguments = json.dumps(dict(zip(_KEYS, _VALUES, strict=True)))
    called = tuple(ToolCall(f"{_ID}{n}", name, arguments) for n, name in enumerate(_NAMES[:calls]))
    try:
        text = written([Message("user", "Go.", tools=_TOOLS), Message("assistant", "", called)])
    except TemplateError:
        return None
    return text if all(name in text for name in _NAMES[:calls]) else None


def _of_object(form: CallForm, rest: str, ends: str) -> CallForm | None:
    """The form where the arguments are one JSON object; `ends` is what follows the last value of every call."""
    start = rest.find("{")
    if start < 0:
        return None
    try:
        value, end = _DECODER.raw_decode(rest, start)
    except ValueError:
        return None
    if value != dict(zip(_KEYS, _VALUES, strict=True)):
        return None
    closing = end - rest.rfind(_VALUES[1]) - len(_VALUES[1])
    return replace(form, after_name=_open(rest[:start]), end=_open(ends[closing:]))


def _of_pairs(form: CallForm, rest: str, ends: str) -> CallForm:
    """The format with one element per argument; raises `ValueError` if it is another one."""
    spots = [rest.index(part) for pair in zip(_KEYS, _VALUES, strict=True) for part in pair]
    key, value, second_key, _ = spots
    first = rest[:key]
    between = rest[key + len(_KEYS[0]) : value]
    again = rest[value + len(_VALUES[0]) : second_key]
    before = _common_end(first, again)
    before = before[max(0, before.find("<")) :]  # a tag as a whole, where it is one
    behind = again[: len(again) - len(before)]
    if not before.strip() or not behind.strip() or not ends.startswith(behind):
        raise ValueError("no tags around keys and values")
    after_name = first[: len(first) - len(before)]
    value_after, value_before = between[len(between.rstrip()) :], behind[: len(behind) - len(behind.lstrip())]
    pair = (
        _open(before),
        f"{_open(between.rstrip()).removesuffix(_SPACE)}(?:{re.escape(value_after)})?+",
        f"(?:{re.escape(value_before)})?{_open(behind, before=False)}",
    )
    after = _open(after_name) if after_name.strip() else r"(?=[\s<])\s*+"
    return replace(form, after_name=after, end=_open(ends[len(behind) :]), pair=pair)


def _common_end(one: str, other: str) -> str:
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))
    return one[len(one) - sum(1 for _ in alike) :]


def _open(text: str, *, before: bool = True) -> str:
    """A regular expression of a text that allows any white space between its words and signs.

    It gives no white space back, so that a long run of it costs no more than its square. `before`: also before the
    first sign.
    """
    parts = re.findall(rf"{_ID}\d|\w+|[^\w\s]", text)
    written = [r"\w*+" if part.startswith(_ID) else re.escape(part) for part in parts]
    return (_SPACE if before or not parts else "") + "".join(part + _SPACE for part in written)


_SPACE = r"\s*+"
