"""Arrays that are split over devices, in a checkpoint: each process of a job writes and reads its parts of them, with orbax.

The other arrays of the state are in state.safetensors.  `jfit.checkpoints.checkpoint` describes the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jfit.checkpoints.saved import ARRAYS, REMEDY, checksum_of
from jfit.checkpoints.writing import Prepared, write_files, writing
from jfit.checkpoints.writing import write as write_whole
from jfit.distributed import exchange, is_main, num_processes, rank
from jfit.formats.atomic import FormatError


def orbax() -> Any:
    """Import orbax and return the package.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import orbax.checkpoint as package
    except ImportError as error:
        message = "checkpoints of split arrays need the package orbax-checkpoint; install it: pip install 'jfit[sharded]'"
        raise ImportError(message) from error
    return package


def split_arrays(leaves: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Return those of the leaves of a state, by name, that are split over several devices."""
    is_split = lambda x: isinstance(x, jax.Array) and not x.is_fully_replicated and x.size  # noqa: E731
    return {name: x for name, x in leaves.items() if is_split(x) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)}


def write(prepared: Prepared, is_wanted: Callable[[], bool] = lambda: True) -> Path:
    """Write a checkpoint, and delete older ones.

    In a job, rank 0 writes whole arrays, and all processes must call it for split ones, with a folder that all of them see.

    Args:
        prepared: the checkpoint.
        is_wanted: called when all files are written, before the folder gets its name.

    Returns:
        Its folder.

    Raises:
        FolderInUse: another process saves its checkpoints in the same directory.
        OSError: the files cannot be written; in a job with split arrays, in all processes.
        Abandoned: `is_wanted` returned False.
    """
    if not prepared.parts:
        return write_whole(prepared, is_wanted) if is_main() else prepared.path
    with ExitStack() as stack:
        enter = lambda: str(stack.enter_context(writing(prepared, is_wanted)))  # noqa: E731
        folder = Path(_agreed(enter if is_main() else str, "making the folder of a checkpoint")[0])
        _agreed(lambda: _save(folder, prepared.parts), "writing split arrays")
        names = _agreed(lambda: _finish(folder) if is_main() else [], "finishing split arrays")[0]
        entries = _agreed(lambda: {name: _entry(folder / name) for name in names[rank() :: num_processes()]}, "checksums")
        files = {name: next(part for part in entries if name in part)[name] for name in names}

        def end() -> None:
            write_files(prepared, folder, files)
            stack.close()

        _agreed(end if is_main() else lambda: None, "naming a checkpoint")
    return prepared.path


def _agreed(action: Callable[[], Any], name: str) -> list[Any]:
    """Call a function in all processes and return its results by rank; if it raises an exception in one, raise one in all."""
    value = error = None
    try:
        value = action()
    except Exception as raised:
        error = raised
    results = exchange([value, None if error is None else str(error)], name)
    if error is not None:
        raise error
    for number, (_, problem) in enumerate(results):
        if problem is not None:
            raise OSError(f"rank {number} of the job failed in {name}: {problem}")
    return [value for value, _ in results]


def _save(folder: Path, parts: Mapping[str, jax.Array]) -> None:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}, which rank 0 made, is not on this host; pass a folder that all hosts see")
    try:
        handler, path = _handler(folder)
        handler.save(path, args=orbax().args.PyTreeSave(dict(parts)))  # sync: of a save
    except ValueError as error:  # of tensorstore, for example because the disk is full
        raise OSError(f"the split arrays cannot be written: {error}") from error


def _finish(folder: Path) -> list[str]:
    """Join the files of all processes, and return the names of all files."""
    handler, path = _handler(folder)
    handler.finalize(path)
    return sorted(file.relative_to(folder).as_posix() for file in (folder / ARRAYS).rglob("*") if file.is_file())


def _handler(folder: Path) -> tuple[Any, Any]:
    """The handler of orbax, and the path of its files; without compression they have at least the bytes of the arrays."""
    from etils import epath  # a requirement of orbax

    return orbax().PyTreeCheckpointHandler(use_compression=False), epath.Path((folder / ARRAYS).absolute())


def _entry(file: Path) -> dict[str, int]:
    return {"bytes": file.stat().st_size, "crc32": checksum_of(file)}


def load(folder: Path, specs: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    """Read split arrays from the folder of a checkpoint: of each array, the parts on the devices of this process.

    Args:
        folder: the folder.
        specs: shapes, dtypes and shardings by name.  An array without sharding is read whole, to the host.

    Returns:
        Dict from name to `jax.Array`, or NumPy array without sharding.

    Raises:
        FormatError: an array is missing, or has another shape or dtype.
        ImportError: orbax is not installed.
    """
    if not specs:
        return {}
    package, host = orbax(), SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    args = {k: package.ArrayRestoreArgs(sharding=s.sharding or host, global_shape=s.shape) for k, s in specs.items()}
    options = package.args.PyTreeRestore(item=dict.fromkeys(specs, 0), restore_args=args, partial_restore=True)
    try:
        handler, path = _handler(folder)
        arrays = handler.restore(path, args=options)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise FormatError(folder / ARRAYS, "arrays", f"orbax cannot read them ({error})", REMEDY) from error
    for name, spec in specs.items():
        if arrays[name].dtype != spec.dtype:
            raise FormatError(folder / ARRAYS, name, f"dtype {arrays[name].dtype}, expected {spec.dtype}", REMEDY)
    return {name: x if specs[name].sharding else np.asarray(x) for name, x in arrays.items()}
