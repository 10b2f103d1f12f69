"""What hostile programs leave behind: `python benchmarks/hostile.py --programs 1000`.

Programs of `tests/sandbox/hacks.py` in turn, two at a time; then processes, descriptors, files in the temporary folder,
listening ports and memory of this machine are compared with those before.
"""

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

from posttrain.sandbox import try_solution
from tests.sandbox.hacks import HACKS, LIMITS


def state() -> dict[str, set[str]]:
    """What there is of each kind; processes by the namespace of their pids, so that others' may come and go."""
    processes = set[str]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"bwrap" in words[0] or any(b"import inside" in word or b"from inside" in word for word in words):
                    processes.add(folder.name)
            except OSError:
                pass
    ports = set[str]()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        ports |= {f"{name} {row[1]}" for row in rows if row[3] in ("0A", "07")}
    files = set(os.listdir(tempfile.gettempdir()))
    mounts = set(Path("/proc/mounts").read_text().splitlines())
    descriptors = set(os.listdir("/proc/self/fd"))
    return {"processes": processes, "ports": ports, "files": files, "mounts": mounts, "descriptors": descriptors}


def main(programs: int) -> None:
    """Run them and print what is left."""
    tempfile.tempdir = tempfile.mkdtemp()  # whose files are ours alone
    one = try_solution(["def double(x): return x + x"], ["assert double(2) == 4"], ["double"])
    assert one.results[0].passed  # which also starts the thread that starts boxes
    before, began = state(), time.perf_counter()

    def run(item: tuple[str, object]) -> bool:
        name, _ = item
        hack = HACKS[name]
        names = [word for word in ("double", "ordered", "half") if any(word in test for test in hack.tests)]
        trial = try_solution([hack.source], hack.tests, names, trusted=hack.trusted, limits=LIMITS)
        return any(result.passed for result in trial.results)

    with ThreadPoolExecutor(2) as pool:
        passed = sum(pool.map(run, islice(cycle(HACKS.items()), programs)))
    seconds = time.perf_counter() - began
    time.sleep(1)
    after = state()
    left = {kind: sorted(after[kind] - before[kind]) for kind in before}
    print(json.dumps({"programs": programs, "passed": passed, "seconds": round(seconds, 1), "left": left}))
