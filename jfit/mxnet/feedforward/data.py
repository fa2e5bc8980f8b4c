"""Data handling of FeedForward: convert arrays to iterators, describe iterators, and classify arguments by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jfit.data.ndarray_iter import DataDesc, NDArrayIter
from jfit.graph import Symbol
from jfit.mxnet.module.binding import describe, rows_of_batch
from jfit.mxnet.mutable import as_array


def is_data_name(name: str) -> bool:
    """Return whether the argument of this name is an input rather than a parameter: its name ends with `data` or `label`.

    Example:
        >>> is_data_name("softmax_label"), is_data_name("fc1_weight")
        (True, False)
    """
    return name.endswith(("data", "label"))


def data_iter(X: Any, y: Any, symbol: Symbol, batch_size: int, training: bool, tail: str = "roll_over") -> Any:
    """Convert arrays to an `NDArrayIter`; an iterator is returned unchanged.

    Args:
        X: data iterator, or array (N, ...).
        y: labels (N,) or (N, 1); None: zeros (prediction only).
        symbol: the network; its arguments ending with `data` and `label` are the names of the arrays.
        batch_size: maximum number of rows per batch.
        training: shuffle, and treat an incomplete last batch as `tail` says; False: pad it.
        tail: `last_batch_handle` of the `NDArrayIter`; "roll_over" moves the rows to the next epoch.

    Raises:
        ValueError: labels are missing in training, or have the wrong shape or number.
        TypeError: X is neither an iterator nor an array.
    """
    if _is_iter(X):
        return X
    if not hasattr(X, "shape"):
        raise TypeError(f"X is {type(X).__name__}; expected a data iterator, a NumPy or jax array, or an NDArray.")
    if y is None and training:
        raise ValueError("y is missing: training on an array X needs one label per row.")
    labels = np.zeros(X.shape[0], np.float32) if y is None else _labels(y, X.shape[0])
    names = _input_name(symbol, "data", "data"), _input_name(symbol, "label", "softmax_label")
    return NDArrayIter(X, labels, min(int(X.shape[0]), batch_size), training, tail if training else "pad", *names)


def eval_iter(eval_data: Any, symbol: Symbol, batch_size: int) -> Any:
    """Convert validation data to an iterator: None and iterators are returned unchanged, a pair (X, y) of arrays is wrapped.

    A pair is shuffled as in MXNet, where it uses the same NumPy random numbers as the training data.  Unlike in MXNet, an
    incomplete last batch is not moved to the next pass, so each pass uses every row exactly once.
    """
    if eval_data is None or _is_iter(eval_data):
        return eval_data
    if not isinstance(eval_data, (list, tuple)) or len(eval_data) != 2:
        raise TypeError(f"eval_data is {type(eval_data).__name__}; expected a data iterator or a pair (X, y) of arrays.")
    if eval_data[0] is None:
        raise ValueError("eval_data has X = None; expected a pair (X, y) of arrays.")
    X, y = (np.array(part) if isinstance(part, list) else part for part in eval_data)
    return data_iter(X, y, symbol, batch_size, training=True, tail="pad")


def descriptions(data: Any) -> tuple[list[DataDesc], list[DataDesc]]:
    """Return two lists of DataDesc: the data and the labels of an iterator."""
    inputs = describe(data.provide_data, "provide_data")
    return inputs, describe(data.provide_label, "provide_label")


def batch_size_of(data: Any) -> int:
    """Return the number of rows per batch of an iterator."""
    return int(getattr(data, "batch_size", 0) or rows_of_batch(descriptions(data)[0]))


def sized_epoch(data: Any, size: int, resets: Callable[[], None]) -> Iterator[Any]:
    """Yield `size` batches, starting at the iterator's current position; it is reset whenever it is exhausted.

    Args:
        data: the iterator.
        size: number of batches.
        resets: called before each reset.

    Raises:
        ValueError: the iterator has no batch after a reset.
    """
    stream = iter(data)
    for _ in range(size):
        batch = next(stream, None)
        if batch is None:
            resets()
            data.reset()
            stream = iter(data)
            batch = next(stream, None)
        if batch is None:
            raise ValueError(f"epoch_size is {size}, but the data iterator has no batch after a reset.")
        yield batch


def frozen_names(symbol: Symbol, params: Sequence[str]) -> list[str]:
    """Return the names of the parameters that attributes of the network freeze.

    The attributes are `weight_grad="freeze"` (or the full parameter name + `_grad`) of an operator, and `grad="freeze"` of a
    variable.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, name="fc", attr={"bias_grad": "freeze"})
        >>> frozen_names(net, ["fc_weight", "fc_bias"])
        ['fc_bias']

    Source: MXNet.jl, `model.jl`.
    """
    frozen: set[str] = set()
    for node in symbol.nodes():
        for key, value in node.attrs.items():
            if value != "freeze" or not (key == "grad" or key.endswith("_grad")):
                continue
            name = node.name if key == "grad" else key[: -len("_grad")]
            matches = {name, f"{node.name}_{name}"} & set(params)
            if not matches and node.op is not None:
                logging.warning('attribute %s="freeze" of %s matches no parameter and freezes nothing', key, node.name)
            frozen |= matches
    return [name for name in params if name in frozen]


def _labels(y: Any, rows: int) -> Any:
    y = as_array(y)
    if tuple(y.shape) not in ((rows,), (rows, 1)):
        raise ValueError(f"y has shape {tuple(y.shape)}; expected one label for each of the {rows} rows of X.")
    return y.reshape(-1)


def _is_iter(data: Any) -> bool:
    return hasattr(data, "provide_data") and hasattr(data, "reset")


def _input_name(symbol: Symbol, ending: str, default: str) -> str:
    """Return the name of the network's only argument with that ending; `default` (MXNet's name) if there is none or several."""
    names = [n for n in symbol.list_arguments() if n.endswith(ending)]
    return names[0] if len(names) == 1 else default
