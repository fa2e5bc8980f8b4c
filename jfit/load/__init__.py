"""Load models from files: a graph and its parameters, ready for `predict`, `score` and `fit`."""

from jfit.load.loaded import Loaded, load

__all__ = ["Loaded", "load"]
