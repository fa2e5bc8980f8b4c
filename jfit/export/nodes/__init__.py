"""ONNX converters: one function per operator, one file per family of operators.

>>> from jfit.export.nodes import CONVERTERS
>>> "Convolution" in CONVERTERS
True
"""

from jfit.export.nodes import (  # noqa: F401  each registers its converters
    attention,
    conv,
    elementwise,
    indexing,
    nn,
    norm,
    reduce,
    rnn,
    shape,
    vision,
)
from jfit.export.nodes.core import CONVERTERS, At, Entry, Graph, Size, Step, Unsupported, aliased  # noqa: F401
