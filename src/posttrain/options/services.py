"""Forms of the commands that serve: annotation, the Tinker API, jobs. They need no package of their extras."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from posttrain.options.option import POSITIONAL, Form, Range

FILE = "annotation.db"


@dataclass(frozen=True)
class Serve(Form):
    """Serve the annotation web app."""

    store: str = FILE
    """Annotation database: SQLite file or URL. SQLite files are created if missing; URLs are such as
    postgresql+psycopg://HOST/NAME."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: all interfaces."""
    port: int = 8400
    """Port to listen on."""
    url: str = ""
    """Public base URL, for invitation links. Such as https://feedback.example; its host is added to the allowed Host
    headers. Default: http://localhost:PORT."""
    https: bool = False
    """Set if a reverse proxy terminates TLS: cookies are marked Secure."""
    proxies: str = ""
    """Addresses of trusted reverse proxies, comma-separated. Each must overwrite X-Forwarded-For, since a client can
    send any value."""
    model: str = ""
    """One or two chat models, space-separated, for converse and red-team projects. From one model, two replies are
    sampled. Hub ids, folders, runs, packaged models."""
    max_new_tokens: Annotated[int, Range(1)] = 256
    """Maximum tokens per reply."""
    temperature: Annotated[float, Range(0, out="low")] = 1.0
    """Sampling temperature."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    cache_gb: float = 1.0
    """KV cache size per model, in GB."""


@dataclass(frozen=True)
class Import(Form):
    """Import items to annotate: prompts with completions, given or sampled."""

    HELP: ClassVar[Mapping[str, str]] = {
        "data": "dataset columns limit",
        "sampling": "models completions max_new_tokens temperature",
        "project": "store project kind attributes annotators_per_item repeat_share rules instructions",
        "run": "seed",
    }
    store: str = FILE
    """Annotation database: SQLite file or URL."""
    project: str = ""
    """Project to add items to; created if missing."""
    dataset: str = ""
    """Prompts, with completions unless --models samples them. A file, folder, glob or hub id."""
    kind: str = "rank"
    """Task of a new project, such as rank or compare. One of rank, compare, thumbs, score, steps, demonstrate, converse
    and red-team."""
    attributes: str = ""
    """Attributes to rate in a new score project, space-separated."""
    annotators_per_item: int = 3
    """Annotators per item, in a new project."""
    repeat_share: float = 0.0
    """Fraction of repeated items per annotator, in a new project. They measure self-agreement."""
    rules: str = ""
    """File of rules, one per line, for a new red-team project."""
    instructions: str = ""
    """Annotation guidelines (Markdown file), for a new project. Default: built-in ones."""
    models: str = ""
    """Models to sample completions from, space-separated. Hub ids, folders, runs, packaged models."""
    completions: Annotated[int, Range(1)] = 2
    """Completions per model."""
    max_new_tokens: Annotated[int, Range(1)] = 256
    """Maximum tokens per completion."""
    temperature: Annotated[float, Range(0, out="low")] = 1.0
    """Sampling temperature."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one)."""
    columns: str = ""
    """Column mapping, such as "prompt=question completions=answers"."""
    limit: int | None = None
    """Maximum number of rows; default: all."""
    ask: Annotated[int, Range(0)] = 0
    """Active selection: number of new items to add, by --choose; 0: all. Attention checks are always added."""
    choose: str = "random"
    """Acquisition: random, moved, disagreement or information. moved: largest KL (nats) of the model of --models from
    that of --kl-from. Of a reward-model ensemble, disagreement: variance of the score difference; information: expected
    information gain in nats (BALD), for calibrated ensembles."""
    reward_model: str = ""
    """Reward-model ensemble for --choose: a run or folder. Train one with reward-model --ensemble 5."""
    kl_from: str = ""
    """Earlier policy, whose completions have been annotated, for --choose moved. Named as in --models."""
    seed: int = 0
    """Random seed of sampling and selection."""


@dataclass(frozen=True)
class Export(Form):
    """Export annotations to a file."""

    store: str = FILE
    """Annotation database: SQLite file or URL."""
    project: str = ""
    """Project to export."""
    output: str = ""
    """Output file (.jsonl)."""
    to: str = "rows"
    """Layout, such as rows or pairs. rows: one per annotation; for training: pairs, judgements, ratings, steps or
    demonstrations; for evaluate-reward-model: ties."""
    method: str = "majority"
    """Label aggregation, such as majority or dawid-skene. One of majority, dawid-skene, bradley-terry and
    plackett-luce."""
    history: bool = False
    """Include superseded annotations and repeated items."""
    wait: Annotated[float, Range(0, 1)] = 0.0
    """Wait until this share of the items is annotated, 0: do not wait. By as many people as each is for; attention
    checks do not count."""


@dataclass(frozen=True)
class Backup:
    """Back up the annotation database; safe while the server runs."""

    store: str = FILE
    """Annotation database: an SQLite file."""
    output: str = ""
    """Backup file. Default: the database's name with date and time, in the current folder."""


@dataclass(frozen=True)
class Status:
    """Progress and inter-annotator agreement of each project."""

    store: str = FILE
    """Annotation database: SQLite file or URL."""
    project: str = ""
    """Project to show; default: all."""


@dataclass(frozen=True)
class Users(Form):
    """List, invite, disable or enable users."""

    store: str = FILE
    """Annotation database: SQLite file or URL."""
    invite: str = ""
    """Create an invitation link for an annotator or a manager."""
    project: str = ""
    """Project that invited users join."""
    uses: Annotated[int, Range(1)] = 1
    """Maximum uses of the link."""
    days: Annotated[float, Range(0, out="low")] = 7.0
    """Days until the link expires."""
    url: str = "http://localhost:8400"
    """Public base URL, for the link."""
    disable: str = ""
    """User to disable; their annotations stay."""
    enable: str = ""
    """User to enable again."""


@dataclass(frozen=True)
class Consensus:
    """Aggregate annotations into one ranking per item; report inter-annotator agreement."""

    file: Annotated[str, POSITIONAL] = ""
    """Annotations: a jsonl or parquet file. With item, annotator, ranking, and optionally failed."""
    method: str = "majority"
    """Label aggregation, such as majority or dawid-skene. One of majority, dawid-skene, bradley-terry and
    plackett-luce; the last three estimate the reliability of annotators."""


@dataclass(frozen=True)
class Server(Form):
    """Serve the Tinker API: LoRA training and sampling for clients of the tinker SDK."""

    HELP: ClassVar[Mapping[str, str]] = {
        "model": "model served_name precision",
        "run": "host port store add_key remove_key models_per_key tokens_per_request",
    }

    model: str = "smollm2-135m-instruct"
    """Base model. Clients train adapters on it. Hub id, folder, run or packaged model. A run means its best checkpoint,
    or else its latest."""
    served_name: str = ""
    """Name by which clients ask for the model, and find its tokenizer. Default: its hub id, or the model as given."""
    precision: str = "auto"
    """float32, bfloat16, or auto (the faster one). Of the base model; adapters are float32."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: all interfaces. Other than this machine's own needs --add-key first."""
    port: int = 8000
    """Port to listen on."""
    store: str = "posttrain-server"
    """Directory of models, checkpoints and keys; created if missing. Of one server at a time."""
    add_key: str = ""
    """Make an API key of this name, print it, and exit. Once there is one, every client needs one."""
    remove_key: str = ""
    """End the API key of this name, and exit."""
    models_per_key: Annotated[int, Range(1)] = 16
    """Models in training that one key may have. Those of clients that are gone for an hour make room."""
    tokens_per_request: Annotated[int, Range(1)] = 524288
    """Maximum tokens of one request. A prompt counts once for each of its samples, with them."""
    max_rank: Annotated[int, Range(1)] = 256
    """Maximum rank of an adapter."""
    models_in_memory: Annotated[int, Range(1)] = 8
    """Adapters with optimiser state that are in memory; others are read from --store when they are used."""
    save_every: Annotated[int, Range(1)] = 1
    """Optimiser steps between saves of a model's state. What was done since is computed again after a restart."""
    microbatch_tokens: Annotated[int, Range(1)] = 4096
    """Maximum tokens per forward and backward pass, unless one sequence is longer. Bounds memory."""
    batch_gradients: bool = False
    """Compute gradients of several clients in one pass where their requests wait at the same time. They agree with
    those that each gets alone to about 1e-5 in float32; without it to the last bit."""
    max_sequences: Annotated[int, Range(1)] = 128
    """Maximum number of sequences sampled together."""
    cache_gb: Annotated[float, Range(0, out="low", infinite=True)] = 1.0
    """KV cache size, in GB."""


@dataclass(frozen=True)
class Jobs(Form):
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
    at_once: Annotated[int, Range(1)] = 1
    """Jobs that run at the same time."""
    max_hours: Annotated[float, Range(0, out="low", infinite=True)] = 24.0
    """Maximum training time of a job, in hours. It is ended with a checkpoint."""
    grace_seconds: Annotated[float, Range(0, infinite=True)] = 120.0
    """Seconds that a job has to save a checkpoint when it is ended; then it is killed."""
    queued_per_key: Annotated[int, Range(1)] = 16
    """Jobs that one key may have waiting and running."""
    gb_per_key: Annotated[float, Range(0, out="low")] = 20.0
    """Disk space of one key's jobs, in GB. When they take it, no more are accepted until some are deleted."""
    max_request_mb: Annotated[float, Range(0, out="low")] = 32.0
    """Maximum size of a request, in MB; rows of data are in it."""
