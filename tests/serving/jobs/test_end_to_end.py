"""Whole jobs, with a tiny model: submitted, watched, killed, resumed, cancelled, fetched and loaded."""

import io
import tarfile
from pathlib import Path

import pytest
import torch

from posttrain.models.load import load_model
from tests.rewards.test_remote import Answers, sends
from tests.serving.jobs.kills import Kills
from tests.serving.jobs.serving import rl, sft


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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux shows them")
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_job_whose_processes_are_killed_ends_as_one_that_is_left_alone(rounds, tiny, tmp_path):
    """Its state, weights and metrics are the same. A job has a server, a training and an export, and no others."""
    with Kills(tmp_path / "root", tiny, seed=rounds) as kills:
        undisturbed = kills.ended(kills.undisturbed())
        for _ in range(rounds):
            job_id, seen = kills.disturbed()
            assert kills.ended(job_id) == undisturbed
            # a training that ends while there is no server is started once more, and says that it has ended
            assert kills.job(job_id).attempts - 1 - ("training" in seen) in (0, 1)
            assert {"server", "export"} <= {*seen}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux shows them")
def test_a_job_outlives_its_server_and_is_cancelled_by_the_next_one(tiny, tmp_path):
    options = sft()["options"] | {"steps": 50_000, "save_every": 1, "lr": 0.01, "warmup_steps": 0}
    with Kills(tmp_path / "root", tiny) as kills:
        job_id = kills.client.submit(options=options)["id"]
        kills.client.until(job_id, "running", step=2)
        training = kills.job(job_id).pid
        said = kills.restart()
        assert f"job {job_id[:8]} of alice: sft of tiny started" in said and kills.key not in said
        alice = kills.client
        found = alice.until(job_id, "running")
        alice.until(job_id, "running", step=found["step"] + 1)  # it has gone on
        assert kills.job(job_id).pid == training and alice.job(job_id)["attempts"] == 1
        assert alice.post(f"jobs/{job_id}/cancel").json()["cancelling"]
        done = alice.until(job_id, "cancelled", "failed")
        assert done["state"] == "cancelled", done
        assert differs(weights(fetched(alice, job_id, tmp_path / "result")), weights(tiny))
        assert alice.delete(f"jobs/{job_id}").status_code == 204
        assert not (tmp_path / "root/jobs" / job_id).exists()
