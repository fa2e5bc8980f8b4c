"""Checkpoints of a run: save, restore, verify. A folder a step, whole or absent, newest N kept.

directory/step-00000123/state.safetensors   every array of the state, by key path
directory/step-00000123/meta.json           step, crc32 and size of the tensors, key kinds, what the caller adds
"""

import json
import os
import re
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jfit.formats.atomic import FormatError, atomic_dir, sweep, trash
from jfit.formats.tensors import checksum, load_tensors, save_tensors
from jfit.step.state import TrainState

State = TypeVar("State")

_FORMAT = 1
_TENSORS, _META = "state.safetensors", "meta.json"
_FILE_NAMES = {"base_lr": "lr"}  # fields of a TrainState that files call otherwise
_STEP = re.compile(r"step-(\d{8,})")
_REMEDY = "restore an older checkpoint of the same folder, or train from the start."


def save(
    directory: str | os.PathLike[str],
    state: Any,
    *,
    meta: Mapping[str, Any] | None = None,
    keep: int | None = 3,
    step: int | None = None,
    sync: bool = True,
) -> Path:
    """Writes a checkpoint atomically: after a crash at any moment it is there as a whole or not at all.

    Args:
      directory: folder of the run's checkpoints, made when missing.
      state: any pytree of arrays (numpy, jax, typed PRNG keys, Python numbers), a TrainState for instance.
      meta: JSON-able values to keep beside it (position in the data, history, states of callbacks).
      keep: how many checkpoints stay (highest steps first; the one just written always stays), None for all.
      step: the step in the folder's name; `state.step` when None.
      sync: wait until the bytes are on the disk.

    Returns:
      The folder of this checkpoint.

    Raises:
      TypeError: a leaf is no array, or `meta` is not JSON-able.
      ValueError: `keep` is below 1, the state has no step, or two leaves share a name.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> save(folder, {"step": np.int32(7), "params": {"w": np.ones(3)}}).name
      'step-00000007'
    """
    if keep is not None and keep < 1:
        raise ValueError(
            f"checkpoint: keep is {keep}, needed at least 1 (or None to keep all), because the one just written stays."
        )
    directory = Path(directory)
    number = _step_of(state) if step is None else int(step)
    arrays, keys = _arrays(state)
    path = directory / f"step-{number:08d}"
    with suppress(OSError):
        sweep(directory)
    record = {"format": _FORMAT, "step": number, "keys": keys, "meta": dict(meta or {})}
    try:
        json.dumps(record)
    except (TypeError, ValueError) as error:
        raise TypeError(f"checkpoint: meta is not JSON-able ({error}); pass numbers, texts, lists and dicts only.") from error
    with atomic_dir(path, sync=sync) as folder:
        save_tensors(folder / _TENSORS, arrays, sync=False)
        # Of what was meant to be written, whatever the library and the disk make of it.
        record["crc32"], record["bytes"] = checksum(folder / _TENSORS, arrays)
        (folder / _META).write_text(json.dumps(record, indent=1), encoding="utf-8")
    if keep is not None:
        others = [other for other in reversed(_folders(directory)) if other != path]
        for other in others[keep - 1 :]:
            trash(other)
    return path


def restore(path: str | os.PathLike[str], like: State) -> State:
    """Reads a checkpoint into the structure of `like`.

    Args:
      path: the folder of one checkpoint, or the folder of a run's checkpoints: then the newest valid one is taken, and a
        damaged one on the way is named in a warning.
      like: a pytree of the same structure; shapes and dtypes are compared with it (jax.ShapeDtypeStruct leaves do).

    Returns:
      A pytree like `like` with numpy arrays, and typed keys where it has typed keys. The caller places them on devices.

    Raises:
      FileNotFoundError: there is no checkpoint.
      FormatError: the checkpoint, or each of them, is damaged.
      ValueError: the checkpoint is of another model or optimizer (the first three differences are named).

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> _ = save(folder, {"step": np.int32(7), "w": np.ones(3)})
      >>> restore(folder, {"step": np.int32(0), "w": np.zeros(3)})["w"]
      array([1., 1., 1.])
    """
    folder, record = _newest_valid(Path(path))
    arrays, _ = load_tensors(folder / _TENSORS)
    return _rebuild(folder, arrays, record["keys"], like)


def set_aside(directory: str | os.PathLike[str]) -> Path | None:
    """Moves the checkpoints of an earlier run out of the way of a new one: into `earlier-1`, `earlier-2`, ... of the folder.

    Args:
      directory: folder of a run's checkpoints; it need not exist.

    Returns:
      The folder they are in now; None where there were none.

    Example:
      >>> import tempfile
      >>> folder = tempfile.mkdtemp()
      >>> _ = save(folder, {"step": np.int32(7)})
      >>> set_aside(folder).name, latest(folder) is None
      ('earlier-1', True)
    """
    folders = _folders(Path(directory))
    if not folders:
        return None
    number = 1
    while (Path(directory) / f"earlier-{number}").exists():
        number += 1
    target = Path(directory) / f"earlier-{number}"
    target.mkdir()
    for folder in folders:
        folder.rename(target / folder.name)
    return target


def load_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save` was given as `meta`.

    Args:
      path: the folder of one checkpoint, or of a run's checkpoints (the newest valid one, the one `restore` takes).

    Returns:
      The dict that was saved.

    Raises:
      FileNotFoundError: there is no checkpoint.
      FormatError: it is damaged.

    Example:
      >>> import tempfile
      >>> load_meta(save(tempfile.mkdtemp(), {"step": 1}, meta={"epoch": 4}))
      {'epoch': 4}
    """
    return _newest_valid(Path(path))[1]["meta"]


def load_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads a checkpoint's arrays by name, where there is no state to restore it into.

    Args:
      path: the folder of one checkpoint, or of a run's checkpoints (the newest valid one, the one `restore` takes).

    Returns:
      Key path -> array, 'params/fc1_weight' for instance; a typed PRNG key is its uint32 data.

    Raises:
      FileNotFoundError: there is no checkpoint.
      FormatError: it is damaged.

    Example:
      >>> import tempfile
      >>> sorted(load_arrays(save(tempfile.mkdtemp(), {"step": 1, "params": {"w": np.ones(3)}})))
      ['params/w', 'step']
    """
    return load_tensors(_newest_valid(Path(path))[0] / _TENSORS)[0]


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """The folder of the newest checkpoint, unread; None where there is none.

    Args:
      directory: folder of a run's checkpoints.

    Returns:
      The folder with the highest step, or None.

    Example:
      >>> import tempfile
      >>> latest(tempfile.mkdtemp()) is None
      True
    """
    folders = _folders(Path(directory))
    return folders[-1] if folders else None


def verify(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads one checkpoint through and compares size and crc32 with its record.

    Args:
      path: the folder of one checkpoint.

    Returns:
      Its record: format, step, keys, meta, crc32, bytes.

    Raises:
      FileNotFoundError: there is no such folder.
      FormatError: a file is missing or damaged.

    Example:
      >>> import tempfile
      >>> verify(save(tempfile.mkdtemp(), {"step": 1}))["step"]
      1
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(
            f"checkpoint: {path} is no folder; give the folder of a checkpoint, for example .../step-00000100."
        )
    record = _record(path)
    tensors = path / _TENSORS
    if not tensors.is_file():
        raise FormatError(path, _TENSORS, "the file is missing", _REMEDY)
    if (size := tensors.stat().st_size) != record["bytes"]:
        raise FormatError(tensors, "size", f"found {size} bytes, {_META} says {record['bytes']}", _REMEDY)
    if (crc := _crc_of(tensors)) != record["crc32"]:
        raise FormatError(tensors, "crc32", f"found {crc}, {_META} says {record['crc32']}: its bytes changed", _REMEDY)
    return record


def _crc_of(path: Path) -> int:
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _record(path: Path) -> dict[str, Any]:
    file = path / _META
    try:
        record = json.loads(file.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise FormatError(path, _META, "the file is missing", _REMEDY) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(file, "content", f"it is not valid JSON ({error})", _REMEDY) from error
    fields = {"format": int, "step": int, "crc32": int, "bytes": int, "keys": dict, "meta": dict}
    for name, kind in fields.items():
        if not isinstance(record, dict) or not isinstance(record.get(name), kind):
            raise FormatError(file, f"field {name!r}", f"it is missing or no {kind.__name__}", _REMEDY)
    if record["format"] > _FORMAT:
        raise FormatError(
            file, "field 'format'", f"found {record['format']}, this jfit reads up to {_FORMAT}", "use a newer jfit."
        )
    return record


def _folders(directory: Path) -> list[Path]:
    """Checkpoint folders, lowest step first."""
    if not directory.is_dir():
        return []
    found = [
        (int(match[1]), entry) for entry in directory.iterdir() if (match := _STEP.fullmatch(entry.name)) and entry.is_dir()
    ]
    return [entry for _, entry in sorted(found)]


def _newest_valid(path: Path) -> tuple[Path, dict[str, Any]]:
    if _STEP.fullmatch(path.name) or (path / _META).is_file():
        return path, verify(path)
    with suppress(OSError):
        sweep(path)  # a save that was killed while it replaced a folder is undone first
    folders = _folders(path)
    if not folders:
        raise FileNotFoundError(
            f"checkpoint: no checkpoint (step-...) found in {path}; give the folder that checkpoints were saved to."
        )
    problem: FormatError | None = None
    for folder in reversed(folders):
        try:
            record = verify(folder)
        except FormatError as error:
            problem = problem or error
            continue
        if problem is not None:
            warnings.warn(f"checkpoint: {folders[-1]} is damaged ({problem}) Restored {folder} instead.", stacklevel=3)
        return folder, record
    assert problem is not None
    raise FormatError(
        path, "all checkpoints", f"each of {len(folders)} is damaged, the newest: {problem}", "train from the start."
    )


def _step_of(state: Any) -> int:
    step = state.get("step") if isinstance(state, Mapping) else getattr(state, "step", None)
    if step is None:
        raise ValueError(
            f"checkpoint: the state ({type(state).__name__}) has no 'step'; pass step=, the number that names the folder."
        )
    return int(step)


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """Leaves by key path, 'params/fc1_weight', in tree order; and the structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = ["/".join(_part(part) for part in path) for path, _ in leaves]
    if isinstance(tree, TrainState):
        names = [_FILE_NAMES.get(name, name) for name in names]
    named = dict(zip(names, (leaf for _, leaf in leaves), strict=True))
    if len(named) != len(leaves):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"checkpoint: two leaves of the state are both called {twice!r}; rename one, a file keeps one array a name."
        )
    return named, structure


def _part(part: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)


def _arrays(state: Any) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    arrays, keys = {}, {}
    for name, leaf in _named(state)[0].items():
        if _is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf, order="C")
        if array.dtype.kind in "OUSV" and array.dtype.name != "bfloat16":
            raise TypeError(
                f"checkpoint: {name} is a {type(leaf).__name__}, needed an array or number; put it into meta= instead."
            )
        arrays[name] = array
    return arrays, keys


def _key(folder: Path, name: str, data: np.ndarray, impl: Any) -> jax.Array:
    try:
        return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)
    except (ValueError, TypeError) as error:
        problem = f"no PRNG key of kind {impl!r} can be made of shape {data.shape}, {data.dtype} ({error})"
        raise FormatError(folder / _META, f"keys[{name!r}]", problem, _REMEDY) from error


def _rebuild(folder: Path, arrays: dict[str, np.ndarray], keys: dict[str, str], like: Any) -> Any:
    wanted, structure = _named(like)
    problems = [f"{name} is not in the checkpoint" for name in wanted if name not in arrays]
    problems += [f"{name} is in the checkpoint, but the run has no such array" for name in arrays if name not in wanted]
    leaves = []
    for name, leaf in wanted.items():
        if name not in arrays:
            continue
        array: Any = arrays[name]
        if name in keys:
            array = _key(folder, name, array, keys[name])
        if (shape := tuple(np.shape(leaf))) != array.shape:
            problems.append(f"{name} has shape {array.shape} in the checkpoint, the run needs {shape}")
        elif (dtype := leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype) != array.dtype:
            problems.append(f"{name} has dtype {array.dtype} in the checkpoint, the run needs {dtype}")
        leaves.append(array)
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(
            f"checkpoint {folder}: it does not fit this run: {'; '.join(problems[:3])}{more}. "
            "Restore it with the model, optimizer and number of devices that it was saved with, or start a new folder."
        )
    return jax.tree_util.tree_unflatten(structure, leaves)
