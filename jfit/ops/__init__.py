"""The vocabulary: one registered record per operator.  `python -m jfit.ops` prints the table."""

from jfit.ops import (  # noqa: F401  each family registers its records
    attention,
    boxes,
    control,
    conv,
    copies,
    correlation,
    create,
    ctc,
    custom,
    elementwise,
    hawkes,
    image,
    indexing,
    linalg,
    loss,
    multibox,
    nn,
    norm,
    pooling,
    proposal,
    quantized,
    random,
    reduce,
    resize,
    rnn,
    roi,
    sampler,
    shape,
    slicing,
    softmax,
    sorting,
    spectral,
)
from jfit.ops.attributes import REQUIRED, Attr, Attrs
from jfit.ops.context import Ctx
from jfit.ops.registry import ALIASES, REGISTRY, Op, UnknownOperator, lookup, nearest, operator, record_for, register
from jfit.ops.rows import LOST, RowLayout

Rows = RowLayout  # its earlier name

__all__ = [
    "ALIASES",
    "LOST",
    "REGISTRY",
    "REQUIRED",
    "Attr",
    "Attrs",
    "Ctx",
    "Op",
    "RowLayout",
    "UnknownOperator",
    "lookup",
    "nearest",
    "operator",
    "record_for",
    "register",
]
