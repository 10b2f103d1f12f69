"""The options of `posttrain jobs`. Nothing here needs the packages of its extra, so that --help does not either."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Jobs:
    """Serve training jobs over HTTP: clients send data and a reward, watch the run, and fetch the model."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "models",
        "data": "datasets",
        "rewards": "trusted private_rewards",
        "run": "root keys add_key remove_key host port host_names at_once max_hours queued_per_key gb_per_key",
    }

    root: str = "posttrain-jobs"
    """Directory of jobs; created if missing. Of one server at a time."""
    keys: str = ""
    """File of API keys. Default: keys.json in --root. That of posttrain server is keys.json in its --store."""
    add_key: str = ""
    """Make an API key of this name, print it, and exit. Every client needs one."""
    remove_key: str = ""
    """End the API key of this name, and exit. Its jobs stay."""
    models: str = "smollm2-135m-instruct"
    """Base models: NAME=FOLDER or packaged ones. Space-separated; a folder holds a model, and is not a run."""
    datasets: str = ""
    """Folder of data sets for jobs, by the names of its files and folders. Default: clients send their rows."""
    trusted: str = ""
    """Keys, by name, whose jobs may have Python code as a reward. It runs as the server's user."""
    private_rewards: bool = False
    """Let rewards be at private addresses, and by http. Default: https at public addresses only."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: all interfaces."""
    port: int = 8001
    """Port to listen on."""
    host_names: str = ""
    """Host names of this server, besides localhost and addresses. Space-separated; others are refused."""
    at_once: int = 1
    """Jobs that run at the same time."""
    max_hours: float = 24.0
    """Maximum training time of a job, in hours. It is ended with a checkpoint."""
    grace_seconds: float = 120.0
    """Seconds that a job has to save a checkpoint when it is ended; then it is killed."""
    queued_per_key: int = 16
    """Jobs that one key may have waiting and running."""
    gb_per_key: float = 20.0
    """Disk space of one key's jobs, in GB. When they take it, no more are accepted until some are deleted."""
    max_request_mb: float = 32.0
    """Maximum size of a request, in MB; rows of data are in it."""
