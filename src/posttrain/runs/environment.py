"""The environment of a run: versions, hardware, commit, memory; and what a step cost."""

import contextlib
import os
import platform
import subprocess
import sys
import time
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
_CPUINFO = Path("/proc/cpuinfo")


def describe_environment(config: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Describe process and machine. `config` is searched for seeds, `folder` (or where we are) for a git commit."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command_line": sys.argv,
        "seeds": {key: value for key, value in config.items() if key == "seed" or key.endswith(("_seed", "seeds"))},
        "versions": _versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": next(iter(_about_cpu(_CPUINFO, "model name")), platform.processor() or platform.machine()),
        "cpu_features": list(cpu_features()),
        # those that this process may use, which can be fewer than exist
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "git": _git(folder or Path.cwd()),
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _about_cpu(file: Path, *fields: str) -> list[str]:
    """The values of these fields; none where the system does not tell."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(fields)]


FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "bf16", "sve")
"""Of the instruction sets of x86 and ARM, as Linux names them, those that decide how fast matrix products are."""


def cpu_features(cpuinfo: Path = _CPUINFO) -> tuple[str, ...]:
    """Which of `FEATURES` the processor has; none where the system does not tell."""
    flags = {flag for line in _about_cpu(cpuinfo, "flags", "Features") for flag in line.split()}
    return tuple(name for name in FEATURES if name in flags)


def machine_line(environment: Mapping[str, Any]) -> str:
    """The compute environment in one line, such as `EPYC (avx2), 2 threads, float32`, or the GPU."""
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


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1)
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit that `folder` is at and whether files differ from it; None outside a repository or without git."""

    def ask(*arguments: str) -> str:
        # --no-optional-locks: asking must not disturb a git command of the user's that runs at the same time.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return answer.stdout.strip() if answer.returncode == 0 else ""

    if not (commit := ask("rev-parse", "HEAD")):
        return None
    return {"commit": commit, "changed": bool(ask("status", "--porcelain", "--untracked-files=no"))}


def peak_gb() -> float:
    """The most resident memory so far, in GB (10^9 bytes)."""
    import resource  # which Windows lacks

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9  # macOS counts bytes, Linux kilobytes


def step_cost(began: float, tokens: float, sampled: float = 0.0, *, overlapped: bool = False) -> dict[str, float]:
    """Seconds since `began` (of `time.perf_counter`), tokens per second, and the most memory held so far.

    Of a step that has sampled `tokens`, until `sampled`, also the seconds of sampling and of learning since, and tokens
    per second of sampling. Where they were sampled while earlier steps were trained (`overlapped`), `seconds/rollout`
    is what training waited, and tokens per second are those of the whole step.
    """
    now = time.perf_counter()
    parts = {"seconds/rollout": sampled - began, "seconds/train": now - sampled} if sampled else {}
    rate = tokens / (sampled - began if sampled and not overlapped else now - began)
    return parts | {"seconds/step": now - began, "tokens_per_second": rate, "memory_gb": peak_gb()}


def total_bytes() -> int:
    """Memory of this machine, or the limit of the container."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def available_bytes() -> int:
    """Memory that a new program can have: what the kernel calls available, or less in a container with a limit."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found = min(found, max(0, limit - used))
    return found
