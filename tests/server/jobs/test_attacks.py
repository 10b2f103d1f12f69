"""What clients must not be able to do; docs/jobs.md names the tests of each attack."""

import asyncio
import gzip
import io
import json
import os
import stat
import tarfile
import tomllib

import httpx
import pytest

from posttrain.server.jobs.app import create_jobs_app
from posttrain.server.jobs.limits import JobLimits
from posttrain.server.jobs.record import RUNNING, SUCCEEDED
from tests.server.jobs.serving import PAIRS, SAID, SUMS, Client, opened, rl, served, sft

SOURCE = "def reward(completion):\n    return 1.0\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory, tiny):
    """One server for tests that change nothing; alice has a job that waits."""
    services, secrets = opened(tmp_path_factory.mktemp("shared") / "root", tiny, at_once=0)
    with served(services) as url, Client(url, secrets["alice"]) as alice, Client(url, secrets["bob"]) as bob:
        alice.submit()
        yield services, {"alice": alice, "bob": bob}, url


def refused(client, body, status=400):
    """The text with which a job is refused."""
    answer = client.post("jobs", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def folder_of(services, job_id):
    return services.store._folder / job_id


def config_of(services, job_id):
    return tomllib.loads((folder_of(services, job_id) / "job.toml").read_text())


# Another's jobs


def test_another_owners_job_is_as_if_it_were_not_there(server):
    services, clients, _ = server()
    alice, bob = clients["alice"], clients["bob"]
    job_id = alice.submit()["id"]
    services.store.change(services.store.get("alice", job_id), state=SUCCEEDED)
    missing = "0" * 32
    for at in (job_id, missing):
        answers = [
            bob.get(f"jobs/{at}"),
            *(bob.get(f"jobs/{at}/{part}") for part in ("logs", "metrics", "samples", "result")),
            bob.post(f"jobs/{at}/cancel"),
            bob.delete(f"jobs/{at}"),
            bob.get("jobs", params={"before": at}),
        ]
        assert [answer.status_code for answer in answers] == [404] * 8
        assert {answer.text.replace(at, "ID") for answer in answers} == {'{"error":"there is no job \'ID\'"}'}
    assert bob.get("jobs").json() == {"jobs": [], "next": None}
    assert alice.job(job_id)["state"] == SUCCEEDED


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", f"jobs{part}") for part in ("", "/ID", "/ID/logs", "/ID/metrics", "/ID/samples", "/ID/result")),
        *(("POST", f"jobs{part}") for part in ("", "/ID/cancel")),
        ("DELETE", "jobs/ID"),
    ],
)
def test_every_route_needs_a_key(shared, method, path):
    services, _, url = shared
    path = path.replace("ID", services.store.all()[0].id)
    for key in ("", "tml-", "tml-wrong", "bearer", "tml-\xe9"):
        with httpx.Client(base_url=f"{url}/v1", headers=[(b"X-API-Key", key.encode("latin-1"))]) as stranger:
            assert stranger.request(method, path).status_code == 401
    assert [job.state for job in services.store.all()] == ["queued"]


def test_a_body_is_not_read_without_a_key(shared):
    services, clients, _ = shared
    sent = []

    async def receive():
        raise AssertionError("the body is read")

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/v1/jobs"}
    scope |= {"raw_path": b"/v1/jobs", "query_string": b"", "root_path": "", "scheme": "http"}
    headers = [(b"host", b"localhost"), (b"content-length", b"1000")]
    app = create_jobs_app(services)
    asyncio.run(app(scope | {"headers": headers}, receive, send))
    assert sent[0]["status"] == 401
    key = clients["alice"].headers["X-API-Key"].encode()
    with pytest.raises(AssertionError, match="the body is read"):
        asyncio.run(app(scope | {"headers": [*headers, (b"x-api-key", key)]}, receive, send))


def test_keys_are_compared_in_constant_time(shared, monkeypatch):
    from posttrain.server import keys

    services, clients, _ = shared
    compared, equal = [], keys.secrets.compare_digest
    monkeypatch.setattr(keys.secrets, "compare_digest", lambda a, b: compared.append(1) or equal(a, b))
    assert services.keys.owner(clients["alice"].headers["X-API-Key"]) == "alice" and compared
    assert "tml-" not in (services.store._folder.parent / "keys.json").read_text()


def test_a_key_that_is_ended_ends_at_once(server):
    services, clients, _ = server()
    assert clients["alice"].get("jobs").status_code == 200
    services.keys.remove("alice")
    assert clients["alice"].get("jobs").status_code == 401 and clients["bob"].get("jobs").status_code == 200


# Paths


@pytest.mark.parametrize(
    "job_id", ["..", "%2e%2e", "..%2f..", "%2e%2e%2fkeys.json", "x" * 32, "A" * 32, "0" * 33, "%00"]
)
def test_ids_that_are_paths_find_nothing(shared, job_id):
    services, clients, _ = shared
    for part in ("", "/logs", "/result", "/metrics"):
        answer = clients["alice"].get(f"jobs/{job_id}{part}")
        assert answer.status_code == 404 and "tml" not in answer.text
    assert clients["alice"].delete(f"jobs/{job_id}").status_code in (404, 405)
    assert (services.store._folder.parent / "keys.json").exists()


def test_data_sets_are_named_not_located(server, tmp_path):
    (tmp_path / "data").mkdir()
    for path in (tmp_path / "secret.jsonl", tmp_path / "data/.hidden", tmp_path / "data/open.jsonl"):
        path.write_text(json.dumps(SAID[0]))
    services, clients, _ = server(datasets=tmp_path / "data")
    for name in ("../secret.jsonl", "/etc/passwd", "..", ".", ".hidden", "a/b", "", "a\x00", "gym:chain_sum", "A/B"):
        refused(clients["alice"], sft(dataset={"name": name}))
        refused(clients["alice"], sft(eval_dataset={"name": name}))
    job_id = clients["alice"].submit(dataset={"name": "open.jsonl"})["id"]
    assert config_of(services, job_id)["dataset"] == str(tmp_path / "data/open.jsonl")


def test_without_a_folder_of_data_sets_there_are_none(shared):
    _, clients, _ = shared
    assert "unknown data set" in refused(clients["alice"], sft(dataset={"name": "a"}))


@pytest.mark.parametrize(
    "model", ["/etc", "..", "../model", "OWNER/NAME", "smollm2-135m-instruct", "tiny ", "Tiny", "runs/x", "http://a/b"]
)
def test_models_are_named_not_located(shared, model):
    _, clients, _ = shared
    assert "unknown model" in refused(clients["alice"], sft(model=model))


def test_a_jobs_folder_is_its_owners_alone_on_disk(server):
    services, clients, _ = server()
    job_id = clients["alice"].submit()["id"]
    found = folder_of(services, job_id)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


# Options


@pytest.mark.parametrize(
    "name",
    [
        *("dataset", "eval_dataset", "model", "reward", "output", "resume", "config", "callback", "track", "judge"),
        *("judge_prompt", "judge_cache", "reward_model", "gold", "gold_model", "environment", "environment_args"),
        *("seats", "chat_template", "engine", "teacher", "pretraining_dataset", "columns", "accept_changes", "json"),
        *("debug", "quiet", "knobs", "cluster", "trainers", "cache_gb", "__class__", "steps ", "STEPS", ""),
    ],
)
@pytest.mark.parametrize("body", [sft, rl])
def test_options_that_name_files_hosts_or_models_are_refused(shared, body, name):
    services, clients, _ = shared
    asked = body()
    asked["options"] = asked["options"] | {name: "x"}
    assert "unknown option" in refused(clients["alice"], asked) and len(services.store.all()) == 1


def test_no_allowed_option_names_anything_outside():
    """Of the recipes' own lists of options that name files and models."""
    from posttrain.server.jobs.options import ALLOWED
    from posttrain.session.inputs import NAMING

    assert all(not {*allowed} & {*NAMING} for allowed in ALLOWED.values())


@pytest.mark.parametrize(
    "value",
    [
        'x"\nreward = "/tmp/evil.py:f',
        "x'''\n[cluster]\ntrainers = 9",
        'x"""',
        "x\\",
        '\\"\nmodel = "/etc"',
        "{prompt}\u2028",
    ],
)
def test_values_cannot_add_keys_to_the_configuration(server, value):
    services, clients, _ = server()
    plain = config_of(services, clients["alice"].submit()["id"])
    options = sft()["options"] | {"system": value}
    job_id = clients["alice"].submit(options=options)["id"]
    assert config_of(services, job_id) == plain | {"system": value}


@pytest.mark.parametrize("knob", ['a"\nb', "a.b", "[a]", "A", "", "a" * 65, "a\n"])
def test_names_of_knobs_cannot_either(shared, knob):
    _, clients, _ = shared
    body = rl(knobs={knob: 1})
    body["options"]["algorithm"] = "grpo"
    assert "name" in refused(clients["alice"], body)


def test_knobs_are_numbers_switches_and_words(server):
    services, clients, _ = server()
    body = rl(knobs={"kl_coefficient": 0.1, "process_rewards": False, "kl_estimator": "k1"})
    body["options"]["algorithm"] = "grpo"
    job_id = clients["alice"].post("jobs", json=body).json()["id"]
    assert config_of(services, job_id)["knobs"] == body["knobs"]
    for value in ("/etc/passwd", "a b", None, [1], {"a": 1}, 1e13):
        refused(clients["alice"], body | {"knobs": {"kl_estimator": value}})
    assert "name it in options.algorithm" in refused(clients["alice"], rl(knobs={"clip": 1}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("steps", value) for value in (0, -1, 1.5, "2", True, None, [2], 10**9, 1e400)),
        *(("lr", value) for value in (-1, 2, "1", True, None)),
        *(("decay", value) for value in ("none", "", 1, ["cosine"])),
        *(("lora_dora", value) for value in (1, "true", None)),
        *(("lora_targets", value) for value in ("a/b", "", "x" * 501, 3, "a\n", "a'b")),
        *(("system", value) for value in (1, "a\x00", "a\x1b[2J", "x" * 20_001)),
    ],
)
def test_values_have_kinds_and_ranges(shared, name, value):
    _, clients, _ = shared
    raw = json.dumps(sft(options={"examples_per_step": 2, name: value}))
    answer = clients["alice"].post("jobs", content=raw)
    assert answer.status_code == 400, answer.text


def test_fields_that_do_not_exist_are_refused(shared):
    _, clients, _ = shared
    assert "output" in refused(clients["alice"], sft(output="/tmp/x"))
    assert "dataset" in refused(clients["alice"], sft(dataset={"rows": SAID, "path": "/etc"}))
    assert "command" in refused(clients["alice"], sft(command="export merge"))
    assert "command" in refused(clients["alice"], sft(command="--help"))


# Rewards


def test_python_source_is_for_keys_that_are_trusted(server):
    services, clients, _ = server()
    body = rl(reward={"file": SOURCE})
    assert "trusts" in refused(clients["bob"], body) and not services.store.all()
    assert "trusts" in refused(clients["bob"], rl(reward=[{"verifier": "numbers"}, {"file": SOURCE}]))
    job_id = clients["alice"].post("jobs", json=body).json()["id"]
    assert (folder_of(services, job_id) / "reward.py").read_text() == SOURCE
    assert config_of(services, job_id)["reward"] == "reward.py:reward=1.0"


@pytest.mark.parametrize("function", ["", "a b", "a=1", "a:b", "../x", "a\n", "1a", "a.b"])
def test_the_function_of_a_source_is_a_name(shared, function):
    _, clients, _ = shared
    refused(clients["alice"], rl(reward={"file": SOURCE, "function": function}))


@pytest.mark.parametrize(
    "verifier",
    ["environment", "solved", "reward.py:f", "/tmp/a.py:f", "numbers=1 /tmp/a.py:f", "https://a/", "judge", "-"],
)
def test_verifiers_are_those_that_posttrain_has(shared, verifier):
    _, clients, _ = shared
    assert "unknown verifier" in refused(clients["alice"], rl(reward={"verifier": verifier}))


def test_addresses_of_rewards_are_public_and_by_https(server):
    services, clients, _ = server()
    job_id = (
        clients["bob"].post("jobs", json=rl(reward={"url": "https://reward.example/a", "weight": 0.5})).json()["id"]
    )
    assert config_of(services, job_id)["reward"] == "public:https://reward.example/a=0.5"
    for url in (
        "http://reward.example/a",
        "ftp://a/",
        "https://u:p@a/",
        "https://a/?x=1",
        "https://a/ /tmp/a.py:f",
        "",
    ):
        refused(clients["bob"], rl(reward={"url": url}))
    two = [{"url": "https://a.example/"}, {"url": "https://b.example/"}]
    assert "one reward of a url" in refused(clients["bob"], rl(reward=two))


def test_an_operator_may_allow_private_addresses(server):
    services, clients, _ = server(private_rewards=True)
    job_id = clients["bob"].post("jobs", json=rl(reward={"url": "http://10.0.0.1:8000/a"})).json()["id"]
    assert config_of(services, job_id)["reward"] == "http://10.0.0.1:8000/a=1.0"


@pytest.mark.parametrize("weight", ["1", None, 1e9])
def test_weights_are_numbers(shared, weight):
    _, clients, _ = shared
    refused(clients["alice"], rl(reward={"verifier": "numbers", "weight": weight}))


def test_weights_that_are_not_finite_are_refused(shared):
    _, clients, _ = shared
    for weight in ("NaN", "Infinity", "1e999"):
        raw = json.dumps(rl(reward={"verifier": "numbers", "weight": 7777})).replace("7777", weight)
        assert clients["alice"].post("jobs", content=raw).status_code == 400


def test_rewards_are_of_rl_jobs_which_need_one(shared):
    _, clients, _ = shared
    assert "a reward is for rl jobs" in refused(clients["alice"], sft(reward={"verifier": "numbers"}))
    assert "needs a reward" in refused(clients["alice"], rl(reward=None))
    assert refused(clients["alice"], rl(reward=[]))


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


# From where


def test_pages_of_browsers_and_other_host_names_are_refused(shared):
    _, clients, url = shared
    key = clients["alice"].headers["X-API-Key"]
    assert Client(url, key, Origin="http://evil.example").get("jobs").status_code == 403
    assert Client(url, key, Host="evil.example").get("jobs").status_code == 421
    assert Client(url, key, Host="localhost:9").get("jobs").status_code == 200


def test_slashes_do_not_redirect(shared):
    _, clients, _ = shared
    assert clients["alice"].get("jobs/").status_code == 404


# What jobs write


def ended(server, **settings):
    services, clients, _ = server(**settings)
    job_id = clients["alice"].submit()["id"]
    services.store.change(services.store.get("alice", job_id), state=SUCCEEDED)
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
    assert alice.get(f"jobs/{job_id}/logs", timeout=10).text == ""


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
    for _ in range(2):
        assert clients["alice"].get(f"jobs/{job_id}/result").status_code == 409
        assert clients["alice"].delete(f"jobs/{job_id}").status_code == 409
        services.store.change(services.store.get("alice", job_id), state=RUNNING)
    assert folder_of(services, job_id).exists()


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
    (folder / "log.txt").write_bytes("één\ntwee".encode()[:-3])
    first = alice.get(f"jobs/{job_id}/logs")
    (folder / "log.txt").write_bytes("één\ntwee".encode())
    rest = alice.get(f"jobs/{job_id}/logs", params={"offset": first.headers["x-next-offset"]})
    assert first.text + rest.text == "één\ntwee"
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


@pytest.mark.parametrize("command", ["rl", "sft", "preference", "reward-model"])
def test_every_option_that_is_allowed_is_one_of_the_command(command):
    from posttrain.options import kinds_of
    from posttrain.recipes.preference import Preferences
    from posttrain.recipes.reward_model import Scoring
    from posttrain.recipes.rl import RL
    from posttrain.recipes.sft import SFT
    from posttrain.server.jobs.options import ALLOWED

    form = {"rl": RL, "sft": SFT, "preference": Preferences, "reward-model": Scoring}[command]
    assert not ALLOWED[command].keys() - kinds_of(form).keys()


def test_every_algorithm_that_is_allowed_is_one():
    from posttrain.algorithms import ALGORITHMS, COMMANDS
    from posttrain.server.jobs.options import ALLOWED

    for command in ("rl", "preference"):
        for name in ALLOWED[command]["algorithm"].words:
            assert COMMANDS[ALGORITHMS[name]().family] == command


def test_what_jobs_were_there_is_there_after_a_restart(server):
    services, clients, _ = server()
    job_id = clients["alice"].submit()["id"]
    (services.store._folder / ".new-x").mkdir()
    services.close()
    from posttrain.server.jobs.store import Store

    again = Store(services.store._folder, JobLimits(), lambda: 0.0)
    assert [job.id for job in again.all()] == [job_id] and not (services.store._folder / ".new-x").exists()


def test_a_folder_is_of_one_server_at_a_time(server, tmp_path, tiny):
    from posttrain.errors import UserError

    server()
    with pytest.raises(UserError, match="another server uses"):
        opened(tmp_path / "root", tiny)
