"""ONNX converters: one function per operator, one file per family of operators.

>>> from jfit.export.nodes import CONVERTERS
>>> "Convolution" in CONVERTERS
True
"""

import importlib as _importlib

from jfit.export.nodes.core import CONVERTERS, At, Entry, Graph, Size, Step, Unsupported  # noqa: F401

for _family in ["attention", "conv", "elementwise", "indexing", "nn", "norm", "reduce", "rnn", "shape", "vision"]:
    _importlib.import_module(f"{__name__}.{_family}")  # which registers its converters
