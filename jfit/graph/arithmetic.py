"""Python operators on symbols: each adds one node, named as MXNet names it (`_plus0`, `_mulscalar0`, ...)."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np


def _arith(binary: str | None, scalar: str, left: Any, right: Any) -> Any:
    from jfit.graph.compose import apply_op

    if isinstance(right, Arithmetic):
        assert binary is not None
        return apply_op(binary, (left, right), {})
    if isinstance(right, numbers.Number) or (hasattr(right, "__float__") and np.ndim(right) == 0):
        return apply_op(scalar, (left,), {"scalar": right})
    if hasattr(right, "shape"):
        raise TypeError(
            f"{left!r} meets an array of shape {tuple(right.shape)}; a graph holds no arrays: make a Variable and feed the "
            "array under its name"
        )
    return NotImplemented


class Arithmetic:
    """The operators +, -, *, /, %, **, unary -, abs and the comparisons, with symbols and with numbers.

    Example:
        >>> import jfit
        >>> a, b = jfit.sym.Variable("a"), jfit.sym.Variable("b")
        >>> (2 * a + b).list_arguments()
        ['a', 'b']
    """

    __slots__ = ()
    __array_ufunc__ = None  # numpy scalars on the left leave the work to __radd__ and the others

    def __hash__(self) -> int:
        return id(self)

    def __add__(self, o: Any) -> Any:
        return _arith("_Plus", "_PlusScalar", self, o)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Any:
        return _arith("_Minus", "_MinusScalar", self, o)

    def __rsub__(self, o: Any) -> Any:
        return _arith(None, "_RMinusScalar", self, o)

    def __mul__(self, o: Any) -> Any:
        return _arith("_Mul", "_MulScalar", self, o)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Any:
        return _arith("_Div", "_DivScalar", self, o)

    def __rtruediv__(self, o: Any) -> Any:
        return _arith(None, "_RDivScalar", self, o)

    def __mod__(self, o: Any) -> Any:
        return _arith("_Mod", "_ModScalar", self, o)

    def __rmod__(self, o: Any) -> Any:
        return _arith(None, "_RModScalar", self, o)

    def __pow__(self, o: Any) -> Any:
        return _arith("_Power", "_PowerScalar", self, o)

    def __rpow__(self, o: Any) -> Any:
        return _arith(None, "_rpower_scalar", self, o)

    def __neg__(self) -> Any:
        return _arith(None, "_MulScalar", self, -1.0)

    def __eq__(self, o: object) -> Any:  # type: ignore[override]
        return _arith("_Equal", "_equal_scalar", self, o)

    def __ne__(self, o: object) -> Any:  # type: ignore[override]
        return _arith("_Not_Equal", "_not_equal_scalar", self, o)

    def __gt__(self, o: Any) -> Any:
        return _arith("_Greater", "_greater_scalar", self, o)

    def __ge__(self, o: Any) -> Any:
        return _arith("_Greater_Equal", "_greater_equal_scalar", self, o)

    def __lt__(self, o: Any) -> Any:
        return _arith("_Lesser", "_lesser_scalar", self, o)

    def __le__(self, o: Any) -> Any:
        return _arith("_Lesser_Equal", "_lesser_equal_scalar", self, o)

    def __abs__(self) -> Any:
        from jfit.graph.compose import apply_op

        return apply_op("abs", (self,), {})
