"""Processes of posttrain: how one is started, and what tells it from another of its number."""

import subprocess
import sys
from pathlib import Path

PROGRAM = (sys.executable, "-P", "-m", "posttrain")  # -P: what is in the folder that it works in is no module

PROC = Path("/proc")
LINUX = (PROC / "self/stat").exists()


def born(pid: int) -> str:
    """What tells a living process from an earlier one of its number; "" where there is none, or a zombie."""
    if LINUX:
        try:
            about = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return "" if about[0] in "ZX" else f"{boot} {about[19]}"
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    status, *since = shown.stdout.split() or ["Z"]
    return "" if status.startswith("Z") else " ".join(since)
