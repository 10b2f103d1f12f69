"""Whole jobs, with a tiny model: submitted, watched, killed, resumed, cancelled, fetched and loaded."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import httpx
import pytest
import torch

from posttrain.models.load import load_model
from posttrain.serving.keys import Keys
from tests.rewards.test_remote import Answers, sends
from tests.serving.jobs.serving import Client, rl, sft


def fetched(client, job_id, folder):
    """The folder of a job's result, unpacked."""
    answer = client.get(f"jobs/{job_id}/result")
    assert answer.status_code == 200, answer.text
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as found:
        found.extractall(folder, filter="data")
    return folder / job_id


def weights(folder):
    return load_model(str(folder), dtype=torch.float32).network.state_dict()


def differs(one, other):
    assert one.keys() == other.keys()
    return any(not torch.equal(one[name], other[name]) for name in one)


def test_reinforcement_learning_by_the_clients_own_reward(server, tiny, tmp_path):
    """The adapter comes back merged: a whole model, in which the server's paths are not."""
    lengths = sends(lambda body: {"scores": [len(said) % 5 for said in body["completions"]]})
    _, clients, _ = server(at_once=1, private_rewards=True)
    options = rl()["options"] | {"lora_rank": 2, "lr": 0.01, "warmup_steps": 0}
    with Answers(lengths) as reward:
        body = rl(reward=[{"url": reward.url}, {"verifier": "numbers", "weight": 0.5}], options=options)
        job_id = clients["alice"].post("jobs", json=body).json()["id"]
        done = clients["alice"].until(job_id, "succeeded", "failed")
    assert (done["state"], done["why"], done["step"], done["steps"]) == ("succeeded", "", 2, 2)
    assert [len(asked["completions"]) for _, _, asked in reward.asked] == [4, 4]
    rows = clients["alice"].get(f"jobs/{job_id}/metrics").json()["rows"]
    assert [row["step"] for row in rows] == [1, 2] and "reward/remote" in rows[0] and "reward/numbers" in rows[0]
    samples = clients["alice"].get(f"jobs/{job_id}/samples").json()["rows"]
    assert samples and samples[0]["rewards"].keys() == {"remote", "numbers"}
    assert "rl 2/2" in clients["alice"].get(f"jobs/{job_id}/logs").text
    folder = fetched(clients["alice"], job_id, tmp_path / "result")
    assert differs(weights(folder), weights(tiny))
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            assert str(tiny) not in path.read_text() and str(tmp_path) not in path.read_text()


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


def group_of(root, job_id):
    return json.loads((root / "jobs" / job_id / "group.json").read_text())


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux shows them")
def test_a_job_outlives_its_server_and_is_resumed_when_it_is_killed_itself(tiny, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    client_key = Keys(root / "keys.json").add("alice")
    options = sft()["options"] | {"steps": 50_000, "save_every": 1, "lr": 0.01, "warmup_steps": 0}
    first = Command(root, tiny)
    try:
        alice = Client(first.url, client_key)
        job_id = alice.submit(options=options)["id"]
        alice.until(job_id, "running", step=2)
        training = group_of(root, job_id)
        said = first.kill()
        assert f"job {job_id[:8]} of alice: sft of tiny started" in said and client_key not in said
        second = Command(root, tiny)
        try:
            alice = Client(second.url, client_key)
            found = alice.until(job_id, "running")
            alice.until(job_id, "running", step=found["step"] + 1)  # it has gone on
            assert group_of(root, job_id) == training and alice.job(job_id)["attempts"] == 1
            for pid in (parent_of(training), training):
                os.kill(pid, signal.SIGKILL)
            step = alice.job(job_id)["step"]
            alice.until(job_id, "running", step=step + 2)
            assert alice.job(job_id)["attempts"] == 2 and group_of(root, job_id) != training
            assert alice.post(f"jobs/{job_id}/cancel").json()["cancelling"]
            done = alice.until(job_id, "cancelled", "failed")
            assert done["state"] == "cancelled", done
            rows, at = [], 0
            while page := alice.get(f"jobs/{job_id}/metrics", params={"offset": at}).json()["rows"]:
                rows, at = rows + page, at + len(page)
            assert [row["step"] for row in rows] == list(range(1, done["step"] + 1))
            assert differs(weights(fetched(alice, job_id, tmp_path / "result")), weights(tiny))
            assert alice.delete(f"jobs/{job_id}").status_code == 204
            assert not (root / "jobs" / job_id).exists()
        finally:
            second.kill()
    finally:
        first.kill()
        for file in root.glob("jobs/*/group.json"):  # where the test has failed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(json.loads(file.read_text()), signal.SIGKILL)
