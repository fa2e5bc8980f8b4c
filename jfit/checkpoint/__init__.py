"""Checkpoints of the training state: save, restore, verify; a short name for `jfit.checkpoints.checkpoint`."""

from jfit.checkpoints.checkpoint import best, latest, load_arrays, load_extra, load_meta, restore, save, set_aside, verify
from jfit.checkpoints.locks import FolderInUse

__all__ = ["FolderInUse", "best", "latest", "load_arrays", "load_extra", "load_meta", "restore", "save", "set_aside", "verify"]
