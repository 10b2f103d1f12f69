"""How much memory this process has taken."""

import resource
import sys


def peak_gb() -> float:
    """The most resident memory so far, in GB (10^9 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9  # macOS counts bytes, Linux kilobytes
