"""How much a client may send and have."""

import gzip
import json
import sqlite3
import stat

import pytest

from posttrain.errors import UserError
from posttrain.runs import jsonl
from posttrain.serving.access import JobLimits
from posttrain.serving.jobs import table
from posttrain.serving.jobs.table import DELETED, Table
from tests.serving.jobs.serving import PAIRS, SUMS, config_of, folder_of, opened, refused, rl, sft

SOURCE = "def reward(completion):\n    return 1.0\n"


# Sizes


def test_large_bodies_are_refused(server):
    _, clients, _ = server(limits=JobLimits(body_bytes=20_000))
    rows = [{"prompt": "x" * 1000, "completion": "y"}] * 30
    assert refused(clients["alice"], sft(dataset={"rows": rows}), 413)
    parts = (b"x" * 5000 for _ in range(10))
    assert clients["alice"].post("jobs", content=parts).status_code == 413


def test_compressed_bodies_are_not_read(server):
    services, clients, _ = server()
    raw = gzip.compress(json.dumps(sft()).encode())
    answer = clients["alice"].post("jobs", content=raw, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 415
    assert clients["alice"].post("jobs", content=raw).status_code == 400 and not services.table.all()


@pytest.mark.parametrize("raw", [b"", b"[", b"null", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'"\\ud800"'])
def test_bodies_that_are_no_job_are_refused(shared, raw):
    _, clients, _ = shared
    assert clients["alice"].post("jobs", content=raw).status_code == 400


def test_rows_that_nest_deeply_or_hold_half_characters_do_no_harm(server):
    services, clients, _ = server()
    for inner in ('{"prompt": "a", "completion": "\\ud800"}', '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}"):
        raw = json.dumps(sft(dataset={"rows": ["ROW"]})).replace('"ROW"', inner)
        assert clients["alice"].post("jobs", content=raw).status_code in (201, 400)
    for path in services.table.root.glob("*/data/*.jsonl"):
        json.loads(path.read_text())


def test_a_key_has_so_many_jobs_and_bytes(server):
    services, clients, _ = server(limits=JobLimits(queued_per_key=2, kept_per_key=3, bytes_per_key=100_000))
    alice, bob = clients["alice"], clients["bob"]
    first, second = (alice.submit()["id"] for _ in range(2))
    assert "2 jobs that wait or run" in refused(alice, sft(), 429)
    bob.submit()  # each key has its own
    for job_id in (first, second):
        alice.post(f"jobs/{job_id}/cancel")
    third = alice.submit()["id"]
    assert "may have 3 jobs" in refused(alice, sft(), 429)
    alice.post(f"jobs/{third}/cancel")
    assert alice.delete(f"jobs/{third}").status_code == 204
    (folder_of(services, first) / "checkpoint").write_bytes(bytes(100_000))
    assert "of 100000 bytes" in refused(alice, sft(), 429)
    assert alice.delete(f"jobs/{first}").status_code == 204
    alice.submit()
    assert len([path for path in services.table.root.iterdir() if path.is_dir()]) == 3


@pytest.mark.parametrize("at", ["rows", "table"])
def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(server, monkeypatch, at):
    services, clients, _ = server()

    def full(*args):
        raise {"rows": OSError(28, "No space left on device"), "table": sqlite3.OperationalError("disk is full")}[at]

    with monkeypatch.context() as patch:
        patch.setattr(*((jsonl, "append", full) if at == "rows" else (table, "_insert", full)))
        assert "cannot keep the job" in refused(clients["alice"], sft(), 507)
    assert not [path for path in services.table.root.iterdir() if path.is_dir()]
    clients["alice"].submit()


def test_what_is_refused_leaves_nothing(server):
    services, clients, _ = server()
    refused(clients["alice"], sft(options={"system": "{prompt}", "steps": -1}))
    assert not [path for path in services.table.root.iterdir() if path.is_dir()]


# The usual


def test_jobs_are_listed_in_pages_the_latest_first(server):
    _, clients, _ = server()
    ids = [clients["alice"].submit()["id"] for _ in range(5)]
    clients["bob"].submit()
    seen, before = [], ""
    while before is not None:
        page = clients["alice"].get("jobs", params={"limit": 2, "before": before}).json()
        seen += [job["id"] for job in page["jobs"]]
        before = page["next"]
    assert seen == ids[::-1]
    for limit in (0, 201, "x"):
        assert clients["alice"].get("jobs", params={"limit": limit}).status_code == 422


def test_logs_and_metrics_are_read_from_an_offset_on(server):
    services, clients, _ = server()
    alice = clients["alice"]
    job_id = alice.submit()["id"]
    folder = folder_of(services, job_id)
    (folder / "run").mkdir()
    assert alice.get(f"jobs/{job_id}/logs").text == "" and alice.get(f"jobs/{job_id}/metrics").json()["rows"] == []
    for whole in ("één\ntweeë", "één\n三", "één\n🙂"):
        for missing in range(1, 4):
            (folder / "log.txt").write_bytes(whole.encode()[:-missing])
            first = alice.get(f"jobs/{job_id}/logs")
            (folder / "log.txt").write_bytes(whole.encode())
            rest = alice.get(f"jobs/{job_id}/logs", params={"offset": first.headers["x-next-offset"]})
            assert first.text + rest.text == whole
    with (folder / "run/metrics.jsonl").open("w") as file:
        file.write('{"step": 1, "loss": null}\n{"step": 2}\n{"step": 3')
    assert alice.get(f"jobs/{job_id}/metrics", params={"offset": 1}).json() == {"rows": [{"step": 2}], "next": 2}
    assert alice.get(f"jobs/{job_id}/metrics", params={"offset": 9}).json() == {"rows": [], "next": 9}
    (folder / "run/environment.json").write_text('{"steps": 40}')
    found = alice.job(job_id)
    assert (found["step"], found["steps"], found["state"]) == (2, 40, "queued")


def test_each_command_has_its_configuration(server):
    services, clients, _ = server()
    options = {"steps": 3, "pairs_per_step": 2, "eval_share": 0.25}
    for command in ("preference", "reward-model"):
        body = {"command": command, "model": "tiny", "dataset": {"rows": PAIRS}, "options": options}
        job_id = clients["bob"].post("jobs", json=body).json()["id"]
        config = config_of(services, job_id)
        assert config.pop("model") == services.offered.models["tiny"]
        assert config == {"dataset": "data/train.jsonl", **options}
        rows = [json.loads(line) for line in (folder_of(services, job_id) / "data/train.jsonl").open()]
        assert rows == PAIRS
    rewards = [{"verifier": "numbers"}, {"verifier": "tags", "weight": 0.1}]
    body = rl(reward=rewards, eval_dataset={"rows": SUMS[:2]})
    config = config_of(services, clients["bob"].post("jobs", json=body).json()["id"])
    assert config["reward"] == "numbers=1.0 tags=0.1" and config["eval_dataset"] == "data/heldout.jsonl"


def test_what_jobs_were_there_is_there_after_a_restart(server):
    """And what a server that was killed had begun to write, or to delete, is not."""
    services, clients, _ = server()
    job_id, deleted = (clients["alice"].submit()["id"] for _ in range(2))
    clients["alice"].post(f"jobs/{deleted}/cancel")
    (services.table.root / ("a" * 32)).mkdir()
    services.table.change(services.table.get("alice", deleted), state=DELETED)
    again = Table(services.table.root, JobLimits())
    assert [job.id for job in again.all()] == [job_id]
    assert [path.name for path in again.root.iterdir() if path.is_dir()] == [job_id]


def test_jobs_of_an_earlier_version_are_taken_over_once(tmp_path):
    about = {"owner": "alice", "command": "sft", "model": "tiny", "created": 5.0, "steps": 3, "why": "", "attempts": 2}
    states = ["succeeded", "running", "queued"]
    for number, state in enumerate(states):
        folder = tmp_path / (f"{9 - number}" * 32)
        folder.mkdir()
        row = about | {
            "id": folder.name,
            "number": number + 4,
            "state": state,
            "started": 6.0,
            "cancelled": number == 1,
        }
        (folder / "job.json").write_text(json.dumps(row))
    (tmp_path / ("b" * 32)).mkdir()
    (tmp_path / ("b" * 32) / "job.json").write_text("torn")
    said = []
    found = Table(tmp_path, JobLimits(), said.append)
    assert [(job.id[0], job.state, bool(job.cancelled), job.attempts, job.pid) for job in found.all()] == [
        ("9", "succeeded", False, 2, 0),
        ("8", "running", True, 2, 0),
        ("7", "queued", False, 2, 0),
    ]
    assert len(said) == 2 and "cannot be read" in said[0] and said[1].startswith("3 jobs of an earlier version")
    found.delete(found.all()[0])
    again = Table(tmp_path, JobLimits())
    assert [job.id[0] for job in again.all()] == ["8", "7"] and (tmp_path / ("b" * 32)).exists()


def test_a_jobs_folder_is_its_owners_alone_on_disk(server):
    services, clients, _ = server()
    job_id = clients["alice"].submit()["id"]
    found = folder_of(services, job_id)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.parent.glob("jobs.sqlite*")} == {0o600}


def test_a_job_that_has_not_ended_is_not_removed(server):
    services, clients, _ = server()
    job = services.table.get("alice", clients["alice"].submit()["id"])
    with pytest.raises(UserError, match="has not ended"):
        services.table.delete(job)
    assert services.table.get("alice", job.id) == job


def test_a_folder_is_of_one_server_at_a_time(server, tmp_path, tiny):
    server()
    with pytest.raises(UserError, match="another server uses"):
        opened(tmp_path / "root", tiny)
