"""Inputs of a run by digest (data, code, models), so that a resumed run reads the same.

Options name files within words of their own, such as `my/rewards.py:brief=0.5` or `a.jsonl=0.7 b.parquet=0.3`. Here
each path in them is found, hashed, copied into the run (code and prompts), or looked for anew when the run or its user
has moved.
"""

import ast
import glob
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from posttrain.data.digests import SOURCES, digest_of, model_digest, sha256
from posttrain.errors import UserError, unknown
from posttrain.options.option import MARK

FOLDER = "inputs"
_MARK = "sha256:"
_SHORT = 12  # characters of a digest that name the folder of a copy
CODE = ("reward", "gold", "judge_prompt", "constitution", "environment", "chat_template", "algorithm")
"""Options that name code or prompts: files that are copied into the run."""
CHAT_MODELS = ("judge", "seats")
"""Options of words NAME=MODEL and NAME=URL#MODEL."""
MODELS = ("model", "reward_model", "gold_model", "teacher", "prover", *CHAT_MODELS)
"""Options that name models, of which a checkpoint or a digest is all that a run keeps."""
NAMING = (*SOURCES, *CODE, *MODELS)
SPLIT = ("reward", "gold", "reward_model", "judge_prompt", "suite", *CHAT_MODELS)
"""Options whose text is split into words wherever there are spaces: a path with spaces is in quotes."""
LOOKED_AT = ("exclude", "ties", "baseline", "suite")
"""Options that name what commands look at that train nothing."""
_DATA = re.compile(r"\.(jsonl?|[ct]sv|parquet|arrow|txt)(\.(gz|bz2|xz|zst))?$")
_NAMED = re.compile(r"[\w-]+=")  # what stands before a path in --judge, --seats and --judge-prompt


def digests_in(options: Mapping[str, Any], models: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
    """The options that name files, with each path replaced by the digest of what is there.

    Two equal results mean that a run reads the same, wherever the files are. An option that names no file is left out.
    `models` are the folders of models, by option, for those whose option names a run or a packaged model.
    """
    objects = {name: str(options[name]) for name in given_objects(options)}
    found = {name: value[value.index(_MARK) :] for name, value in objects.items() if _MARK in value}
    for name in (*SOURCES, *CODE):
        text = _text(options.get(name))
        if text and name not in found:
            found[name] = _replaced(name, text, lambda path: f"{_MARK}{_digest(path)}")
    for name in CHAT_MODELS:
        words = _words(_text(options.get(name)))
        if words and name not in found:
            where = dict(zip(words, (models or {}).get(name, ()), strict=False))
            found[name] = " ".join(_chat_model_digest(word, where.get(word, "")) for word in words)
    for name, folders in (models or {}).items():
        if name in CHAT_MODELS:
            continue
        digests = [_MARK + model_digest(Path(folder)) for folder in folders if Path(folder).is_dir()]
        found[name] = " ".join([*([found[name]] if name in found and name in CODE else []), *digests])
    return {name: text for name, text in found.items() if _MARK in text}


def given_objects(config: Mapping[str, Any]) -> list[str]:
    """The options of a configuration that Python gave an object."""
    return [key for key, value in config.items() if isinstance(value, str) and value.startswith(MARK)]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        table = cast("Mapping[str, object]", value)
        said = {key: item if isinstance(item, str) else json.dumps(item, default=str) for key, item in table.items()}
        return shlex.join(f"{key}={item}" for key, item in said.items())
    return value if isinstance(value, str) else ""


def _chat_model_digest(word: str, folder: str) -> str:
    """NAME=DIGEST: of a file's code, a local model's files, or a name behind an address, which may be another one."""
    lead = _lead("judge", word)
    if _MARK in (code := _replaced("environment", word[lead:], lambda path: f"{_MARK}{_digest(path)}")):
        return word[:lead] + code
    if Path(folder).is_dir() and folder:
        return word[:lead] + _MARK + model_digest(Path(folder))
    return word[:lead] + _MARK + digest_of({"model": word[lead:].rpartition("#")[2]})


class InputsChanged(UserError):
    """Input files have changed since the run began; `names` are the options that name them."""

    def __init__(self, names: Sequence[str], how: str = "") -> None:
        """Say so of each."""
        self.names = tuple(names)
        options = " and ".join(f"`{name}`" for name in names)
        read = f"what {options} read{'s' if len(names) == 1 else ''} changed since the run started"
        super().__init__(
            f"{how or f'{read} (its digest differs)'}; restore it, or start a new run; to continue with the changed "
            f'one, type `accept_changes="{" ".join(names)}"`'
        )


def options_named(words: str | Sequence[str], options: Collection[str]) -> list[str]:
    """The options that `accept_changes` names: with - or _, with -- or without, apart by spaces or commas."""
    known = {name.replace("_", "-"): name for name in NAMING if name in options}
    text = words if isinstance(words, str) else " ".join(words)
    found = [part.strip("-").replace("_", "-") for part in text.replace(",", " ").split()]
    for name in found:
        if name not in known:
            raise unknown("option in `accept_changes`:", name, known)
    return [known[name] for name in found]


def refuse_changes(before: Mapping[str, str], now: Mapping[str, str], accepted: Collection[str]) -> list[str]:
    """The options that read other files than the run began with, or the same otherwise, that are `accepted`.

    Raises `InputsChanged` for others whose files have changed.
    """
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    others = [name for name in changed if _digests(before.get(name)) != _digests(now.get(name))]
    if refused := [name for name in others if name not in accepted]:
        raise InputsChanged(refused)
    return [name for name in changed if name in accepted]


def _digests(text: str | None) -> list[str]:
    return re.findall(rf"{_MARK}(\w+)", text or "")


def judges_by_option(options: Mapping[str, Any], judges: Mapping[str, str]) -> dict[str, list[str]]:
    """The folders of reward models, classifiers and teachers, known by their names, by the options that name them."""
    named = {"reward_model": _words(options.get("reward_model") or "")}
    named |= {name: [options.get(name) or ""] for name in ("gold_model", "prover")}
    named |= {"teacher": [text := str(options.get("teacher") or "")]}
    if text not in judges:  # NAME=MODEL of each
        named["teacher"] = [word[_lead("teacher", word) :] for word in _words(text)]
    found = {option: [judges[name] for name in names if name in judges] for option, names in named.items()}
    for option in ("reward", "gold"):  # as typed, or their table, with a classifier of this model
        typed = _text(options.get(option))
        classifier = r'classifier\b.*?\bmodel("\s*:\s*"|=)%s(?=["&=\s]|$)'
        if folders := [folder for name, folder in judges.items() if re.search(classifier % re.escape(name), typed)]:
            found[option] = folders
    for option in CHAT_MODELS:
        if words := _words(_text(options.get(option))):
            found[option] = [judges.get(word[_lead(option, word) :], "") for word in words]
    return found


def keep_code(options: Mapping[str, Any], run: Path) -> None:
    """Copy the files of code and prompts that the options name into the run, with the neighbours that they import."""

    def keep(name: str, path: Path) -> str:
        if name in CHAT_MODELS and path.suffix != ".py":  # a model
            return str(path)
        into = run / FOLDER / name / _digest(path)[:_SHORT]
        for file in (path, *imported(path)):
            target = into / file.relative_to(path.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                new = target.with_name(f".{target.name}.new")  # half a file of a full disk is none
                shutil.copyfile(file, new)
                new.replace(target)
        return str(path)

    for name in (*CODE, *CHAT_MODELS):
        if text := _text(options.get(name)):
            _replaced(name, text, partial(keep, name))


def relocated(options: Mapping[str, Any], run: Path, starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of a run, with each path that is not there from here replaced by where it is.

    Looked for in the folders in which the run began and went on (`starts`, what environment.json says of each) and,
    code and prompts, among the copies in the run. Paths that are not found are kept: their reader reports them.
    """
    folders = list(dict.fromkeys(str(start["folder"]) for start in starts if start.get("folder")))
    digests: Mapping[str, str] = starts[-1].get("inputs", {}) if starts else {}
    found = dict(options)
    for name in NAMING:
        value = found.get(name)
        if value and not (isinstance(value, str) and _there(name, value)):
            copies = [run / FOLDER / name / digest[:_SHORT] for digest in _digests(digests.get(name))]
            found[name] = _with_paths(name, value, partial(_place, name, folders=folders, waiting=copies))
    return found


def beside(options: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Options of a configuration file, with each path in them looked for in its folder, then in the working directory.

    Raises `UserError` for a path that is in neither, where the text can be nothing else.
    """
    found = dict(options)

    def place(name: str, path: str) -> str:
        if "://" in path or path == "gym":
            return path
        return _below(name, path, [str(file.parent)]) or (path if _there(name, path) else "")

    for name in (name for name in (*NAMING, *LOOKED_AT) if options.get(name)):
        found[name] = _with_paths(name, options[name], partial(place, name))
        if missing := _missing(name, _text(found[name])):
            raise UserError(
                f"{file}: `{name}` names {missing}, which is neither beside that file, in {file.parent.resolve()}, nor "
                f"in the working directory, {Path.cwd()}; correct the path"
            )
    return found


def _missing(name: str, text: str) -> str:
    """The first relative path in an option's text that is not there; a word that may be a name is none."""

    def is_meant(path: str) -> bool:  # code and data have a suffix
        named = name in CODE or (name not in MODELS and bool(_DATA.search(path)))
        return named and _may_be_path(name, path) and not os.path.isabs(os.path.expanduser(path))

    for word in [] if _there(name, text) else _words(text):
        rest = word[_lead(name, word) :]
        paths = [rest[:end] for end in _ends(rest)]
        if any(_there(name, path) for path in paths) or "://" in rest or rest.startswith("gym:"):
            continue
        if missing := next(filter(is_meant, paths), ""):
            return missing
    return ""


def _with_paths(name: str, value: Any, place: Callable[[str], str]) -> Any:
    """An option's text or table with each path in it replaced by where it is; `place` says "" of what is none."""
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        if name not in CHAT_MODELS:
            return {_with_path(name, str(key), place): item for key, item in table.items()}
        words = {key: _with_path(name, f"{key}={item}", place) for key, item in table.items()}
        return {key: word.partition("=")[2] for key, word in words.items()}
    if not isinstance(value, str):
        return value
    if name not in SPLIT and (there := place(value)):
        return there
    words = _words(value)
    moved = [_with_path(name, word, place) for word in words]
    if moved == words:
        return value
    return moved[0] if len(words) == 1 and name not in SPLIT else shlex.join(moved)


def _with_path(name: str, word: str, place: Callable[[str], str]) -> str:
    lead, rest = word[: _lead(name, word)], word[_lead(name, word) :]
    return next((lead + path + rest[end:] for end in _ends(rest) if (path := place(rest[:end]))), word)


def _place(name: str, path: str, folders: Sequence[str], waiting: list[Path]) -> str:
    """Where a path is, here or elsewhere; "" where it is not. Its copy is taken from those that wait for their path."""
    if not _may_be_path(name, path):
        return ""
    copy = next((folder for folder in waiting if (folder / Path(path).name).is_file()), None)
    if copy is not None:
        waiting.remove(copy)
    if _there(name, path):
        return path
    return _below(name, path, folders) or (str(copy / Path(path).name) if copy else "")


def _below(name: str, path: str, folders: Sequence[str]) -> str:
    return next((there for folder in folders if _there(name, there := str(Path(folder, path)))), "")


def imported(path: Path) -> list[Path]:
    """The files next to a Python file, or in folders there, that it imports, and that those import; of others none."""
    found = [path]
    for file in found:  # which grows
        for one in _imports(file, path.parent):
            if one.is_relative_to(path.parent) and one.is_file() and one not in found:
                found.append(one)
    return sorted(found[1:])


def _imports(path: Path, root: Path) -> Iterator[Path]:
    """Every file that a Python file may import, if it is there: by its name below `root`, or relative to itself."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # the import reports it
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            folder, package = root, list[str]()
        elif isinstance(node, ast.ImportFrom) and node.level <= len(path.parents):
            folder = path.parents[node.level - 1] if node.level else root
            package = node.module.split(".") if node.module else []
        else:
            continue
        # `import a.b` reads a/__init__.py, and a/b.py or a/b/__init__.py; `b` may be a name in `a`, too
        for names in ([*package, *alias.name.split(".")] for alias in node.names):
            for end in range(1, len(names) + 1):
                file = folder.joinpath(*names[:end], "__init__.py")
                yield file if file.is_file() else file.parent.with_suffix(".py")


def _replaced(name: str, text: str, by: Callable[[Path], str]) -> str:
    def place(path: str) -> str:
        return by(Path(path).expanduser()) if _there(name, path) else ""

    return place(text) or " ".join(_with_path(name, word, place) for word in _words(text))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an open quote, which the option's parser refuses
        return [text]


def _lead(name: str, word: str) -> int:
    """Where a path may begin within a word: behind NAME= in options of judges, seats and teachers."""
    found = _NAMED.match(word) if name in ("judge_prompt", "teacher", *CHAT_MODELS) else None
    return found.end() if found else 0


def _ends(word: str) -> list[int]:
    """Where a path may end within a word, the longest first: at its end, or before a `:`, `=` or `?`."""
    return [len(word), *(place for place in range(len(word) - 1, 0, -1) if word[place] in ":=?")]


def _there(name: str, text: str) -> bool:
    path = os.path.expanduser(text)
    return _may_be_path(name, text) and (
        os.path.exists(path) or (glob.has_magic(path) and bool(glob.glob(path, recursive=True)))
    )


def _may_be_path(name: str, text: str) -> bool:
    """Rewards and prompts have names, too: code ends with .py, and the name of a prompt's file has a dot or a slash."""
    if name in ("reward", "gold", "environment", "algorithm", "suite"):
        return text.endswith(".py")
    return bool(text) and (name not in ("judge_prompt", "constitution") or "." in text or "/" in text)


def _digest(path: Path) -> str:
    """Of a file its SHA-256; of Python that imports neighbours, of a folder or a glob, that of all the files' sums."""
    root, found = path, [path]
    if path.is_file():
        root, found = path.parent, [path, *imported(path)]
        if len(found) == 1:
            return sha256(path)
    elif not path.is_dir():
        root = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
        found = [Path(one) for one in glob.glob(str(path), recursive=True)]
    files = [file for one in found for file in (one.rglob("*") if one.is_dir() else [one]) if file.is_file()]
    return digest_of({file.relative_to(root).as_posix(): sha256(file) for file in files})
