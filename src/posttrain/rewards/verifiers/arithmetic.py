"""Arithmetic over written numbers, exactly, without evaluating anything as Python."""

import ast
import re
from fractions import Fraction

MAX_CHARACTERS = 200
_ARITHMETIC = re.compile(r"(?:[-+().\d\s]|\*(?!\*)|/(?!/))+", re.ASCII)
_DECIMAL = re.compile(r"(?<![\d.])\d*\.\d+(?![\d.])", re.ASCII)


def arithmetic(text: str) -> Fraction | None:
    """The value of sums, differences, products and quotients of numbers; None of anything else.

    Example:
        >>> arithmetic("2*(0.5 - 3/4)"), arithmetic("2**9"), arithmetic("1/0")
        (Fraction(-1, 2), None, None)
    """
    if len(text) > MAX_CHARACTERS or not _ARITHMETIC.fullmatch(text):
        return None
    whole = _DECIMAL.sub(lambda match: f"({Fraction('0' + match[0])})", text.strip())
    if "." in whole:
        return None
    try:
        return _value(ast.parse(whole, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(int() as number):
            return Fraction(number)
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.BinOp(left, ast.Add(), right):
            return _value(left) + _value(right)
        case ast.BinOp(left, ast.Sub(), right):
            return _value(left) - _value(right)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left) * _value(right)
        case ast.BinOp(left, ast.Div(), right):
            return _value(left) / _value(right)
        case _:
            raise ValueError("not arithmetic")
