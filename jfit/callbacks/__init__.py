"""Callbacks of `jfit.fit`: a callback is a pair of functions `init() -> state` and `on(event, state) -> new state`."""

from jfit import lazy as _lazy

_lazy.stub(__name__)
