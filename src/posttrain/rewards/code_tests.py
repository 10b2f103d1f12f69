"""The tests of a task, divided between the box of the solution and that of the tests (`posttrain.sandbox.trial`).

A test may use what its setup defines, modules of the standard library, functions of the prompt, and builtins. Every
other name is the solution's, and is asked for in its box. So a solution that defines `isclose`, `len` or a function of
the prompt anew changes nothing that the tests call by that name.
"""

import ast
import builtins
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from posttrain.types import Task

_BUILTINS = frozenset(dir(builtins))
_NEEDS = "it needs a column 'test_list', or 'test' and 'entry_point', or 'inputs' and 'outputs'"
_IMPORTS = (ast.Import, ast.ImportFrom)
_ASSIGNS = (ast.Assign, ast.AnnAssign)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NoTests(ValueError):
    """The tests of a task cannot be run; says why."""


@dataclass(frozen=True)
class Tests:
    """The tests of a task that calls functions."""

    tests: tuple[str, ...]
    names: tuple[str, ...]
    """What they use of the solution."""
    shared: str
    """What runs behind the solution, in its box: imports and classes of the setup."""
    trusted: str
    """What runs before the tests, in theirs: the rest of the setup, modules that they use, functions of the prompt."""

    __test__ = False


def pairs_of(task: Task) -> list[tuple[str, str]]:
    """What a whole program reads, and must print, as texts; empty for a task that calls functions.

    Raises:
        NoTests: `inputs` and `outputs` are not lists of the same length.
    """
    inputs, outputs = (task.metadata.get(name) for name in ("inputs", "outputs"))
    if not inputs or task.metadata.get("test_list") or task.metadata.get("test"):
        return []
    if not (isinstance(inputs, list) and isinstance(outputs, list)):
        raise NoTests("finds 'inputs' and 'outputs' that are not two lists")
    inputs, outputs = cast("list[object]", inputs), cast("list[object]", outputs)
    if len(inputs) != len(outputs):
        raise NoTests(f"finds {len(inputs)} 'inputs' and {len(outputs)} 'outputs'; expected as many")
    return [(_text(given), _text(expected)) for given, expected in zip(inputs, outputs, strict=True)]


def _text(lines: object) -> str:
    return "\n".join(map(str, cast("list[object]", lines))) if isinstance(lines, list) else str(lines)


def read_tests(task: Task) -> Tests:
    """The tests of a task that calls functions.

    Raises:
        NoTests: there are none, or one does not compile, or uses nothing of a solution in a call.
    """
    tests, setup, entry = _given(task)
    trees = [_tree(f"test {number}, {test[:80]!r},", test) for number, test in enumerate(tests, 1)]
    body = _tree("the setup of the tests", setup).body
    ours = ast.Module([node for node in body if not isinstance(node, ast.ClassDef)], [])
    prompt = _code(_question(task))
    used = {name for tree in (*trees, ours) for name in _loaded(tree)} - _BUILTINS
    bound = {name for tree in (*trees, ours) for name in _bound(tree)}
    helpers = [node for node in _functions(prompt) if node.name != entry and not _is_stub(node)]
    helpers = helpers if {node.name for node in helpers} & used else []
    modules = {name for name in used - bound if name in sys.stdlib_module_names and _is_module(name, (*trees, ours))}
    names = (used - bound - modules) | ({entry} if entry else set[str]())
    if names <= {node.name for node in helpers}:  # a function of the prompt is to be written anew
        helpers = []
    names -= {node.name for node in helpers}
    if not names:  # the function has the name of a builtin: the one that every test calls
        names = set[str].intersection(*map(_called, trees)) & _BUILTINS
    for number, (test, tree) in enumerate(zip(tests, trees, strict=True), 1):
        uses = _loaded(tree) | (_loaded(ours) if _loaded(tree) & _bound(ours) else set[str]())
        if not (uses & names and _called(tree)):
            raise NoTests(f"finds that test {number} calls nothing of a solution: {test[:80]!r}")
    opening = [node for node in prompt.body if isinstance(node, (*_IMPORTS, *_ASSIGNS))] if helpers and prompt else []
    imported = [ast.Import([ast.alias(name)]) for name in sorted(modules)]
    return Tests(
        tests,
        tuple(sorted(names)),
        _source([node for node in body if isinstance(node, (*_IMPORTS, ast.ClassDef))]),
        _source([*imported, *opening, *helpers, *ours.body]),
    )


def _given(task: Task) -> tuple[tuple[str, ...], str, str]:
    """The tests, what runs before them, and the name of the function if the task says it."""
    listed, test = task.metadata.get("test_list"), task.metadata.get("test")
    entry = str(task.metadata.get("entry_point") or "")
    if listed:
        texts = cast("Sequence[object]", listed if isinstance(listed, list | tuple) else [listed])
        if not all(isinstance(text, str) for text in texts):
            raise NoTests("finds a 'test_list' that is no list of texts")
        return tuple(cast("Sequence[str]", texts)), str(task.metadata.get("test_setup_code") or ""), entry
    if not (isinstance(test, str) and entry):
        raise NoTests(f"finds no tests: {_NEEDS}")
    check = next((node for node in _functions(_tree("'test'", test)) if node.name == "check"), None)
    if check is None:
        return (test,), "", entry
    if not _called(check) & {entry, *(argument.arg for argument in check.args.args)}:
        raise NoTests("finds that 'check' of its 'test' never calls the function that it is given")
    return (f"check({entry})",), test, entry


def sources_of(program: str, tests: Tests, task: Task) -> list[str]:
    """What runs in the box of a solution: the program, with what the prompt defines before; or what it continues.

    A program is whole if it defines something that the tests use. Otherwise, where the prompt is code, the two are one
    text.
    """
    prompt = _question(task)
    code = _code(prompt)
    if code is None:
        return [program]
    if why_no_python(program) or not _bound(ast.parse(program)) & set(tests.names):
        return [prompt + program]
    opening = [node for node in code.body if isinstance(node, (*_IMPORTS, *_ASSIGNS, *_DEFINES))]
    opening = [node for node in opening if not (isinstance(node, _DEFINES) and node.name in tests.names)]
    return [_source(opening), program]


def why_no_python(*sources: str) -> str:
    """Why the first text that does not compile is no Python; "" if all are."""
    for source in sources:
        try:
            with warnings.catch_warnings(action="ignore"):  # they quote the text on the terminal
                compile(source, "solution.py", "exec")
        except SyntaxError as error:
            return f"{error.msg}, line {error.lineno}"
        except (ValueError, RecursionError, MemoryError) as error:  # a null byte; brackets in brackets
            return str(error) or type(error).__name__
    return ""


def _tree(what: str, source: str) -> ast.Module:
    if why := why_no_python(source):
        raise NoTests(f"finds that {what} does not compile: {why}")
    return ast.parse(source)


def _question(task: Task) -> str:
    return task.prompt[-1].content if task.prompt else ""


def _code(prompt: str) -> ast.Module | None:
    """The prompt as code, if it is: a word alone is, for Python."""
    tree = ast.Module([], []) if why_no_python(prompt) else ast.parse(prompt)
    return tree if any(isinstance(node, (*_IMPORTS, *_DEFINES)) for node in tree.body) else None


def _is_stub(node: ast.FunctionDef) -> bool:
    """Whether a function of a prompt is to be written: it has nothing but a docstring, `pass`, `...` or a `raise`."""
    plain = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
    return all(isinstance(one, ast.Pass | ast.Raise) for one in plain)


def _functions(code: ast.Module | None) -> list[ast.FunctionDef]:
    return [node for node in code.body if isinstance(node, ast.FunctionDef)] if code else []


def _source(nodes: Sequence[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(nodes), [])))


def _loaded(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _called(tree: ast.AST) -> set[str]:
    """The names that are called, or of which a method is."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Call) for name in _loaded(node.func)}


def _bound(tree: ast.AST) -> set[str]:
    """The names that are assigned, defined, imported or parameters, anywhere."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def _is_module(name: str, trees: Sequence[ast.AST]) -> bool:
    """Whether a name is used only before a point, and never called: `math` in `math.pi`."""
    inner = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    before = sum(isinstance(node, ast.Name) and node.id == name for node in inner)
    everywhere = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return before == len(everywhere)
