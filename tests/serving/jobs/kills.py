"""Kills the processes of jobs with SIGKILL at random points, and compares how the jobs end with one that is left alone.

    python -m tests.serving.jobs.kills [ROUNDS]

A line for each kill; 10 rounds by default, each a job of its own whose server, training and export are killed once.
A job has no other processes. Exit code 0: all ended as the undisturbed one.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from posttrain.runs.processes import born
from posttrain.serving.access import JobLimits, Keys
from posttrain.serving.jobs.table import EXPORT, OPEN, TRAIN, Job, Table
from tests.recipes.folders import model_folder
from tests.serving.jobs.serving import Client, sft

STEPS = 40


class Command:
    """`posttrain jobs` in a process of its own."""

    def __init__(self, root, tiny):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        words = ["jobs", "--root", str(root), "--models", f"tiny={tiny}", "--port", str(self.port)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "posttrain", *words], env=environment, stderr=subprocess.PIPE, text=True
        )
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self.process.poll() is None, self.process.stderr.read()
            try:
                httpx.get(f"{self.url}/v1/jobs")
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    def kill(self):
        """End it as a power failure does; what it had said."""
        self.process.kill()
        self.process.wait()
        return "" if self.process.stderr.closed else self.process.communicate()[1]


class Kills:
    """A server of jobs in a process of its own, with one client."""

    def __init__(self, root, model, seed=0):
        root.mkdir()
        self.chance = random.Random(seed)
        self.root, self.model, self.key = root, model, Keys(root / "keys.json").add("alice")
        self.command = Command(root, model)
        self.client = Client(self.command.url, self.key)
        self.table = Table(root / "jobs", JobLimits())

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.client.close()
        self.command.kill()
        for job in self.table.all():  # where something has failed
            if job.pid and born(job.pid) == job.born:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)

    def restart(self):
        """Kill the server and start the next one; what the first one had said."""
        said = self.command.kill()
        self.client.close()
        self.command = Command(self.root, self.model)
        self.client = Client(self.command.url, self.key)
        return said

    def job(self, job_id) -> Job:
        """A job as the table has it."""
        return self.table.get("alice", job_id)

    def submit(self):
        options = sft()["options"] | {"steps": STEPS, "save_every": 5, "lr": 0.01, "warmup_steps": 0}
        return self.client.submit(options=options)["id"]

    def undisturbed(self):
        """The id of a job that ended without kills."""
        job_id = self.submit()
        self.client.until(job_id, "succeeded", "failed")
        return job_id

    def disturbed(self, say=lambda text: None):
        """Submit a job and kill each of its processes once; its id, and what was killed."""
        job_id, seen = self.submit(), []
        for kind in [*self.chance.sample(("server", "training"), 2), "export"]:
            job = self.until(job_id, EXPORT if kind == "export" else TRAIN)
            if kind == "export" or self.chance.random() < 0.5:  # while it starts, too
                time.sleep(self.chance.uniform(0.0, 4.0))
            else:
                self.client.until(job_id, "running", "succeeded", step=self.chance.randrange(1, STEPS))
            now, step = self.job(job_id), self.client.job(job_id)["step"]
            if kind == "server":
                assert self.key not in self.restart()
            elif now.stage != job.stage or born(now.pid) != now.born:
                kind = f"no {kind}, which had ended,"
            else:
                os.kill(now.pid, signal.SIGKILL)
            seen.append(kind)
            say(f"killed: {kind} while it was in {now.stage} at step {step}")
        self.client.until(job_id, "succeeded", "failed", "cancelled")
        return job_id, seen

    def until(self, job_id, stage):
        """The job once a process of the stage lives, which may be ending."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            job = self.job(job_id)
            if job.state not in OPEN or (job.stage == stage and job.pid and born(job.pid) == job.born):
                return job
            time.sleep(0.02)
        raise AssertionError(job)

    def ended(self, job_id):
        """How a job ended: its state, digests of its model's files, and its metrics without times."""
        job, folder = self.job(job_id), self.root / "jobs" / job_id
        rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        metrics = [{name: row[name] for name in ("step", "loss", "lr")} for row in rows]
        digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "export").iterdir()}
        digests.pop("README.md")  # says when it was made
        return job.state, job.why, digests, metrics


def main(rounds: int) -> int:
    wrong = 0
    with (
        tempfile.TemporaryDirectory() as made,
        Kills(Path(made) / "root", model_folder(Path(made), context=256)) as kills,
    ):
        undisturbed = kills.ended(kills.undisturbed())
        for number in range(1, rounds + 1):
            began = time.monotonic()
            job_id, _ = kills.disturbed(lambda text, number=number: print(f"round {number}, {text}", flush=True))
            same = kills.ended(job_id) == undisturbed
            wrong += not same
            how = "as the undisturbed one" if same else f"otherwise: {kills.job(job_id)}"
            print(f"round {number}: the job ended {how}, after {time.monotonic() - began:.0f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
