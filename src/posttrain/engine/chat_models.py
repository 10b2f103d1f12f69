"""Chat models over an engine: messages in, one reply out. `openai_chat.py` is the one over an API."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

from posttrain.data.chat import ChatFormat
from posttrain.data.messages import with_tools
from posttrain.errors import UserError
from posttrain.types import ChatModel, Completion, Message, Reply, Request, Sampling, StopReason, Usage


class Submits(Protocol):
    """An engine for single requests; such as `scheduler.Client`."""

    async def submit(self, request: Request) -> Completion:
        """The completion of one request."""
        ...


@dataclass(frozen=True)
class EngineChat:
    """An engine with its chat template. Conforms to `types.ChatModel`.

    Special tokens that a message spells are ordinary text. A conversation that fills the context gets an empty reply
    that ended by `StopReason.CONTEXT`.

    Args:
        engine: what samples.
        chat_format: its chat template.
        context: tokens that the model holds.
        at_once: how many conversations are best asked together.
    """

    engine: Submits
    chat_format: ChatFormat
    context: int
    at_once: int = 256

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        said = [self.chat_format.in_words(m) if m.role == "assistant" else m for m in messages]
        prompt = self.chat_format.prompt_ids(with_tools(said, tuple(tools)) if tools else said)
        room = self.context - len(prompt)
        if room < 1:
            return Reply(Message("assistant", ""), StopReason.CONTEXT, Usage(len(prompt), 0))
        fitting = replace(sampling, max_new_tokens=min(room, sampling.max_new_tokens))
        done = await self.engine.submit(Request(tuple(prompt), fitting, seed))
        text = self.chat_format.decode(done.token_ids)
        turns = sum(message.role == "assistant" for message in messages)
        reply = self.chat_format.parse(text, f"call{turns + 1:02d}", tools) if tools else Message("assistant", text)
        return Reply(reply, done.stop_reason, Usage(len(prompt), len(done.token_ids)))


class LateChat:
    """A chat model that is loaded by `load`, or lazily at the first request."""

    def __init__(self, make: Callable[[], ChatModel], at_once: int = 256) -> None:
        self._make, self.at_once = make, at_once
        self._made: ChatModel | None = None

    def load(self) -> ChatModel:
        """The model."""
        self._made = self._made or self._make()
        return self._made

    def made_by(self, make: Callable[[], ChatModel]) -> None:
        """Load it by this function instead; nothing may have been asked yet."""
        assert self._made is None, "it is loaded"
        self._make = make

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`."""
        return await self.load().chat(messages, sampling=sampling, tools=tools, seed=seed)


class PolicyChat:
    """The policy itself as a chat model: self-rewarding (Yuan et al. 2024, https://arxiv.org/abs/2401.10020).

    It has the weights that sampled the episodes, and is available only while these are scored.
    """

    at_once = 256

    def __init__(self) -> None:
        self._chat_format: ChatFormat | None = None
        self._context = 0
        # of whoever is scoring: batches that are sampled at the same time have engines of their own
        self._engine: ContextVar[Submits | None] = ContextVar("engine", default=None)
        self._open: list[Submits] = []

    def bind(self, chat_format: ChatFormat, context: int) -> None:
        """Set the chat template and the context length in tokens."""
        self._chat_format, self._context = chat_format, context

    @contextmanager
    def answered_by(self, engine: Submits) -> Generator[None]:
        """Sample from this engine while the block runs."""
        before = self._engine.set(engine)
        self._open.append(engine)
        try:
            yield
        finally:
            self._open.remove(engine)
            self._engine.reset(before)

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`.

        Raises:
            UserError: no episodes of the policy are being scored, or others are sampled.
        """
        engine = self._engine.get()
        if engine not in self._open:  # asked from a thread of the reward's own, which has no context or an old one
            engine = self._open[0] if len(self._open) == 1 else None
        if self._chat_format is None or engine is None:
            raise UserError(
                "the policy can only be asked by a reward, while its own episodes are scored and no others are sampled"
            )
        model = EngineChat(engine, self._chat_format, self._context)
        return await model.chat(messages, sampling=sampling, tools=tools, seed=seed)
