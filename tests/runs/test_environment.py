import json
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from posttrain.runs import environment
from posttrain.runs.environment import cpu_features, describe_environment, machine_line


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_versions_hardware_and_seeds(tmp_path: Path) -> None:
    config = {"seed": 3, "eval_seed": 4, "seeded": True, "steps": 5}
    found = describe_environment(config, tmp_path)
    assert found["seeds"] == {"seed": 3, "eval_seed": 4}
    assert found["versions"]["numpy"] == metadata.version("numpy")
    assert "vllm" in environment.PACKAGES and None not in found["versions"].values()
    assert found["cores"] >= 1 and found["memory_gb"] > 0.1 and found["cpu"]
    assert found["git"] is None
    assert json.loads(json.dumps(found)) == found


def test_the_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert describe_environment({}, tmp_path)["git"] is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert describe_environment({}, tmp_path)["git"] == {"commit": commit, "changed": False}
    (tmp_path / "b").write_text("not tracked, such as a run directory")
    assert describe_environment({}, tmp_path)["git"] == {"commit": commit, "changed": False}
    (tmp_path / "a").write_text("2")
    assert describe_environment({}, tmp_path)["git"] == {"commit": commit, "changed": True}


def test_a_machine_without_git_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_environment({}, tmp_path)["git"] is None


INTEL = "processor\t: 0\nflags\t\t: fpu avx avx2 avx512f avx512_bf16 amx_bf16 amx_tile\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\n"


@pytest.mark.parametrize(
    ("cpuinfo", "features"),
    [
        (INTEL, ("avx2", "avx512f", "avx512_bf16", "amx_bf16")),
        ("flags\t: fpu avx avx2\nbugs\t: avx512f\n", ("avx2",)),
        (ARM, ("asimd", "bf16")),
        ("", ()),
        (None, ()),
    ],
)
def test_what_the_processor_has_for_matrix_products(
    tmp_path: Path, cpuinfo: str | None, features: tuple[str, ...]
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert cpu_features(tmp_path / "cpuinfo") == features


def test_a_run_says_in_one_line_what_it_computes_on() -> None:
    cpu = {"cpu": "AMD EPYC", "cpu_features": ["avx2"], "threads": 2, "precision": "torch.float32"}
    assert (
        machine_line(cpu | {"precision_reason": "`precision`"}) == "AMD EPYC (avx2), 2 threads, float32 (`precision`)"
    )
    assert machine_line(cpu | {"cpu_features": [], "threads": 1}) == "AMD EPYC, 1 thread, float32"
    gpu = cpu | {"gpu": "NVIDIA H100", "precision": "torch.bfloat16", "precision_reason": "the GPU has bfloat16"}
    assert machine_line(gpu) == "NVIDIA H100, bfloat16 (the GPU has bfloat16)"
