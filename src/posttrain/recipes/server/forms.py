"""The options of `posttrain server`. Nothing here needs the packages of its extra, so that --help does not either."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Server:
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
    models_per_key: int = 16
    """Models in training that one key may have. Those of clients that are gone for an hour make room."""
    tokens_per_request: int = 524288
    """Maximum tokens of one request. A prompt counts once for each of its samples, with them."""
    max_rank: int = 256
    """Maximum rank of an adapter."""
    models_in_memory: int = 8
    """Adapters with optimiser state that are in memory; others are read from --store when they are used."""
    save_every: int = 1
    """Optimiser steps between saves of a model's state. What was done since is computed again after a restart."""
    microbatch_tokens: int = 4096
    """Maximum tokens per forward and backward pass, unless one sequence is longer. Bounds memory."""
    batch_gradients: bool = False
    """Compute gradients of several clients in one pass where their requests wait at the same time. They agree with
    those that each gets alone to about 1e-5 in float32; without it to the last bit."""
    max_sequences: int = 128
    """Maximum number of sequences sampled together."""
    cache_gb: float = 1.0
    """KV cache size, in GB."""
