"""Instructions that a program can check: tasks with some kinds of constraints, and held-out tasks with others.

    python examples/constraints.py constraints
    posttrain rl --dataset constraints/train.jsonl --eval-dataset constraints/heldout.jsonl --reward constraints \
        --max-new-tokens 64

A row has `prompt` and `constraints` (docs/rewards.md). Rows of heldout.jsonl have further topics, and the kinds of
training (their `id` begins with same) or kinds that training never sees (other). All kinds are IFEval's (https://arxiv.org/abs/2311.07911).
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = ("water", "morning", "people", "small", "because", "often", "green", "night", "long", "together")
RELATIONS = ("at least", "less than")
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {  # by kind: the instruction, and the arguments of the checker
    "punctuation:no_comma": ("Do not use any commas.", {}),
    "startend:quotation": ("Wrap your whole answer in double quotation marks.", {}),
    "detectable_format:title": ("Give it a title in double angular brackets, such as <<A title>>.", {}),
    "detectable_content:postscript": (
        "Add a postscript at the end that starts with P.S.",
        {"postscript_marker": "P.S."},
    ),
    "keywords:existence": ("Use the word {word}.", {"keywords": ["{word}"]}),
    "length_constraints:number_sentences": (
        "Use {relation} {count} sentences.",
        {"num_sentences": "{count}", "relation": "{relation}"},
    ),
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "startend:end_checker": (
        "Finish with the exact words: That is all. Nothing follows them.",
        {"end_phrase": "That is all."},
    ),
    "keywords:forbidden_words": ("Do not use the words is and the.", {"forbidden_words": ["is", "the"]}),
    "length_constraints:number_words": (
        "Use {relation} {count}0 words.",
        {"num_words": "{count}0", "relation": "{relation}"},
    ),
    "detectable_format:number_bullet_lists": (
        "Answer with exactly {count} bullet points, such as: * A point.",
        {"num_bullets": "{count}"},
    ),
    "detectable_format:number_highlighted_sections": (
        "Highlight a part with asterisks, such as *this*.",
        {"num_highlights": 1},
    ),
    "keywords:frequency": (
        "Use the word {word} twice or more.",
        {"keyword": "{word}", "frequency": 2, "relation": "at least"},
    ),
}
FORMS = ("Describe {}.", "Say something about {}.", "What is {} like?", "Write about {}.")
TOPICS = (
    *("a river", "the moon", "a bakery", "a train", "an old house", "a garden", "the sea", "a market", "snow"),
    *("a library", "a bridge", "an island", "a teacher", "a horse", "a forest", "a kitchen", "music", "a city"),
    *("a mountain", "bread", "a clock", "a farm", "the wind", "a harbour", "a letter", "winter", "a dog", "tea"),
)
HELD_OUT = ("a lamp", "rain", "a castle", "a baker", "a boat", "summer", "a cat", "the desert", "a school", "an apple")


def rows(count: int, kinds: dict[str, tuple[str, dict[str, Any]]], part: str = "") -> Iterator[dict[str, Any]]:
    """Rows of these kinds, all alike often, each with one constraint; those of a held-out part have other topics."""
    rng = random.Random(f"{sorted(kinds)} {part}")
    for number in range(count):
        kind = list(kinds)[number % len(kinds)]
        drawn = {"word": rng.choice(WORDS), "count": rng.choice("23"), "relation": rng.choice(RELATIONS)}
        prompt = rng.choice(FORMS).format(rng.choice(HELD_OUT if part else TOPICS))
        said, arguments = kinds[kind]
        instruction = said.format(**drawn)
        filled = {name: _filled(value, drawn) for name, value in arguments.items()}
        row = {"id": f"{part}-{number}", "prompt": f"{prompt} {instruction}"}
        yield row | {"constraints": [{"kind": kind, **filled}]}


def _filled(value: Any, drawn: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(one, drawn) for one in value]
    filled = value.format(**drawn) if isinstance(value, str) else value
    return int(filled) if str(filled).isdigit() else filled


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "constraints")
    folder.mkdir(parents=True, exist_ok=True)
    heldout = [*rows(48, TRAINED, "same"), *rows(48, OTHERS, "other")]
    for name, some in (("train", rows(480, TRAINED)), ("heldout", heldout)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")


if __name__ == "__main__":
    main()
