"""Saved states by their short path; their home is `jfit.train.checkpoint`."""

from jfit.train.checkpoint import latest, load_arrays, load_meta, restore, save, set_aside, verify

__all__ = ["latest", "load_arrays", "load_meta", "restore", "save", "set_aside", "verify"]
