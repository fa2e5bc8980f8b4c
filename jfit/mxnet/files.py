"""Checkpoints in MXNet's file layout: `prefix-symbol.json` and `prefix-%04d.params`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.formats.atomic import FormatError, sweep
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.formats.sparse import SparseArray, bounded_dense
from jfit.graph import load
from jfit.mxnet.errors import translated
from jfit.mxnet.mutable import as_array

Given = Mapping[str, Any]
Arrays = dict[str, np.ndarray]


def save_checkpoint(
    prefix: str, epoch: int, symbol: Any, arg_params: Given, aux_params: Given, remove_amp_cast: bool = True
) -> None:
    """Write a graph to `prefix-symbol.json` and its parameters to `prefix-%04d.params`.

    Each file replaces an existing one atomically.  Temporary files of killed processes are deleted first.

    Args:
        prefix: path and first part of the file names.
        epoch: number in the name of the parameter file.
        symbol: the graph; None writes no graph file.
        arg_params: parameters by name: jax, numpy or mutable arrays.
        aux_params: auxiliary states by name, likewise.
        remove_amp_cast: omit the `amp_cast` nodes, which MXNet's automatic mixed precision inserts.

    Example:
        >>> import jfit
        >>> save_checkpoint("note", 3, jfit.sym.Variable("x"), {"w": np.ones(2, "float32")}, {})
        >>> load_checkpoint("note", 3)[1]["w"].tolist()
        [1.0, 1.0]

    Source: mxnet.model.save_checkpoint of Apache MXNet 1.9.1.
    """
    folder, name = os.path.split(os.fspath(prefix))
    with contextlib.suppress(OSError):
        sweep(folder or ".", prefix=name)
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json", remove_amp_cast=remove_amp_cast)
    save_params(f"{prefix}-{epoch:04d}.params", arg_params, aux_params)
    logging.info('Saved checkpoint to "%s"', f"{prefix}-{epoch:04d}.params")


def save_params(path: str, arg_params: Given, aux_params: Given) -> None:
    """Write parameters (as `arg:name`) and auxiliary states (as `aux:name`) to one file.

    Args:
        path: the file.
        arg_params: parameters by name: jax, numpy, mutable or sparse arrays.
        aux_params: auxiliary states by name, likewise.

    Example:
        >>> save_params("w.params", {"w": np.ones(2, "float32")}, {})
        >>> read_params("w.params")[0]["w"].tolist()
        [1.0, 1.0]
    """
    named = {f"arg:{k}": _plain(v) for k, v in arg_params.items()} | {f"aux:{k}": _plain(v) for k, v in aux_params.items()}
    device = {k: v for k, v in named.items() if isinstance(v, jax.Array)}
    save_arrays(path, {**named, **(counters.read(device) if device else {})})  # sync: one transfer for all arrays


@translated()
def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, Arrays, Arrays]:
    """Read a checkpoint written by jfit or MXNet.

    Args:
        prefix: path and first part of the file names.
        epoch: number in the name of the parameter file.

    Returns:
        (symbol, parameters by name, auxiliary states by name), arrays as numpy arrays.

    Raises:
        MXNetError: a file is missing (also a FileNotFoundError), or damaged or of another format (also a FormatError).

    Example:
        >>> import jfit
        >>> save_checkpoint("note", 1, jfit.sym.Variable("x"), {}, {"mean": np.zeros(1, "float32")})
        >>> symbol, args, auxs = load_checkpoint("note", 1)
        >>> symbol.name, args, list(auxs)
        ('x', {}, ['mean'])
    """
    symbol = load(f"{prefix}-symbol.json")
    return symbol, *load_params(prefix, epoch)


def load_params(prefix: str, epoch: int) -> tuple[Arrays, Arrays]:
    """Read the parameter file `prefix-%04d.params`, of MXNet or jfit.

    Args:
        prefix: path and first part of the file name.
        epoch: number in the file name.

    Returns:
        (parameters by name, auxiliary states by name), numpy arrays.

    Example:
        >>> save_checkpoint("note", 2, None, {"w": np.ones(2, "float32")}, {})
        >>> load_params("note", 2)[0]["w"].tolist()
        [1.0, 1.0]
    """
    return read_params(f"{prefix}-{epoch:04d}.params")


@translated()
def read_params(path: str) -> tuple[Arrays, Arrays]:
    """Read a parameter file; sparse arrays are converted to dense ones.

    Args:
        path: the file.

    Returns:
        (parameters by name, auxiliary states by name), numpy arrays.

    Raises:
        MXNetError: the file is missing (also a FileNotFoundError), the names do not begin with `arg:` or `aux:`, or the file is
            damaged (also a FormatError).

    Example:
        >>> save_params("s.params", {}, {"var": np.ones(1, "float32")})
        >>> read_params("s.params")[1]["var"].tolist()
        [1.0]
    """
    arrays = load_arrays(path)
    if not arrays:
        logging.warning("Params file '%s' is empty", path)
        return {}, {}
    groups: dict[str, Arrays] = {"arg": {}, "aux": {}}
    for key, value in arrays.items() if isinstance(arrays, dict) else [("", None)]:  # a list has no names
        kind, _, name = key.partition(":")
        if kind not in groups or not name:
            problem = "Invalid param file: expected names such as 'arg:fc1_weight' or 'aux:bn_moving_mean'"
            raise FormatError(path, f"name {key!r}", problem, "read files with other names with load_arrays.")
        if value is not None:
            groups[kind][name] = bounded_dense(value, path, f"array {key!r}")
    return groups["arg"], groups["aux"]


def _plain(value: Any) -> Any:
    return value if isinstance(value, SparseArray) else as_array(value)
