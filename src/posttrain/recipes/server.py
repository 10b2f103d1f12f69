"""Serve the Tinker API.

    posttrain server
    TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=tml-local python train.py

    posttrain server --add-key alice
    posttrain server --host 0.0.0.0 --port 8000

Code written for the tinker SDK trains here unmodified: docs/server.md says what is served and what differs.
One process, one base model, an adapter for each client.
"""

import sys
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from posttrain.data.tokenizer import load_tokenizer
from posttrain.errors import UserError
from posttrain.models.host_memory import in_temporary_thread
from posttrain.models.load import load_model, tokenizer_of
from posttrain.models.lora import need_peft
from posttrain.models.packaged import PACKAGED
from posttrain.models.precision import default_device, dtype_of
from posttrain.options.services import Server
from posttrain.serving.access import Keys, Limits
from posttrain.serving.app import create_app
from posttrain.serving.base import Base
from posttrain.serving.http_server import address_of, bound, http_server
from posttrain.serving.services import Services
from posttrain.training.resolve_model import saved_model


def load_base(config: Server) -> Base:
    """The base model."""
    need_peft()
    device, where = default_device(), saved_model(config.model).where
    model = load_model(where, dtype=dtype_of(config.precision, device), device=device)
    if model.adapter is not None:
        raise UserError(f"'{config.model}' is an adapter; merge it first: posttrain export merge")
    tokenizer = load_tokenizer(tokenizer_of(where))
    packaged = PACKAGED.get(config.model)
    name = config.served_name or (packaged.repository if packaged else config.model)
    end: Any = tokenizer.eos_token_id
    stops = {int(end)} if end is not None else set[int]()
    return Base(model, name, tokenizer, model.stop_ids | stops)


def refuse_open_door(config: Server, keys: Keys) -> None:
    """Raise `UserError` if others than this machine could reach a server without keys, or if all keys were removed."""
    try:
        local = config.host == "localhost" or ip_address(config.host).is_loopback
    except ValueError:
        local = False
    if keys.owners():
        return
    if not local:
        raise UserError(
            f"--host {config.host} is open to others, and there are no keys; type: posttrain server --add-key NAME"
        )
    if keys.needed:
        raise UserError(
            "the last key was removed, and clients still need one; type: posttrain server --add-key NAME, or delete "
            f"{keys.path} to serve this machine without keys"
        )


def run(config: Server) -> tuple[list[str], None]:
    """Serve until interrupted, or make or end a key."""
    store = Path(config.store)
    if config.add_key:
        return [Keys.of(store).add(config.add_key)], None
    if config.remove_key:
        Keys.of(store).remove(config.remove_key)
        return [f"the key of {config.remove_key} is ended"], None
    place = bound(config.host, config.port)
    keys = Keys.of(store)
    refuse_open_door(config, keys)
    say = partial(print, file=sys.stderr, flush=True)
    services = Services(
        store,
        in_temporary_thread(partial(load_base, config)),
        keys=keys,  # the same ones: they know from now on whether clients need a key
        limits=Limits(**{name: getattr(config, name) for name in vars(Limits()) if hasattr(config, name)}),
        report=say,
    )
    say(f"serving {services.base.name} at http://{address_of(config.host, config.port)}; Ctrl-C ends it")
    app = create_app(services, hosts=None if keys.needed else {config.host.lower()})
    # The SDK keeps connections for longer than uvicorn's 5 s; held requests for results do not delay the end.
    http_server(app, place, timeout_keep_alive=75, timeout_graceful_shutdown=3).run()
    return [f"everything is in {store}"], None
