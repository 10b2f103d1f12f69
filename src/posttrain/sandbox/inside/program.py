"""A whole program: its standard input, output and error are the box's."""

import sys
from types import ModuleType

from .start import begin


def main() -> None:
    """Run it as `__main__`."""
    job = begin()
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(job["source"], "program.py", "exec"), vars(module))
