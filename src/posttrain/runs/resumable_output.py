"""Resumable output files: finished chunks are skipped on restart."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import UserError
from posttrain.runs import jsonl

_ABOUT, _PART = "about", "part"


class Chunks:
    """The finished parts of `best.jsonl`, which lie in `best.jsonl.part` until all of it is written.

    Each part must be the same whenever it is done, whatever was done before it in the same process.
    """

    def __init__(self, output: Path, about: Mapping[str, Any]) -> None:
        """Read finished chunks.

        Args:
            output: the file that is to be made of the parts.
            about: all that the parts depend on.

        Raises:
            UserError: the parts that are there are of something else, or nothing can be written there.
        """
        self.path = output.with_name(f"{output.name}.part")
        about = json.loads(json.dumps(about))
        try:
            jsonl.truncate(self.path, 2**63)  # what was torn would end up inside the next row
            rows = jsonl.read(self.path)
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
                jsonl.append(self._file, {"step": 0, _ABOUT: about})
        except OSError as problem:
            raise UserError(f"cannot write {self.path}: {problem.strerror}") from problem

    def add(self, part: Mapping[str, Any]) -> None:
        """Keep a part that is finished."""
        self.done.append(json.loads(json.dumps(part)))
        jsonl.append(self._file, {"step": len(self.done), _PART: part})

    def remove(self) -> None:
        """Remove the parts: the output file is complete."""
        self._file.close()
        self.path.unlink()
