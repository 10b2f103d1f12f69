r"""Answers within rounding error of the right one, which algebra calls equal: `\pi + e^{-100}` for pi."""

from itertools import product
from typing import Any, cast

LITTLE = 1e-20
_DIGITS = 5000  # behind which a difference is none; the largest power that is read, `\pi^{-9999}`, has 4,972
_MOST_PAIRS = 200
_VALUES = (2, 3, 5, 7, 11, 13)  # of the variables; small, since one may be the exponent of another


def differs_by_little(right: Any, given: Any) -> bool:
    """Whether a part of one value differs from a part of the other, but by less than `LITTLE`."""
    pairs = list(product(_parts(right), _parts(given)))
    return len(pairs) <= _MOST_PAIRS and any(_is_little(one, other) for one, other in pairs)


def _parts(value: Any) -> list[Any]:
    """The expressions of a list, an interval, a matrix or a relation, of which it is the difference of the sides."""
    from sympy import Expr, MatrixBase  # pyright: ignore[reportMissingTypeStubs]
    from sympy.core.relational import Relational  # pyright: ignore[reportMissingTypeStubs]

    if isinstance(value, Expr):
        return [value]
    if isinstance(value, Relational):
        sides = cast("Any", value)
        if not (isinstance(sides.lhs, Expr) and isinstance(sides.rhs, Expr)):
            return _parts(sides.rhs)
        return [sides.lhs - sides.rhs, sides.rhs - sides.lhs]
    inner = list(cast("Any", value)) if isinstance(value, MatrixBase) else getattr(value, "args", ())
    return [part for one in inner for part in _parts(one)]


def _is_little(one: Any, other: Any) -> bool:
    from sympy.core.evalf import PrecisionExhausted  # pyright: ignore[reportMissingTypeStubs]

    difference = (one - other).doit()
    names = sorted(difference.free_symbols, key=str)
    difference = difference.subs(list(zip(names, _VALUES, strict=False)))
    if difference.is_number is False or difference.is_zero:
        return False
    try:
        size = abs(difference.evalf(2, maxn=_DIGITS, strict=True))
        return bool(0 < size < LITTLE)
    except PrecisionExhausted:  # as good as nothing
        return False
