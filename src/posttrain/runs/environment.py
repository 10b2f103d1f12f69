"""The environment of a run: versions, hardware, commit."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "posttrain",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "gguf",
    "peft",
    "datasets",
    "math-verify",
    "reasoning-gym",
    "numpy",
    "vllm",
    "ray",
)
"""Packages whose version can change a result."""

_GIB = 2**30


def describe_environment(config: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Describe process and machine. `config` is searched for seeds, `folder` (or where we are) for a git commit."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": sys.argv,
        "seeds": {key: value for key, value in config.items() if key == "seed" or key.endswith(("_seed", "seeds"))},
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_features": list(cpu_features()),
        "cores": _cores(),
        "memory_gb": _memory_gb(),
        "git": _git(folder or Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "bf16", "sve")
"""Of the instruction sets of x86 and ARM, as Linux names them, those that decide how fast matrix products are."""


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Which of `FEATURES` the processor has; none where the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return ()
    flags = {
        flag for line in lines if line.startswith(("flags", "Features")) for flag in line.partition(":")[2].split()
    }
    return tuple(name for name in FEATURES if name in flags)


def machine_line(environment: Mapping[str, Any]) -> str:
    """The compute environment in one line: processor or GPU, instruction sets, threads, number format.

    Example:
        >>> machine_line({"cpu": "EPYC", "cpu_features": ["avx2"], "threads": 2, "precision": "torch.float32"})
        'EPYC (avx2), 2 threads, float32'
    """
    if gpu := environment.get("gpu"):
        parts = [str(gpu)]
    else:
        features = ", ".join(environment.get("cpu_features", ()))
        parts = [str(environment.get("cpu", "")) + (f" ({features})" if features else "")]
        if threads := environment.get("threads"):
            parts.append(f"{threads} thread{'s' if threads > 1 else ''}")
    reason = environment.get("precision_reason")
    precision = str(environment.get("precision", "")).removeprefix("torch.")
    return ", ".join(filter(None, [*parts, f"{precision} ({reason})" if reason else precision]))


def _cores() -> int | None:
    """Number of cores that this process may use, which can be fewer than exist."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1)
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit that `folder` is at and whether files differ from it; None outside a repository or without git."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "changed": bool(_ask_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _ask_git(folder: Path, *arguments: str) -> str | None:
    # --no-optional-locks: asking must not disturb a git command of the user's that runs at the same time.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
