"""The operators of jfit; each is described by a registered `Op`.  `python -m jfit.ops` prints a table of all of them."""

from jfit.ops import (  # noqa: F401  importing a family registers its operators
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
    tables,
)
from jfit.ops.attributes import REQUIRED, Attr, Attrs
from jfit.ops.context import Ctx
from jfit.ops.registry import ALIASES, REGISTRY, Op, UnknownOperator, lookup, nearest, operator, record_for, register
from jfit.ops.rows import LOST, RowLayout

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
