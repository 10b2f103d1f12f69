"""Loading of user code by path: `path/to/file.py:name`."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from posttrain.errors import USER_MODULE, UserError, described


def load(purpose: str, path: str, kind: str) -> Any:
    """The object `path/to/file.py:name`; errors say what for, such as a reward, and what kind: function or class.

    Raises:
        UserError: the file or the name does not exist (nearest name given), or the file cannot be imported.
    """
    file, colon, name = path.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise UserError(f"cannot read the {purpose} '{path}'; expected path/to/file.py:{kind}")
    location = Path(file).expanduser()
    if not location.is_file():
        raise UserError(
            f"the {purpose} '{path}' needs the file '{file}', which does not exist (looked in {Path.cwd()})"
        )
    module = import_file(location)
    found = getattr(module, name, None)
    if found is None:
        is_one = inspect.isclass if kind == "class" else inspect.isfunction
        own = (pair for pair in vars(module).items() if getattr(pair[1], "__module__", "") == module.__name__)
        defined = [key for key, value in own if is_one(value)]
        near = get_close_matches(name, defined, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UserError(f"'{file}' has no {kind} '{name}'; {hint}It has: {', '.join(sorted(defined)) or 'none'}")
    return found


def import_file(location: Path) -> ModuleType:
    """The file as a module, once for each version of the file: two names of one file share its state.

    Raises:
        UserError: it cannot be imported; names the line.
    """
    location = location.resolve()
    version = hashlib.sha256(str(location).encode() + b"\0" + location.read_bytes()).hexdigest()[:16]
    name = f"{USER_MODULE}{location.stem}_{version}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, location)
    if spec is None or spec.loader is None:
        raise UserError(f"'{location}' cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(location.parent))  # so that it can import its neighbours, as a script can
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        ours = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(location)]
        line = getattr(error, "lineno", None) or (ours[-1] if ours else None)
        where = f"line {line}: " if line else ""
        raise UserError(f"'{location}' cannot be imported: {where}{described(error)}") from error
    finally:
        sys.path.remove(str(location.parent))
    return module
