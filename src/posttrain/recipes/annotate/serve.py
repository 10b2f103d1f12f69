"""Serve the pages on which people judge.

    posttrain annotate serve
    posttrain annotate serve --store postgresql+psycopg://HOST/feedback --host 0.0.0.0 --port 8400 --https

The first time it prints a link by which the first manager comes in; everybody else is invited on the pages. All that is
said is in the store, which is a file or a PostgreSQL database. `--https` is for a proxy in front that speaks TLS: the
cookie then goes no other way. Without TLS, passwords cross the network as they are; keep to 127.0.0.1 then.
"""

import sys
from dataclasses import dataclass

import uvicorn

from posttrain.annotation.app import create_app
from posttrain.annotation.store import people
from posttrain.annotation.store.database import open_store
from posttrain.errors import UserError

FILE = "annotation.db"


@dataclass(frozen=True)
class Serve:
    """Serve the pages on which people judge."""

    store: str = FILE
    """Where what they say is kept: an SQLite file, made if it is not there, or a database URL such as postgresql+psycopg://HOST/NAME."""
    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 for all of this machine's."""
    port: int = 8400
    """The port to listen at."""
    https: bool = False
    """A proxy in front speaks TLS with the browsers."""


@dataclass(frozen=True)
class Served:
    """It has ended."""

    store: str

    def lines(self) -> list[str]:
        """Where everything is."""
        return [f"everything is in {self.store}"]


def run(config: Serve) -> Served:
    """Serve until interrupted."""
    if not 0 < config.port < 65536:
        raise UserError(f"--port must be 1 to 65535; got {config.port}")
    store = open_store(config.store)
    link = f"http://{'localhost' if config.host in ('127.0.0.1', '0.0.0.0') else config.host}:{config.port}"
    with store.write() as connection:
        if not people.managers(connection):
            secret = people.invite(connection, "manager", days=1)
            print(f"the first manager comes in by {link}/invite/{secret}", file=sys.stderr)
    print(f"serving {config.store} at {link}; Ctrl-C ends it", file=sys.stderr, flush=True)
    settings = uvicorn.Config(
        create_app(store, https=config.https),
        host=config.host,
        port=config.port,
        log_level="warning",
        server_header=False,
    )
    try:
        uvicorn.Server(settings).run()
    finally:
        store.close()
    return Served(config.store)
