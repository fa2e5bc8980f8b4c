"""Save, restore and verify checkpoints: one folder per checkpoint, in the checkpoint directory of a run.

Format of the checkpoint of step 123:

    directory/step-00000123/state.safetensors   the leaves of the state, named by their key path, such as "params/fc1_weight"
    directory/step-00000123/arrays/             arrays of the state that are split over devices, if split=True was passed to
                                                `save`, in orbax's format, uncompressed; the other ones are in the file above
    directory/step-00000123/<name>.safetensors  the leaves of another pytree, of the `extra` argument of `save`
    directory/step-00000123/meta.json           JSON object:
        format     version of this format, an integer
        step       number of updates done
        keys       name -> PRNG implementation ("threefry2x32") of the leaves that are typed PRNG keys, stored as uint32 data
        meta       the `meta` argument of `save`; a run saves its position (epoch, batch, step), that of its data iterator,
                   its batch size, history, callback states and graph
        arrays     name -> shape and dtype of the arrays in "arrays/", if there are any
        files      file name -> its size ("bytes") and its CRC-32 ("crc32"), and the "keys" of an extra pytree
        sha256     SHA-256 of all bytes of meta.json before this value

Thus every changed bit of a checkpoint is noticed.  A folder is written under a temporary name and then renamed, so a crash
leaves no incomplete checkpoint under its final name.  If a process dies while it replaces a checkpoint of the same step, the
earlier one has a temporary name, under which it is found.  Functions that read never delete or rename anything.
"""

import logging
import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jfit.checkpoints.saved import (
    ARRAYS,
    FORMAT,
    TENSORS,
    Saved,
    check,
    check_name,
    folders_of,
    newest,
    path_of,
    present,
    read,
    step_of,
)
from jfit.checkpoints.split import load_split, split_arrays
from jfit.checkpoints.writing import Prepared, write
from jfit.counters import is_key
from jfit.distributed import is_main
from jfit.formats.atomic import printable
from jfit.formats.manifest import dump_sealed
from jfit.step.state import TrainState

State = TypeVar("State")


def save(
    directory: str | os.PathLike[str],
    state: Any,
    *,
    meta: Mapping[str, Any] | None = None,
    keep: int | None = 3,
    step: int | None = None,
    protect: Collection[int] = (),
    extra: Mapping[str, Any] | None = None,
    split: bool = False,
) -> Path:
    """Write a checkpoint atomically: after a crash, the complete checkpoint exists or none of it.

    In a job of several processes, rank 0 writes, and the others return the path at once.  With `split`, all must call it.

    Args:
        directory: checkpoint directory of the run; created if necessary.
        state: pytree of arrays, such as a `TrainState`.  Leaves are NumPy or JAX arrays, typed PRNG keys or Python numbers.
        meta: JSON-serializable values to save with the state, such as the position in the data, the history and callback
            states.  None: {}.
        keep: number of checkpoints to keep in `directory`, this one included; the ones with the lowest steps are deleted.  None
            keeps all.
        protect: steps of checkpoints that are kept in addition, such as the best ones.
        step: step number in the name of the folder.  None: `state.step` or `state["step"]`.
        extra: other pytrees to save with the state, by name; `load_extra` reads them.
        split: write arrays that are split over several devices with orbax (the extra "sharded" of jfit), by each process its
            parts, so that no host has a whole one.  In a job, the folder is one that all hosts see.

    Returns:
        pathlib.Path of the new checkpoint, `directory/step-<step with 8 digits>`.

    Raises:
        TypeError: a leaf is not an array or number, or `meta` is not JSON-serializable.
        ValueError: `keep` is below 1, the state has no step, two leaves have the same name, or the name of the folder is empty
            or has a NUL character.
        FolderInUse: another process trains and saves its checkpoints in `directory` (a RuntimeError).
        OSError: the files cannot be written, for example because the disk is full; older checkpoints are unchanged.
        ImportError: `split` is True and orbax is not installed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> save(folder, {"step": np.int32(7), "params": {"w": np.ones(3)}}).name
        'step-00000007'
    """
    return write(prepare(directory, state, meta=meta, keep=keep, step=step, protect=protect, extra=extra, split=split))


def prepare(
    directory: str | os.PathLike[str],
    state: Any,
    *,
    meta: Mapping[str, Any] | None = None,
    keep: int | None = 3,
    step: int | None = None,
    protect: Collection[int] = (),
    extra: Mapping[str, Any] | None = None,
    split: bool = False,
) -> Prepared:
    """Check the arguments of `save`, and return what it writes.  NumPy arrays are not copied.  Nothing on the disk is read."""
    check_name(directory, "checkpoint")
    if keep is not None and keep < 1:
        raise ValueError(f"checkpoint: keep is {keep}, expected at least 1, or None to keep all.")
    number = _step_of(state) if step is None else int(step)
    trees = {"state": state, **(extra or {})}
    if "state" in (extra or {}):
        raise ValueError("checkpoint: extra has a pytree called 'state', the name of the state itself; rename it.")
    parts = split_arrays(_named_leaves(state)[0]) if split else {}
    trees = {name: arrays_of(tree, parts if name == "state" else ()) for name, tree in trees.items()} if is_main() else {}
    record: dict[str, Any] = {"format": FORMAT, "step": number, "keys": trees["state"][1] if trees else {}}
    record |= {"meta": dict(meta or {})} | ({ARRAYS: {k: [x.shape, str(x.dtype)] for k, x in parts.items()}} if parts else {})
    try:
        dump_sealed(record)
    except (TypeError, ValueError) as error:
        raise TypeError(f"checkpoint: meta is not JSON-serializable ({error}); pass numbers, strings, lists, dicts.") from error
    return Prepared(path_of(directory, number), record, trees, keep, protect, parts)


def restore(path: str | os.PathLike[str], like: State) -> State:
    """Read a checkpoint into a pytree with the structure of `like`.

    Args:
        path: the folder of a checkpoint (.../step-00000100), or a checkpoint directory, which contains such folders; then the
            undamaged checkpoint with the highest step is read, and damaged ones with higher steps cause a warning.
        like: pytree with the expected structure, shapes and dtypes; its leaves may be `jax.ShapeDtypeStruct`.

    Returns:
        A pytree of NumPy arrays and typed PRNG keys, with the structure of `like`.  The caller places it on devices.  Arrays
        that were saved with split=True are `jax.Array`s with the shardings of `like`, where it has them: each process reads
        only its parts.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: the checkpoint, or every checkpoint of the directory, is damaged.
        ValueError: names, shapes or dtypes in the checkpoint differ from those of `like`, for example because another model or
            optimizer saved it; the message lists the first three differences.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = save(folder, {"step": np.int32(7), "w": np.ones(3)})
        >>> restore(folder, {"step": np.int32(0), "w": np.zeros(3)})["w"]
        array([1., 1., 1.])
    """
    return unflatten(newest(path, read), like)


def unflatten(saved: Saved, like: State, name: str = "state") -> State:
    """Return the state of a checkpoint in memory, or another of its pytrees, in the structure of `like`; see `restore`.

    Raises:
        ValueError: names, shapes or dtypes differ.
    """
    arrays, (expected, structure) = leaves_of(saved, name), _named_leaves(like)
    problems = [f"{name} is not in the checkpoint" for name in expected if name not in arrays]
    problems += [f"{name} is in the checkpoint, but the run has no such array" for name in arrays if name not in expected]
    for name, leaf in expected.items():
        array = arrays.get(name)
        if array is None:
            continue
        if (shape := tuple(np.shape(leaf))) != array.shape:
            problems.append(f"{name} has shape {array.shape} in the checkpoint, expected {shape}")
        elif (dtype := leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype) != array.dtype:
            problems.append(f"{name} has dtype {array.dtype} in the checkpoint, expected {dtype}")
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        residuals = any(text.startswith("local/") for text in problems)
        cause = "The arrays local/... are residuals of reduce='2bit', one per device. " if residuals else ""
        raise ValueError(
            printable(f"checkpoint {saved.folder} does not match this run: {'; '.join(problems[:3])}{more}. {cause}")
            + "Restore it with the model, optimizer, reduce= and devices of the run that saved it, or use a new directory."
        )
    arrays = load_split(saved.folder, arrays, expected)
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in expected])


def load_extra(path: str | os.PathLike[str], name: str, like: State) -> State:
    """Read another pytree that was saved with a state (the `extra` argument of `save`).

    Args:
        path: the folder of a checkpoint, or a checkpoint directory; of its checkpoints the newest undamaged one is read.
        name: name of the pytree.
        like: pytree with the expected structure, shapes and dtypes; its leaves may be `jax.ShapeDtypeStruct`.

    Returns:
        A pytree of NumPy arrays and typed PRNG keys, with the structure of `like`.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: the checkpoint, or every checkpoint of the directory, is damaged.
        KeyError: the checkpoint has no pytree of this name.
        ValueError: names, shapes or dtypes in the checkpoint differ from those of `like`.

    Example:
        >>> import tempfile
        >>> folder = save(tempfile.mkdtemp(), {"step": 1}, extra={"target": {"w": np.ones(2)}})
        >>> load_extra(folder, "target", {"w": np.zeros(2)})["w"]
        array([1., 1.])
    """
    saved = newest(path, read)
    if f"{name}.safetensors" not in saved.arrays or name == "state":
        names = [file.removesuffix(".safetensors") for file in saved.arrays if file != TENSORS]
        raise KeyError(f"checkpoint {saved.folder} has no extra pytree {name!r}; it has {', '.join(names) or 'none'}.")
    return unflatten(saved, like, name)


def resumed(saved: Saved, like: TrainState) -> tuple[TrainState, str]:
    """As `unflatten`, for a run whose rule for the reduction of gradients may differ from that of the run that saved.

    The residuals of "2bit" are 0 if only `like` has them, and dropped if only the checkpoint has them.

    Returns:
        The state, and a sentence about the residuals for a warning, or "".
    """
    local, arrays = like.local, saved.arrays[TENSORS]
    rest = {k: v for k, v in arrays.items() if not k.startswith("local/")}
    if (local is None) == (len(rest) == len(arrays)):
        return unflatten(saved, like), ""
    if local is None:
        problem = "has residuals of reduce='2bit', which this run does not use: they are dropped"
    else:
        problem = "has no residuals for the reduce= of this run: they start at 0"
        like, local = like._replace(local=None), jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), local)
    state = unflatten(saved._replace(arrays={**saved.arrays, TENSORS: rest}), like)._replace(local=local)
    return state, f"checkpoint {saved.folder} {problem}."


def set_aside(directory: str | os.PathLike[str], *, after: int = -1) -> Path | None:
    """Move the checkpoints of an earlier run to the subfolder `earlier-1`, or `earlier-2`, ... if that exists.

    They are never deleted; a log line has the number of these folders, their size, and the command that deletes them.

    A new run in the same directory needs this: checkpoints of the earlier run with higher steps would be restored instead of
    its own.

    Args:
        directory: checkpoint directory; it need not exist.
        after: only checkpoints of higher steps than this are moved.  Default: all.

    Returns:
        pathlib.Path of the subfolder, or None if there were no checkpoints.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = save(folder, {"step": np.int32(7)})
        >>> set_aside(folder).name, latest(folder) is None
        ('earlier-1', True)
    """
    if not is_main():
        return None
    folders = {step_of(folder): folder for folder in folders_of(Path(directory)) if step_of(folder) > after}
    if not folders:
        return None
    names = [(entry.name.removeprefix("earlier-"), entry) for entry in Path(directory).glob("earlier-*")]
    numbers = {int(number): entry for number, entry in names if number.isdecimal()}
    target = Path(directory) / f"earlier-{max(numbers, default=0) + 1}"
    target.mkdir()
    for step, folder in folders.items():
        folder.rename(path_of(target, step))  # the name of one that was being replaced is ".step-....old"
    _log_earlier(target, [*numbers.values(), target])
    return target


def _log_earlier(target: Path, folders: list[Path]) -> None:
    sizes = [file.lstat().st_size for folder in folders for file in folder.rglob("*") if file.is_file()]
    logging.getLogger("jfit").warning(
        "checkpoint: the checkpoints of an earlier run are now in %s; jfit keeps the %d folder(s) of earlier runs there (%.1f "
        "MB) until you delete them: rm -r %s",
        target,
        len(folders),
        sum(sizes) / 1e6,
        shlex.quote(str(target.parent)) + "/earlier-*",
    )


def load_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the `meta` values of a checkpoint, as passed to `save`.

    Args:
        path: the folder of a checkpoint, or a checkpoint directory; of its checkpoints the newest undamaged one is read.

    Returns:
        The saved dict.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: the checkpoint, or every checkpoint of the directory, is damaged.

    Example:
        >>> import tempfile
        >>> load_meta(save(tempfile.mkdtemp(), {"step": 1}, meta={"epoch": 4}))
        {'epoch': 4}
    """
    return newest(path, check)["meta"]


def load_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the arrays of a checkpoint by name, without a pytree of the expected structure (see `restore`).

    Args:
        path: the folder of a checkpoint, or a checkpoint directory; of its checkpoints the newest undamaged one is read.

    Returns:
        Dict from name (the key path in the state, such as "params/fc1_weight") to NumPy array, uint32 for typed PRNG keys.

    Raises:
        FileNotFoundError: there is no checkpoint.
        FormatError: the checkpoint, or every checkpoint of the directory, is damaged.

    Example:
        >>> import tempfile
        >>> sorted(load_arrays(save(tempfile.mkdtemp(), {"step": 1, "params": {"w": np.ones(3)}})))
        ['params/w', 'step']
    """
    return whole(newest(path, read)).arrays[TENSORS]


def whole(saved: Saved, prefixes: tuple[str, ...] = ("",)) -> Saved:
    """Read the split arrays of a checkpoint whole, to the host: those whose names begin with one of `prefixes`."""
    wanted = {name: x for name, x in saved.arrays[TENSORS].items() if name.startswith(prefixes)}
    return saved._replace(arrays={**saved.arrays, TENSORS: saved.arrays[TENSORS] | load_split(saved.folder, wanted, {})})


def leaves_of(saved: Saved, name: str = "state") -> dict[str, Any]:
    """Return the leaves of the state of a checkpoint in memory, or of another of its pytrees, by name.

    Returns:
        Dict from name to NumPy array, typed PRNG key, or shape and dtype of a split array (see `whole`).
    """
    file = f"{name}.safetensors"
    keys, arrays = saved.record["keys"] if file == TENSORS else saved.record["files"][file]["keys"], saved.arrays[file]
    typed = {name: jax.random.wrap_key_data(jnp.asarray(arrays[name]), impl=impl) for name, impl in keys.items()}
    return {**arrays, **typed}


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """Return the path of the checkpoint with the highest step in a directory, without a check for damage.

    Args:
        directory: checkpoint directory of a run.

    Returns:
        pathlib.Path, or None if there is no checkpoint.

    Example:
        >>> import tempfile
        >>> latest(tempfile.mkdtemp()) is None
        True
    """
    folders = folders_of(Path(directory))
    return folders[-1] if folders else None


def best(directory: str | os.PathLike[str]) -> Path:
    """Return the path of the best checkpoint of a run that kept the best ones.

    `jfit.fit(..., checkpoint=directory, checkpoint_best="val_loss")` keeps it, or `jfit.callbacks.checkpointing` with
    `keep_best`.

    Args:
        directory: checkpoint directory of the run; its newest undamaged checkpoint has the list of the best ones.

    Returns:
        pathlib.Path of the checkpoint with the best monitored value.

    Raises:
        FileNotFoundError: there is no checkpoint, or the best one was deleted or is in another folder.
        ValueError: the run did not keep its best checkpoints.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for step, loss in [(1, 0.5), (2, 0.7)]:
        ...     _ = save(folder, {"step": step}, meta={"best": {"checkpoints": [[0.5, 1]]}})
        >>> best(folder).name
        'step-00000001'
    """
    meta = load_meta(directory)
    # The callback that keeps the best checkpoints writes "best"; a checkpoint of `Run.save` has the list in its state only.
    states = [state for name, state in meta.get("callbacks", []) if name.startswith("checkpointing(")]
    checkpoints = (
        meta["best"]["checkpoints"] if meta.get("best") else [entry for state in states[:1] for entry in state["best"]]
    )
    if not checkpoints:
        raise ValueError(f"checkpoint: the run in {directory} did not keep its best checkpoints; pass checkpoint_best= to fit")
    path = present(path_of(directory, checkpoints[0][1]))
    if not path.is_dir():
        raise FileNotFoundError(
            f"checkpoint: {path}, the best one, does not exist: run.save wrote the newest one into another folder"
        )
    return path


def verify(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Check a checkpoint for damage: compare meta.json with its SHA-256, and the other files with sizes and CRC-32 in it.

    Args:
        path: the folder of a checkpoint.

    Returns:
        The content of meta.json: dict with format, step, keys, meta and files (file name -> dict with bytes and crc32).

    Raises:
        FileNotFoundError: the folder does not exist.
        FormatError: a file is missing or damaged.

    Example:
        >>> import tempfile
        >>> verify(save(tempfile.mkdtemp(), {"step": 1}))["step"]
        1
    """
    return check(Path(path))


def _step_of(state: Any) -> int:
    step = state.get("step") if isinstance(state, Mapping) else getattr(state, "step", None)
    if step is None:
        raise ValueError(f"checkpoint: the state ({type(state).__name__}) has no 'step'; pass step=.")
    return int(step)


def _named_leaves(tree: Any) -> tuple[dict[str, Any], Any]:
    """Return ({key path, such as "params/fc1_weight": leaf}, treedef); the dict is in the order of the leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    by_name = dict(zip(names, (leaf for _, leaf in leaves), strict=True))
    if len(by_name) != len(leaves):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"checkpoint: two leaves of the state are both called {duplicate!r}; rename one.")
    return by_name, structure


def arrays_of(state: Any, left_out: Collection[str] = ()) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return ({name: array}, {name of a typed PRNG key: its implementation}) of a state, as `save` writes it."""
    arrays, keys = {}, {}
    leaves = {name: leaf for name, leaf in _named_leaves(state)[0].items() if name not in left_out}
    for name, leaf in leaves.items():
        if is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf, order="C")
        if array.dtype.kind in "OUSV" and array.dtype.name != "bfloat16":
            if hasattr(leaf, "dtype"):
                raise TypeError(f"checkpoint: {name} is an array of dtype {array.dtype}, which the files lack; cast it")
            raise TypeError(f"checkpoint: {name} is a {type(leaf).__name__}, expected an array or number; pass it in meta=.")
        arrays[name] = array
    return arrays, keys
