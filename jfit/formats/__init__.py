"""File formats: atomic writes, safetensors, MXNet's array files (.params) and optimizer states (.states)."""

from jfit import lazy as _lazy
from jfit.formats.atomic import (
    FormatError,
    atomic_dir,
    atomic_path,
    atomic_together,
    atomic_write,
    complete_file,
    leftovers,
    replaced_folders,
    sweep,
    trash,
)
from jfit.formats.manifest import dump_sealed, load_sealed
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.formats.mxnet_states import States, dump_states, load_states
from jfit.formats.sparse import SparseArray, bounded_dense
from jfit.formats.tensors import load_tensors, save_tensors

__all__ = [
    "FormatError",
    "SparseArray",
    "States",
    "atomic_dir",
    "atomic_path",
    "atomic_together",
    "atomic_write",
    "bounded_dense",
    "complete_file",
    "dump_sealed",
    "dump_states",
    "leftovers",
    "load_arrays",
    "load_sealed",
    "load_states",
    "load_tensors",
    "replaced_folders",
    "save_arrays",
    "save_tensors",
    "sweep",
    "trash",
]

_lazy.modules(__name__)
