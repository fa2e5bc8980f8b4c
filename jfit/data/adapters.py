"""`as_data`: convert the data argument of `fit` to `ArrayData` (arrays in memory) or `StreamData` (an iterable of batches).

Objects of torch, grain, tf.data, pandas and MXNet are recognized by their methods, without importing these libraries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jfit.checks import integer, positive_integer, shown
from jfit.data.arrays import ArrayData
from jfit.data.batch import Axes, Batch, Names, is_array, is_mxnet_iter, split_named
from jfit.data.columns import Columns, column_names, is_frame, label_without_columns, select
from jfit.data.row_batches import RowBatches, Rows, has_random_access, has_rows_by_type, is_row
from jfit.data.stream import StreamData
from jfit.data.trees import is_argument, split_weight

MOST_ROWS = 2**31 - 1  # of a batch: rows are numbered in int32


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
    structure: Any = None,
    label: Any = None,
    sample_weight: Any = None,
    steps_per_epoch: int | None = None,
    endless: bool = False,
) -> ArrayData | StreamData:
    """Convert training or evaluation data to `ArrayData` or `StreamData`.

    Args:
        data: `(x, y)`, `(x, y, weight)` or `x`, where `x` and `y` are an array or a list, tuple or dict of arrays; a dict input
            name -> array; an iterable of batches (list of batches, torch or grain loader, tf.data.Dataset, MXNet iterator); or
            a callable `f(epoch)` or `f()` that returns such an iterable.  A batch is a `Batch`, a dict input name -> array,
            `(x, y)`, `(x, y, weight)` or `x`.  A list of arrays is `x` with one array per input; a list of tuples, dicts or
            `Batch`es is a list of batches.  A tuple is always `(x,)`, `(x, y)` or `(x, y, weight)`.  Also a DataFrame, and a
            torch or Hugging Face data set or another iterable of rows, see `jfit.data.Rows`.  Arrays in dicts that have other
            names are not used, which is logged.
        batch_size: number of rows per batch for arrays and rows; ignored for an iterable of batches.
        input_names: names of the data inputs, in the order of a list of arrays `x`.
        label_names: names of the label inputs, in the order of a list of arrays `y`.
        shuffle: whether to shuffle arrays, and rows with random access, in every epoch; an iterable is read in its order.
        seed: integer seed of the shuffle.
        train_pad: whether padding rows of an MXNet iterator have weight 1 (True, as in MXNet) or 0 (False) in the loss; their
            weight in metrics is 0.
        require_labels: whether data without labels is an error; False for prediction.
        axes: input name -> batch axis of the batches of an iterable (default 0); arrays have the batch axis first, or none
            (None).
        structure: `Model.structure` of a function, whose `x` and `y` may be pytrees of arrays; their leaves are named by path.
        label: name, or list of names, of the label columns of a DataFrame, of a dict or of rows that are dicts.  Default: the
            label names.
        sample_weight: array (rows,) of row weights of arrays, as in `(x, y, weight)`.
        steps_per_epoch: number of batches per epoch, see `StreamData`.  Default: one pass over the data.
        endless: whether an epoch may be endless, because training ends after a number of steps.

    Returns:
        `ArrayData` for arrays, `StreamData` for an iterable or callable; `data` itself if it is one of them.

    Raises:
        ValueError: empty data, wrong or missing input names, or unequal numbers of rows.
        TypeError: unsupported type of `data`.

    Example:
        >>> import numpy as np
        >>> data = as_data((np.ones((6, 2)), np.zeros(6)), batch_size=4, input_names=["data"], label_names=["label"])
        >>> data.num_rows, sorted(data.arrays)
        (6, ['data', 'label'])
    """
    positive_integer(batch_size=batch_size, most=MOST_ROWS)
    integer(seed=seed)
    if data is None or isinstance(data, (str, bytes, int, float, os.PathLike)):
        raise TypeError(
            f"data is {shown(data)} ({type(data).__name__}), expected (x, y), a dict of arrays by input name, an array, or an "
            "iterable of batches; read a file first, as in np.load(path) or pandas.read_csv(path)."
        )
    if isinstance(data, (ArrayData, StreamData)):
        explicit, kind = None if isinstance(label, Columns) else label, type(data).__name__
        options = {"label": explicit, "sample_weight": sample_weight, "steps_per_epoch": steps_per_epoch}
        if passed := [name for name, value in options.items() if value is not None]:
            problem = f"{passed[0]}= is passed with data of type {kind}, which is converted already"
            raise ValueError(f"{problem} and would ignore it; make the {kind} with this option.")
        return data
    names = Names.of(input_names, label_names, require_labels, axes)._replace(structure=structure)
    columns = Columns.of(label)
    in_memory = isinstance(data, (tuple, np.ndarray))
    by_rows = True if not in_memory and has_rows_by_type(data) else None
    data = data.source if isinstance(data, Rows) else data
    if by_rows or (not in_memory and _is_stream(data)):
        if sample_weight is not None:
            raise ValueError(
                f"sample_weight has the row weights of arrays, but the data is a {type(data).__name__}; yield weights"
            )
        options = {"train_pad": train_pad, "columns": columns, "steps_per_epoch": steps_per_epoch, "endless": endless}
        if _indexable_rows(data, by_rows, names, columns):
            keys = _used_keys(data, names, columns)
            stream = StreamData(RowBatches(data, batch_size, keys=keys, shuffle=shuffle, seed=seed), names, **options)
        else:
            stream = StreamData(data, names, batch_size=batch_size, by_rows=by_rows, **options)
        stream.needs_columns = columns is not label
        return stream
    arrays, weight, columns = _arrays(data, names, columns, explicit=columns is not label)
    if sample_weight is not None:
        if weight is not None:
            raise ValueError("row weights are passed twice, as sample_weight= and in the data (x, y, weight); pass them once.")
        weight = sample_weight
    if weight is not None:
        arrays, weight = split_weight(structure, arrays, weight)
    checked = names.check(arrays)
    names.log_extra(arrays)
    options = {"shuffle": shuffle, "seed": seed, "weight": weight, "steps_per_epoch": steps_per_epoch}
    converted = ArrayData(checked, axes=axes, **options)
    converted.columns = columns
    if columns is not None and len(names.inputs) == 1 and is_frame(data):
        converted.private.add(names.inputs[0])  # `select` copied its columns
    return converted


def _indexable_rows(data: Any, by_rows: bool | None, names: Names, columns: Columns | None) -> bool:
    """Whether data consists of rows that can be read by index, so that they can be shuffled."""
    if is_mxnet_iter(data) or hasattr(data, "seek_batch") or hasattr(data, "as_numpy_iterator") or not has_random_access(data):
        return False
    if by_rows or not len(data):
        return bool(by_rows)
    try:
        first = data[0]
    except (LookupError, TypeError):  # not indexed by row number
        return False
    return is_row(first, names, () if columns is None else columns.label or ())


def _used_keys(data: Any, names: Names, columns: Columns | None) -> list[str] | None:
    """Names of the columns of rows that are dicts that are used, or None for all."""
    have = column_names(data)
    if columns is not None or not have:
        return None
    names.check(dict.fromkeys(have, np.zeros(1)))
    names.log_extra(have)
    extra = names.extra(have)
    return [name for name in have if name not in extra]


def _is_stream(data: Any) -> bool:
    if isinstance(data, (Mapping, str, bytes)):
        return False
    if is_mxnet_iter(data) or hasattr(data, "as_numpy_iterator"):
        return True
    if is_array(data):
        return False
    if isinstance(data, list):
        return bool(data) and all(isinstance(e, (tuple, Mapping, Batch)) for e in data)
    return callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__")


def _arrays(
    data: Any, names: Names, columns: Columns | None, *, explicit: bool
) -> tuple[dict[str, Any], Any | None, Columns | None]:
    """Split data in memory into (dict input name -> array, row weights or None, columns that were used or None)."""
    if isinstance(data, Mapping):
        split = next((k for k, v in data.items() if has_rows_by_type(v)), None)
        if split is not None:
            raise TypeError(f"data is a dict of data sets; pass one of them, such as data[{split!r}].")
    may_be_frame = not isinstance(data, tuple) and (columns is not None or names.require_labels)
    if isinstance(data, Mapping) or (may_be_frame and is_frame(data)):
        arrays, columns = select(data, names, columns)
        return arrays, None, columns
    if explicit:
        raise ValueError(label_without_columns(columns, f"the data is a {type(data).__name__}"))
    if isinstance(data, Batch):
        weight = _shared_weight(data) if names.require_labels else None  # predict ignores weights
        return dict(data.inputs), weight, None
    whole = names.structure is not None and not names.require_labels and is_argument(names.structure, data)
    if not isinstance(data, tuple) or (names.structure is not None and hasattr(data, "_fields")) or whole:
        data = (data,)
    return (*split_named(data, names, "data"), None)


def _shared_weight(batch: Batch) -> Any | None:
    """Row weights of a `Batch` that is passed as the whole data set; raise if `weight` and `metric_weight` differ."""
    if batch.metric_weight is not None and not np.array_equal(
        np.ones_like(batch.metric_weight) if batch.weight is None else batch.weight, batch.metric_weight
    ):
        raise ValueError("the data is one Batch whose weight and metric_weight differ; pass a list, [batch].")
    return batch.weight
