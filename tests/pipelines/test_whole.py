"""A pipeline of real commands, killed with its stage in the middle of it, ends as one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from posttrain.cli import main
from posttrain.runs.config_file import read
from tests.recipes.folders import model_folder

OF_THE_MACHINE = ("seconds/", "tokens_per_second", "memory_gb")
TEXT = """
[[stage]]
name = "cold"
run = "sft"
model = "model"
dataset = "rows.jsonl"
examples_per_step = 2
steps = 40
save_every = 4
precision = "float32"
[[stage]]
name = "reason"
run = "rl"
model = "${cold}"
dataset = "rows.jsonl"
reward = "reward.py:varied"
prompts_per_step = 2
completions_per_prompt = 3
max_new_tokens = 4
steps = 2
precision = "float32"
[stage.knobs]
kl_coefficient = 0.0
"""


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_bytes().split(b"\n")[:-1] if (run / "metrics.jsonl").is_file() else []
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(OF_THE_MACHINE)} for line in lines]


def weights(run: Path) -> dict[str, bytes]:
    last = max((run / "checkpoints").iterdir())
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def start(*words):
    command = [sys.executable, "-m", "posttrain", "pipeline", *words, "--json"]
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=settings)


def test_a_killed_pipeline_goes_on_and_ends_as_one_that_was_not(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "model")
    (tmp_path / "p.toml").write_text(TEXT)
    (tmp_path / "reward.py").write_text("def varied(completion):\n    return float(len(completion) % 3)\n")
    told = [{"prompt": f"{i}+2?", "completion": f"It is {i + 2}.", "answer": ""} for i in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    out = tmp_path / "out"
    process = start("p.toml", "--output", str(out))
    while len(rows(out / "cold")) < 7:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    process.kill()
    begun = json.loads((out / "stages.jsonl").read_text().splitlines()[-1])
    os.kill(begun["pid"], signal.SIGKILL)
    process.communicate()
    assert (begun["stage"], begun["state"]) == ("cold", "begun") and len(rows(out / "cold")) < 40
    process = start("--resume", str(out))
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    states = [json.loads(line) for line in (out / "stages.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["state"]) for row in states] == [
        ("cold", "begun"),
        ("cold", "begun"),
        ("cold", "done"),
        ("reason", "begun"),
        ("reason", "done"),
    ]
    assert read(out / "reason.toml")["model"] == str(out / "cold")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:  # each stage once more, alone
        for command, stage in (("sft", "cold"), ("rl", "reason")):
            alone = tmp_path / stage
            assert main([command, "--config", str(out / f"{stage}.toml"), "--output", str(alone), "--quiet"]) == 0
            assert rows(out / stage) == rows(alone) and weights(out / stage) == weights(alone) != {}
    finally:
        torch.set_num_threads(threads)
    assert "cold/report.html" in (out / "report.html").read_text()
