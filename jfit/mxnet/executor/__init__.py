"""Graphs bound to arrays: `Symbol.bind`, `simple_bind` and the Executor they return."""

from jfit import lazy as _lazy

_lazy.modules(__name__)
