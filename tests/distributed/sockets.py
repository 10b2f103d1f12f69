"""The TCP sockets of a process and of those that it has started, and which of them can be reached from outside."""

import contextlib
import os
import time
from pathlib import Path

import psutil


def tree(pid):
    """A process and all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def sockets(pid):
    """The ends of all TCP sockets of a process and those that it has started; of listening ones their own."""
    found = set()
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            for socket in process.net_connections("tcp"):
                found |= {end.ip for end in (socket.laddr, socket.raddr) if end}
    return found


INSIDE = {"0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF00000100007F"}  # 127.0.0.1, ::1, ::ffff:127.0.0.1


def outside():
    """The inodes of this machine's TCP sockets of which an end can be reached from outside, or is there."""
    found = set()
    for table in Path("/proc/net").glob("tcp*"):
        for line in table.read_text().splitlines()[1:]:
            _, here, there, state, *_, inode = line.split()[:10]
            ends = [here] if state == "0A" else [here, there]  # listening
            if not {end.partition(":")[0] for end in ends} <= INSIDE:
                found.add(inode)
    return found


def owned_by(pid, inodes):
    """Those of these sockets that a process or those that it has started have."""
    links = {f"socket:[{inode}]" for inode in inodes}
    found = set()
    for process in tree(pid):
        with contextlib.suppress(OSError):
            for file in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    found |= links & {os.readlink(file.path)}
    return found


class Watch:
    """Looks at the sockets of a process while it runs: call `look` again and again.

    Attributes:
        ends: addresses of ends of sockets, seen from time to time, since each process is asked.
        outside: sockets of which an end can be reached from outside, or is there.
    """

    def __init__(self, pid):
        self.pid, self.ends, self.outside = pid, set(), set()
        self._others, self._asked = outside(), 0.0

    def look(self):
        if new := outside() - self._others:
            mine = owned_by(self.pid, new)
            self.outside |= mine
            self._others |= new - mine
        if time.monotonic() - self._asked > 3.0:
            self.ends |= sockets(self.pid)
            self._asked = time.monotonic()
