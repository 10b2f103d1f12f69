"""What a job may say: models, data, options and rewards."""

import json

import pytest

from tests.serving.jobs.serving import SAID, config_of, folder_of, refused, rl, sft

SOURCE = "def reward(completion):\n    return 1.0\n"


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
    assert (services.table.root.parent / "keys.json").exists()


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
    assert "unknown option" in refused(clients["alice"], asked) and len(services.table.all()) == 1


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
        *(("steps", value) for value in (0, -1, 1.5, "2", True, None, [2], 10**9, 10**400, 1e400)),
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
    assert "trusts" in refused(clients["bob"], body) and not services.table.all()
    assert "trusts" in refused(clients["bob"], rl(reward=[{"verifier": "numbers"}, {"file": SOURCE}]))
    job_id = clients["alice"].post("jobs", json=body).json()["id"]
    assert (folder_of(services, job_id) / "reward.py").read_text() == SOURCE
    assert config_of(services, job_id)["reward"] == "reward.py:reward=1.0"


@pytest.mark.parametrize("function", ["", "a b", "a=1", "a:b", "../x", "a\n", "1a", "a.b"])
def test_the_function_of_a_source_is_a_name(shared, function):
    _, clients, _ = shared
    assert "function" in refused(clients["alice"], rl(reward={"file": SOURCE, "function": function}))


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
    assert "weight" in refused(clients["alice"], rl(reward={"verifier": "numbers", "weight": weight}))


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
