"""Chat models behind an OpenAI-compatible API, hosted or local.

All requests run in one event loop in a thread of its own, so that limit, budget and cache need no
locks. The key is read from the environment at the first request, and never written, not even in errors.
"""

import asyncio
import json
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from posttrain.background import run_apart
from posttrain.data.messages import written
from posttrain.engine.budget import Budget, ReplyCache, digest_of
from posttrain.errors import NoReplyError, UserError, foreign, moved_to
from posttrain.types import Message, Reply, Sampling, StopReason, ToolCall, Usage

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

TIMEOUT_S = 120.0  # of one request
ATTEMPTS = 7  # of a request that fails for a cause that may pass
PAUSE_S = 1.0  # before the second attempt; twice as long before each later one
LONGEST_PAUSE_S = 120.0  # also where the server asks for more
TRANSIENT = (408, 409, 429, 500, 502, 503, 504)
_PAID_OUT = ("insufficient_quota", "credit_balance_exhausted")  # a 429 that does not pass
_OPENAI = "api.openai.com"
_LOOP = "chat models"  # the event loop of all requests: a client belongs to one
_SHOWN = 200  # characters of what a server says


class _Garbage(Exception):
    """A malformed chat completion."""


class OpenAIChat:
    """Conforms to `types.ChatModel`; raises `UserError` if the library openai is not installed, or the address is none.

    Transient failures (HTTP 408, 409, 429, 5xx, time-outs, lost connections, malformed replies) are retried after the
    server's `Retry-After`, or with exponential backoff. Other failures are immediate errors, and so are redirects: what
    was asked would go to a server that nobody has named.
    """

    def __init__(
        self,
        # what the model is called in errors; the key is read from the variable NAME_API_KEY in capitals, and for
        # api.openai.com from OPENAI_API_KEY where that is not set
        name: str,
        address: str,  # up to and including /v1, without a key
        model: str,  # its name there
        *,
        at_once: int = 16,  # requests in flight, at most
        budget: Budget | None = None,  # shared by all models that it is given to
        cache: ReplyCache | None = None,  # of replies, shared as well
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"the address of {name} must begin with http:// or https:// and a host; got {parts.scheme}")
        self.variable = re.sub(r"\W", "_", name).upper() + "_API_KEY"
        if parts.username or parts.password or parts.query:
            raise UserError(
                f"the address of {name} has a password or a query; put a key in the variable {self.variable}"
            )
        self.name, self.address, self.model, self.at_once = name, address, model, at_once
        self._official = parts.hostname == _OPENAI
        self._budget, self._cache = budget or Budget(), cache or ReplyCache()
        self._places = asyncio.Semaphore(at_once)
        self._asked: dict[str, tuple[asyncio.Task[Reply], list[int]]] = {}  # questions, and how many wait for each
        self._renamed: dict[str, str | None] = {}  # parameters that the model refused: by what name it takes them
        _library()

    async def chat(
        self, messages: Sequence[Message], *, sampling: Sampling, tools: Sequence[str] = (), seed: int = 0
    ) -> Reply:
        """As in `ChatModel`, once for all who ask the same; `NoReplyError` without a reply, `UserError` if refused."""
        return await run_apart(_LOOP, self._reply(tuple(messages), sampling, tuple(tools), seed), math.inf)

    async def _reply(
        self, messages: tuple[Message, ...], sampling: Sampling, tools: tuple[str, ...], seed: int
    ) -> Reply:
        stop = [sampling.stop] if sampling.stop else []  # in the digest where there is one, as in older caches
        key = digest_of(self.name, self.address.rstrip("/"), self.model, messages, sampling, tools, seed, *stop)
        if found := self._cache.get(key):
            return found
        if key not in self._asked:
            task = asyncio.ensure_future(self._ask(key, _body(self.model, messages, sampling, tools, seed)))
            self._asked[key] = task, [0]
            task.add_done_callback(lambda _: self._asked.pop(key, None))
        task, waiting = self._asked[key]
        waiting[0] += 1
        try:
            return await asyncio.shield(task)
        finally:
            waiting[0] -= 1
            if not waiting[0]:
                task.cancel()

    async def _ask(self, key: str, body: dict[str, Any]) -> Reply:
        """Send until there is a reply or an error that does not pass."""
        openai, why, pause = _library(), "", 0.0
        async with self._places:
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(pause)
                pause = min(PAUSE_S * 2**attempt * random.uniform(0.75, 1.25), LONGEST_PAUSE_S)
                self._budget.take()
                sent = self._accepted(body)
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        reply = _reply_in(await self._client.chat.completions.create(**sent))
                except openai.APIStatusError as error:
                    if full := self._settled(error, sent):
                        return full
                    pause = _asked_pause(error, pause)
                    why = f"HTTP {error.status_code}: {self._said(error)}"
                except (TimeoutError, openai.APITimeoutError):
                    why = f"no reply within {TIMEOUT_S:g} s"
                except openai.APIConnectionError as error:
                    why = f"no connection ({type(error.__cause__ or error).__name__})"
                except (_Garbage, openai.APIError, ValueError, RecursionError):
                    why = "the reply is no chat completion"
                else:
                    self._budget.pay(reply.usage)
                    self._cache.put(key, reply)
                    return reply
        raise NoReplyError(f"{self.name} gave no reply in {ATTEMPTS} attempts at {self.address}; the last one: {why}")

    def _settled(self, error: "APIStatusError", sent: Mapping[str, Any]) -> Reply | None:
        """What an error status means; None where trying again may help, `UserError` where it is of no use."""
        code, said = str(error.code or ""), self._said(error)
        if error.status_code == 400 and (code == "context_length_exceeded" or "context length" in said.lower()):
            return Reply(Message("assistant", ""), StopReason.CONTEXT, Usage(0, 0))
        if error.status_code == 400 and self._renames(error.param or said, sent):
            return None
        if error.status_code in TRANSIENT and code not in _PAID_OUT:
            return None
        if 300 <= error.status_code < 400:
            raise UserError(self._moved(error)) from None
        hint = {
            401: f"; put the key in the variable {self.variable}",
            403: f"; put the key in the variable {self.variable}",
            404: f"; is there a model '{self.model}', and does the address end with /v1?",
        }.get(error.status_code, "")
        raise UserError(f"{self.name} at {self.address} refused: HTTP {error.status_code}: {said}{hint}") from None

    def _moved(self, error: "APIStatusError") -> str:
        """Where a redirect leads, and what to type if the API is there."""
        there = self._shown(moved_to(str(error.request.url), error.response.headers.get("location", "")))
        base, path, rest = there.partition("/chat/completions")
        typed = f"{base}#{self.model}" if path and not rest else f"URL#{self.model}, whose URL ends with /v1"
        return (
            f"{self.name} at {self.address} redirects to {there or 'somewhere it does not say'}; redirects are not "
            f"followed, so name the API itself: {self.name}={typed}"
        )

    def _renames(self, refused: str, sent: Mapping[str, Any]) -> bool:
        """Whether a refused parameter can be written otherwise: reasoning models take others than servers do."""
        for parameter, other in (("max_tokens", "max_completion_tokens"), ("temperature", None), ("seed", None)):
            if parameter in refused and parameter in sent:
                self._renamed[parameter] = other
                return True
        return False

    def _accepted(self, body: dict[str, Any]) -> dict[str, Any]:
        """A request with the names that the model takes."""
        names = {name: self._renamed.get(name, name) for name in body}
        return {names[name] or "": value for name, value in body.items() if names[name]}

    def _said(self, error: Exception) -> str:
        """What a server said, in a line, without the key."""
        return self._shown(" ".join(str(getattr(error, "message", error)).split()))

    def _shown(self, text: str) -> str:
        key = self._key()
        return foreign(text.replace(key, "***") if key else text)[:_SHOWN]

    def _key(self) -> str:
        return os.environ.get(self.variable) or (os.environ.get("OPENAI_API_KEY", "") if self._official else "")

    @cached_property
    def _client(self) -> "AsyncOpenAI":
        client = _library().AsyncOpenAI(
            api_key=self._key() or "none",
            base_url=self.address,
            max_retries=0,
            timeout=TIMEOUT_S,
            http_client=_library().DefaultAsyncHttpxClient(follow_redirects=False),
        )
        if not self._official:  # OpenAI's organisation and project headers go to OpenAI only
            client.organization = client.project = None
        return client


def _library() -> Any:
    try:
        import openai
    except ModuleNotFoundError as error:
        raise UserError(
            "a judge behind an address needs the package 'openai'; type: pip install 'posttrain[judge]'"
        ) from error
    return openai


def _body(
    model: str, messages: Sequence[Message], sampling: Sampling, tools: Sequence[str], seed: int
) -> dict[str, Any]:
    # half a character, which a model can emit, becomes a question mark; what only rows have is left out
    plain = [
        replace(m, content=m.content.encode("utf-8", "replace").decode(), name="", reasoning="", learned=True)
        for m in messages
    ]
    body: dict[str, Any] = {
        "model": model,
        "messages": written(plain),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": seed % 2**31,  # some servers keep 32 bits
    }
    if sampling.top_p < 1:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["extra_body"] = {"top_k": sampling.top_k}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if tools:
        body["tools"] = [json.loads(tool) for tool in tools]
    return body


def _reply_in(completion: Any) -> Reply:
    """A reply of the API; raises `_Garbage` if it is none."""
    try:
        choice = completion.choices[0]
        said, usage = choice.message, completion.usage
        calls = tuple(ToolCall(c.id or "", c.function.name, c.function.arguments) for c in said.tool_calls or ())
        reasoning = getattr(said, "reasoning_content", None) or getattr(said, "reasoning", None) or ""
        if not isinstance(said.content, str | None) or not isinstance(reasoning, str):
            raise _Garbage
        message = Message("assistant", said.content or "", calls, reasoning=reasoning)
        tokens = Usage(int(usage.prompt_tokens), int(usage.completion_tokens)) if usage else Usage(0, 0)
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise _Garbage from error
    return Reply(message, StopReason.LENGTH if choice.finish_reason == "length" else StopReason.STOP, tokens)


def _asked_pause(error: "APIStatusError", pause: float) -> float:
    try:
        asked = float(error.response.headers.get("retry-after", ""))
    except ValueError:  # not there, or a date
        return pause
    return min(asked, LONGEST_PAUSE_S) if asked >= 0 else pause
