"""A Python session: cells of code, one after another, in one namespace."""

from __future__ import annotations

import _ast
import json
import os
import sys
from types import ModuleType

from .start import begin, silence

TYPE_CHECKING = False  # typing takes a tenth of the time to start
if TYPE_CHECKING:
    from typing import Any

_ONLY_TREE = 0x400  # ast.PyCF_ONLY_AST; ast itself takes longer to import


class _Output:
    """What cells print, as far as it is kept."""

    def __init__(self, most: int) -> None:
        self.text, self.most = "", most

    def write(self, text: str) -> int:
        self.text = (self.text + str(text))[: self.most + 1]
        return len(text)

    def flush(self) -> None:
        pass


def main() -> None:
    """Answer each line, a cell as JSON, with a line: [output, error]."""
    most = begin()["limits"]["output_kb"] << 6  # characters: JSON writes some in six bytes
    cells, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    silence(0, 1, 2)
    module = sys.modules["__main__"] = ModuleType("__main__")
    answers.write(b"[]\n")
    answers.flush()
    for line in cells:
        answers.write(json.dumps(_run(json.loads(line), vars(module), most)).encode() + b"\n")
        answers.flush()


def _run(source: str, names: dict[str, Any], most: int) -> list[str]:
    """What a cell prints, with the value that it ends in, and its error."""
    output = _Output(most)
    sys.stdout = sys.stderr = output  # pyright: ignore[reportAttributeAccessIssue]
    error = ""
    try:
        tree: Any = compile(source, "cell.py", "exec", _ONLY_TREE)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "cell.py", "exec"), names)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), "cell.py", "eval"), names)
            if value is not None:
                output.write(f"{value!r}\n")
    except BaseException as raised:
        import traceback  # takes longer to import than the rest to start

        trace = raised.__traceback__.tb_next if raised.__traceback__ else None  # without this function
        error = "".join(traceback.format_exception(type(raised), raised, trace)).strip()
    cut = "\n(cut)" if len(output.text) > most else ""
    return [output.text[:most] + cut, error[-most:]]
