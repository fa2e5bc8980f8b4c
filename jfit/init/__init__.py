"""Initializers: pure functions of a key, a parameter's name and attributes, its shape and its dtype.

Which rule a parameter gets follows MXNet 1.9.1: an `__init__` attribute on the variable wins; otherwise the end of the
name decides (`weight` is drawn by the initializer; `bias`, `beta`, `min` are 0; `gamma`, `max` are 1); any other name is
an error.  Keys are the caller's: one per parameter, derived from its name, so values never depend on the device count.

>>> import jax
>>> from jfit.init import InitDesc, Xavier, get
>>> Xavier()(jax.random.key(0), InitDesc("fc_weight"), (4, 3)).shape
(4, 3)
>>> get("normal", sigma=0.3).dumps()
'["normal", {"sigma": 0.3}]'
"""

from jfit.init import rules
from jfit.init.core import REGISTRY, InitDesc, InitFn, Initializer, draw_all, get, register
from jfit.init.fused import FusedRNN, fusedrnn
from jfit.init.rules import *  # noqa: F403  one list of the rules, in `rules`
from jfit.init.stored import Load, load

__all__ = ["REGISTRY", "InitDesc", "InitFn", "Initializer", "draw_all", "get", "register"]
__all__ += ["FusedRNN", "Load", "fusedrnn", "load"]
__all__ += rules.__all__
