"""Stands for `python -m posttrain` in tests of pipelines: writes what a command would, and fails where it is told to.

Its folder has `calls.jsonl`, to which each call is added, and may have NAME.does, which says what the stage NAME does
the next time: fail, wait (for a signal), signal (its parent, then wait for that to be passed on), or die.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

command, *rest = sys.argv[1:]
words = dict(zip(rest, [*rest[1:], ""], strict=True))
folder = Path(words.get("--output") or words.get("--resume") or Path(words["--config"]).with_suffix(""))
does = Path(f"{folder.name}.does")
what = does.read_text() if does.exists() else ""
does.unlink(missing_ok=True)
with Path("calls.jsonl").open("a") as file:
    file.write(json.dumps([command, folder.name, "resume" if "--resume" in words else "begin"]) + "\n")
if "--dry-run" in rest and what != "fail":
    assert not folder.exists() and Path(words["--config"]).is_file()
    plan = {"command": command, "model": "tiny", "seconds": 90.0, "peak_bytes": 2e9, "disk_bytes": 1e9}
    plan["free_disk_bytes"] = 1.5e9
    print(json.dumps(plan | {"warnings": ["it is small"] if folder.name == "cold" else []}))
    sys.exit(0)
told = []
signal.signal(signal.SIGINT, lambda number, frame: told.append(130))
signal.signal(signal.SIGTERM, lambda number, frame: told.append(143))
if command == "sft":
    folder.mkdir(exist_ok=True)
    for name in ("config.toml", "environment.json"):
        (folder / name).write_text("")
    (folder / "metrics.jsonl").write_text('{"step": 1, "tokens": 30}\n{"step": 2, "tokens": 12}\n')
if what == "signal":
    os.kill(os.getppid(), signal.SIGINT)
if what in ("signal", "wait"):
    end = time.monotonic() + 20
    while not told and time.monotonic() < end:
        time.sleep(0.02)
    sys.exit(told[0] if told else 1)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "fail":
    print("posttrain: it cannot be", file=sys.stderr)
    sys.exit(2)
answer = {"run": str(folder), "steps": 2}
if command == "best-of-n":
    for option in ("output", "pairs"):
        (folder / f"{option}.jsonl").write_text("{}\n")
    answer = {"path": str(folder), "prompts": 4, "kept": 3}
if command == "evaluate":
    folder.mkdir()
    solved = {"cold.evaluate": [[1, 0], [0, 0]], "again.evaluate": [[1, 1], [0, 1]]}[folder.name]
    rows = [
        {"task": str(task), "decoding": "sampled", "model": "m", "rewards": {"gym": float(one)}, "reward": 9.0}
        for task, some in enumerate(solved)
        for one in some
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = {"decoding": "sampled", "outcome": "gym", "model": "m", "ci95": [0.1, 0.9], "n": 2}
    answer = {"accuracy": sum(map(sum, solved)) / 4} | shared
print(json.dumps(answer))
