"""An OpenAI-compatible server in a thread of the test, which does what it is told."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


def by_length(body: Body) -> str:
    """A verdict that depends on what is asked alone."""
    return f"Fine.\nScore: {len(body['messages'][-1]['content']) % 11}"


@dataclass
class Fault:
    """How one request goes wrong: a status with its headers and body, no reply for a while, or a slow one."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: Any = None  # bytes as they are, else JSON
    hang_s: float = 0.0
    drip_s: float = 0.0  # between two bytes


def error(status: int, message: str = "no", *, headers: dict[str, str] | None = None, **about: Any) -> Fault:
    """An error as the API writes it."""
    return Fault(status, headers or {}, {"error": {"message": message, "type": "error", **about}})


@dataclass
class FakeOpenAI:
    """`asked` has the body of every request, `keys` their Authorization; `faults` are done in order, one a request."""

    answer: Callable[[Body], str | Body] = by_length
    model: str = "judge"
    key: str = ""  # unless given, none is looked at
    faults: deque[Fault] = field(default_factory=deque[Fault])
    fault: Callable[[Body], Fault | None] = lambda body: None
    pause_s: float = 0.0
    asked: list[Body] = field(default_factory=list[Body])
    keys: list[str | None] = field(default_factory=list[str | None])
    most: int = 0  # requests at the same time
    port: int = 0
    _now: int = 0
    _lock: Any = field(default_factory=threading.Lock)
    _server: Any = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def url(self) -> str:
        return f"{self.address}#{self.model}"

    def start(self) -> None:
        """Listen, on the port of before where there was one."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with fake._lock:
                    fake.asked.append(body)
                    fake.keys.append(self.headers.get("authorization"))
                    fault = fake.faults.popleft() if fake.faults else fake.fault(body)
                    fake._now += 1
                    fake.most = max(fake.most, fake._now)
                with suppress(BrokenPipeError, ConnectionResetError):  # whoever asked has left
                    fake._respond(self, body, fault)

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None: ...

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from here on."""
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, handler: BaseHTTPRequestHandler, body: Body, fault: Fault | None) -> None:
        key = handler.headers.get("authorization")
        if fault is None and self.key and key != f"Bearer {self.key}":
            fault = error(401, f"Incorrect API key provided: {key}", code="invalid_api_key")
        if fault is None and body["model"] != self.model:
            fault = error(404, f"The model `{body['model']}` does not exist.")
        time.sleep(self.pause_s + (fault.hang_s if fault else 0))
        if fault is not None and (fault.status != 200 or fault.body is not None):
            return self._send(handler, fault.status, fault.body, fault.headers, fault.drip_s)
        answer = self.answer(body)
        message = answer if isinstance(answer, dict) else {"content": answer}
        choice = {"index": 0, "finish_reason": message.pop("finish_reason", "stop")}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice["message"] = {"role": "assistant", **message}
        whole = {"id": "1", "object": "chat.completion", "created": 1, "model": self.model}
        return self._send(handler, 200, {**whole, "choices": [choice], "usage": usage}, {})

    def _send(
        self, handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str], drip_s: float = 0.0
    ) -> None:
        with self._lock:  # before whoever asked can have the answer, and ask again
            self._now -= 1
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(raw)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        for start in range(0, len(raw), 1 if drip_s else len(raw)):
            handler.wfile.write(raw[start : start + (1 if drip_s else len(raw))])
            time.sleep(drip_s)


@contextmanager
def fake_openai(**options: Any) -> Iterator[FakeOpenAI]:
    """A server for as long as the block lasts."""
    fake = FakeOpenAI(**options)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()
