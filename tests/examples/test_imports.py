"""Benchmarks and examples name what is there: most are not run by any test."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


def is_there(module: str, name: str) -> bool:
    if hasattr(import_module(module), name):
        return True
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


def missing(source: str) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    named = [(str(node.module), alias.name) for node in nodes for alias in node.names]
    return [f"{m}.{name}" for m, name in named if m.split(".")[0] == "posttrain" and not is_there(m, name)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_program_imports_is_there(program):
    assert missing(program.read_text()) == []


def test_what_is_not_there_is_found():
    assert missing("from posttrain.statistics import sign, sine") == ["posttrain.statistics.sine"]
    assert missing("def f():\n    from posttrain import runs, walks") == ["posttrain.walks"]
