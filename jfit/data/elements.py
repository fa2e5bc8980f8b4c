"""One element of a stream as a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jfit.data.arrays import to_array
from jfit.data.batch import Axes, Batch, Names, check_batch, is_array, quoted, rows, to_named


def to_batch(
    element: Any, names: Names, *, described: Any = None, train_pad: bool = True, wraps: bool = True, where: str = ""
) -> Batch:
    """A checked `Batch` from one element of a stream.

    Args:
        element: `Batch`, dict by input name, `x`, `(x, y)`, `(x, y, weight)`, or an MXNet-style batch (.data, .label, .pad).
        names: the inputs the graph needs.
        described: the iterator whose `provide_data` names the arrays of an MXNet-style batch.
        train_pad: whether padded rows of an MXNet-style batch weigh 1 in training.
        wraps: whether `pad` counts wrapped rows (in a roll_over iterator it counts real ones).
        where: which batch it is, as the beginning of messages.

    Returns:
        The batch; arrays on a device stay there, others become NumPy arrays of 32 bits at most.

    Raises:
        ValueError: wrong names, unequal numbers of rows, or row weights that are not finite numbers of at least 0.

    Example:
        >>> to_batch(([[1.0], [2.0]], [0, 1]), Names.of(["data"], ["label"])).inputs["label"]
        array([0, 1], dtype=int32)
    """
    weight = metric_weight = None
    pad = 0
    if isinstance(element, Batch):
        found, weight, metric_weight = (dict(element.inputs), element.weight, element.metric_weight)
    elif isinstance(element, Mapping):
        found = dict(element)
    elif _is_mxnet_batch(element):
        found = _mxnet_arrays(element, described, names)
        pad = int(element.pad or 0) if wraps else 0
    else:
        found, weight = _split(element, names)
        metric_weight = weight
    inputs = {n: _device_or_host(v, n) for n, v in names.check(found).items()}
    for name, value in inputs.items():
        if np.ndim(value) == 0:
            raise ValueError(
                f"input {name!r} of a batch is the single number {value}, an array with one entry per row is needed; "
                "the data seems to give samples one by one: batch them first (a DataLoader, .batch(n), or arrays as (x, y))."
            )
    batch = check_batch(Batch(inputs, _weight(weight, "weight"), _weight(metric_weight, "metric_weight")), names.axes, where)
    return _mark_pad(batch, pad, train_pad, names.axes) if pad else batch


def _mark_pad(batch: Batch, pad: int, train_pad: bool, axes: Axes | None) -> Batch:
    real = np.ones(rows(batch, axes), np.float32)  # (rows,)
    real[len(real) - pad :] = 0.0
    return batch._replace(weight=batch.weight if train_pad else real, metric_weight=real)


def _split(element: Any, names: Names) -> tuple[dict[str, Any], Any | None]:
    if not isinstance(element, (list, tuple)):
        return to_named(element, names.inputs, "x", names), None
    parts = list(element)
    flat = len(names.inputs) > 1 and all(is_array(p) for p in parts)
    if flat and len(parts) in (len(names.all), len(names.inputs)):
        return dict(zip(names.all, parts, strict=False)), None
    if len(parts) not in (1, 2, 3):
        raise ValueError(
            f"a batch is a {type(element).__name__} of {len(parts)}, x, (x, y) or (x, y, weight) is needed; the graph has the "
            f"inputs {quoted(names.all)}: a dict by name is the safest."
        )
    x, y, weight = (*parts, None, None)[:3]
    return {**to_named(x, names.inputs, "x", names), **to_named(y, names.labels, "y", names)}, weight


def _is_mxnet_batch(element: Any) -> bool:
    return hasattr(element, "pad") and isinstance(getattr(element, "data", None), (list, tuple))


def _mxnet_arrays(element: Any, described: Any, names: Names) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side, fallback in (("data", names.inputs), ("label", names.labels)):
        arrays = getattr(element, side, None) or []
        descs = getattr(element, "provide_" + side, None) or getattr(described, "provide_" + side, None)
        keys = [d[0] for d in descs] if descs else fallback
        if len(keys) != len(arrays):
            raise ValueError(
                f"a batch has {len(arrays)} {side} arrays for the names {quoted(keys)}; one array for each is needed."
            )
        found.update(zip(keys, arrays, strict=True))
    return found


def _device_or_host(value: Any, name: str) -> Any:
    if hasattr(value, "addressable_shards"):  # a jax array: already where it is wanted
        return value
    return to_array(value, name)


def _weight(value: Any | None, name: str) -> Any | None:
    if value is None:
        return None
    array = _device_or_host(value, name)
    return array if array.dtype == np.float32 else array.astype(np.float32)
