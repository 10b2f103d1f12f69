"""How much two recipes have in common: lines in blocks of four or more that are the same in both.

    python -m tests.recipes.shared_lines

A line is compared without its indentation; blank lines and comments do not count. The share is of the shorter recipe.
"""

import io
import tokenize
from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "src" / "posttrain" / "recipes"
TRAINING = ("sft", "rl", "preference", "online_preference", "reward_model")
BLOCK = 4


def lines_of(recipe: str) -> list[str]:
    """The lines of a recipe's files, without indentation, blank lines and comments."""
    single = RECIPES / f"{recipe}.py"
    files = [single] if single.is_file() else sorted((RECIPES / recipe).glob("*.py"))
    found: list[str] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        comments = {
            token.start: token.string
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        }
        for number, line in enumerate(text.splitlines(), 1):
            ends = [column for row, column in comments if row == number]
            kept = " ".join((line[: ends[0]] if ends else line).split())
            if kept:
                found.append(kept)
    return found


def shared(one: list[str], other: list[str]) -> int:
    """Lines of `one` in blocks of at least `BLOCK` that follow each other in `other`, too."""
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks if block.size >= BLOCK)


def shares() -> dict[tuple[str, str], float]:
    """Of each two recipes that train, the shared lines over the lines of the shorter one."""
    lines = {recipe: lines_of(recipe) for recipe in TRAINING}
    return {
        (a, b): shared(lines[a], lines[b]) / min(len(lines[a]), len(lines[b])) for a, b in combinations(TRAINING, 2)
    }


if __name__ == "__main__":
    for (a, b), share in sorted(shares().items(), key=lambda item: -item[1]):
        print(f"{share:6.1%}  {a}  {b}")
