"""Chat models over an engine: messages in, one reply out. `openai_chat.py` is the one over an API."""

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from posttrain.background import all_of
from posttrain.data.chat import ChatFormat
from posttrain.data.messages import with_tools
from posttrain.engine.client import Client
from posttrain.engine.engine import cut_at_stop
from posttrain.engine.scheduler import Scheduler
from posttrain.engine.transformers import TransformersEngine
from posttrain.errors import UserError
from posttrain.models.language_model import LanguageModel
from posttrain.types import Completion, Message, Reply, Request, Sampling, StopReason, Usage


@dataclass(frozen=True)
class EngineChat:
    """An engine with its chat template. Conforms to `types.ChatModel`.

    Special tokens that a message spells are ordinary text. A conversation that fills the context gets an empty reply
    that ended by `StopReason.CONTEXT`.
    """

    engine: Client
    chat_format: ChatFormat
    context: int  # tokens that the model holds
    at_once: int = 256  # conversations that are best asked together

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`; raises `TemplateError` if the template refuses the conversation."""
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
    """What an engine is asked for the logprobs of continuations; see `rewards.inputs.ContinuationScorer`."""
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


class _Chat:
    """Conforms to `types.ChatModel` by one that is there when it is asked."""

    at_once = 256

    def load(self) -> EngineChat:
        """The chat model that answers."""
        raise NotImplementedError

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        return await self.load().chat(messages, sampling=sampling, tools=tools, seed=seed)

    async def logprobs(self, messages: Sequence[Message], continuations: Sequence[str]) -> list[tuple[float, ...]]:
        return await self.load().logprobs(messages, continuations)


class LateChat(_Chat):
    """A chat model that `make` loads when `load` is called, or at the first request."""

    def __init__(self, make: Callable[[], EngineChat]) -> None:
        self.make = make
        self._made: EngineChat | None = None

    def load(self) -> EngineChat:
        """The model."""
        self._made = self._made or self.make()
        return self._made


class PolicyChat(_Chat):
    """The policy itself as a chat model: self-rewarding (Yuan et al. 2024, https://arxiv.org/abs/2401.10020).

    It has the weights that sampled the episodes, and is available only while these are scored.
    """

    def __init__(self) -> None:
        self._chat_format: ChatFormat | None = None
        self._context = 0
        # of whoever is scoring: batches that are sampled at the same time have engines of their own
        self._engine: ContextVar[Client | None] = ContextVar("engine", default=None)
        self._open: list[Client] = []

    def bind(self, chat_format: ChatFormat, context: int) -> None:
        """Set the chat template and the context length in tokens."""
        self._chat_format, self._context = chat_format, context

    @contextmanager
    def answered_by(self, engine: Client) -> Generator[None]:
        """Sample from this engine while the block runs."""
        before = self._engine.set(engine)
        self._open.append(engine)
        try:
            yield
        finally:
            self._open.remove(engine)
            self._engine.reset(before)

    def load(self) -> EngineChat:
        """The policy; raises `UserError` unless episodes of it are being scored, and no others are sampled."""
        engine = self._engine.get()
        if engine not in self._open:  # asked from a thread of the reward's own, which has no context or an old one
            engine = self._open[0] if len(self._open) == 1 else None
        if self._chat_format is None or engine is None:
            raise UserError(
                "the policy can only be asked by a reward, while its own episodes are scored and no others are sampled"
            )
        return EngineChat(engine, self._chat_format, self._context)


class PastPolicy(_Chat):
    """The policy as it was some updates ago: an opponent that is renewed while the policy is trained.

    Nothing that it says is trained. At most `copies`, 2 or more, of the trained weights are in host memory, and in
    checkpoints. They are taken every i = ceil(behind / (copies - 1)) steps, so that the opponent of step s is the
    policy of step s - behind or of one of the i - 1 steps before it; until there is such a one, that with which the run
    began. Where `copies` is more than `behind`, it is exactly `behind` steps old, 1 or more.
    """

    def __init__(self, behind: int, copies: int) -> None:
        self._behind, self._every = behind, -(-behind // (copies - 1))
        self._file = f"policy-{behind}-behind-{copies}.safetensors"
        self._kept: dict[int, dict[str, Tensor]] = {}  # weights before each step
        self.begun_at = 0  # the step that began with the weights that it has

    def bind(self, model: LanguageModel, chat_format: ChatFormat, cache_gb: float) -> None:
        """Follow this policy, whose network it copies; its weights are those of the policy until it is renewed."""
        self._policy, self._own = model, copy.deepcopy(model)
        self._own.network.requires_grad_(False)
        engine = TransformersEngine(self._own, chat_format.stop_ids, cache_gb=cache_gb, decode=chat_format.decode)
        self._chat = EngineChat(Client(Scheduler(engine, own_thread=True)), chat_format, model.context)

    def load(self) -> EngineChat:
        """The policy of then."""
        return self._chat

    @torch.no_grad()
    def renew(self, step: int) -> None:
        """Become the policy of `behind` steps before this one, which has not begun; nothing is sampled meanwhile."""
        if step % self._every == 0 or not self._kept:
            self._kept[step] = {name: p.detach().to("cpu", copy=True) for name, p in self._policy.trainable()}
        self.begun_at = max((each for each in self._kept if each <= step - self._behind), default=min(self._kept))
        self._kept = {each: weights for each, weights in self._kept.items() if each >= self.begun_at}
        own = dict(self._own.network.named_parameters())
        for name, weight in self._kept[self.begun_at].items():
            own[name].copy_(weight)

    def save(self, folder: Path) -> None:
        """Write the weights that are kept into a checkpoint's folder."""
        kept = {f"{step}/{name}": weight for step, weights in self._kept.items() for name, weight in weights.items()}
        save_file(kept, folder / self._file)

    def restore(self, folder: Path) -> None:
        """Keep the weights that a checkpoint has."""
        self._kept = {}
        for key, weight in load_file(folder / self._file).items():
            step, _, name = key.partition("/")
            self._kept.setdefault(int(step), {})[name] = weight
