"""Process memory and available memory."""

import contextlib
import os
import resource
import sys
from pathlib import Path


def peak_gb() -> float:
    """The most resident memory so far, in GB (10^9 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9  # macOS counts bytes, Linux kilobytes


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
