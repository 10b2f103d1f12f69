"""Conversations as token ids: prompts, follow-up turns, and training examples with a loss mask.

Renderings are cut at two kinds of places: at the end of the generation prompt, and after the stop token
of an assistant turn. Each piece between two cuts is encoded on its own, so prompts have the same tokens in training and
at inference, and a sampled turn is never re-tokenised.

Turn boundaries are found by rendering with the template, never by its name: the start is the end of
`render(messages before it, add_generation_prompt=True)`; the end is what the template writes behind a sentinel that
stands in place of the turn. Behind a turn that calls tools a template may write another stop token (Llama 3.1's
`<|eom_id|>`): there it is the last special token of the rendering.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, NamedTuple, cast, final

from posttrain.data.rendering import TAG, Renderer, dropped_of_calls, roles, shown, squeeze, words_of
from posttrain.data.tokenizer import ChatTokenizer, token_ends
from posttrain.data.tool_calls import CallForm, learn_form
from posttrain.errors import TemplateError
from posttrain.types import Message

TrainOn = Literal["all", "last"]

_SENTINEL = "SENTINEL7f3a9c51"


class TrainingIds(NamedTuple):
    """One training example: T token ids, and a mask that is True on what the assistant must produce."""

    token_ids: list[int]
    mask: list[bool]


@final
class ChatFormat:
    """A tokenizer's chat template, and the tokens that end an assistant turn.

    To the `stop_ids` that the model's generation config names, the tokenizer's own and the one that the template writes
    after an assistant turn are added. `options` are variables for the template, such as `{"enable_thinking": False}`; a
    template that writes today's date should be given `{"date_string": "26 Jul 2024"}`, or its prompts change from day
    to day.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, stop_ids: Iterable[int] = (), options: Mapping[str, Any] | None = None
    ) -> None:
        if not tokenizer.chat_template:
            raise TemplateError(
                "this tokenizer has no chat template, so a conversation cannot become a prompt; use the instruct "
                "version of the model, or put a chat_template.jinja into the model's folder"
            )
        self.tokenizer = tokenizer
        self._renderer = Renderer(tokenizer, options or {})
        named = {int(t) for t in stop_ids}
        if tokenizer.eos_token_id is not None:
            named.add(int(cast(Any, tokenizer.eos_token_id)))
        texts = self._renderer.texts.copy()
        texts |= {token: self._renderer.decode([token]) for token in named if token not in texts}
        markers = sorted((text for text in texts.values() if text.strip()), key=len, reverse=True)
        either = "|".join(map(re.escape, markers)) or "(?!)"
        self._marker, self._last_marker = re.compile(rf"\s*({either})"), re.compile(rf"\s*({either})\s*$")
        tail = self._tail([Message("user", "Hello")])
        stop = self._renderer.encode(self._stop(tail).group(1))
        if len(stop) != 1:
            raise TemplateError(
                f"the chat template ends a turn with {tail!r}, which is {len(stop)} tokens, not one stop token"
            )
        self.stop_ids: frozenset[int] = frozenset(named | {stop[0]})
        self.silent = {t for t in self._renderer.special | self.stop_ids if not TAG.fullmatch(texts.get(t, ""))}

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What to tell the user of the template: that it writes today's date, unless `options` give one."""
        if not self._renderer.writes_date([Message("user", "Hello")]):
            return ()
        return (
            "the chat template writes today's date, so a row has other tokens on another day; fix it with a copy of "
            "the template (`chat_template`)",
        )

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The conversation with the generation prompt for the next assistant turn: T token ids.

        Earlier assistant turns are encoded as they were produced. Where the template rewrites them (Qwen3 drops their
        thinking) they were not produced as it shows them, and the rendering is encoded as a whole.
        """
        try:
            return self._history(messages).token_ids
        except TemplateError:
            text = self._renderer.render(messages, generate=True)
            self._renderer.refuse_dropped(messages, text)
            return self._renderer.encode(text)

    def followup_ids(
        self, history: Sequence[Message], new_messages: Sequence[Message], *, stopped: bool, unchanged: bool = False
    ) -> list[int]:
        """The tokens between a sampled assistant turn, with which `history` ends, and the next generation prompt.

        If the turn was not `stopped` by a stop token, but cut by its length, the template's stop token is the first of
        them. `unchanged` refuses a template that would show the sampled turn otherwise than it was sampled, such as
        without its reasoning. White space does not count.
        """
        if not history or history[-1].role != "assistant" or not new_messages:
            raise TemplateError(
                "a follow-up needs a history that ends with the assistant's turn, and at least one new message"
            )
        before = history[:-1]
        rendered = self._renderer.render([*before, Message("assistant", _SENTINEL), *new_messages], generate=True)
        head, tail = self._split(rendered)
        prompt = self._renderer.render(before, generate=True)
        # A template may open a thinking block in the prompt and leave it out of earlier turns, so either may be longer.
        if not head.startswith(prompt) and not prompt.startswith(head):
            raise self._rewritten(history, len(before))
        if unchanged and squeeze(history[-1].content) not in squeeze(
            self._renderer.render([*history, *new_messages], generate=True)
        ):
            raise self._rewritten(history, len(before))
        stop = self._stop(tail)
        if not stopped:
            return self._renderer.encode(tail)
        return self._after(stop.group(1), tail[stop.end() :])

    def training_ids(self, messages: Sequence[Message], *, train_on: TrainOn = "all") -> TrainingIds:
        """One training example, masked to what the assistant must produce, stop tokens included.

        The example ends with the stop token of the last assistant turn; what follows it in the conversation or in the
        template is left out. The tokens before every trained turn `i` equal `prompt_ids(messages[:i])`. Trained are
        "all" assistant turns that are to be learned, or only the "last" of them, which also works where a template
        shows earlier turns differently from how they are produced.
        """
        turns = [i for i in _assistant_turns(messages) if messages[i].learned]
        if not turns:
            raise TemplateError(
                "this conversation has no assistant message that is learned, so there is nothing to train on; roles: "
                + roles(messages)
            )
        last = turns[-1]
        if train_on == "all":
            token_ids, mask = self._history(messages[:last])
        else:
            token_ids = self.prompt_ids(messages[:last])
            mask = [False] * len(token_ids)
        prompt = self._renderer.render(messages[:last], generate=True)
        produced = self._continue(prompt, self._produced(messages, last, prompt)[0])
        return TrainingIds(token_ids + produced, mask + [True] * len(produced))

    def training_examples(self, messages: Sequence[Message]) -> list[TrainingIds]:
        """Every assistant turn trained once: in one example where the template allows it, else in one example per turn.

        Templates that rewrite earlier turns (Qwen3 drops their thinking) need one example per turn, for each turn must
        be trained behind the prompt that it will see.
        """
        try:
            return [self.training_ids(messages)]
        except TemplateError:
            turns = _assistant_turns(messages)
            learned = [turn for turn in turns if messages[turn].learned]
            if turns.index(learned[-1]) == 0:
                raise
            return [self.training_ids(messages[: turn + 1], train_on="last") for turn in learned]

    def text_ids(self, text: str) -> list[int]:
        """Plain text for pretraining: no turns, nothing added."""
        return self._renderer.encode(text)

    def inserted_ids(self, text: str) -> list[int]:
        """Text within an assistant's turn that it did not write itself; special tokens in it are ordinary text."""
        return self._continue("0", self.in_words(Message("assistant", text)).content)

    def may_say(self, text: str) -> bool:
        """Whether the text can occur in what `decode` makes of sampled tokens; special tokens cannot."""
        return text in self.decode(self._renderer.encode(text))

    def in_words(self, message: Message) -> Message:
        """An assistant's turn for who reads it: its special tokens are ordinary text, all but tags such as `<think>`.

        For the methods here alone: placeholders stand in its text for the special tokens.
        """
        hide = self._renderer.hide_all_but_tags
        return replace(message, content=hide(message.content), reasoning=hide(message.reasoning))

    def parse(self, text: str, prefix: str = "call00", tools: Sequence[str] = ()) -> Message:
        """A sampled turn with its calls of tools read; `prefix` and a number are their ids.

        `tools` are the JSON schemas that give arguments between tags their types; what none describes is text.
        """
        content, calls = self._call_form.calls(text, prefix, tools)
        return Message("assistant", content, calls)

    @cached_property
    def _call_form(self) -> CallForm:
        return learn_form(self._written)

    def _written(self, messages: Sequence[Message]) -> str:
        """The last turn, as it would be sampled."""
        prompt = self._renderer.render(messages[:-1], generate=True)
        return self.decode(self._continue(prompt, self._produced(messages, len(messages) - 1, prompt)[0]))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode sampled tokens: without stop and other special tokens, but with tags such as `<think>`."""
        return self._renderer.decode([t for t in token_ids if t not in self.silent])

    def ends_of(self, token_ids: Sequence[int]) -> list[int]:
        """Where each sampled token ends, in characters of `decode(token_ids)`; a stop token: where the text does."""
        spoken = [t for t in token_ids if t not in self.silent]
        ends = [0, *token_ends(self._renderer.decode, spoken)]
        return [ends[count] for count in accumulate(t not in self.silent for t in token_ids)]

    def _history(self, messages: Sequence[Message]) -> TrainingIds:
        """`prompt_ids`, cut at the turns, with a mask of the assistant turns in it."""
        token_ids: list[int] = []
        mask: list[bool] = []
        text = stop = ""  # the rendering so far, and the stop token with which it ends
        for end in [*_assistant_turns(messages), len(messages)]:
            prompt = self._renderer.render(messages[:end], generate=True)
            if not prompt.startswith(text):
                raise self._rewritten(messages, end)
            between = self._after(stop, prompt[len(text) :])
            token_ids += between
            mask += [False] * len(between)
            if end == len(messages):
                self._renderer.refuse_dropped(messages, prompt)
            else:
                produced, stop = self._produced(messages, end, prompt)
                made = self._continue(prompt, produced)
                token_ids += made
                mask += [messages[end].learned] * len(made)
                text = prompt + produced
        return TrainingIds(token_ids, mask)

    def _produced(self, messages: Sequence[Message], turn: int, prompt: str) -> tuple[str, str]:
        """What the assistant writes after `prompt` when it produces message `turn`, and the stop token at its end."""
        before, message = messages[:turn], messages[turn]
        rendered = self._renderer.render(messages[: turn + 1])
        tail = self._tail(before)
        if message.tool_calls and not rendered.endswith(tail):
            last = self._last_marker.search(rendered)
            tail = last.group() if last and not TAG.fullmatch(last.group(1)) else tail
        stop = self._stop(tail)
        where = f"assistant turn {len(_assistant_turns(before)) + 1}"
        if not rendered.startswith(prompt) or not rendered.endswith(tail) or len(rendered) < len(prompt) + len(tail):
            raise TemplateError(
                f"the chat template renders the conversation before {where} differently once the turn is there, so it "
                "cannot be trained behind its own generation prompt (which ends with "
                f"{self._renderer.ordinary.show(prompt)[-40:]!r}); use a template that keeps the prompt as it was, or "
                "move the system message into the first user message"
            )
        said = rendered[len(prompt) : len(rendered) - len(tail)]
        if missing := _dropped(message, said):
            raise TemplateError(
                f"the chat template drops part of {where} (of {missing[:60]!r}), which would not be trained on; "
                "remove that part from the data (its thinking? its tool calls?), or use a template that keeps it"
            )
        # of calls as they were written, and as a template may write them, without JSON's escapes
        calls = (text for call in message.tool_calls for text in (call.arguments, *words_of(call)))
        if any(stop.group(1) in text for text in (message.content, message.reasoning, *calls)):
            raise TemplateError(
                f"{where} contains the stop token {stop.group(1)!r} in its text; remove it from the data"
            )
        return said + tail[: stop.end()], stop.group(1)

    def _rewritten(self, messages: Sequence[Message], turn: int) -> TemplateError:
        number = len(_assistant_turns(messages[:turn]))
        return TemplateError(
            f"the chat template rewrites the turns before message {turn + 1} (it drops the thinking of assistant turn "
            f"{max(number, 1)}, or moves the system message or the tools), so one sequence cannot hold all turns as "
            'they are produced; train on the last turn only (train_on="last"), or use a template that keeps earlier '
            "turns"
        )

    def _tail(self, before: Sequence[Message]) -> str:
        return self._split(self._renderer.render([*before, Message("assistant", _SENTINEL)]))[1]

    def _split(self, rendered: str) -> tuple[str, str]:
        parts = rendered.split(_SENTINEL)
        if len(parts) != 2:
            raise TemplateError(
                f"the chat template renders the content of an assistant turn {len(parts) - 1} times instead of once, "
                "so its mask would be empty or wrong; use a template that renders assistant messages"
            )
        return parts[0], parts[1]

    def _stop(self, tail: str) -> re.Match[str]:
        found = self._marker.match(tail)
        if found is None:
            raise TemplateError(
                f"the chat template writes {tail[:40]!r} after an assistant turn, which begins with no special token, "
                "so the policy cannot learn to stop; use a template that ends a turn with the eos token"
            )
        return found

    def _after(self, stop: str, text: str) -> list[int]:
        """`text`, encoded as after the stop token, which is not returned: its id was sampled, or is known."""
        return self._renderer.encode(stop + text)[1 if stop else 0 :]

    def _continue(self, prompt: str, text: str) -> list[int]:
        """`text`, encoded as a continuation of `prompt` whose own tokens do not change.

        Encoding `text` alone is not always the same: tokenizers of the Llama 2 kind put a space before the first word
        of whatever they encode.
        """
        for lead in (prompt, "0"):
            head, whole = self._renderer.encode(lead), self._renderer.encode(lead + text)
            if whole[: len(head)] == head:
                return whole[len(head) :]
        return self._renderer.encode(text)


def _assistant_turns(messages: Sequence[Message]) -> list[int]:
    return [i for i, message in enumerate(messages) if message.role == "assistant"]


def _dropped(message: Message, said: str) -> str:
    """What a turn says that is not in its rendering; of one without calls, which ends with its content, the content."""
    text, content = squeeze(said), squeeze(message.content)
    if content not in text or not (message.tool_calls or text.endswith(content)):
        return message.content
    if not shown(message.reasoning, text):
        return message.reasoning
    return dropped_of_calls(message, text)
