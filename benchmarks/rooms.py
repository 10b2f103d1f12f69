"""Lines of the source by room, now and at another commit.

python benchmarks/rooms.py            # the working tree
python benchmarks/rooms.py 5cc0f12    # beside that commit
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/posttrain"


def room_of(path: str) -> str:
    """The folder below the package, or "." for files beside the rooms."""
    inside = path.removeprefix(f"{SOURCE}/")
    return inside.partition("/")[0] if "/" in inside else "."


def here() -> Counter[str]:
    """Lines of the working tree."""
    found: Counter[str] = Counter()
    for path in (ROOT / SOURCE).rglob("*.py"):
        found[room_of(path.relative_to(ROOT).as_posix())] += len(path.read_text(encoding="utf-8").splitlines())
    return found


def at(commit: str) -> Counter[str]:
    """Lines at a commit."""
    found: Counter[str] = Counter()
    names = _git("ls-tree", "-r", "--name-only", commit, SOURCE).splitlines()
    for name in (name for name in names if name.endswith(".py")):
        found[room_of(name)] += len(_git("show", f"{commit}:{name}").splitlines())
    return found


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main(commit: str = "") -> None:
    """Print the table."""
    now, before = here(), at(commit) if commit else Counter[str]()
    for room in sorted(now.keys() | before.keys()):
        print(f"{room:14}" + (f"{before[room]:8,}" if commit else "") + f"{now[room]:8,}")
    print(f"{'all':14}" + (f"{before.total():8,}" if commit else "") + f"{now.total():8,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
