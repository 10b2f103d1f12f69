"""What a client may ask for, and how much a server does at once."""

from dataclasses import dataclass

OVERHEAD = 4096  # bytes that a request counts besides its body: a file, and what is known of it in memory


@dataclass(frozen=True)
class BodyLimits:
    """Of the bodies of requests, in bytes."""

    body_bytes: int = 32 * 2**20  # of a request, decompressed
    json_bytes: int = 4 * 2**20  # of a request in JSON
    bodies_per_key: int = 128 * 2**20  # that are received and parsed at a time; those in JSON count several times
    bodies_bytes: int = 512 * 2**20  # of those of all keys
    body_seconds: float = 60.0  # within which a request must have arrived


@dataclass(frozen=True)
class Limits(BodyLimits):
    """Of the server of adapters."""

    models_per_key: int = 16  # in training
    ended_per_key: int = 256  # models that have ended and whose checkpoints are kept
    sessions_per_key: int = 1024  # those that are not heard of for an hour make room
    samplers_per_key: int = 4096  # sampling sessions, of which the latest are kept
    checkpoints_per_model: int = 100  # that have a name
    unnamed_per_model: int = 8  # of the weights that were saved for sampling without a name, those that are kept
    tokens_per_request: int = 2**19  # of a batch, its input or its targets, or of a prompt times its samples
    data_per_request: int = 1024  # sequences of a batch
    samples_per_request: int = 256  # of one prompt
    pending_per_key: int = 4096  # samples that wait
    backlog_per_key: int = 256 * 2**20  # bytes of training requests that are not done; each counts `OVERHEAD` more
    max_rank: int = 256  # of an adapter
    microbatch_tokens: int = 4096  # of one forward and backward pass, unless a sequence is longer
    max_sequences: int = 128  # that are sampled together
    cache_gb: float = 1.0  # of keys and values
    models_in_memory: int = 8  # adapters with their optimisers
    save_every: int = 1  # optimiser steps between saves of a model's state
    batch_gradients: bool = False  # whether gradients of several models may be computed in one pass


@dataclass(frozen=True)
class JobLimits(BodyLimits):
    """Of the server of jobs."""

    json_bytes: int = 32 * 2**20
    queued_per_key: int = 16  # jobs that wait or run
    kept_per_key: int = 1000  # jobs, those that have ended included
    bytes_per_key: int = 20 * 2**30  # on disk, of all jobs of a key; looked at when a job is submitted
    at_once: int = 1  # jobs that run at the same time
    hours: float = 24.0  # that a job may train, from each start of its process
    grace: float = 120.0  # seconds that a job has to save a checkpoint when it is ended
