"""Records: data-set rows with their source, so that errors name file and line.

A record knows which of its columns were read. One that nobody read and that would change the conversation, or what is
learned from it, is refused by its name (meaning.py); all others are listed for the user.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from posttrain.data.meaning import is_empty, is_meant, list_in, messages_in, other_keys
from posttrain.data.messages import excerpt, read_message, read_text, read_tools, with_tools
from posttrain.errors import DataError
from posttrain.types import Message

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Names that public data sets use for a field; the first one that a row has is what the error message proposes.
_ALSO_CALLED = {
    "prompt": ("question", "problem", "instruction", "query", "input", "messages", "text"),
    "completion": ("response", "answer", "output", "solution", "chosen"),
    "answer": ("final", "solution", "target", "label", "ground_truth"),
}
_TO_SPEAK = {"role": "assistant", "content": ""}  # how a transcript ends before a response


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one row, the place that an error names, and an id that does not change from run to run.

    `get`, `text`, `messages` and `as_list` to `as_number` read a field, and note it in `read`; who looks at `fields`
    only asks what there is. `keys` are those of messages that were not read, `source` the columns of the data where
    `fields` say the same in others.
    """

    fields: Mapping[str, Any]
    place: str  # data.jsonl line 17
    id: str  # data.jsonl:17
    read: set[str] = dataclasses.field(default_factory=set[str], compare=False, repr=False)
    keys: set[str] = dataclasses.field(default_factory=set[str], compare=False, repr=False)
    source: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False, repr=False)

    def fail(self, problem: str) -> DataError:
        """The error that names this row."""
        return DataError(f"{self.place}: {problem}")

    def missing(self, field: str) -> DataError:
        """The error for a field that is not there, with the column that is probably meant, or that is null."""
        if field in self.fields:
            return self.fail(f"field '{field}' has no value; fill it in, or remove the row")
        has = self.fields if self.source is None else self.source
        near = get_close_matches(field, has, n=1)
        could = (name for name in (*near, *_ALSO_CALLED.get(field, ())) if _could_be(field, has.get(name)))
        return self.fail(
            f"field '{field}' is missing; this row has: {', '.join(has) or 'no fields'}; "
            f'map it with `columns="{field}={next(could, "COLUMN")}"`'
        )

    def __contains__(self, field: str) -> bool:
        return self.fields.get(field) is not None

    def get(self, field: str) -> Any:
        """A field as it is, or None."""
        self.read.add(field)
        return self.fields.get(field)

    def text(self, field: str) -> str:
        """A field that must be text with something in it."""
        if field not in self:
            raise self.missing(field)
        with self.named():
            return read_text(self.get(field), f"field '{field}'")

    def as_list(self, name: str, *value: Any) -> Sequence[Any]:
        """A field, or the `value` in one, that must be a list, or one as JSON or Python write it."""
        given = found = value[0] if value else self.get(name)
        if isinstance(given, str):
            found = list_in(given)
        if not isinstance(found, Sequence):
            raise self.fail(f"field '{name}' must be a list; got {given!r:.60}")
        return cast(Sequence[Any], found)

    def as_mapping(self, name: str, *value: Any) -> Mapping[str, Any]:
        """As `as_list`, an object."""
        found = value[0] if value else self.get(name)
        if not isinstance(found, Mapping):
            raise self.fail(f"field '{name}' must be an object; got {found!r:.60}")
        return cast(Mapping[str, Any], found)

    def as_text(self, name: str, value: Any) -> str:
        """A value that must be text that is not empty."""
        if not isinstance(value, str) or not value.strip():
            raise self.fail(f"field '{name}' must be text that is not empty; got {value!r:.60}")
        return value

    def as_answer(self, name: str, value: Any) -> str:
        """A response alone: text, or a list of one assistant's message."""
        said = Record({name: value}, self.place, self.id).response(name, ())
        if len(said) != 1 or said[0].tool_calls or said[0].reasoning:
            raise self.fail(f"field '{name}' must be one response as text; got {value!r:.60}")
        return said[0].content

    def as_number(self, name: str, *value: Any) -> float:
        """As `as_list`, a finite number."""
        found = typed(value[0] if value else self.get(name))
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.fail(f"field '{name}' must be a number; got {found!r:.60}")
        if not math.isfinite(found) if isinstance(found, float) else abs(found) > 2**63:
            raise self.fail(f"field '{name}' must be a finite number; got {found!r}; correct or remove the row")
        return float(found)

    def messages(self, field: str) -> tuple[Message, ...]:
        """A field that must be a conversation: text (one user message), or a list of messages.

        Text that is one as JSON or Python write it, or a transcript of "Human:" and "Assistant:", is read as one. The
        column `tools` goes with it, on its first message from the system or a user.
        """
        if field not in self:
            raise self.missing(field)
        found, value = list[Message](), self.get(field)
        if isinstance(value, str):
            value = self.structure(field) or [{"role": "user", "content": self.text(field)}]
            value = value[:-1] if value[-1] == _TO_SPEAK else value
        elif isinstance(value, Mapping) and ("role" in value or "from" in value):
            value = [cast(Any, value)]  # one message, as LLaMA-Factory has its responses
        if not isinstance(value, Sequence) or not value:
            raise self.fail(f"field '{field}' must be text or a list of {{role, content}}; got {excerpt(value)}")
        tools = self.tools()
        with self.named():
            for i, item in enumerate(cast(Sequence[Any], value), 1):
                found.append(read_message(item, f"field '{field}' message {i}", tools))
                self.keys.update(f"{field}.{key}" for key in other_keys(item, f"field '{field}' message {i}"))
        return with_tools(found, tools)

    def structure(self, field: str) -> list[Any] | None:
        """The messages that a text says: as JSON, as Python writes them, as a transcript; None where it is plain."""
        with self.named():
            return messages_in(self.fields[field], f"field '{field}'")

    def begun(self, found: tuple[Message, ...]) -> tuple[Message, ...]:
        """A conversation with the system message of the column `system`, and what was said before in `history`."""
        system, said = (found[:1], found[1:]) if found[0].role == "system" else ((), found)
        for name in ("system", "system_prompt"):
            if is_empty(self.get(name)):
                continue
            stated = Message("system", self.text(name))
            if system and system[0].content != stated.content:
                raise self.fail(
                    f"field '{name}' is another system message than the one that is there; leave one out with "
                    f'`columns="other={name}"`'
                )
            system = (stated,)
        return with_tools((*system, *self._history(), *said), self.tools())

    def prompt(self, field: str) -> tuple[Message, ...]:
        """A conversation that a response follows; its assistant's turns are given, not learned."""
        found = self.begun(self.messages(field))
        if found[-1].role == "assistant":
            raise self.fail(
                f"field '{field}' ends with an assistant message, but a response follows; put what the response begins "
                "with into the response, or remove that message"
            )
        return found

    def response(self, field: str, prompt: Sequence[Message]) -> tuple[Message, ...]:
        """What follows a prompt: text, or messages, without those that only repeat the prompt."""
        if isinstance(self.fields.get(field), str) and self.structure(field) is None:
            return (Message("assistant", self.answer(field)),)
        found = self.messages(field)
        said = after(prompt, found)
        if not said or said[0].role != "assistant":
            raise self.fail(
                f"field '{field}' must be what the assistant says after the prompt; it begins with a message of the "
                f"role '{found[0].role}'. If it is a whole conversation, give `columns=\"messages={field}\"`"
            )
        return said

    def answer(self, field: str) -> str:
        """A response as text; behind a transcript that ends with "Assistant:" without the space that follows it."""
        text, prompt = self.text(field), self.fields.get("prompt")
        return text.strip() if isinstance(prompt, str) and prompt.rstrip().endswith("\n\nAssistant:") else text

    def _history(self) -> tuple[Message, ...]:
        """The column `history`: messages, or pairs of what the user and the assistant said."""
        value = self.get("history")
        if is_empty(value):
            return ()
        turns: list[Any] = []
        for turn in (list_in(value) if isinstance(value, str) else value) or [value]:
            if isinstance(turn, Sequence) and not isinstance(turn, str) and len(cast("Sequence[Any]", turn)) == 2:
                turn = [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turn, strict=True)]
            turns += turn if isinstance(turn, list) else [turn]
        found = Record({"history": turns}, self.place, self.id, keys=self.keys).messages("history")
        if any(message.role == "system" for message in found):
            raise self.fail("field 'history' has a system message; put it into the column 'system'")
        return given(found)

    def tools(self) -> tuple[str, ...]:
        """The column `tools`, each a JSON schema as text; empty where there is none."""
        try:
            return read_tools(self.get("tools"))
        except DataError as error:
            raise self.fail(f'{error}; if it is something else, rename it with `columns="other=tools"`') from None

    def others(self, named: Collection[str] = ()) -> list[str]:
        """The columns and the keys of messages that nobody read; one that changes what is learned is refused.

        Others read those that are `named`; with "**" they may read all: then none is listed, but refused as always.
        """
        found = [n for n, v in self.fields.items() if n not in self.read and n not in named and not is_empty(v)]
        if meant := [name for name in found if is_meant(name, typed(self.fields[name]))]:
            names = "', '".join(meant)
            other = " ".join(f"other{i or ''}={name}" for i, name in enumerate(meant))
            raise self.fail(
                f"the column '{names}' would change the conversation or what is learned from it, and is "
                f'not read here; to leave it out on purpose, give `columns="{other}"`'
            )
        if "**" in named:
            return []
        return [*(name for name in found if self.source is None or name in self.source), *sorted(self.keys)]

    def replaced(self, fields: Mapping[str, Any]) -> "Record":
        """These fields, and those of this row that were not read."""
        rest = {name: value for name, value in self.fields.items() if name not in self.read}
        return Record(
            {**rest, **fields}, self.place, self.id, source=self.fields if self.source is None else self.source
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors of what is read here name this row."""
        try:
            yield
        except DataError as error:
            raise self.fail(str(error)) from None


def _could_be(field: str, value: Any) -> bool:
    """Whether a column's value may be what the field is for: text or messages, but for an answer."""
    if field in _ALSO_CALLED and field != "answer":
        return isinstance(value, str | list) and bool(cast("Sequence[Any]", value))
    return value is not None


def given(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages of which nothing is learned."""
    return tuple(dataclasses.replace(m, learned=False) if m.role == "assistant" else m for m in messages)


def after(prompt: Sequence[Message], found: tuple[Message, ...]) -> tuple[Message, ...]:
    """Messages without the prompt with which they begin, all of it or without its system message; else as they are."""
    for before in (prompt, [message for message in prompt if message.role != "system"]):
        begins = zip(before, found, strict=False)
        if before and len(found) > len(before) and all(_same(one, other) for one, other in begins):
            return found[len(before) :]
    return found


def _same(one: Message, other: Message) -> bool:
    return (one.role, one.content.strip(), one.tool_calls) == (other.role, other.content.strip(), other.tool_calls)


def typed(value: Any) -> Any:
    """A csv cell as the number or boolean that it says; other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text) if _NUMBER.fullmatch(text) else value
