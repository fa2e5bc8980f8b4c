"""Bytes in and out, no policy: atomic writes and safetensors."""

from jfit.formats.atomic import FormatError, atomic_dir, atomic_write, sweep, trash
from jfit.formats.tensors import load_tensors, save_tensors, write_tensors

__all__ = ["FormatError", "atomic_dir", "atomic_write", "load_tensors", "save_tensors", "sweep", "trash", "write_tensors"]
