"""Safe parsing of model output as expressions or literals, without executing it.

Everything else is refused before anything is evaluated, and so are powers of powers and exponents above 9999, or above
that in all. Neither function bounds time or memory beyond that: they are used in a worker process that does.
"""

import ast
import operator
import re
from typing import Any

MAX_EXPONENT = 9999
_OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod"},
    **{ast.Pow: "pow", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "lshift"},
    **{ast.RShift: "rshift", ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"},
}  # names of functions in the module `operator`
_PLAIN_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Load, *_OPERATORS)
_ELEMENTARY = frozenset(
    (
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("exp", "log", "ln", "sqrt", "Abs", "abs"),
    )
)
_CONSTANTS = frozenset(("pi", "E", "I"))


def plain_expression(text: str) -> str:
    """`text` itself if it is nothing but arithmetic, variables and elementary functions; else `ValueError`.

    A variable is one letter, with or without a number (`x`, `y2`, `w_1`). There are no attributes, no subscripts, no
    strings and no other calls.
    """
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Call):
            plain = isinstance(node.func, ast.Name) and node.func.id in _ELEMENTARY
        elif isinstance(node, ast.Name):
            variable = re.fullmatch(r"[^\W\d_](_?[0-9]+)?", node.id) is not None
            plain = variable or node.id in _ELEMENTARY or node.id in _CONSTANTS
        elif isinstance(node, ast.Constant):
            plain = isinstance(node.value, int | float)
        else:
            plain = isinstance(node, _PLAIN_NODES)
        if not plain:
            raise ValueError(f"not a plain expression: {type(node).__name__}")
    return text


def literal(text: str, *_: object) -> Any:
    """What scorers get for `eval`: the value of arithmetic over numbers, or of a list or tuple of such and of strings.

    Of anything else nothing is run: `ValueError`.
    """
    return _value(_parsed(text).body)


def _parsed(text: str) -> ast.Expression:
    if "#" in text:
        raise ValueError("not a plain expression: it has a comment")
    tree = ast.parse(text.strip(), mode="eval")
    exponents = 0.0  # at most what they are in size, where each is a sum of numbers
    for power in ast.walk(tree):
        if isinstance(power, ast.BinOp) and isinstance(power.op, ast.Pow | ast.LShift):
            numbers = [node.value for node in ast.walk(power.right) if isinstance(node, ast.Constant)]
            exponents += sum(abs(number) for number in numbers if isinstance(number, int | float))
            of_power = _grows(power.left, ast.Pow, ast.LShift) or _grows(power.right, ast.Pow, ast.LShift, ast.Mult)
            if of_power or exponents > MAX_EXPONENT:  # decided by size, not by a clock
                raise ValueError("not a plain expression: powers that are too large")
    return tree


def _grows(side: ast.expr, *by: type[ast.operator]) -> bool:
    """Whether numbers alone grow there by these operations."""
    nodes = list(ast.walk(side))
    return any(isinstance(node, by) for node in nodes) and not any(isinstance(node, ast.Name) for node in nodes)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(element) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.BinOp):
        operands = [_value(node.left), _value(node.right)]
    elif isinstance(node, ast.UnaryOp):
        operands = [_value(node.operand)]
    else:
        raise ValueError(f"not a plain value: {type(node).__name__}")
    if not all(isinstance(operand, int | float) for operand in operands) or type(node.op) not in _OPERATORS:
        raise ValueError(f"not a plain value: {type(node.op).__name__} on something other than numbers")
    return getattr(operator, _OPERATORS[type(node.op)])(*operands)
