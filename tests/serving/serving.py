"""A server over a tiny model, in a thread of this process, for the SDK or plain requests."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import uvicorn

from posttrain.data.tokenizer import load_tokenizer
from posttrain.models.load import load_model
from posttrain.serving.access import Limits
from posttrain.serving.app import create_app
from posttrain.serving.base import Base
from posttrain.serving.services import Services

NAME = "tests/tiny"
KEY = "tml-test"


def base_of(folder: Path | str) -> Base:
    """The base model in a folder, in float32."""
    tokenizer = load_tokenizer(str(folder))
    return Base(load_model(str(folder), dtype=torch.float32), NAME, tokenizer, frozenset({tokenizer.eos_token_id}))


@contextlib.contextmanager
def serving(
    base: Base, store: Path, *, limits: Limits | None = None, **settings: Any
) -> Iterator[tuple[str, Services]]:
    """The address of a server, and its parts."""
    report = settings.pop("report", lambda text: None)
    services = Services(store, base, limits=replace(limits or Limits(), **settings), report=report)
    server = uvicorn.Server(
        uvicorn.Config(create_app(services), log_level="warning", loop="asyncio", timeout_graceful_shutdown=1)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", services
    finally:
        server.should_exit = True
        thread.join(30)
