"""Chat models over an engine: messages in, one reply out. `openai_chat.py` is the one over an API."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Protocol

from posttrain.background import all_of
from posttrain.data.chat import ChatFormat
from posttrain.data.messages import with_tools
from posttrain.engine.engine import cut_at_stop
from posttrain.errors import UserError
from posttrain.types import Completion, Message, Reply, Request, Sampling, StopReason, Usage


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
        done = cut_at_stop(done, sampling.stop, self.chat_format.decode)
        text = self.chat_format.decode(done.token_ids)
        turns = sum(message.role == "assistant" for message in messages)
        reply = self.chat_format.parse(text, f"call{turns + 1:02d}", tools) if tools else Message("assistant", text)
        return Reply(reply, done.stop_reason, Usage(len(prompt), len(done.token_ids)))

    async def logprobs(self, messages: Sequence[Message], continuations: Sequence[str]) -> list[tuple[float, ...]]:
        """As in `rewards.inputs.ContinuationScorer`."""
        requests = scoring_requests(self.chat_format, self.context, messages, continuations)
        return scored(requests, await all_of(map(self.engine.submit, requests)))


def scoring_requests(
    chat_format: ChatFormat, context: int, messages: Sequence[Message], continuations: Sequence[str]
) -> list[Request]:
    """What an engine is asked for the logprobs of continuations; see `rewards.inputs.ContinuationScorer`.

    Raises:
        UserError: a continuation has no tokens, or does not fit the context.
    """
    begun = messages[-1:] if messages and messages[-1].role == "assistant" else ()
    prompt = chat_format.prompt_ids(messages[: len(messages) - len(begun)])
    prompt += [token for message in begun for token in chat_format.inserted_ids(message.content)]
    requests: list[Request] = []
    for text in continuations:
        ids = (*prompt, *chat_format.inserted_ids(text))
        if not len(prompt) < len(ids) < context:
            raise UserError(
                f"the continuation {text[:60]!r} of a conversation of {len(prompt)} tokens has {len(ids) - len(prompt)}"
                f"; expected 1 or more that fit the model's context of {context}"
            )
        requests.append(Request(ids, Sampling(1), scored_from=len(prompt)))
    return requests


def scored(requests: Sequence[Request], done: Sequence[Completion]) -> list[tuple[float, ...]]:
    """The engine's answers to `scoring_requests`; raises `UserError` where it gives no logprobs."""
    tokens = [len(request.token_ids) - request.scored_from for request in requests]
    if tokens != [len(each.scored) for each in done]:
        raise UserError("this engine gives no logprobs of given tokens; use embedded or vllm")
    return [each.scored for each in done]


class LateChat:
    """A chat model that is loaded by `load`, or lazily at the first request."""

    def __init__(self, make: Callable[[], EngineChat], at_once: int = 256) -> None:
        self._make, self.at_once = make, at_once
        self._made: EngineChat | None = None

    def load(self) -> EngineChat:
        """The model."""
        self._made = self._made or self._make()
        return self._made

    def made_by(self, make: Callable[[], EngineChat]) -> None:
        """Load it by this function instead; nothing may have been asked yet."""
        assert self._made is None, "it is loaded"
        self._make = make

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`."""
        return await self.load().chat(messages, sampling=sampling, tools=tools, seed=seed)

    async def logprobs(self, messages: Sequence[Message], continuations: Sequence[str]) -> list[tuple[float, ...]]:
        """As in `EngineChat`."""
        return await self.load().logprobs(messages, continuations)


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
        return await self._model().chat(messages, sampling=sampling, tools=tools, seed=seed)

    async def logprobs(self, messages: Sequence[Message], continuations: Sequence[str]) -> list[tuple[float, ...]]:
        """As in `EngineChat`; raises as `chat`."""
        return await self._model().logprobs(messages, continuations)

    def _model(self) -> EngineChat:
        engine = self._engine.get()
        if engine not in self._open:  # asked from a thread of the reward's own, which has no context or an old one
            engine = self._open[0] if len(self._open) == 1 else None
        if self._chat_format is None or engine is None:
            raise UserError(
                "the policy can only be asked by a reward, while its own episodes are scored and no others are sampled"
            )
        return EngineChat(engine, self._chat_format, self._context)
