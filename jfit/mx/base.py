"""`mx.base`: MXNet's error, how the errors of jfit become it, and what scripts use to recognize a name."""

from jfit.mxnet.errors import DamagedFile, MissingFile, MXNetError, ReshapeError, string_types, translated

__all__ = ["DamagedFile", "MXNetError", "MissingFile", "ReshapeError", "string_types", "translated"]
