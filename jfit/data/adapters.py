"""Whatever people feed to `fit`, as one of two things: arrays in memory or a stream of batches.

`as_data` decides which, by the shape of what it is given and never by asking for a library: torch, grain, tf.data, pandas and
MXNet iterators are recognised by the methods they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.data.arrays import ArrayData
from jfit.data.batch import Axes, Batch, Names, is_array, is_mxnet_iter, to_named
from jfit.data.stream import StreamData


def as_data(
    data: Any,
    *,
    batch_size: int,
    input_names: Sequence[str],
    label_names: Sequence[str] = (),
    shuffle: bool = True,
    seed: int = 0,
    train_pad: bool = True,
    require_labels: bool = True,
    axes: Axes | None = None,
) -> ArrayData | StreamData:
    """Training or evaluation data from anything people have it in.

    Args:
        data: `(x, y)` or `(x, y, weight)`; a dict of arrays by input name; `x` alone; an iterable over batches (list of
            batches, torch or grain loader, tf.data.Dataset, MXNet iterator); a callable `f(epoch)` or `f()` that returns one.
            `x` and `y` may be lists, tuples or dicts of arrays.  A batch is a `Batch`, a dict, `(x, y)`, `(x, y, weight)`
            or `x`.
        batch_size: rows of a batch; streams bring batches of their own size.
        input_names: data inputs in order, as a list of arrays is matched.
        label_names: label inputs in order.
        shuffle: a new order of array data every epoch (streams are read as they come).
        seed: fixes the orders.
        train_pad: rows an MXNet iterator wraps weigh 1 in training (as MXNet has it) or 0; in metrics they weigh 0.
        require_labels: whether data without labels is an error; False for prediction.
        axes: input name -> axis of the rows in the batches of a stream, where it is not 0 (arrays have their rows first).

    Returns:
        `ArrayData` or `StreamData`; one that is passed in comes back as it is.

    Raises:
        ValueError: empty data, wrong or missing input names, unequal row counts; the message says what was needed.
        TypeError: nothing that holds batches.

    Example:
        >>> import numpy as np
        >>> data = as_data((np.ones((6, 2)), np.zeros(6)), batch_size=4, input_names=["data"], label_names=["label"])
        >>> data.num_rows, sorted(data.arrays)
        (6, ['data', 'label'])
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, at least 1 is needed.")
    if isinstance(data, (ArrayData, StreamData)):
        return data
    names = Names.of(input_names, label_names, require_labels, axes)
    if _is_stream(data):
        return StreamData(data, names, train_pad=train_pad)
    arrays, weight = _arrays(data, names)
    return ArrayData(names.check(arrays), shuffle=shuffle, seed=seed, weight=weight)


def _is_stream(data: Any) -> bool:
    if is_mxnet_iter(data) or hasattr(data, "as_numpy_iterator"):
        return True
    if is_array(data) or isinstance(data, (Mapping, tuple, str, bytes)):
        return False
    if isinstance(data, list):
        return bool(data) and all(isinstance(e, (tuple, Mapping, Batch)) for e in data)
    return callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__")


def _arrays(data: Any, names: Names) -> tuple[dict[str, Any], Any | None]:
    """Arrays by input name, and row weights where the data has them."""
    if data is None or isinstance(data, (str, bytes, int, float)):
        raise TypeError(
            f"data is {data!r} ({type(data).__name__}); needed is (x, y), a dict of arrays by input name, an array, "
            "or an iterable over batches."
        )
    if isinstance(data, Mapping):
        return dict(data), None
    if isinstance(data, Batch):
        return dict(data.inputs), _shared_weight(data) if names.require_labels else None  # predict takes no weights
    if not isinstance(data, tuple):
        data = (data,)
    if len(data) not in (1, 2, 3):
        raise ValueError(
            f"data is a tuple of {len(data)}, (x, y) or (x, y, weight) is needed; for several inputs pass x as a list or a "
            f"dict, such as {{{', '.join(repr(n) for n in names.all)}}}."
        )
    x, y, weight = (*data, None, None)[:3]
    return {**to_named(x, names.inputs, "x", names), **to_named(y, names.labels, "y", names)}, weight


def _shared_weight(batch: Batch) -> Any | None:
    """The weights of a `Batch` given as a whole data set, whose rows weigh the same in training and in metrics."""
    if batch.metric_weight is not None and not np.array_equal(
        np.ones_like(batch.metric_weight) if batch.weight is None else batch.weight, batch.metric_weight
    ):
        raise ValueError(
            "the data is one Batch whose weight and metric_weight differ, but arrays have one weight per row for both; pass a "
            "list of batches ([batch]) to keep two weights."
        )
    return batch.weight
