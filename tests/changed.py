"""Run the tests that a change can reach: `make test-changed`, or `python -m tests.changed [REF] [options of pytest]`.

Changed is what differs from REF, committed or not; without REF, from where this branch left `main`. A test file is run
if it was changed, or a file that it imports, directly or through others. Imports are read from the source, so those in
functions count. So does what is imported by its name: a module that a text names, and the recipe of a command that a
test's text names. A file of another kind reaches what its folder's modules do, and tests that name it or its folder.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.test_walls import imported_names

ROOT = Path(__file__).parents[1]
OF_ALL_TESTS = ("pyproject.toml", "constraints.txt", "tests/typechecker.py")
READS_ALL_SOURCE = 'rglob("*.py")'
COMMANDS = "posttrain.commands"  # imports a recipe when its command runs


def modules(root: Path) -> dict[str, Path]:
    """Every module of source and tests by its dotted name; a package is its `__init__`."""
    found: dict[str, Path] = {}
    for top, package in ((root / "src", "posttrain"), (root, "tests")):
        for path in (top / package).rglob("*.py"):
            found[".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def texts_of(tree: ast.AST) -> set[str]:
    """All texts but docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose)
    return {node.value for node in constants if isinstance(node.value, str)}


def recipes(commands: Path) -> dict[str, set[str]]:
    """Of each command's first word the recipes that it may run, as `imports` wants them named."""
    folder = commands.parent / "recipes"
    found: dict[str, set[str]] = {}
    for table in (node for node in ast.walk(ast.parse(commands.read_text("utf-8"))) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                names = {text.partition(".")[0] for text in texts_of(value)} - {""}
                known = {name for name in names if (folder / name).is_dir() or (folder / f"{name}.py").exists()}
                found.setdefault(key.value.split()[0], set()).update(f"posttrain.recipes.{name}." for name in known)
    return found


def imports(root: Path) -> dict[Path, set[Path]]:
    """What each file imports. Python runs the packages above a module first, and pytest the conftests above a test."""
    known = modules(root)
    of_command = recipes(known[COMMANDS])
    found: dict[Path, set[Path]] = {}
    for module, path in known.items():
        ours = module.split(".")[0] == "tests"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {name for _, name in imported_names(root / "tests" if ours else root / "src" / "posttrain", path)}
        texts = texts_of(tree) if module != COMMANDS else set[str]()
        names.update(name for text in texts for name in re.findall(r"\bposttrain(?:\.\w+)+\.?", text))
        if {"-m", "posttrain"} <= texts:
            names.add("posttrain.__main__")
        if any(isinstance(node, ast.JoinedStr) and "id='__name__'" in ast.dump(node) for node in ast.walk(tree)):
            names.add(module + ".")
        found[path] = set()
        if ours:
            words = {word for text in texts for word in text.split()}
            names = names.union(*(of_command[word] for word in words & {*of_command}))
            found[path] |= {folder / "conftest.py" for folder in path.parents} & {*known.values()}
        for name in names:
            parts = name.rstrip(".").split(".")
            found[path] |= {known[up] for n in range(len(parts)) if (up := ".".join(parts[: n + 1])) in known}
            if name.endswith("."):
                found[path] |= {other for each, other in known.items() if each.startswith(name)}
    return found


def reached(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """The test files that changed files can reach, in order; all are paths below `root`."""
    graph = imports(root)
    tests = sorted(path for path in graph if path.name.startswith("test_"))
    sources = {path: path.read_text(encoding="utf-8") for path in tests}
    waiting: list[Path] = []
    for name in changed:
        path = root / name
        if name in OF_ALL_TESTS:
            return [path.relative_to(root).as_posix() for path in tests]
        removed = name.startswith(("src/", "tests/")) and path.suffix == ".py"  # who imported it was changed as well
        if path not in graph and not removed:
            waiting += [other for other in graph if other.parent == path.parent]
            waiting += [
                test for test in tests if path.name in sources[test] or f'"{path.parent.name}"' in sources[test]
            ]
        if name.startswith("src/"):
            waiting += [test for test in tests if READS_ALL_SOURCE in sources[test]]
        waiting.append(path)
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [other for other, imported in graph.items() if path in imported]
    return [path.relative_to(root).as_posix() for path in tests if path in seen]


def git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main(words: list[str]) -> int:
    since = words.pop(0) if words and not words[0].startswith("-") else git("merge-base", "main", "HEAD")[0]
    changed = [*git("diff", "--name-only", "--no-renames", since), *git("ls-files", "--others", "--exclude-standard")]
    files = reached(changed)
    print(f"{len(changed)} files differ from {since}, and reach {len(files)} test files", flush=True)
    return subprocess.call([sys.executable, "-m", "pytest", *words, *files], cwd=ROOT) if files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
