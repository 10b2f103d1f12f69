"""Serve the annotation web app.

    posttrain annotate serve
    posttrain annotate serve --model runs/rl-2026-01-31-1
    posttrain annotate serve --store postgresql+psycopg://HOST/feedback --host 0.0.0.0 --port 8400 --https

The first time it prints a link by which the first manager comes in; everybody else is invited on the pages. All that is
said is in the store, which is a file or a PostgreSQL database. `--https` is for a proxy in front that speaks TLS: the
cookie then goes no other way. Without TLS, passwords cross the network as they are; keep to 127.0.0.1 then. With
`--model` people can talk with that model, in projects of the kinds converse and red-team; with two, one reply is of
each.
"""

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from posttrain.annotation.app import create_app
from posttrain.annotation.app.chat_worker import Candidate, Speak
from posttrain.annotation.store import people
from posttrain.annotation.store.database import open_store
from posttrain.data.order import seed_for
from posttrain.engine.policy import Policy, load_policy
from posttrain.errors import TemplateError, UserError, as_typed
from posttrain.models.host_memory import in_temporary_thread
from posttrain.options.services import Serve
from posttrain.serving.http_server import address_of, bound, http_server
from posttrain.training.resolve_model import saved_model
from posttrain.types import Message, Request, Role, Sampling

TRIES = 4  # draws of a reply that says something, and something else than the first

Asked = tuple[int, Sequence[Mapping[str, str]]]
"""A seed, and a conversation."""
Talker = tuple[str, Policy]
"""A policy, with the name that is recorded with its replies."""


def load_talkers(config: Serve) -> Speak:
    """Who replies in conversations, one model or two; if it fails, the terminal tells why."""
    names = config.model.split()
    if len(names) > 2:
        raise UserError(f"--model takes one or two models; got {len(names)}")
    sampling = Sampling(config.max_new_tokens, config.temperature)
    saved = [saved_model(name) for name in names]
    policies = [load_policy(one.where, precision=config.precision, cache_gb=config.cache_gb) for one in saved]
    talkers = [(one.title, policy) for one, policy in zip(saved, policies, strict=True)]

    def speak(asked: Sequence[Asked]) -> list[list[Candidate] | str]:
        try:
            return two_replies(talkers, sampling, asked)
        except Exception as problem:
            print(f"no replies: {as_typed(repr(problem))}", file=sys.stderr, flush=True)
            raise

    return speak


def two_replies(talkers: Sequence[Talker], sampling: Sampling, asked: Sequence[Asked]) -> list[list[Candidate] | str]:
    """Two replies to each conversation, of one policy or of two, with their names and stop reasons; or why not.

    Draws depend on a conversation's seed only, not on the batch. An empty reply, or one equal to the first, is
    resampled a few times.
    """
    found: list[list[Candidate] | str] = [[] for _ in asked]
    for draw, talker in enumerate((talkers[0], talkers[-1])):
        for turn in range(TRIES):
            _draw(talker, sampling, asked, found, (draw, turn))
        for place, replies in enumerate(found):
            if not isinstance(replies, str) and not replies[draw][0].strip():
                found[place] = "the model says nothing to this; try again"
    return found


def _draw(
    talker: Talker,
    most: Sampling,
    asked: Sequence[Asked],
    found: list[list[Candidate] | str],
    which: tuple[int, int],
) -> None:
    """The first or second reply to each conversation; in a later try where it has to be another one."""
    (name, policy), (draw, turn) = talker, which
    requests: dict[int, Request] = {}
    for place, ((number, said), replies) in enumerate(zip(asked, found, strict=True)):
        if isinstance(replies, str):
            continue
        if turn and replies[-1][0].strip() and all(replies[-1][0] != text for text, _, _ in replies[:-1]):
            continue  # the last reply is not empty, and differs from the one before it
        try:
            prompt = policy.chat.prompt_ids([Message(cast(Role, m["role"]), m["content"]) for m in said])
        except TemplateError as problem:
            found[place] = f"the model cannot read this conversation: {problem}"
            continue
        room = policy.model.context - len(prompt)
        if room < 1:
            found[place] = "this conversation is as long as the model can read; end it"
            continue
        sampling = replace(most, max_new_tokens=min(room, most.max_new_tokens))
        requests[place] = Request(tuple(prompt), sampling, seed_for(number, draw, turn))
    completions = policy.engine.generate(list(requests.values())) if requests else []
    for place, done in zip(requests, completions, strict=True):
        text = policy.chat.decode(done.token_ids).replace("\0", "\N{REPLACEMENT CHARACTER}")
        replies = cast(list[Candidate], found[place])
        if replies[draw:] and not text.strip():
            continue  # what was drawn before may say something
        replies[draw:] = [(text, name, str(done.stop_reason))]


def _url(config: Serve) -> str:
    """Where browsers find the pages, without a slash at the end."""
    if not config.url:
        return f"{'https' if config.https else 'http'}://{address_of(config.host, config.port)}"
    problem = f"--url must be http or https and a host, such as https://feedback.example; got '{config.url}'"
    try:
        parts = urlsplit(config.url)
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as wrong:
        raise UserError(problem) from wrong
    if not whole or parts.query or parts.fragment:
        raise UserError(problem)
    if parts.path.strip("/") or "@" in parts.netloc:
        raise UserError(f"--url must have no path and no user, since pages begin at /; got '{config.url}'")
    return f"{parts.scheme}://{parts.netloc.lower()}"


def run(config: Serve) -> tuple[list[str], None]:
    """Serve until interrupted; says where everything is."""
    url, place = _url(config), bound(config.host, config.port)
    speak = in_temporary_thread(partial(load_talkers, config)) if config.model else None
    store = open_store(config.store)
    with store.write() as connection:
        if secret := people.bootstrap_invitation(connection):
            print(f"the first manager comes in by {url}/invite/{secret}", file=sys.stderr)
    public = f", for browsers at {url}" if config.url else ""
    where = address_of(config.host, config.port)
    print(f"serving {store.name} at http://{where}{public}; Ctrl-C ends it", file=sys.stderr, flush=True)
    say = partial(print, file=sys.stderr, flush=True)
    hosts = {socket.gethostname().lower(), config.host.lower(), urlsplit(url).hostname or ""}
    app = create_app(store, url=url, hosts=hosts, https=config.https, speak=speak, say=say)
    try:
        http_server(app, place, proxies=config.proxies).run()
    finally:
        store.close()
    return [f"everything is in {store.name}"], None
