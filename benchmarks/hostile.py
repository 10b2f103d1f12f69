"""What a hostile client of `posttrain server` costs the others: memory, waiting time, recovery, keys.

    python benchmarks/hostile.py --model DIR [--tokens 204800] [--samples 4096] [--rounds 50]
    python benchmarks/hostile.py --programs 1000        of the sandbox: what programs leave behind (hostile_programs.py)

DIR is a Hugging Face folder of a small model (`posttrain models pull` prints one). A server with two keys is started;
one sends what is hostile, the other a small gradient, whose waiting time is printed beside that alone.
"""

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import zstandard
from tinker.proto import tinker_public_pb2 as pb

from posttrain.serving.access import Keys

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def gradient(model: str, seq: int, datums: int, length: int) -> bytes:
    """A request for a gradient."""
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy")
    for number in range(datums):
        datum, ids = message.data.add(), np.random.default_rng(number).integers(5, 200, length)
        datum.model_input.add().encoded_text.tokens = ids.astype("<i4").tobytes()
        targets = datum.loss_fn_inputs["target_tokens"]
        targets.dtype, targets.dense = pb.DTYPE_INT64, ids.astype("<i8").tobytes()
    return message.SerializeToString()


class Client:
    """A client with a model and a sampler."""

    def __init__(self, port: int, key: str, base: str) -> None:
        self.headers = {"X-API-Key": key}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers=self.headers, timeout=600)
        session = self.post("create_session")["session_id"]
        body = {"session_id": session, "base_model": base}
        lora = {"rank": 4, "seed": 1}
        asked = self.post("create_model", **body, model_seq_id=0, lora_config=lora)
        self.model, self.seq = self.result(asked)["model_id"], 0
        self.sampler = self.post("create_sampling_session", **body, sampling_session_seq_id=0)["sampling_session_id"]

    def post(self, route: str, **body: Any) -> Any:
        """A request in JSON that is answered with 200."""
        answer = self.http.post(route, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def result(self, asked: Any) -> Any:
        """What comes of a request."""
        while True:
            answer = self.http.post("retrieve_future", json={"request_id": asked["request_id"]})
            assert answer.status_code == 200, answer.text
            if "json" not in answer.headers["content-type"]:
                return answer.content
            if answer.json().get("type") != "try_again":
                return answer.json()

    def ask(self, datums: int, length: int) -> Any:
        """Ask for a gradient."""
        self.seq += 1
        answer = self.http.post(
            "forward_backward", content=gradient(self.model, self.seq, datums, length), headers=PROTOBUF
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def waited(self) -> float:
        """Seconds of a small gradient."""
        began = time.monotonic()
        self.result(self.ask(1, 8))
        return time.monotonic() - began

    def sample(self, seq: int, samples: int, tokens: int) -> Any:
        """Ask for samples."""
        prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
        params = {"max_tokens": tokens, "stop": []}
        ask = {"prompt": prompt, "sampling_params": params, "num_samples": samples}
        return self.post("asample", sampling_session_id=self.sampler, seq_id=seq, **ask)


def refused(answer: Any) -> dict[str, str]:
    """What an answer says that is an error."""
    return {"error": answer["error"]} if isinstance(answer, dict) and "error" in answer else {}


def memory(process: int, what: str = "VmHWM") -> float:
    """MB of a process: the peak, or with VmRSS what it has now."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def at_once(count: int, work: Callable[[int], Any]) -> list[threading.Thread]:
    """Threads that work."""
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def bodies(port: int, key: str, count: int, body: bytes, headers: dict[str, str]) -> tuple[Counter[Any], list[Any]]:
    """The answers to so many bodies at once, and the threads that send them."""
    seen: Counter[Any] = Counter()

    def send(number: int) -> None:
        try:
            url = f"http://127.0.0.1:{port}/api/v1/forward_backward"
            answer = httpx.post(url, content=body, headers={"X-API-Key": key, **PROTOBUF, **headers}, timeout=120)
            seen[answer.status_code] += 1
        except httpx.HTTPError as error:
            seen[type(error).__name__] += 1

    return seen, at_once(count, send)


def _add(path: str, name: str) -> None:
    Keys(Path(path)).add(name)


def _remove(path: str, name: str) -> None:
    Keys(Path(path)).remove(name)


def keys(rounds: int) -> dict[str, int]:
    """Of rounds in which 4 keys are made while 4 are ended, those after which one is lost or has come back."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool(8) as pool:
        path = os.path.join(folder, "keys.json")
        for _ in range(rounds):
            for i in range(4):
                _add(path, f"old{i}")
            work = [pool.apply_async(_add, (path, f"new{i}")) for i in range(4)]
            work += [pool.apply_async(_remove, (path, f"old{i}")) for i in range(4)]
            for each in work:
                each.get()
            wrong += Keys(Path(path)).owners() != [f"new{i}" for i in range(4)]
            for name in Keys(Path(path)).owners():
                _remove(path, name)
    return {"rounds": rounds, "wrong": wrong}


def measured(port: int, server: int, hostile: Client, other: Client, args: argparse.Namespace) -> None:
    """Print each attack."""

    def say(what: str, **found: Any) -> None:
        numbers = {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
        print(json.dumps({"what": what, **numbers, "peak_mb": round(memory(server))}), flush=True)

    key = hostile.headers["X-API-Key"]
    say("alone", seconds=sorted(other.waited() for _ in range(5))[2], mb=memory(server, "VmRSS"))

    frame = zstandard.ZstdCompressor().compress(b"\x1a\x00" * 2**24)
    seen, threads = bodies(port, key, 20, frame, {"Content-Encoding": "zstd"})
    seconds = other.waited()
    for thread in threads:
        thread.join()
    say("behind 20 bodies of 2^24 empty datums", bytes=len(frame), seconds=seconds, answers=dict(seen))

    seen, threads = bodies(
        port, key, 120, pb.ForwardBackwardRequest(loss_fn="x" * (31 * 2**20)).SerializeToString(), {}
    )
    seconds = other.waited()
    for thread in threads:
        thread.join()
    say("behind 120 bodies of 31 MiB", seconds=seconds, answers=dict(seen))

    asked = hostile.ask(args.tokens // args.length, args.length)
    time.sleep(0.5)
    seconds = other.waited()
    began = time.monotonic()
    answer = hostile.result(asked)
    say(
        f"behind a gradient of {args.tokens} tokens",
        seconds=seconds,
        it_took=time.monotonic() - began,
        **refused(answer),
    )

    sampled = [hostile.sample(number, 256, args.length // 4) for number in range(args.samples // 256)]
    time.sleep(0.5)
    seconds = other.waited()
    began = time.monotonic()
    other.result(other.sample(0, 1, 4))
    small = time.monotonic() - began
    answer = hostile.result(sampled[-1])
    took = time.monotonic() - began
    say(f"behind {args.samples} samples", seconds=seconds, a_sample=small, they_took=took, **refused(answer))

    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(900)]
    began = time.monotonic()
    fresh = httpx.get(f"http://127.0.0.1:{port}/api/v1/healthz", headers=other.headers, timeout=60)
    say("beside 900 idle connections", seconds=time.monotonic() - began, answer=fresh.status_code)
    for line in idle:
        line.close()
    say("after the hostile client has ended", seconds=other.waited(), mb=memory(server, "VmRSS"))


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--programs", type=int)
    parser.add_argument("--tokens", type=int, default=204800)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence, at most the model's context")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    if args.programs:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from benchmarks import hostile_programs

        return hostile_programs.main(args.programs)
    if not args.model:
        parser.error("--model or --programs is required")
    print(json.dumps({"what": "keys", **keys(args.rounds)}), flush=True)
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port, made = free.getsockname()[1], Keys(Path(folder) / "keys.json")
        secrets = [made.add(name) for name in ("hostile", "other")]
        free.close()
        line = ["server", "--model", args.model, "--store", folder, "--port", str(port), "--precision", "float32"]
        process = subprocess.Popen([sys.executable, "-m", "posttrain", *line])
        try:
            while True:
                try:
                    hostile, other = (Client(port, key, args.model) for key in secrets)
                    break
                except httpx.ConnectError:
                    time.sleep(0.5)
            measured(port, process.pid, hostile, other, args)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
