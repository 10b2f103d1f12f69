"""Chat-template rendering, and its tokenisation.

Templates get the conventional inputs: messages with `tool_calls` whose arguments are an object, and the JSON
schemas of the tools. A part of a call, a tool or a result that a template omits would be dropped silently, so it is an
error.

Special tokens in user, tool or system text are encoded as ordinary text: that text is untrusted input, and a user who
writes `<|im_end|>` must not end a turn. A chat template mixes it with its own special tokens, so those in the text are
replaced by placeholders before rendering. The rendering is then encoded by a copy of the tokenizer whose special tokens
have other spellings: those of the template are respelled, those in the text are restored, and the copy encodes them as
ordinary text. All else is encoded as by the tokenizer itself.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast, final

from posttrain.data.messages import tools_of
from posttrain.data.tokenizer import ChatTokenizer
from posttrain.errors import TemplateError, first_line
from posttrain.types import Message, ToolCall

# Tags in which models think, answer and call tools: text to a reward, even where a tokenizer calls them special.
TAG = re.compile(r"</?(?:think|thinking|reasoning|answer|solution|tool_call|tool_response)>")
_THOUGHT = re.compile(r"^[\s\S]*</(think|thinking|reasoning)>")
_BRACKETED = re.compile(r"<\S+>|\[\S+\]")  # what marks something up, even where a tokenizer does not call it special


@final
class OrdinaryText:
    """Special tokens of one tokenizer, and how to encode text in which some of them are meant as words.

    `backend` is the `tokenizers.Tokenizer` behind a fast tokenizer, `special` the spellings that are not special where
    a user, a tool or the system writes them.
    """

    def __init__(self, backend: Any, special: Iterable[str]) -> None:
        self._backend = backend
        longest_first = sorted(set(special), key=len, reverse=True)
        self._number = {text: i for i, text in enumerate(longest_first)}
        self._texts = longest_first
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Unguessable, so that no text can hold a placeholder; letters and digits, which no template escapes.
        self._key = f"q{secrets.token_hex(8)}q"
        self._placeholder = re.compile(f"{self._key}([0-9]+)q")

    def hide(self, text: str) -> str:
        """`text` with a placeholder for each special token in it."""
        return self._special.sub(lambda found: f"{self._key}{self._number[found[0]]}q", text)

    def hide_in(self, value: Any) -> Any:
        """The same of every string in JSON data, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide_in(key): self.hide_in(item) for key, item in value.items()}
        return [self.hide_in(item) for item in value] if isinstance(value, list) else value

    def show(self, text: str) -> str:
        """Text with its placeholders resolved."""
        return self._placeholder.sub(lambda found: self._texts[int(found[1])], text)

    def is_hidden_in(self, text: str) -> bool:
        """Whether there is a placeholder in it."""
        return self._key in text

    def encode(self, text: str) -> list[int]:
        """Token ids of text with placeholders: what stands for one of them is ordinary text, all else as always.

        Refused where the tokenizer's model, too, makes a special token of its spelling.
        """
        respelled, expected = self._special.subn(lambda found: self._spelling(self._number[found[0]]), text)
        copy, ids, special = self._copy
        encoded: list[int] = copy.encode(self.show(respelled), add_special_tokens=False).ids
        found = [ids.get(i, i) for i in encoded]
        if sum(i in special for i in found) > expected:
            raise TemplateError("this tokenizer cannot encode its special tokens as ordinary text; remove them")
        return found

    def _spelling(self, number: int) -> str:
        return f"{self._key.replace('q', 'z')}{number}z"

    @cached_property
    def _copy(self) -> tuple[Any, dict[int, int], set[int]]:
        """The tokenizer with its special tokens respelled, its ids as the tokenizer's own, and the special ones."""
        from tokenizers import Tokenizer

        def renamed(text: str) -> str:
            return self._spelling(self._number[text]) if text in self._number else text

        state = json.loads(self._backend.to_str())
        state |= {"post_processor": None, "truncation": None, "padding": None}
        original = {renamed(token["content"]): int(token["id"]) for token in state["added_tokens"]}
        for token in state["added_tokens"]:
            token["content"] = renamed(token["content"])
        model = state["model"]
        vocabulary = model["vocab"]  # of BPE and words {piece: id}, of unigrams [[piece, score]]
        if isinstance(vocabulary, dict):
            model["vocab"] = {renamed(piece): i for piece, i in vocabulary.items()}
        else:
            model["vocab"] = [[renamed(piece), score] for piece, score in vocabulary]
        if "merges" in model:
            pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
            model["merges"] = [pair for pair in pairs if not {"".join(pair), *pair} & self._number.keys()]
        if isinstance(model.get("unk_token"), str):
            model["unk_token"] = renamed(model["unk_token"])
        copy = Tokenizer.from_str(json.dumps(state))
        ids = {copy.token_to_id(text): i for text, i in original.items()}
        special = {self._backend.token_to_id(text) for text in self._texts}
        return copy, {own: i for own, i in ids.items() if own is not None}, special


@final
class Renderer:
    """A tokenizer, its chat template, and variables for that (`options`)."""

    def __init__(self, tokenizer: ChatTokenizer, options: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.options = dict(options)
        templates = tokenizer.chat_template
        source = "\n".join(templates.values()) if isinstance(templates, Mapping) else str(templates)
        self._tools_as = ("tools", "xml_tools") if "xml_tools" in source else ("tools",)  # SmolLM3 has its own name
        # SmolLM3 tells the model how to write a call, and leaves it to the content
        self._calls_in_content = "tool_calls" not in source and "<tool_call>" in source
        added: dict[int, Any] = dict(tokenizer.added_tokens_decoder)
        self.special = {int(t) for t in tokenizer.all_special_ids} | {t for t, entry in added.items() if entry.special}
        self.texts = {t: str(entry.content) for t, entry in added.items()}  # of special and other added tokens
        self.texts |= {t: self.decode([t]) for t in self.special if t not in self.texts}
        spelled = [text for t, text in self.texts.items() if t in self.special or _BRACKETED.fullmatch(text)]
        self.ordinary = OrdinaryText(tokenizer.backend_tokenizer, filter(str.strip, spelled))

    def render(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        """The conversation as text, with placeholders for special tokens that only the assistant may write."""
        try:
            return self._apply(messages, generate, as_text=False)
        except Exception as error:  # a template is the model maker's program: any exception is a refusal
            if any(m.tool_calls for m in messages):
                try:  # some put the arguments of a call after other text, and so want text themselves
                    return self._apply(messages, generate, as_text=True)
                except Exception:
                    pass
            raise TemplateError(
                f"the chat template refuses a conversation of {roles(messages) or 'no messages'}: {first_line(error)}; "
                "use the roles that it knows (without `system`, if it has no system role)"
            ) from error

    def writes_date(self, messages: Sequence[Message]) -> bool:
        """Whether the rendering depends on the day: `strftime_now` is the only clock that a template has."""
        own = self.tokenizer.chat_template
        own = next(iter(own.values())) if isinstance(own, Mapping) else str(own)
        clocks = (f"{{% macro strftime_now(format) %}}{day}{{% endmacro %}}" for day in (1, 2))
        days = {self._apply(messages, False, as_text=False, chat_template=clock + own) for clock in clocks}
        return len(days) > 1

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendering, or a piece of one."""
        if self.ordinary.is_hidden_in(text):
            return self.ordinary.encode(text)
        # The template writes the special tokens itself, <bos> among them.
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decoded token ids, special ones included."""
        shown = self.tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return cast(str, shown)

    def hide_all_but_tags(self, text: str) -> str:
        """What an assistant says, with placeholders for special tokens other than tags such as `<think>`."""
        pieces = re.split(f"({TAG.pattern})", text)  # every other one is a tag
        return "".join(piece if place % 2 else self.ordinary.hide(piece) for place, piece in enumerate(pieces))

    def refuse_dropped(self, messages: Sequence[Message], rendered: str) -> None:
        """Refuse a template that leaves out a message, a tool, a call or a result; reasoning may go."""
        text = squeeze(rendered)
        for name in (squeeze(str(json.loads(tool)["function"]["name"])) for tool in tools_of(messages)):
            if self.ordinary.hide(name) not in text:
                raise TemplateError(
                    f"the chat template does not render the tool {name!r}; give one that knows tools with "
                    "`chat_template`, or leave the column 'tools' out with `columns=\"other=tools\"`"
                )
        for number, message in enumerate(messages, 1):
            # of the assistant's what follows its thinking
            own = message.role == "assistant"
            if not shown(_THOUGHT.sub("", message.content) if own else self.ordinary.hide(message.content), text):
                what = "result of a tool" if message.role == "tool" else f"{message.role} message"
                raise TemplateError(
                    f"the chat template drops the {what} in message {number} ({message.content[:60]!r}), which the "
                    f"model would never see; {'leave it out, or ' if message.role == 'system' else ''}give one that "
                    "shows it with `chat_template`"
                )
            if missing := dropped_of_calls(message, text):
                raise TemplateError(
                    f"the chat template drops {missing[:60]!r} from the tool calls of message {number}; give one that "
                    "knows tool calls with `chat_template`"
                )

    def _apply(self, messages: Sequence[Message], generate: bool, *, as_text: bool, **more: Any) -> str:
        schemas = [self.ordinary.hide_in(json.loads(tool)) for tool in tools_of(messages)]
        with_tools = dict.fromkeys(self._tools_as, schemas) if schemas else {}
        rendered = self.tokenizer.apply_chat_template(
            [self._fields(message, as_text) for message in messages],
            tokenize=False,
            add_generation_prompt=generate,
            **with_tools,
            **(self.options | more),
        )
        return cast(str, rendered)

    def _fields(self, message: Message, as_text: bool) -> dict[str, Any]:
        """A message as templates know it, without what it does not have: they ask whether a field is defined."""
        own = message.role == "assistant"
        fields: dict[str, Any] = {
            "role": message.role,
            "content": message.content if own else self.ordinary.hide(message.content),
        }
        fields |= {
            key: self.ordinary.hide(value)
            for key, value in (("name", message.name), ("tool_call_id", message.tool_call_id))
            if value
        }
        if message.reasoning:
            fields |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
        if message.tool_calls and self._calls_in_content:  # as the models that follow Hermes write them
            calls = ({"name": call.name, "arguments": arguments_of(call.arguments)} for call in message.tool_calls)
            said = (f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls)
            fields["content"] = "\n".join([*filter(None, [message.content]), *said])
        elif message.tool_calls:
            fields["tool_calls"] = [
                {
                    "type": "function",
                    **({"id": call.id} if call.id else {}),
                    "function": {
                        "name": call.name,
                        "arguments": call.arguments if as_text else arguments_of(call.arguments),
                    },
                }
                for call in message.tool_calls
            ]
        return fields


def arguments_of(text: str) -> Any:
    """The arguments of a call as data; as they are where they are no JSON, which a policy may write."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def dropped_of_calls(message: Message, squeezed: str) -> str:
    """What of a message's calls is not in a rendering without white space: a name, or text of an argument."""
    said = (text for call in message.tool_calls for text in words_of(call))
    return next((text for text in said if not shown(text, squeezed)), "")


def words_of(call: ToolCall) -> tuple[str, ...]:
    """The name of a call, and the keys and texts in its arguments."""
    return (call.name, *_words(arguments_of(call.arguments)))


def shown(text: str, squeezed: str) -> bool:
    """Whether a rendering without white space holds the text, as it is or as JSON or Python quote it."""
    if squeeze(text) in squeezed:
        return True
    spellings = (json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
    return any(squeeze(spelling) in squeezed for spelling in spellings)


def squeeze(text: str) -> str:
    """Text without white space."""
    return "".join(text.split())


def roles(messages: Sequence[Message]) -> str:
    """Who speaks, in order."""
    return ", ".join(message.role for message in messages)


def _words(value: Any) -> Iterator[str]:
    """The keys and texts in a call's arguments; numbers may be written in more than one way."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in cast(Mapping[str, Any], value).items():
            yield key
            yield from _words(item)
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            yield from _words(item)
