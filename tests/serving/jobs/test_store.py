"""How much a client may send and have."""

import gzip
import json
import stat

import pytest

from posttrain.errors import UserError
from posttrain.serving.limits import JobLimits
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
    assert clients["alice"].post("jobs", content=raw).status_code == 400 and not services.store.all()


@pytest.mark.parametrize("raw", [b"", b"[", b"null", b"[]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'"\\ud800"'])
def test_bodies_that_are_no_job_are_refused(shared, raw):
    _, clients, _ = shared
    assert clients["alice"].post("jobs", content=raw).status_code == 400


def test_rows_that_nest_deeply_or_hold_half_characters_do_no_harm(server):
    services, clients, _ = server()
    for inner in ('{"prompt": "a", "completion": "\\ud800"}', '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}"):
        raw = json.dumps(sft(dataset={"rows": ["ROW"]})).replace('"ROW"', inner)
        assert clients["alice"].post("jobs", content=raw).status_code in (201, 400)
    for path in services.store._folder.glob("*/data/*.jsonl"):
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
    assert not [path for path in services.store._folder.iterdir() if path.name.startswith(".")]


def test_what_is_refused_leaves_nothing(server):
    services, clients, _ = server()
    refused(clients["alice"], sft(options={"system": "{prompt}", "steps": -1}))
    assert not list(services.store._folder.iterdir())


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
    services, clients, _ = server()
    job_id = clients["alice"].submit()["id"]
    (services.store._folder / ".new-x").mkdir()
    services.close()
    from posttrain.serving.jobs.store import Store

    again = Store(services.store._folder, JobLimits(), lambda: 0.0)
    assert [job.id for job in again.all()] == [job_id] and not (services.store._folder / ".new-x").exists()


def test_a_jobs_folder_is_its_owners_alone_on_disk(server):
    services, clients, _ = server()
    job_id = clients["alice"].submit()["id"]
    found = folder_of(services, job_id)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((found / "job.json").stat().st_mode) == 0o600


def test_a_job_that_has_not_ended_is_not_removed(server):
    services, clients, _ = server()
    job = services.store.get("alice", clients["alice"].submit()["id"])
    with pytest.raises(UserError, match="has not ended"):
        services.store.delete(job)
    assert services.store.get("alice", job.id) == job


def test_a_folder_is_of_one_server_at_a_time(server, tmp_path, tiny):
    server()
    with pytest.raises(UserError, match="another server uses"):
        opened(tmp_path / "root", tiny)
