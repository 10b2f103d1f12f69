"""Stands in for posttrain in tests of processes: `stub.py MODE COMMAND OPTIONS`, in a job's folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def export(mode):
    Path("export").mkdir()
    with Path("exports").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if mode == "exports slowly" and len(Path("exports").read_text().splitlines()) == 1:
        Path("export/config.json").write_text("{}")
        time.sleep(60)
    Path("export/model.safetensors").write_bytes(b"weights")
    Path("export/README.md").write_text("from /models/secret-place")


def checkpoint(step):
    Path(f"run/checkpoints/step-{step:06d}").mkdir(parents=True)
    with Path("run/metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step}) + "\n")


def train(mode, words):
    here = os.open("alone", os.O_CREAT | os.O_EXCL)  # a second process at the same time would fail
    resumed = "--resume" in words
    with Path("starts").open("a") as file:
        file.write(f"{os.getpid()} {'resumed' if resumed else 'new'} {' '.join(words)}\n")
    Path("environment.json").write_text(json.dumps(dict(os.environ)))
    asked, end = [], time.monotonic() + 60  # where a test has failed
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1) if mode != "stubborn" else None)
    if mode in ("quick", "waits", "stubborn", "prints", "breaks", "breaks twice", "exports slowly", "dies"):
        checkpoint(len(Path("starts").read_text().splitlines()))
    if mode == "stubborn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path("child").write_text(str(child.pid))
    Path("ready").write_text("")
    if mode == "dies" and len(Path("starts").read_text().splitlines()) < 3:
        os.unlink("alone")
        os.kill(os.getpid(), signal.SIGKILL)
    if mode.startswith(("fails", "breaks")):
        print("some output\nposttrain: no such \x1b[31mthing", flush=True)
    while mode in ("waits", "stubborn", "silent") and not asked and time.monotonic() < end:
        time.sleep(0.01)
    while mode == "prints" and not asked:
        print("x" * 1000, flush=True)
    os.close(here)
    os.unlink("alone")
    return 143 if asked else 2 if mode.startswith(("fails", "breaks")) else 0


if __name__ == "__main__":
    mode, command, *words = sys.argv[1:]
    if command == "export" and mode == "breaks twice":
        sys.exit("posttrain: no export")
    sys.exit(export(mode) if command == "export" else train(mode, words))
