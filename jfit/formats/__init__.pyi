"""The public names of this package: type checkers read them here, and so does `jfit.lazy.stub`."""

from jfit.formats.atomic import (
    FormatError as FormatError, atomic_dir as atomic_dir, atomic_path as atomic_path, atomic_write as atomic_write,
    leftovers as leftovers, replaced_folders as replaced_folders, sweep as sweep, trash as trash,
)
from jfit.formats.manifest import dump_sealed as dump_sealed, load_sealed as load_sealed
from jfit.formats.mxnet_arrays import load_arrays as load_arrays, save_arrays as save_arrays
from jfit.formats.mxnet_states import States as States, dump_states as dump_states, load_states as load_states
from jfit.formats.sparse import SparseArray as SparseArray, bounded_dense as bounded_dense
from jfit.formats.tensors import load_tensors as load_tensors, save_tensors as save_tensors
