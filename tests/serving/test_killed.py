"""The command in a process of its own, killed by SIGKILL."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("tinker", reason="needs the extra server")

import httpx

from posttrain.serving import checkpoints
from posttrain.training.checkpoint import load_tensors
from posttrain.training.local_learner import MASTERS
from tests.serving.plain_client import Client, same, uninterrupted
from tests.serving.serving import KEY, NAME


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LOADED = """
import sys
from posttrain import cli
import posttrain.recipes.server
if not sys.stdin.readline():  # the test has ended
    sys.exit()
sys.exit(cli.main())
"""


def prepared(folder, store, port):
    """The command itself, in a process of its own, which has imported everything and begins when it is told to."""
    words = ["server", "--model", str(folder), "--served-name", NAME, "--precision", "float32", "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", LOADED, *words, "--store", str(store)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)


def begin(process, port):
    """Tell it to, and wait until it answers."""
    process.stdin.write(b"\n")
    process.stdin.flush()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", headers={"X-API-Key": KEY})
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_a_server_that_is_killed_at_any_moment_leaves_what_the_next_one_goes_on_from(base, folder, tmp_path):
    """SIGKILL after 0.05 to 0.4 s of requests, three times; the client sends again what it got no result of."""
    port, model, done = free_port(), "", 0
    delays = [0.05, 0.2, 0.4, None]
    servers = [prepared(folder, tmp_path / "cut", port) for _ in delays]  # at once, for to import takes seconds
    expected = uninterrupted(base, tmp_path / "whole")
    steps = [(0,), (1,), (0, 3), (3,)]
    asked = [kind for shifts in steps for kind in (*[("gradient", shift) for shift in shifts], ("step", 0))]
    for process, delay in zip(servers, delays, strict=True):
        begin(process, port)
        try:
            client = Client(f"http://127.0.0.1:{port}")
            model = model or client.create()
            if delay is not None:
                threading.Timer(delay, process.kill).start()
            for seq in range(done + 1, len(asked) + 1):  # all at once, as the SDK does
                kind, shift = asked[seq - 1]
                client.gradient(model, seq, shift=shift) if kind == "gradient" else client.step(model, seq)
            for seq in range(done + 1, len(asked) + 1):
                client.result(f"{model}:{seq}")
                done = seq
                if delay is not None:
                    time.sleep(0.03)
            if delay is None:
                path = client.result(client.save(model, len(asked) + 1, "end"))["path"]
        except httpx.TransportError:
            pass
        finally:
            process.kill()
            process.wait()
    saved = checkpoints.read(checkpoints.Address.of(path).folder(tmp_path / "cut" / "models"))
    assert same(load_tensors(saved.path / MASTERS), expected)
