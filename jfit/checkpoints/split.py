"""Arrays that are split over devices, in a checkpoint: each process of a job writes and reads its parts of them, with orbax.

The other arrays of the state are in state.safetensors.  `jfit.checkpoints.checkpoint` describes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jfit.checkpoints.saved import ARRAYS, REMEDY
from jfit.formats.atomic import FormatError
from jfit.lazy import optional


def orbax() -> Any:
    """Import orbax and return the package.

    Raises:
        ImportError: it is not installed.
    """
    problem = "split arrays of checkpoints need orbax-checkpoint; run pip install 'jfit[sharded]'"
    return optional("orbax.checkpoint", problem)


def split_arrays(leaves: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return those of the leaves of a state, by name, that are split over several devices."""
    is_split = lambda x: isinstance(x, jax.Array) and not x.is_fully_replicated and x.size  # noqa: E731
    return {name: x for name, x in leaves.items() if is_split(x) and not jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)}


def save_split(folder: Path, parts: Mapping[str, jax.Array]) -> None:
    """Write the parts of split arrays, by name, that are on the devices of this process.

    Args:
        folder: folder of the checkpoint, the same for all processes of a job.
        parts: the arrays by name.

    Raises:
        OSError: the folder does not exist, or the files cannot be written.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}, which rank 0 made, is not on this host; pass a folder that all hosts see")
    handler, path = _handler(folder)
    try:
        handler.save(path, args=orbax().args.PyTreeSave(dict(parts)))  # sync: a save reads the arrays from the devices
    except ValueError as error:  # of tensorstore, for example because the disk is full
        raise OSError(f"the split arrays cannot be written: {error}") from error


def finish_split(folder: Path) -> list[str]:
    """Join the files that all processes have written, and return the names of all files, such as "arrays/manifest.ocdbt"."""
    handler, path = _handler(folder)
    handler.finalize(path)
    return sorted(file.relative_to(folder).as_posix() for file in (folder / ARRAYS).rglob("*") if file.is_file())


def _handler(folder: Path) -> tuple[Any, Any]:
    """Return the handler of orbax, and the path of its files, which are not compressed: claimed sizes can be checked."""
    from etils import epath  # a requirement of orbax

    return orbax().PyTreeCheckpointHandler(use_compression=False), epath.Path((folder / ARRAYS).absolute())


def load_split(folder: Path, arrays: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Read the split arrays of a checkpoint: of each, the parts on the devices of this process.

    Args:
        folder: folder of the checkpoint.
        arrays: name -> array; for a split array, a `jax.ShapeDtypeStruct` with its shape and dtype.
        like: name -> array or spec whose `sharding` the array gets; without a sharding, the whole array is read to the host.

    Returns:
        `arrays` with `jax.Array`s, or, without sharding, NumPy arrays, in place of shapes and dtypes.

    Raises:
        FormatError: an array is missing or damaged, or has another shape.
        ImportError: orbax is not installed.
    """
    specs = {name: spec for name, spec in arrays.items() if isinstance(spec, jax.ShapeDtypeStruct)}
    if not specs:
        return dict(arrays)
    host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    where = {name: getattr(like.get(name), "sharding", None) or host for name in specs}
    (handler, path), arg = _handler(folder), orbax().ArrayRestoreArgs
    args = {k: arg(sharding=where[k], global_shape=s.shape, dtype=s.dtype) for k, s in specs.items()}
    options = orbax().args.PyTreeRestore(item=dict.fromkeys(specs, 0), restore_args=args, partial_restore=True)
    try:
        read = handler.restore(path, args=options)
        if missing := [name for name, x in read.items() if not isinstance(x, jax.Array)]:
            raise KeyError(f"{missing[0]} is not there")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise FormatError(path, "arrays", f"orbax cannot read them ({error})", REMEDY) from error
    return {**arrays, **{name: np.asarray(x) if where[name] is host else x for name, x in read.items()}}
