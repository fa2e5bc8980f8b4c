"""The vocabulary: one registered record per operator.  `python -m jfit.ops` prints the table."""

from jfit.ops import (  # noqa: F401  each family registers its records
    binary,
    conv,
    create,
    indexing,
    linalg,
    loss,
    nn,
    norm,
    pooling,
    reduce,
    rnn,
    scalar,
    shape,
    slicing,
    softmax,
    unary,
)
from jfit.ops.attributes import REQUIRED, Attr, Attrs
from jfit.ops.context import Ctx
from jfit.ops.registry import ALIASES, REGISTRY, Op, UnknownOperator, lookup, nearest, operator, register
from jfit.ops.rows import LOST, Rows

__all__ = [
    "ALIASES",
    "LOST",
    "REGISTRY",
    "REQUIRED",
    "Attr",
    "Attrs",
    "Ctx",
    "Op",
    "Rows",
    "UnknownOperator",
    "lookup",
    "nearest",
    "operator",
    "register",
]
