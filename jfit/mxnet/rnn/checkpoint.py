"""Checkpoints of networks with recurrent cells.

Files store the weights per gate (unpacked), so a network of fused cells can load a checkpoint of unfused ones and vice versa.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.mxnet.callback import every_epochs
from jfit.mxnet.files import save_checkpoint
from jfit.mxnet.ndarray_classes import load_checkpoint
from jfit.mxnet.rnn.base import BaseRNNCell, States

Cells = BaseRNNCell | Sequence[BaseRNNCell]


def _as_list(cells: Cells) -> Sequence[BaseRNNCell]:
    return [cells] if isinstance(cells, BaseRNNCell) else cells


def save_rnn_checkpoint(
    cells: Cells, prefix: str, epoch: int, symbol: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
) -> None:
    """Write `<prefix>-symbol.json` and `<prefix>-%04d.params`, with the cells' weights split per gate.

    Args:
        cells: cell or list of cells of the network.
        prefix: path prefix of the files.
        epoch: number in the name of the parameter file.
        symbol: the network.
        arg_params: NDArrays of the parameters by name.
        aux_params: NDArrays of the auxiliary states by name.

    Example:
        >>> import jfit.mx as mx
        >>> cell = mx.rnn.RNNCell(1)
        >>> net = cell.unroll(1, mx.sym.Variable("x"), merge_outputs=True)[0]
        >>> args = {f"rnn_{k}": mx.nd.ones(1) for k in ("i2h_weight", "i2h_bias", "h2h_weight", "h2h_bias")}
        >>> save_rnn_checkpoint(cell, "rnn", 1, net, args, {})
        >>> sorted(load_rnn_checkpoint(cell, "rnn", 1)[1]) == sorted(args)
        True
    """
    args = dict(arg_params)
    for cell in _as_list(cells):
        args = cell.unpack_weights(args)
    save_checkpoint(prefix, epoch, symbol, args, aux_params)


def load_rnn_checkpoint(cells: Cells, prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Read a checkpoint that `save_rnn_checkpoint` wrote, and stack the cells' weights.

    Args:
        cells: cell or list of cells of the network; may be fused cells if the checkpoint is of unfused ones, and vice versa.
        prefix: path prefix of the files.
        epoch: number in the name of the parameter file.

    Returns:
        (symbol, parameters by name, auxiliary states by name).

    Example:
        See `save_rnn_checkpoint`.
        >>> load_rnn_checkpoint([], "missing", 1)
        Traceback (most recent call last):
        ...
        jfit.mxnet.errors.MissingFile: [Errno 2] No such file or directory: 'missing-symbol.json'
    """
    symbol, args, aux = load_checkpoint(prefix, epoch)
    for cell in _as_list(cells):
        args = cell.pack_weights(args)
    return symbol, args, aux


def do_rnn_checkpoint(cells: Cells, prefix: str, period: int = 1) -> Callable[..., None]:
    """Return an epoch-end callback that calls `save_rnn_checkpoint` every `period` epochs.

    Args:
        cells: cell or list of cells of the network.
        prefix: path prefix of the files.
        period: number of epochs between two checkpoints.

    Returns:
        Function (epoch, symbol, arg_params, aux_params), for `Module.fit(epoch_end_callback=...)`.

    Example:
        >>> callback = do_rnn_checkpoint([], "rnn", period=2)
        >>> callback(0)  # epoch 1: no checkpoint is due
    """
    return every_epochs(period, functools.partial(save_rnn_checkpoint, cells, prefix))


def rnn_unroll(
    cell: BaseRNNCell,
    length: int,
    inputs: Any = None,
    begin_state: States | None = None,
    input_prefix: str = "",
    layout: str = "NTC",
) -> tuple[Any, States]:
    """Deprecated name of `cell.unroll`.

    Args:
        cell: the cell.
        length: see `BaseRNNCell.unroll`.
        inputs: see `BaseRNNCell.unroll`.
        begin_state: see `BaseRNNCell.unroll`.
        input_prefix: accepted and ignored.
        layout: see `BaseRNNCell.unroll`.

    Returns:
        (outputs, states after the last step).

    Example:
        >>> import jfit.mx as mx, warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     outputs, states = rnn_unroll(mx.rnn.RNNCell(2), 3, mx.sym.Variable("data"))
        >>> len(outputs)
        3
    """
    warnings.warn("rnn_unroll is deprecated; call cell.unroll", stacklevel=2)
    return cell.unroll(length, inputs, begin_state=begin_state, layout=layout)
