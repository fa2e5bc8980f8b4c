"""`mx.base`: MXNet's error class, the conversion of jfit's errors to it, and `string_types`."""

from jfit.mxnet.errors import DamagedFile, MissingFile, MXNetError, ReshapeError, string_types, translated

__all__ = ["DamagedFile", "MXNetError", "MissingFile", "ReshapeError", "string_types", "translated"]
