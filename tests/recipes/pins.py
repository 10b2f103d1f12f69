"""Digests of small runs of each recipe: metrics without times, samples, and the weights of the last checkpoint.

    python -m tests.recipes.pins

Two versions of posttrain that print the same lines on one machine train alike, bit for bit. What is typed is the
command line's, so that the script runs against an older source, too (PYTHONPATH). With several threads sums are
ordered otherwise: set OMP_NUM_THREADS=1.
"""

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path

from posttrain.cli import main
from tests.recipes.folders import model_folder

TIMED = ("seconds/", "tokens_per_second", "memory_gb")
SCORE = """
def score(completion):
    return sum(c.lower() in "abcdefghijklm" for c in completion) / max(1, len(completion))
"""


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def commands(folder: Path) -> dict[str, str]:
    """What is typed, by the name of the run."""
    model = f"--model {model_folder(folder / 'model')} --precision float32 --warmup-steps 0 --lr 1e-2"
    (folder / "score.py").write_text(SCORE)
    tasks = write(folder / "tasks.jsonl", [{"prompt": f"{i}?", "answer": ""} for i in range(8)])
    held = write(folder / "held.jsonl", [{"prompt": f"{i}!", "answer": ""} for i in range(4)])
    shown = write(folder / "shown.jsonl", [{"prompt": f"{i}?", "completion": "ab" * (1 + i % 3)} for i in range(12)])
    pairs = write(
        folder / "pairs.jsonl",
        [{"prompt": f"{i}?", "chosen": "a" * (1 + i % 4), "rejected": "z" * 3} for i in range(16)],
    )
    thumbs = write(
        folder / "thumbs.jsonl",
        [{"prompt": f"{i}?", "completion": "ab"[i % 2] * 3, "label": i % 2 == 0} for i in range(16)],
    )
    rated = write(
        folder / "rated.jsonl",
        [
            {"prompt": f"{i}?", "completion": "a" * (1 + i % 4), "ratings": {"kind": i % 4, "long": i % 3}}
            for i in range(16)
        ],
    )
    sampled = (
        f"{model} --dataset {tasks} --reward {folder / 'score.py'}:score --prompts-per-step 4 "
        "--completions-per-prompt 4 "
        f"--max-new-tokens 8 --eval-dataset {held} --eval-every 2 --eval-samples 2"
    )
    rest = "--epochs 2 --eval-share 0.3"
    return {
        "sft": f"sft {model} --dataset {shown} --examples-per-step 4 {rest}",
        "sft-lora": f"sft {model} --dataset {shown} --examples-per-step 4 --lora-rank 4 --lora-dropout 0.1",
        "dpo": f"preference {model} --dataset {pairs} --pairs-per-step 4 {rest}",
        "kto": f"preference {model} --algorithm kto --dataset {thumbs} --pairs-per-step 4 {rest}",
        "reward-model": f"reward-model {model} --dataset {pairs} --pairs-per-step 4 --ensemble 2 {rest}",
        "attributes": f"reward-model --heads attributes {model} --ratings {rated} --dataset {pairs} --pairs-per-step 4",
        "grpo": f"rl {sampled} --steps 3 --length-penalty 0.2",
        "ppo": f"rl {sampled} --steps 3 --algorithm ppo --critic-lr 1e-2",
        "dapo": f"rl {sampled} --steps 3 --algorithm dapo --updates-per-step 2",
        "online-dpo": f"online-preference {sampled} --rounds 2",
    }


def digest(run: Path) -> str:
    """Of what a run has written, without times."""
    found = hashlib.sha256()
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = {name: value for name, value in json.loads(line).items() if not name.startswith(TIMED)}
        found.update(json.dumps(row, sort_keys=True).encode())
    for name in ("samples.jsonl", "heldout.jsonl"):
        found.update((run / name).read_bytes() if (run / name).exists() else b"")
    last = max((run / "checkpoints").glob("step-*"), key=lambda path: path.name)
    for file in sorted(last.glob("*.safetensors")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()[:16]


def one(name: str, words: list[str], output: Path) -> str:
    """The digest of a run that is typed like this."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([*words, "--output", str(output), "--quiet"])
        if code and "attributes" in words:  # the name that it had before
            code = main(["reward-model-attributes", *words[3:], "--output", str(output), "--quiet"])
    return digest(output) if code == 0 else f"exit code {code}: {said.getvalue().strip().splitlines()[-1]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        for name, typed in commands(Path(where)).items():
            print(f"{name:14} {one(name, typed.split(), Path(where) / 'runs' / name)}", file=sys.stdout, flush=True)
