"""ONNX converters, one per operator, a family a file.

>>> from jfit.export.nodes import CONVERTERS
>>> "Convolution" in CONVERTERS
True
"""

from jfit.export.nodes import attention, conv, elementwise, indexing, nn, norm, reduce, rnn, shape, vision
from jfit.export.nodes.core import CONVERTERS, At, Entry, Graph, Size, Step, Unsupported, aliased

__all__ = [
    "CONVERTERS",
    "At",
    "Entry",
    "Graph",
    "Size",
    "Step",
    "Unsupported",
    "aliased",
    "attention",
    "conv",
    "elementwise",
    "indexing",
    "nn",
    "norm",
    "reduce",
    "rnn",
    "shape",
    "vision",
]
