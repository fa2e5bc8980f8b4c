"""Iterators over numeric data files: CSV, LibSVM and MNIST (IDX)."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
