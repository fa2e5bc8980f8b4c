"""Checkpoints in MXNet's layout: `prefix-symbol.json` and `prefix-%04d.params`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit import counters
from jfit.formats.atomic import FormatError
from jfit.formats.mxnet_arrays import load_arrays, save_arrays
from jfit.formats.sparse import SparseArray, bounded_dense
from jfit.graph import load
from jfit.mxnet.mutable import as_array

Arrays = dict[str, np.ndarray]


def save_checkpoint(
    prefix: str,
    epoch: int,
    symbol: Any,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
    remove_amp_cast: bool = True,
) -> None:
    """Write the graph and its parameters as MXNet does; each file is the old one or the new one, never half.

    Args:
        prefix: path and beginning of the names.
        epoch: number in the name of the parameter file.
        symbol: the graph; None writes no graph.
        arg_params: parameters by name, arrays or boxes.
        aux_params: auxiliary states by name.
        remove_amp_cast: leave the casts of MXNet's mixed precision (`amp_cast`) out of the file.

    Example:
        >>> import jfit
        >>> save_checkpoint("note", 3, jfit.sym.Variable("x"), {"w": np.ones(2, "float32")}, {})
        >>> load_checkpoint("note", 3)[1]["w"].tolist()
        [1.0, 1.0]

    Source: mxnet.model.save_checkpoint of Apache MXNet 1.9.1.
    """
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json", remove_amp_cast=remove_amp_cast)
    save_params(f"{prefix}-{epoch:04d}.params", arg_params, aux_params)
    logging.info('Saved checkpoint to "%s"', f"{prefix}-{epoch:04d}.params")


def save_params(path: str, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]) -> None:
    """Write parameters (`arg:name`) and auxiliary states (`aux:name`) to a file; waits once for all arrays.

    Example:
        >>> save_params("w.params", {"w": np.ones(2, "float32")}, {})
        >>> read_params("w.params")[0]["w"].tolist()
        [1.0, 1.0]
    """
    named = {f"arg:{k}": _plain(v) for k, v in arg_params.items()} | {f"aux:{k}": _plain(v) for k, v in aux_params.items()}
    device = {k: v for k, v in named.items() if isinstance(v, jax.Array)}
    save_arrays(path, {**named, **(counters.read(device) if device else {})})  # sync: a file needs the numbers


def load_checkpoint(prefix: str, epoch: int) -> tuple[Any, Arrays, Arrays]:
    """(symbol, parameters, auxiliary states) of a checkpoint that jfit or MXNet wrote.

    Args:
        prefix: path and beginning of the names.
        epoch: number in the name of the parameter file.

    Raises:
        FormatError: the parameter file is none; the message names file and field.
        GraphError: the graph is none.

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
    """(parameters, auxiliary states) of `prefix-%04d.params`; see `read_params`.

    Example:
        >>> save_checkpoint("note", 2, None, {"w": np.ones(2, "float32")}, {})
        >>> load_params("note", 2)[0]["w"].tolist()
        [1.0, 1.0]
    """
    return read_params(f"{prefix}-{epoch:04d}.params")


def read_params(path: str) -> tuple[Arrays, Arrays]:
    """(parameters, auxiliary states) of a file, numpy arrays by name; sparse ones become dense.

    Raises:
        FormatError: the names do not begin with `arg:` or `aux:`, or the file is damaged.

    Example:
        >>> save_params("s.params", {}, {"var": np.ones(1, "float32")})
        >>> read_params("s.params")[1]["var"].tolist()
        [1.0]
    """
    found = load_arrays(path)
    if not found:
        logging.warning("Params file '%s' is empty", path)
        return {}, {}
    if isinstance(found, list):
        raise FormatError(path, "names", "Invalid param file: the arrays have no names", "use load_arrays for such a list.")
    groups: dict[str, Arrays] = {"arg": {}, "aux": {}}
    for key, value in found.items():
        kind, _, name = key.partition(":")
        if kind not in groups or not name:
            problem = "Invalid param file: needed names such as 'arg:fc1_weight' or 'aux:bn_moving_mean'"
            raise FormatError(path, f"name {key!r}", problem, "use load_arrays for files of other names.")
        if value is not None:
            groups[kind][name] = bounded_dense(value, path, f"array {key!r}")
    return groups["arg"], groups["aux"]


def _plain(value: Any) -> Any:
    return value if isinstance(value, SparseArray) else as_array(value)
