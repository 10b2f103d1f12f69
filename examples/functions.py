r"""Simple functions with tests, at the level of a small model: demonstrations, tasks and held-out tasks.

    python examples/functions.py functions
    posttrain sft --dataset functions/train.jsonl --limit 48 --warmup-steps 2
    posttrain rl --model runs/sft-2026-01-31-1 --dataset functions/train.jsonl --reward code --kl-coefficient 0 \
        --lr 2e-5 --prompts-per-step 8 --max-new-tokens 64 --steps 8

A row has `prompt`, `completion` (the function) and `test_list`. Held-out rows have other constants, and some pairs of
steps are in them alone. docs/sandbox.md says how to use functions of your own.
"""

import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NUMBERS = {  # what is said, and the expression of x; {k} is a constant
    "adds {k} to x": "x + {k}",
    "subtracts {k} from x": "x - {k}",
    "multiplies x by {k}": "x * {k}",
    "subtracts x from {k}": "{k} - x",
    "squares x": "x * x",
    "negates x": "-x",
    "takes the remainder of x by {k}": "x % {k}",
    "takes the larger of x and {k}": "max(x, {k})",
    "takes the smaller of x and {k}": "min(x, {k})",
}
LISTS = {
    "sums the list x": "sum(x)",
    "takes the largest element of x": "max(x)",
    "takes the smallest element of x": "min(x)",
    "counts the elements of x": "len(x)",
    "takes the first element of x": "x[0]",
    "takes the last element of x": "x[-1]",
    "counts how often {k} is in x": "x.count({k})",
}
NAMES = ("f", "g", "solve", "compute", "apply", "convert")


def rows(seed: int, count: int, *, heldout: bool) -> Iterator[dict[str, Any]]:
    """Rows of one split; the constants of the two are apart, and every fourth pair of steps is held out."""
    rng = random.Random(f"{seed} {heldout}")
    pairs = [(first, second) for first in (*LISTS, *NUMBERS) for second in NUMBERS]
    random.Random(0).shuffle(pairs)
    kept = [pair for number, pair in enumerate(pairs) if heldout or number % 4]
    apart = set(pairs[::4])
    seen = set[str]()
    while len(seen) < count:
        first, second = rng.choice(kept)
        constants = [k for k in range(2, 30) if (k % 3 == 0) == heldout]
        one, two, name = rng.choice(constants), rng.choice(constants), rng.choice(NAMES)
        alone = rng.random() < 0.4
        said = first.format(k=one) + ("" if alone else f", then {second.format(k=two).replace(' x', ' the result')}")
        inner = {**NUMBERS, **LISTS}[first].format(k=one)
        lines = (
            [f"return {inner}"]
            if alone
            else [f"y = {inner}", "return " + re.sub(r"\bx\b", "y", NUMBERS[second]).format(k=two)]
        )
        body = "".join(f"\n    {line}" for line in lines)
        code = f"def {name}(x):{body}"
        known = alone or (first, second) not in apart
        if code in seen or (heldout and known and "{k}" not in (first if alone else first + second)):
            continue
        seen.add(code)
        namespace: dict[str, Any] = {}
        exec(code, namespace)  # ours, not a model's
        inputs = [_value(rng, first, one) for _ in range(4)]
        tests = [f"assert {name}({value!r}) == {namespace[name](value)!r}" for value in inputs]
        prompt = f"Write a Python function {name}(x) that {said}."
        yield {"prompt": prompt, "completion": f"```python\n{code}\n```", "test_list": tests}


def _value(rng: random.Random, first: str, k: int) -> object:
    if first in NUMBERS:
        return rng.randint(-50, 50)
    return [rng.choice([k, rng.randint(-20, 20)]) for _ in range(rng.randint(2, 6))]


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "functions")
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 1500), ("heldout", 200)):
        lines = (json.dumps(row) + "\n" for row in rows(0, count, heldout=name == "heldout"))
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
