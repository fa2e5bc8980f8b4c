"""Convert one element of a stream of batches (tuple, dict, MXNet DataBatch ...) to a `Batch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.data.arrays import to_array
from jfit.data.batch import Batch, Names, check_batch, is_array, rows, split_named, to_named
from jfit.data.trees import is_argument, split_weight


def to_batch(
    element: Any, names: Names, *, described: Any = None, train_pad: bool = True, wraps: bool = True, where: str = ""
) -> Batch:
    """Convert one element of a stream to a checked `Batch`.

    Args:
        element: `Batch`, dict by input name, `x`, `(x, y)`, `(x, y, weight)`, or an MXNet-style batch (.data, .label, .pad).
        names: the inputs of the graph.
        described: iterator whose `provide_data` and `provide_label` name the arrays of an MXNet-style batch that has none.
        train_pad: whether padding rows of an MXNet-style batch have weight 1 (True) or 0 (False) in the loss.
        wraps: whether `pad` is the number of padding rows (in a roll_over iterator it is the number of rows carried over
            from the previous epoch, which are not padding).
        where: prefix of error messages, such as "batch 3: ".

    Returns:
        Batch; JAX arrays stay on their device, all others become NumPy arrays with dtypes of at most 32 bits.

    Raises:
        ValueError: wrong names, unequal numbers of rows, or row weights that are not finite and non-negative.

    Example:
        >>> to_batch(([[1.0], [2.0]], [0, 1]), Names.of(["data"], ["label"])).inputs["label"]
        array([0, 1], dtype=int32)
    """
    weight = metric_weight = None
    pad = 0
    if isinstance(element, Batch):
        arrays, weight, metric_weight = (dict(element.inputs), element.weight, element.metric_weight)
    elif isinstance(element, Mapping):
        arrays = dict(element)
    elif _is_mxnet_batch(element):
        arrays = _mxnet_arrays(element, described, names)
        pad = int(element.pad or 0) if wraps else 0
    else:
        arrays, weight = _split(element, names)
        metric_weight = weight
    arrays, weight = split_weight(names.structure, arrays, weight)
    arrays, metric_weight = split_weight(names.structure, arrays, metric_weight)
    inputs = {n: _device_or_host(v, n) for n, v in names.check(arrays).items()}
    batch = Batch(inputs, _weight(weight, "weight"), _weight(metric_weight, "metric_weight"))
    try:
        check_batch(batch, names.axes, where)
    except ValueError as error:
        error.add_note("jfit: if each element of the data is a single row instead of a batch, pass jfit.data.Rows(data)")
        raise
    if not pad:
        return batch
    count = rows(batch, names.axes)
    real = (np.arange(count) < count - pad).astype(np.float32)  # (rows,)
    return batch._replace(weight=batch.weight if train_pad else real, metric_weight=real)


def _split(element: Any, names: Names) -> tuple[dict[str, Any], Any | None]:
    whole = not names.require_labels and is_argument(names.structure, element)
    if whole or not isinstance(element, (list, tuple)):
        return to_named(element, names.inputs, "x", names), None
    parts = list(element)
    flat = len(names.inputs) > 1 and all(is_array(p) for p in parts)
    if flat and len(parts) in (len(names.all), len(names.inputs)):
        return dict(zip(names.all, parts, strict=False)), None
    return split_named(parts, names, "a batch")


def _is_mxnet_batch(element: Any) -> bool:
    return hasattr(element, "pad") and isinstance(getattr(element, "data", None), (list, tuple))


def _mxnet_arrays(element: Any, described: Any, names: Names) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for side, fallback in (("data", names.inputs), ("label", names.labels)):
        arrays = getattr(element, side, None) or []
        descs = getattr(element, "provide_" + side, None) or getattr(described, "provide_" + side, None)
        keys = [d[0] for d in descs] if descs else fallback
        named.update(zip(keys, arrays, strict=True))
    return named


def _device_or_host(value: Any, name: str) -> Any:
    if hasattr(value, "addressable_shards"):  # a jax.Array: leave it on its device
        return value
    return to_array(value, name)


def _weight(value: Any | None, name: str) -> Any | None:
    if value is None:
        return None
    array = _device_or_host(value, name)
    return array if array.dtype == np.float32 else array.astype(np.float32)
