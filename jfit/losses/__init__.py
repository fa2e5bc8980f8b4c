"""Losses for models of functions; a short name for `jfit.lowering.losses`."""

from jfit import lazy as _lazy

_lazy.stub(__name__)
