"""What a client may ask for."""

from dataclasses import dataclass

OVERHEAD = 4096  # bytes that a request counts besides its body: a file, and what is known of it in memory


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    Attributes:
        models_per_key: models that one key may have.
        sessions_per_key: sessions of one key; those that are not heard of for an hour make room.
        samplers_per_key: sampling sessions of one key, of which the latest are kept.
        ended_per_key: models of one key that have ended and whose checkpoints are kept.
        checkpoints_per_model: named checkpoints of a model.
        unnamed_per_model: of the weights that were saved for sampling without a name, those that are kept.
        body_bytes: of a request, decompressed.
        json_bytes: of a request in JSON.
        bodies_per_key: of one key's bodies that are received and parsed at a time; those in JSON count several times.
        bodies_bytes: of those of all keys.
        tokens_per_request: of a batch, its input or its targets, or of a prompt times its samples.
        data_per_request: sequences of a batch.
        samples_per_request: of one prompt.
        pending_per_key: samples that wait.
        backlog_per_key: bytes of training requests that are accepted and not done; each counts `OVERHEAD` more.
        max_rank: of an adapter.
        body_seconds: within which a request must have arrived.
    """

    models_per_key: int = 16
    sessions_per_key: int = 1024
    samplers_per_key: int = 4096
    ended_per_key: int = 256
    checkpoints_per_model: int = 100
    unnamed_per_model: int = 8
    body_bytes: int = 32 * 2**20
    json_bytes: int = 4 * 2**20
    bodies_per_key: int = 128 * 2**20
    bodies_bytes: int = 512 * 2**20
    tokens_per_request: int = 2**19
    data_per_request: int = 1024
    samples_per_request: int = 256
    pending_per_key: int = 4096
    backlog_per_key: int = 256 * 2**20
    max_rank: int = 256
    body_seconds: float = 60.0


@dataclass(frozen=True)
class JobLimits(Limits):
    """Limits of the server of jobs.

    Attributes:
        queued_per_key: jobs of one key that wait or run.
        kept_per_key: jobs of one key, those that have ended included.
        bytes_per_key: on disk, of all jobs of one key; looked at when a job is submitted.
    """

    json_bytes: int = 32 * 2**20
    queued_per_key: int = 16
    kept_per_key: int = 1000
    bytes_per_key: int = 20 * 2**30
