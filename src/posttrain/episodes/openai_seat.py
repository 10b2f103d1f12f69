"""A seat as an OpenAI client: for agents and environments with their own loop that call a chat API.

No port is opened: requests of the client never leave the process. Programs that need a URL, or run in another
process, cannot use it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from posttrain.data.messages import read_message, read_tools, written
from posttrain.environments.env import Seat, TurnSampling
from posttrain.errors import DataError, UserError
from posttrain.types import Message, Reply, StopReason

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_Essence = tuple[Any, str, list[tuple[Any, Any]]]


def openai_client(seat: Seat) -> "AsyncOpenAI":
    """An OpenAI client whose chat completions are the turns of one seat in one episode.

    Every request holds the whole conversation; the seat gets its new messages, and the request's stop strings, which
    stay in the reply. Model, temperature, token limit and seed of a request are ignored: sampling follows the run's
    settings. A request that rewrites earlier messages, or would have the seat go on in its last one, gets HTTP 400, and
    so does one for a stream or several choices. Exceptions of a seat pass through the client.
    """
    try:
        import httpx2
        from openai import AsyncOpenAI
    except ModuleNotFoundError as error:
        raise UserError("openai_client needs the package 'openai'; type: pip install 'posttrain[judge]'") from error

    known: list[_Essence] = []  # the seat's conversation, in the format of requests

    async def handle(request: "httpx2.Request") -> "httpx2.Response":
        if not request.url.path.endswith("/chat/completions"):
            return httpx2.Response(404, json=_error(f"a seat answers chat completions; it has no {request.url.path}"))
        try:
            body = json.loads(await request.aread())
            messages, tools = _news(body, known)
        except (DataError, ValueError) as error:
            return httpx2.Response(400, json=_error(str(error)))
        stop = body.get("stop")
        own: TurnSampling = {"stop": [stop] if isinstance(stop, str) else stop} if stop else {}
        reply = await seat.turn(messages, tools, **own)
        return httpx2.Response(200, json=_completion(reply, known))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(handle))
    return AsyncOpenAI(api_key="none", base_url="http://seat/v1", http_client=http, max_retries=0)


def _news(body: Mapping[str, Any], known: list[_Essence]) -> tuple[list[Message], tuple[str, ...]]:
    """The new messages of a request, which are known from then on, and its tools; raises where no seat can answer."""
    if body.get("stream") or body.get("n", 1) != 1:
        raise ValueError("a seat gives one choice at a time and no stream; leave out n and stream")
    tools, items = read_tools(body.get("tools")), list(body.get("messages") or ())
    told = len(known)
    if [_essence(item) for item in items[:told]] != known or len(items) == told:
        raise ValueError(
            "a request must repeat what the seat was told and said, and go on; another conversation needs another "
            "episode"
        )
    if _mapping(items[-1]).get("role") == "assistant":
        raise ValueError("a request ends with what the seat is told; it cannot go on in a message of its own")
    messages = [read_message(item, f"message {number}", tools) for number, item in enumerate(items[told:], told + 1)]
    known += map(_essence, items[told:])
    return messages, tools


def _completion(reply: Reply, known: list[_Essence]) -> dict[str, Any]:
    """A reply, which is known from then on, as a chat completion."""
    calls, usage = reply.message.tool_calls, reply.usage
    named = [replace(call, id=call.id or f"call_{len(known)}_{i}") for i, call in enumerate(calls)]
    (item,) = written([replace(reply.message, tool_calls=tuple(named))])
    known.append(_essence(item))
    finish = "tool_calls" if calls else "stop" if reply.stop_reason is StopReason.STOP else "length"
    return {
        "id": f"chatcmpl-{len(known)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "policy",
        "choices": [{"index": 0, "message": item, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


def _essence(item: Any) -> _Essence:
    """What a request must repeat of a message: few clients repeat reasoning and ids, and some have null for no text."""
    fields = _mapping(item)
    functions = [_mapping(_mapping(call).get("function")) for call in fields.get("tool_calls") or ()]
    calls = [(function.get("name"), function.get("arguments")) for function in functions]
    return fields.get("role"), json.dumps(fields.get("content") or ""), calls


def _mapping(item: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], item) if isinstance(item, Mapping) else {}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}
