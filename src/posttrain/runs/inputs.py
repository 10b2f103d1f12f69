"""What a run reads besides its options: data, code and models, by digest, so that a resumed run reads the same.

Options name files within words of their own, such as `my/rewards.py:brief=0.5` or `a.jsonl=0.7 b.parquet=0.3`. Here
each path in them is found, hashed, copied into the run (code and prompts), or looked for anew when the run or its user
has moved.
"""

import ast
import glob
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.data.digests import SOURCES, digest_of, model_digest, sha256
from posttrain.errors import UserError

FOLDER = "inputs"
_MARK = "sha256:"
CODE = ("reward", "gold", "chat_template")
"""Options that name code or prompts: files that are copied into the run."""
MODELS = ("model", "reward_model", "gold_model")
"""Options that name models, of which a checkpoint or a digest is all that a run keeps."""
NAMING = (*SOURCES, *CODE, *MODELS)


def digests_in(options: Mapping[str, Any], models: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
    """The options that name files, with each path replaced by the digest of what is there.

    Two equal results mean that a run reads the same, wherever the files are. An option that names no file is left out.

    Args:
        options: by name, as typed.
        models: the folders of models, by option, for those whose option names a run or a packaged model.
    """
    found: dict[str, str] = {}
    for name in (*SOURCES, *CODE):
        text = options.get(name)
        if isinstance(text, str) and text:
            found[name] = _replaced(name, text, lambda path: f"{_MARK}{_digest(path)}")
    for name, folders in (models or {}).items():
        found[name] = " ".join(_MARK + model_digest(Path(folder)) for folder in folders if Path(folder).is_dir())
    return {name: text for name, text in found.items() if _MARK in text}


class InputsChanged(UserError):
    """Files that a run reads are others than when it began; `names` are the options that name them."""

    def __init__(self, names: Sequence[str]) -> None:
        """Say so of each."""
        super().__init__(
            f"what {' and '.join(names)} read{'s' if len(names) == 1 else ''} has changed since the run began (its "
            "digest is another one); put it back, or start a new run"
        )
        self.names = tuple(names)


def refuse_changes(before: Mapping[str, str], now: Mapping[str, str], accepted: Collection[str]) -> list[str]:
    """The options whose files differ from those that the run began with, all of which must be `accepted`.

    Raises:
        InputsChanged: some are not.
    """
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if refused := [name for name in changed if name not in accepted]:
        raise InputsChanged(refused)
    return changed


def keep_code(options: Mapping[str, Any], run: Path) -> None:
    """Copy the files of code and prompts that the options name into the run, with the neighbours that they import."""
    for name in CODE:
        text = options.get(name)
        for path in _paths(name, text) if isinstance(text, str) else ():
            into = run / FOLDER / name / _digest(path)[:12]
            into.mkdir(parents=True, exist_ok=True)
            for file in (path, *imported(path)):
                target = into / file.relative_to(path.parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    shutil.copyfile(file, target)


def relocated(options: Mapping[str, Any], run: Path, began_in: str) -> dict[str, Any]:
    """The options of a run, with each path that is not there from here replaced by where it is.

    Looked for in the folder in which the run began and, code and prompts, among the copies in the run. What is found
    nowhere stays: whoever reads it says so.
    """

    def elsewhere(name: str, word: str) -> str:
        for end in _ends(word):
            there = str(Path(began_in, word[:end]))
            if began_in and _there(name, there):
                return there + word[end:]
            kept = [path for path in (run / FOLDER / name).glob("*/*") if path.name == Path(word[:end]).name]
            if kept:
                return str(max(kept, key=lambda path: path.stat().st_mtime_ns)) + word[end:]
        return word

    found = dict(options)
    for name in NAMING:
        text = found.get(name)
        if isinstance(text, str) and text and not _there(name, text):
            words = _words(text)
            here = [any(_there(name, word[:end]) for end in _ends(word)) for word in words]
            moved = [word if there else elsewhere(name, word) for word, there in zip(words, here, strict=True)]
            if moved != words:
                found[name] = moved[0] if len(words) == 1 else shlex.join(moved)
    return found


def imported(path: Path) -> list[Path]:
    """The files next to a Python file that it imports, and that those import; none of another kind of file."""
    found: list[Path] = []
    waiting = [path]
    while waiting:
        for name in filter(None, _imports(waiting.pop())):
            module = path.parent.joinpath(*name.split("."))
            for candidate in (module.with_suffix(".py"), module / "__init__.py"):
                if candidate.is_file() and candidate != path and candidate not in found:
                    found.append(candidate)
                    waiting.append(candidate)
    return sorted(found)


def _imports(path: Path) -> Iterator[str]:
    """Every module that a Python file may import by name."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "", *(f"{node.module or ''}.{alias.name}".strip(".") for alias in node.names))


def _paths(name: str, text: str) -> list[Path]:
    found: list[Path] = []

    def note(path: Path) -> str:
        found.append(path)
        return ""

    _replaced(name, text, note)
    return found


def _replaced(name: str, text: str, by: Callable[[Path], str]) -> str:
    """The text of an option with each path that is there replaced."""
    if _there(name, text):
        return by(Path(text).expanduser())
    words = _words(text)
    for place, word in enumerate(words):
        end = next((end for end in _ends(word) if _there(name, word[:end])), 0)
        if end:
            words[place] = by(Path(word[:end]).expanduser()) + word[end:]
    return " ".join(words)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote, which whoever reads the option refuses
        return [text]


def _ends(word: str) -> list[int]:
    """Where a path may end within a word, the longest first: at its end, or before a `:` or `=`."""
    return [len(word), *(place for place in range(len(word) - 1, 0, -1) if word[place] in ":=")]


def _there(name: str, text: str) -> bool:
    """Whether this part of an option's text is a path that is there; of rewards, which have names too, only Python."""
    path = os.path.expanduser(text)
    if not text or (name in ("reward", "gold") and not text.endswith(".py")):
        return False
    return os.path.exists(path) or (glob.has_magic(path) and bool(glob.glob(path, recursive=True)))


def _digest(path: Path) -> str:
    """Of a file its SHA-256; of Python that imports neighbours, of a folder or a glob, that of all the files' sums."""
    if path.is_file():
        files = {file.name: file for file in (path, *imported(path))}
        if len(files) == 1:
            return sha256(path)
    elif path.is_dir():
        files = {str(file.relative_to(path)): file for file in path.rglob("*")}
    else:
        files = {Path(name).name: Path(name) for name in glob.glob(str(path), recursive=True)}
    return digest_of({name: sha256(file) for name, file in files.items() if file.is_file()})
