"""Crash-safe JSON Lines files: at most the last line is lost, and chunks that are finished are not made again."""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.errors import DataError, UserError

JsonObject = dict[str, Any]


def append(file: BinaryIO, row: Mapping[str, Any]) -> None:
    """Write a row to the end of `file` and hand it to the system, so that it outlives this process.

    Numbers that are not finite become null, which is what JSON has for them. Half a character (a lone surrogate, which
    a model can emit) becomes its JSON escape and is read back as it was.
    """
    text = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False)
    with naming(file.name):
        file.write(text.encode("utf-8", errors="backslashreplace") + b"\n")
        file.flush()


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the file's name to an `OSError`, such as a full disk, which has none while writing."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a file of rows atomically, and return their number; where `rows` raises, nothing is written."""
    count, new = 0, path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            for row in rows:
                append(file, row)
                count += 1
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as problem:
        raise UserError(f"cannot write {path}: {problem.strerror}") from problem
    finally:
        new.unlink(missing_ok=True)
    return count


def new_file(output: str, *, option: str = "output") -> Path:
    """Where the parameter `output`, or another `option`, says to write; a file must not be there, its folder must."""
    if not output.endswith(".jsonl"):
        raise UserError(f"an output file is required: `{option}=NAME.jsonl`; got {output!r}")
    path = Path(output).expanduser()
    if path.exists():
        raise UserError(f"{path} exists already; remove it, or pass another name as `{option}`")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; create it first")
    return path


def new_files(named: Mapping[str, str]) -> dict[str, Path]:
    """The same for several parameters, of which all but `output` may be empty; no two may name one file."""
    found = {option: new_file(name, option=option) for option, name in named.items() if name or option == "output"}
    if len({path.resolve() for path in found.values()}) < len(found):
        raise UserError(f"{' and '.join(f'`{option}`' for option in found)} must be different files")
    return found


def read(path: Path) -> list[JsonObject]:
    """All whole rows; none where there is no file. A torn last line is left out, any other is a `DataError`."""
    return [row for row, _ in _scan(path)]


def truncate(path: Path, step: int) -> int | None:
    """Cut the file after the last row whose `step` is at most `step`, which is returned; None where no row stays."""
    if not path.exists():
        return None
    end, last = 0, None
    for number, (row, stop) in enumerate(_scan(path), start=1):
        if not isinstance(row.get("step"), int):
            raise DataError(f"{path}, line {number}: expected a row with a whole number 'step'; got {_shown(row)}")
        if row["step"] > step:
            break
        end, last = stop, row["step"]
    with path.open("r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    return last


def _scan(path: Path) -> list[tuple[JsonObject, int]]:
    """Each whole row, and the byte after it. Lines end with a newline alone: text may hold other line separators."""
    if not path.exists():
        return []
    rows, end = [], 0
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        end += len(line) + 1
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            if number == len(lines) - 1:  # torn, and closed by the next process's newline or by the file system
                break
            raise DataError(
                f"{path}, line {number}: expected one JSON object; got {_shown(line.decode(errors='replace'))}"
            ) from error
        rows.append((row, end))
    return rows


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


_ABOUT, _PART = "about", "part"


class Chunks:
    """The finished parts of `best.jsonl`, which lie in `best.jsonl.part` until all of it is written.

    Each part must be the same whenever it is done, whatever was done before it in the same process.
    """

    def __init__(self, output: Path, about: Mapping[str, Any]) -> None:
        """Read the finished parts of `output`; `about` is all that they depend on, and must be that of those there."""
        self.path = output.with_name(f"{output.name}.part")
        about = json.loads(json.dumps(about))
        try:
            truncate(self.path, 2**63)  # what was torn would end up inside the next row
            rows = read(self.path)
            old = rows[0].get(_ABOUT) if rows else about
            if old != about:
                other = [key for key in about if not isinstance(old, dict) or old.get(key) != about[key]]
                raise UserError(
                    f"{self.path} has finished parts of this output with other {', '.join(other)}; remove it to begin "
                    "anew, or give `output` another name"
                )
            self.done: list[Any] = [row[_PART] for row in rows[1:]]
            self._file = self.path.open("ab")
            if not rows:
                append(self._file, {"step": 0, _ABOUT: about})
        except OSError as problem:
            raise UserError(f"cannot write {self.path}: {problem.strerror}") from problem

    def add(self, part: Mapping[str, Any]) -> None:
        """Keep a part that is finished."""
        self.done.append(json.loads(json.dumps(part)))
        append(self._file, {"step": len(self.done), _PART: part})

    def remove(self) -> None:
        """Remove the parts: the output file is complete."""
        self._file.close()
        self.path.unlink()
