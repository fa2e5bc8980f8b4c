"""Devices, placement of arrays on them, and data-parallel training steps (pmap, psum)."""

from jfit import lazy as _lazy

_lazy.stub(__name__)
