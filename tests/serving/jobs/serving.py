"""A server of jobs over a tiny model, in a thread of this process."""

import contextlib
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from posttrain.serving.access import JobLimits, Keys
from posttrain.serving.jobs.routes import create_jobs_app
from posttrain.serving.jobs.services import JobServices
from posttrain.serving.jobs.specification import Offered

PAIRS = [{"prompt": f"{n}+1?", "chosen": f"{n + 1}", "rejected": "no"} for n in range(8)]
SUMS = [{"prompt": f"{n}+1?", "answer": f"{n + 1}"} for n in range(8)]
SAID = [{"prompt": f"{n}+1?", "completion": f"{n + 1}"} for n in range(8)]


class Client(httpx.Client):
    """A client with a key."""

    def __init__(self, url: str, key: str, **headers: str) -> None:
        super().__init__(base_url=f"{url}/v1", headers={"X-API-Key": key, **headers}, timeout=60)

    def submit(self, **changes: Any) -> dict[str, Any]:
        """Submit a job that is accepted."""
        answer = self.post("jobs", json=sft(**changes))
        assert answer.status_code == 201, answer.text
        return answer.json()

    def job(self, job_id: str) -> dict[str, Any]:
        """A job as it is now."""
        answer = self.get(f"jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def until(self, job_id: str, *states: str, step: int = 0, seconds: float = 90) -> dict[str, Any]:
        """The job once it is in one of these states and has done `step` steps."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.job(job_id)
            if found["state"] in states and found["step"] >= step:
                return found
            time.sleep(0.1)
        raise AssertionError(f"{self.job(job_id)}\n{self.get(f'/{job_id}/logs').text}")


def sft(**changes: Any) -> dict[str, Any]:
    """A small job, as it is sent."""
    options = {"steps": 2, "examples_per_step": 2, "precision": "float32", "max_tokens": 128}
    return {"command": "sft", "model": "tiny", "dataset": {"rows": SAID}, "options": options} | changes


def rl(**changes: Any) -> dict[str, Any]:
    """A small job of reinforcement learning, as it is sent."""
    options = {"steps": 2, "prompts_per_step": 2, "completions_per_prompt": 2, "max_new_tokens": 4}
    options |= {"precision": "float32", "seed": 3}
    return {
        "command": "rl",
        "model": "tiny",
        "dataset": {"rows": SUMS},
        "reward": {"verifier": "numbers"},
        "options": options,
    } | changes


@contextlib.contextmanager
def served(services: JobServices, **settings: Any) -> Iterator[str]:
    """The address at which a server's parts are served."""
    app = create_jobs_app(services, **settings)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", loop="asyncio", timeout_graceful_shutdown=1))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def opened(root: Path, model: Path, *, owners: tuple[str, ...] = ("alice", "bob"), **settings: Any) -> Any:
    """A server's parts, and the keys of its clients."""
    keys = Keys(root / "keys.json")
    root.mkdir(parents=True, exist_ok=True)
    secrets = {name: keys.add(name) for name in owners if name not in keys.owners()}
    about = {
        "hidden": {str(model): "tiny"},
        "datasets": None,
        "trusted": frozenset({"alice"}),
        "private_rewards": False,
    }
    offered = Offered({"tiny": str(model)}, **{key: settings.pop(key, value) for key, value in about.items()})
    limits = replace(settings.pop("limits", JobLimits()), **settings)
    services = JobServices(root, keys, offered, cache=root / "cache", limits=limits)
    return services, secrets


def refused(client, body, status=400):
    """The text with which a job is refused."""
    answer = client.post("jobs", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def folder_of(services, job_id):
    return services.table.root / job_id


def config_of(services, job_id):
    return tomllib.loads((folder_of(services, job_id) / "job.toml").read_text())
