"""Checkpoints of networks with recurrent cells: files hold the weights of single gates, readable by fused and single cells."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jfit.mxnet.files import save_checkpoint
from jfit.mxnet.ndarray_classes import load_checkpoint
from jfit.mxnet.rnn.base import BaseRNNCell, States

Cells = BaseRNNCell | Sequence[BaseRNNCell]


def _listed(cells: Cells) -> Sequence[BaseRNNCell]:
    return [cells] if isinstance(cells, BaseRNNCell) else cells


def save_rnn_checkpoint(
    cells: Cells, prefix: str, epoch: int, symbol: Any, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
) -> None:
    """Write `prefix-symbol.json` and `prefix-%04d.params`, the weights of these cells unpacked.

    Args:
        cells: the cells of the network.
        prefix: beginning of the files' names.
        epoch: number in the name of the parameter file.
        symbol: the network.
        arg_params: parameters by name.
        aux_params: auxiliary states by name.
    """
    args = dict(arg_params)
    for cell in _listed(cells):
        args = cell.unpack_weights(args)
    save_checkpoint(prefix, epoch, symbol, args, aux_params)


def load_rnn_checkpoint(cells: Cells, prefix: str, epoch: int) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """(symbol, parameters, auxiliary states) of a checkpoint, the weights of these cells packed.

    Args:
        cells: the cells of the network; fused ones where single ones were saved, if one likes, and the other way round.
        prefix: beginning of the files' names.
        epoch: number in the name of the parameter file.
    """
    symbol, args, aux = load_checkpoint(prefix, epoch)
    for cell in _listed(cells):
        args = cell.pack_weights(args)
    return symbol, args, aux


def do_rnn_checkpoint(cells: Cells, prefix: str, period: int = 1) -> Callable[..., None]:
    """A callback for the end of an epoch that calls `save_rnn_checkpoint` every `period` epochs.

    Args:
        cells: the cells of the network.
        prefix: beginning of the files' names.
        period: epochs between two checkpoints.
    """
    period = max(1, int(period))

    def save(iter_no: int, sym: Any = None, arg: Any = None, aux: Any = None) -> None:
        if (iter_no + 1) % period == 0:
            save_rnn_checkpoint(cells, prefix, iter_no + 1, sym, arg, aux)

    return save


def rnn_unroll(
    cell: BaseRNNCell,
    length: int,
    inputs: Any = None,
    begin_state: States | None = None,
    input_prefix: str = "",
    layout: str = "NTC",
) -> tuple[Any, States]:
    """The old name of `cell.unroll`; `input_prefix` means nothing any more."""
    warnings.warn("rnn_unroll is the old name of cell.unroll; call that", stacklevel=2)
    return cell.unroll(length, inputs, begin_state=begin_state, layout=layout)
