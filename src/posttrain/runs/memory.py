"""What a step cost, and the memory that there is."""

import contextlib
import os
import resource
import sys
import time
from pathlib import Path


def peak_gb() -> float:
    """The most resident memory so far, in GB (10^9 bytes)."""
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
