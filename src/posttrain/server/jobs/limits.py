"""What a client of jobs may ask for."""

from dataclasses import dataclass

from posttrain.server.limits import Limits


@dataclass(frozen=True)
class JobLimits(Limits):
    """Limits of the server.

    Attributes:
        queued_per_key: jobs of one key that wait or run.
        kept_per_key: jobs of one key, those that have ended included.
        bytes_per_key: on disk, of all jobs of one key; looked at when a job is submitted.
    """

    queued_per_key: int = 16
    kept_per_key: int = 1000
    bytes_per_key: int = 20 * 2**30
