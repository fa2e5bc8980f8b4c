"""What FeedForward makes of the data it is given: iterators, their descriptions, and which arguments are data."""

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
    """Whether an argument is data by its name: it ends with `data` or `label`.

    Example:
        >>> is_data_name("softmax_label"), is_data_name("fc1_weight")
        (True, False)
    """
    return name.endswith(("data", "label"))


def data_iter(X: Any, y: Any, symbol: Symbol, batch_size: int, training: bool) -> Any:
    """The iterator itself, or one over arrays.

    Args:
        X: an iterator, or an array of rows.
        y: labels (N,) or (N, 1); in prediction zeros where missing.
        symbol: its arguments ending with `data` and `label` name the arrays.
        batch_size: most rows of a batch of arrays.
        training: shuffle, and hand a tail on to the next epoch.

    Raises:
        ValueError: no labels to train with, labels of another shape or number.
        TypeError: neither an iterator nor an array.
    """
    if hasattr(X, "provide_data") and hasattr(X, "reset"):
        return X
    if not hasattr(X, "shape"):
        raise TypeError(f"X is {type(X).__name__}; a data iterator, a numpy or jax array or an NDArray is needed.")
    if y is None and training:
        raise ValueError("y is missing: training on an array X needs labels, one for each row.")
    labels = np.zeros(X.shape[0], np.float32) if y is None else _labels(y, X.shape[0])
    return _over(X, labels, symbol, batch_size, training, "roll_over" if training else "pad")


def eval_iter(given: Any, symbol: Symbol, batch_size: int) -> Any:
    """An iterator of validation data from one, from None, or from a pair (X, y) of arrays or lists.

    A pair is shuffled, as in MXNet, where it shares NumPy's random numbers with the training data; but every row counts once
    in each pass (MXNet hands the tail on to the next).
    """
    if given is None:
        return None
    if not isinstance(given, (list, tuple)):
        if hasattr(given, "provide_data") and hasattr(given, "reset"):
            return given
        raise TypeError(f"eval_data is {type(given).__name__}; a data iterator or a pair (X, y) of arrays is needed.")
    if len(given) != 2 or given[0] is None:
        raise ValueError(f"eval_data has {len(given)} parts or no X; a pair (X, y) of arrays is needed.")
    X, y = (np.array(part) if isinstance(part, list) else part for part in given)
    if y is None or hasattr(X, "provide_data"):
        return data_iter(X, y, symbol, batch_size, training=True)
    return _over(X, _labels(y, X.shape[0]), symbol, batch_size, True, "pad")


def described(data: Any) -> tuple[list[DataDesc], list[DataDesc]]:
    """(descriptions of the data, of the labels) that an iterator provides."""
    found = describe(data.provide_data, "provide_data")
    return found, describe(data.provide_label, "provide_label")


def rows_of(data: Any) -> int:
    """Rows of a batch of an iterator."""
    return int(getattr(data, "batch_size", 0) or rows_of_batch(described(data)[0]))


def sized_epoch(data: Any, size: int, resets: Callable[[], None]) -> Iterator[Any]:
    """`size` batches, from where the iterator stands; at its end it is reset and goes on.

    Args:
        data: the iterator.
        size: batches.
        resets: called before each reset.

    Raises:
        ValueError: a pass over the data gives no batch.
    """
    done, fresh = 0, False
    while done < size:
        before = done
        for batch in data:
            yield batch
            done += 1
            if done >= size:
                return
        if fresh and done == before:
            raise ValueError(f"epoch_size is {size}, but the data iterator gives no batch at all after a reset.")
        resets()
        data.reset()
        fresh = True


def frozen_names(symbol: Symbol, params: Sequence[str]) -> list[str]:
    """Parameters that attributes freeze: `weight_grad="freeze"` (or the whole name) on an operator, `grad="freeze"` on a
    variable.

    Example:
        >>> import jfit
        >>> net = jfit.sym.FullyConnected(jfit.sym.Variable("x"), num_hidden=2, name="fc", attr={"bias_grad": "freeze"})
        >>> frozen_names(net, ["fc_weight", "fc_bias"])
        ['fc_bias']

    Source: MXNet.jl, `model.jl`.
    """
    found: set[str] = set()
    for node in symbol.nodes():
        for key, value in node.attrs.items():
            if value != "freeze" or not (key == "grad" or key.endswith("_grad")):
                continue
            wanted = node.name if key == "grad" else key[: -len("_grad")]
            hit = {wanted, f"{node.name}_{wanted}"} & set(params)
            if not hit and node.op is not None:
                logging.warning('attribute %s="freeze" of %s names none of its parameters and freezes nothing', key, node.name)
            found |= hit
    return [name for name in params if name in found]


def _labels(y: Any, rows: int) -> Any:
    if not hasattr(y, "shape"):
        raise TypeError(f"y is {type(y).__name__}; an array is needed where X is one.")
    y = as_array(y)
    if len(y.shape) == 2 and y.shape[1] == 1:
        y = y.reshape(-1)
    if len(y.shape) != 1:
        raise ValueError(f"y has shape {tuple(y.shape)}; one label for each row is needed, shape (N,) or (N, 1).")
    if y.shape[0] != rows:
        raise ValueError(f"X has {rows} rows and y {y.shape[0]} labels; equal numbers are needed.")
    return y


def _over(X: Any, y: Any, symbol: Symbol, batch_size: int, shuffle: bool, handle: str) -> NDArrayIter:
    names = _only(symbol, "data", "data"), _only(symbol, "label", "softmax_label")
    return NDArrayIter(X, y, min(int(X.shape[0]), batch_size), shuffle, handle, *names)


def _only(symbol: Symbol, ending: str, default: str) -> str:
    """The argument with that ending where there is one only, else MXNet's name."""
    found = [n for n in symbol.list_arguments() if n.endswith(ending)]
    return found[0] if len(found) == 1 else default
