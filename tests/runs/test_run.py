from pathlib import Path

import pytest

from posttrain.errors import DataError, UserError
from posttrain.runs.run import read_run


def test_a_run_that_has_only_begun_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("steps = 4\n")
    run = read_run(tmp_path)
    assert (run.config, run.environment, run.metrics, run.samples, run.command) == ({"steps": 4}, {}, [], [], "")


def test_a_run_that_goes_on_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"ste')
    assert read_run(tmp_path).metrics == [{"step": 1}]


def test_a_folder_that_is_no_run_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run at .*; expected a run directory with a config\.toml"):
        read_run(tmp_path)


@pytest.mark.parametrize("text, why", [("{", "is not JSON"), ("[1]", "expected one JSON object; got list")])
def test_a_damaged_environment_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "environment.json").write_text(text)
    with pytest.raises(DataError, match=rf"environment\.json.*{why}"):
        read_run(tmp_path)
