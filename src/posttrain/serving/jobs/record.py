"""What is known of a job, in its folder as job.json.

ROOT/jobs/ID/          mode 0700
  job.json             whose it is, its state, times, why it failed
  job.toml             the options of the command
  data/                rows that were sent
  reward.py            Python source that was sent, by a trusted key
  plan.json            what its supervisor runs, with which limits
  log.txt              what the command printed
  run/                 the run directory
  export/              the result
  cancel               there once it shall end
  trained.json         how training ended
  exit.json            how the job ended
  lock, supervised     held while its processes live
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
OPEN = (QUEUED, RUNNING)

JOB, TOML, DATA, REWARD = "job.json", "job.toml", "data", "reward.py"
PLAN, LOG, RUN, EXPORT = "plan.json", "log.txt", "run", "export"
CANCEL, TRAINED, EXIT, LOCK, SUPERVISED = "cancel", "trained.json", "exit.json", "lock", "supervised"
GROUP = "group.json"

ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        id: 32 hexadecimal digits, random.
        number: grows with each job of the server.
        owner: the name of the key that submitted it.
        command: which trains, such as `rl`.
        model: the name of the base model.
        steps: how many there shall be; 0 if the data decides.
        state: one of the states above.
        created, started, ended: seconds since 1970; `started` of the first attempt, 0 for not yet.
        attempts: how often its processes were started.
        why: why it failed.
        cancelled: whether its client has asked for its end.
    """

    id: str
    number: int
    owner: str
    command: str
    model: str
    created: float
    steps: int = 0
    state: str = QUEUED
    started: float = 0.0
    ended: float = 0.0
    attempts: int = 0
    why: str = ""
    cancelled: bool = False

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Job":
        """From JSON."""
        return cls(**{name: found[name] for name in cls.__dataclass_fields__ if name in found})

    def shown(self) -> dict[str, Any]:
        """What its client sees of it."""
        return {
            "id": self.id,
            "command": self.command,
            "model": self.model,
            "state": self.state,
            "cancelling": self.cancelled and self.state == RUNNING,
            "created": _time(self.created),
            "started": _time(self.started),
            "ended": _time(self.ended),
            "attempts": self.attempts,
            "why": self.why,
        }


def _time(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else None
