"""Pairs of the policy's own completions, round after round."""

import json
import math
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain import algorithms
from posttrain.cli import main
from posttrain.engine.policy import load_policy
from posttrain.errors import UserError
from posttrain.recipes import online_preference
from posttrain.recipes.online_preference import OnlinePreference
from posttrain.runs import read_run
from posttrain.training import checkpoint


def config(folder: Path, **changes: Any) -> OnlinePreference:
    common = {"prompts_per_step": 8, "completions_per_prompt": 4, "rounds": 12, "max_new_tokens": 8}
    common |= {"lr": 1e-2, "warmup_steps": 0, "precision": "float32", "reward": f"{folder / 'scorer.py'}:score"}
    return OnlinePreference(dataset=str(folder / "tasks.jsonl"), model=str(folder / "model"), **(common | changes))


def train(options: OnlinePreference, knobs: dict[str, Any] | None = None, **where: Any) -> Any:
    algorithm = algorithms.preference(options.algorithm)(**(knobs or {}))
    return online_preference.run(options, algorithm, **{"quiet": True, **where})


def rows(run: Path) -> list[dict[str, Any]]:
    return read_run(run).metrics


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("dpo", {}),
        ("dpo", {"pairing": "all", "updates_per_round": 4, "rounds": 8, "pairs_per_step": 12}),
        ("simpo", {}),
        ("irpo", {"ref_sync_every": 2}),
    ],
)
def test_it_learns_to_please(name, changes, folder, tmp_path):
    result = train(config(folder, algorithm=name, **changes), output=tmp_path / "run")
    rewards = [row["reward/mean"] for row in rows(result.run)]
    assert rewards[-1] > rewards[0] + 0.1


def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(folder, tmp_path):
    options = config(folder, rounds=4, updates_per_round=2, pairing="all", ref_sync_every=1, save_every=1)
    whole = train(options, output=tmp_path / "whole").run
    part = train(replace(options, rounds=2), output=tmp_path / "part").run
    train(options, resume=part)
    timed = ("seconds/", "tokens_per_second", "memory_gb")
    curves = [[{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows(run)] for run in (whole, part)]
    assert curves[0] == curves[1] and len(curves[0]) == 4
    paths = [checkpoint.latest(run / "checkpoints").path for run in (whole, part)]
    for file in ("masters.safetensors", "reference.safetensors"):
        first, second = (checkpoint.load_tensors(path / file) for path in paths)
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_of_one_update_a_round_each_learns_from_what_the_policy_is_now(folder, tmp_path):
    run = train(config(folder, rounds=2, pairs_per_step=99, ref_sync_every=1), output=tmp_path / "run").run
    found = rows(run)
    # the reference is the policy that sampled, so no response has a reward yet
    assert [row["pairs/margin"] for row in found] == pytest.approx([0.0, 0.0], abs=1e-4)
    assert all(0 < row["pairs/made"] <= 8 for row in found)
    assert read_run(run).command == "online-preference"


def test_a_round_is_divided_among_its_updates(folder, tmp_path):
    options = config(folder, pairs_per_step=4, updates_per_round=3)
    pairs: list[Any] = list(range(12))
    first, second = (online_preference._batches(options, pairs, step) for step in (0, 1))
    assert sorted(chain(*first)) == pairs == sorted(chain(*second)) and first != second
    assert [len(batch) for batch in first] == [4, 4, 4]
    assert [sorted(batch) for batch in online_preference._batches(options, pairs[:2], 0)] == [[0, 1]] * 3
    assert online_preference._batches(options, [], 0) == []
    still = config(folder, rounds=1, updates_per_round=3, lr=1e-12)  # what is logged of them is their mean
    (row,) = rows(train(still, output=tmp_path / "run").run)
    assert row["loss"] == pytest.approx(math.log(2), abs=1e-4)


def test_every_round_samples_anew(folder, tmp_path):
    run = train(config(folder, rounds=2, lr=1e-12, prompts_per_step=99), output=tmp_path / "run").run
    first, second = ([s for s in read_run(run).samples if s["step"] == step] for step in (1, 2))
    assert first and [s["completion"] for s in first] != [s["completion"] for s in second]


def test_a_round_without_pairs_learns_nothing_and_says_so(folder, tmp_path):
    result = train(config(folder, rounds=1, margin=2.0), output=tmp_path / "run")
    (row,) = rows(result.run)
    assert row["pairs/made"] == 0 and "loss" not in row
    kept = checkpoint.load_tensors(checkpoint.latest(result.run / "checkpoints").path / "masters.safetensors")
    fresh = dict(load_policy(config(folder).model, precision="float32").model.trainable())
    assert all(torch.equal(kept[name], fresh[name]) for name in kept)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"pairing": "best"}, "unknown pairing 'best'"),
        ({"completions_per_prompt": 1}, "a pair needs two completions of a prompt"),
        ({"algorithm": "kto"}, "kto is unpaired"),
        ({"rounds": 0}, "`rounds` must be 1 or more"),
        ({"updates_per_round": 0}, "`updates_per_round` must be 1 or more"),
        ({"margin": -1.0}, "`margin` must be 0 or more"),
        ({"microbatch_tokens": 40}, "a prompt and two completions may have"),
    ],
)
def test_what_cannot_be_is_refused(changes, what, folder, tmp_path):
    with pytest.raises(UserError, match=what):
        train(config(folder, **changes), output=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_a_run_begun_as_preference_iterate_goes_on_as_online_preference(folder, tmp_path, capsys):
    words = ["online-preference", "--dataset", str(folder / "tasks.jsonl"), "--model", str(folder / "model"), "--quiet"]
    words += ["--reward", f"{folder / 'scorer.py'}:score", "--max-new-tokens", "4", "--rounds", "1"]
    run = tmp_path / "run"
    assert main([*words, "--output", str(run)]) == 0
    settings, about = run / "config.toml", run / "environment.json"
    settings.write_text(
        settings.read_text().replace("rounds = 1", "iterate = 1").replace("online-preference", "preference")
    )
    about.write_text(json.dumps(json.loads(about.read_text()) | {"command": "preference"}))
    capsys.readouterr()
    assert main(["preference", "--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f"not of posttrain preference; type: posttrain online-preference --resume {run}\n")
    assert main(["online-preference", "--resume", str(run), "--quiet"]) == 0
    assert main(["online-preference", "--resume", str(run), "--rounds", "2", "--quiet"]) == 0
    assert main(["online-preference", "--resume", str(run), "--rounds", "3", "--quiet"]) == 0
    assert len(rows(run)) == 3
    assert settings.read_text().startswith("# To repeat: posttrain online-preference --config <this file>\n")
    assert read_run(run).command == "online-preference" and "iterate" not in read_run(run).config
