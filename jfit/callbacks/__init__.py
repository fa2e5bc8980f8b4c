"""The callbacks of `jfit.fit`, by their short path; their home is `jfit.train.callbacks`."""

from jfit.train.callbacks import *  # noqa: F403
from jfit.train.callbacks import __all__  # noqa: F401
