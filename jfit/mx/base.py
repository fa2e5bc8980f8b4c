"""`mx.base`: MXNet's error, and what scripts use to recognize a name."""

from jfit.mxnet.errors import MXNetError, string_types

__all__ = ["MXNetError", "string_types"]
