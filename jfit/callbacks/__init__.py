"""Callbacks of `jfit.fit`; a short name for `jfit.train.callbacks`."""

from jfit.train.callbacks import *  # noqa: F403
from jfit.train.callbacks import __all__  # noqa: F401
