"""Models from files: a graph and its parameters, as a model that predicts, scores and is fitted on."""

from jfit.load.loaded import Loaded, load

__all__ = ["Loaded", "load"]
