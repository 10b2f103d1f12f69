"""What jobs write is read as what it is, and nothing else."""

import io
import os
import tarfile

from posttrain.serving.jobs.table import RUNNING, SUCCEEDED
from tests.serving.jobs.serving import folder_of

SOURCE = "def reward(completion):\n    return 1.0\n"


# What jobs write


def ended(server, **settings):
    services, clients, _ = server(**settings)
    job_id = clients["alice"].submit()["id"]
    services.table.change(services.table.get("alice", job_id), state=SUCCEEDED)
    return clients["alice"], job_id, folder_of(services, job_id)


def test_logs_are_plain_text_without_control_characters(server):
    alice, job_id, folder = ended(server)
    (folder / "log.txt").write_bytes(b"<script>alert(1)</script>\x1b]0;evil\x07\x1b[2J\r\x00\n\xff\xe2\x80\xae\ttab\n")
    answer = alice.get(f"jobs/{job_id}/logs")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.text == "<script>alert(1)</script>\\x1b]0;evil\\x07\\x1b[2J\\x0d\\x00\n\ufffd\\x202e\ttab\n"


def test_samples_and_metrics_are_never_a_page(server):
    alice, job_id, folder = ended(server)
    (folder / "run").mkdir()
    (folder / "run/samples.jsonl").write_text('{"step": 1, "completion": "<script>"}\n')
    answer = alice.get(f"jobs/{job_id}/samples")
    assert answer.json() == {"rows": [{"step": 1, "completion": "<script>"}], "next": 1}
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_links_in_a_jobs_folder_lead_nowhere(server, tmp_path):
    alice, job_id, folder = ended(server)
    secret = tmp_path / "secret"
    secret.write_text('{"step": 3, "secret": 1}\n')
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/metrics.jsonl").write_text('{"step": 3, "secret": 1}\n')
    (folder / "log.txt").symlink_to(secret)
    (folder / "run").symlink_to(tmp_path / "elsewhere")
    for part in ("logs", "metrics", "samples"):
        answer = alice.get(f"jobs/{job_id}/{part}")
        assert answer.status_code == 200 and "secret" not in answer.text
    assert alice.job(job_id)["step"] == 0
    (folder / "run").unlink()
    (folder / "run").mkdir()
    (folder / "run/metrics.jsonl").symlink_to(secret)
    assert alice.get(f"jobs/{job_id}/metrics").json()["rows"] == []


def test_what_is_no_file_is_not_read(server):
    alice, job_id, folder = ended(server)
    os.mkfifo(folder / "log.txt")  # to open one would wait for a writer
    assert alice.get(f"jobs/{job_id}/logs", timeout=60).text == ""
    (folder / "log.txt").unlink()
    (folder / "log.txt").mkdir()
    assert alice.get(f"jobs/{job_id}/logs").text == ""


def test_a_result_has_models_files_alone_and_follows_no_links(server, tmp_path):
    alice, job_id, folder = ended(server)
    assert alice.get(f"jobs/{job_id}/result").status_code == 409
    secret = tmp_path / "secret"
    secret.write_text("secret")
    export = folder / "export"
    export.mkdir()
    (export / "model.safetensors").write_bytes(b"w" * 5000)
    (export / "config.json").write_text("{}")
    for name in ("pickle.bin", "x.pt", "x.pkl", "evil.py", ".hidden.json"):
        (export / name).write_bytes(b"no")
    (export / "linked.json").symlink_to(secret)
    (export / "sub.json").mkdir()
    answer = alice.get(f"jobs/{job_id}/result")
    assert answer.headers["content-type"] == "application/x-tar" and b"secret" not in answer.content
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as found:
        assert found.getnames() == [f"{job_id}/config.json", f"{job_id}/model.safetensors"]
        assert all(member.isreg() for member in found)
        assert found.extractfile(f"{job_id}/model.safetensors").read() == b"w" * 5000
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text("secret")
    for path in export.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    export.rmdir()
    export.symlink_to(tmp_path / "other")
    assert alice.get(f"jobs/{job_id}/result").status_code == 409


def test_a_job_that_runs_has_no_result_and_is_not_deleted(server):
    services, clients, _ = server()
    job_id = clients["alice"].submit()["id"]
    (folder_of(services, job_id) / "export").mkdir()
    (folder_of(services, job_id) / "export/config.json").write_text("{}")  # being written
    for _ in range(2):
        assert clients["alice"].get(f"jobs/{job_id}/result").status_code == 409
        assert clients["alice"].delete(f"jobs/{job_id}").status_code == 409
        services.table.change(services.table.get("alice", job_id), state=RUNNING)
    assert folder_of(services, job_id).exists()
