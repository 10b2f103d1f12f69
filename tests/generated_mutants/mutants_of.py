"""Makes mutants of a source file: mutmut's operators, at places and in an order of ours.

mutmut says what may be put in the place of a node (`<=` for `<`, an argument left out, a condition that is always
true); libcst finds the places and writes the text anew, with nothing else changed.
"""

import ast
import difflib
import random
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

# A text in other letters is a fault in wording, and tests name only a part of what is said.
OPERATORS = [(kind, operator) for kind, operator in mutation_operators if operator is not operator_string]
# What a call of these is given decides nothing, or everything at once.
TYPES_ONLY = {"cast", "len", "isinstance", "issubclass", "TypeVar"}
# Without these the tests' files are read the same, and lists of equal length are zipped the same.
GUARDS = {"encoding", "strict"}


class Place(NamedTuple):
    """A node, and what to put in its place."""

    line: int
    operator: str
    old: cst.CSTNode
    new: cst.CSTNode


class Mutant(NamedTuple):
    """A whole file with one place changed."""

    line: int
    text: str


class Places(cst.CSTVisitor):
    """Collect the places of a file where an operator applies."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Place] = []
        self._line = 1

    def on_visit(self, node: cst.CSTNode) -> bool:
        position = self.get_metadata(PositionProvider, node, None)
        self._line = position.start.line if position else self._line  # of what has none: that of what it is in
        if _runs_at_import_or_never(node) or (isinstance(node, cst.Arg) and _keyword(node) in GUARDS):
            return False
        if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value in TYPES_ONLY):
            for kind, operator in OPERATORS:
                for new in operator(node) if isinstance(node, kind) else ():
                    if not _says_nothing(node, new):
                        self.found.append(Place(self._line, operator.__name__, node, new))
        return True


def _runs_at_import_or_never(node: cst.CSTNode) -> bool:
    """Whether `node` is a type or a decorator: tests would see the import fail, or nothing at all."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom():
            return True
        case cst.If(test=cst.Name("TYPE_CHECKING")):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))]):  # Interval = tuple[float, float]
            return name[0].isupper() and not name.isupper()
    return False


def _keyword(argument: cst.Arg) -> str:
    return argument.keyword.value if argument.keyword else ""


def _says_nothing(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Whether `new` is a guard left out of a call, nothing for nothing, or `a, b = None`, which no code survives."""
    match old, new:
        case cst.Assign(value=cst.Name("False")), _:
            return True
        case cst.AnnAssign(value=cst.Name("False" | "None") | cst.Tuple(elements=()) | cst.SimpleString('""')), _:
            return True  # a field's default: what is empty is asked for by its truth
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple())]), cst.Assign():
            return True
        case cst.Call(args=before), cst.Call(args=after):
            kept = {id(argument) for argument in after}
            return any(_keyword(argument) in GUARDS for argument in before if id(argument) not in kept)
    return False


def sampled(text: str, count: int, rng: random.Random) -> list[Mutant]:
    """Return up to `count` mutants of `text`, each of another line while there are lines left.

    A mutant that does not compile, or is what the text was, is no mutant: the next is taken instead.
    """
    wrapper = MetadataWrapper(cst.parse_module(text))
    places = Places()
    wrapper.visit(places)
    same, found = ast.dump(ast.parse(text)), {}
    for place in _line_by_line(places.found, rng):
        if len(found) == count:
            break
        changed = wrapper.module.deep_replace(place.old, place.new)
        mutant = changed.code if isinstance(changed, cst.Module) else ""
        if _compiles(mutant) and ast.dump(ast.parse(mutant)) != same:
            found.setdefault(mutant, Mutant(first_changed(text, mutant), mutant))
    return list(found.values())


def _line_by_line(places: list[Place], rng: random.Random) -> Iterator[Place]:
    """One place of every line, in a random order of lines; then another of every line; until none is left.

    In a line every operator has the same chance, however many arguments its calls have.
    """
    by_line: dict[int, dict[str, list[Place]]] = {}
    for place in places:
        by_line.setdefault(place.line, {}).setdefault(place.operator, []).append(place)
    while by_line:
        order = list(by_line)
        rng.shuffle(order)
        for line in order:
            operators = by_line[line]
            name = rng.choice(list(operators))
            yield operators[name].pop(rng.randrange(len(operators[name])))
            by_line[line] = {name: left for name, left in operators.items() if left}
        by_line = {line: operators for line, operators in by_line.items() if operators}


def _compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `1 is 1` is warned of
        try:
            compile(text, "mutant", "exec")
        except (SyntaxError, ValueError):
            return False
    return bool(text)


def first_changed(text: str, mutant: str) -> int:
    """Return the number of the first line that is not what it was."""
    pairs = enumerate(zip(text.split("\n"), mutant.split("\n"), strict=False), 1)
    return next((number for number, (old, new) in pairs if old != new), 1)


def diff(text: str, mutant: str) -> list[str]:
    """Return the lines that changed, as `- old` and `+ new`."""
    lines = difflib.unified_diff(text.split("\n"), mutant.split("\n"), n=0, lineterm="")
    return [f"{line[0]} {line[1:].strip()}" for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
