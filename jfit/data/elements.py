"""One element of a stream, or the two halves of `(x, y)`, as arrays by input name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.data.arrays import to_array
from jfit.data.batch import Axes, Batch, check_batch, rows
from jfit.ops.registry import nearest


def is_array(value: Any) -> bool:
    """Whether a value is an array object of some library (lists of numbers are not)."""
    return (
        isinstance(value, np.ndarray) or hasattr(value, "__array__") or hasattr(value, "asnumpy") or hasattr(value, "to_numpy")
    )


def is_mxnet_iter(value: Any) -> bool:
    """Whether a value walks and resets like an MXNet DataIter."""
    return hasattr(value, "provide_data") and hasattr(value, "reset") and (hasattr(value, "next") or hasattr(value, "__next__"))


class Names(NamedTuple):
    """The inputs a graph needs: data and labels in order, and whether labels may be absent."""

    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    require_labels: bool = True
    axes: Axes | None = None  # input name -> axis of its rows, where a stream has it elsewhere than on axis 0

    @classmethod
    def of(
        cls, inputs: Iterable[str], labels: Iterable[str] = (), require_labels: bool = True, axes: Axes | None = None
    ) -> Names:
        """Names from any sequences; a label listed among the inputs is a label."""
        labels = tuple(labels)
        return cls(tuple(n for n in inputs if n not in labels), labels, require_labels, axes)

    @property
    def all(self) -> tuple[str, ...]:
        """Data inputs, then labels."""
        return self.inputs + self.labels

    def check(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays in the graph's order, if their names are the ones it needs.

        Raises:
            ValueError: a needed input is missing or a name is unknown; the message lists both sides and the nearest name.
        """
        unknown = [n for n in found if n not in self.all]
        missing = [n for n in self.inputs + (self.labels if self.require_labels else ()) if n not in found]
        if not unknown and not missing:
            return {n: found[n] for n in self.all if n in found}
        problem = []
        for name in unknown:
            near = nearest(str(name), missing or self.all)
            problem.append(f"{name!r} is no input of the graph" + (f" (nearest: {near})" if near else ""))
        problem += [f"input {name!r} is missing" for name in missing]
        raise ValueError(
            f"{'; '.join(problem)}. The graph needs {_quoted(self.all)}, the data has {_quoted(found)}; "
            "rename the arrays or pass a dict with the graph's input names."
        )


def to_named(value: Any, names: Sequence[str], what: str, graph: Names) -> dict[str, Any]:
    """Arrays by name from one array, a list of arrays in the order of `names`, a dict, or None.

    Args:
        value: one half of `(x, y)`.
        names: the inputs that this half feeds, in order.
        what: `x` or `y`, for messages.
        graph: all inputs, for messages.

    Returns:
        name -> value, not yet converted.

    Raises:
        ValueError: the number of arrays is not the number of names.

    Example:
        >>> to_named([1.0, 2.0], ["data"], "x", Names.of(["data"]))
        {'data': [1.0, 2.0]}
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    several = isinstance(value, (list, tuple)) and (len(names) != 1 or (len(value) == 1 and _has_rows(value[0])))
    given = list(value) if several else [value]
    if len(given) != len(names):
        kind = "data" if what == "x" else "label"
        raise ValueError(
            f"{what} holds {len(given)} array{'s' * (len(given) != 1)}, the graph has {len(names)} {kind} "
            f"input{'s' * (len(names) != 1)} ({_quoted(names)}); its inputs are {_quoted(graph.all)}: pass one array for each, "
            "as a list in this order or as a dict by name."
        )
    return dict(zip(names, given, strict=True))


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
            f"inputs {_quoted(names.all)}: a dict by name is the safest."
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
                f"a batch has {len(arrays)} {side} arrays for the names {_quoted(keys)}; one array for each is needed."
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


def _has_rows(value: Any) -> bool:
    return is_array(value) and np.ndim(value) > 0


def _quoted(names: Iterable[Any]) -> str:
    return ", ".join(repr(n) for n in names) or "none"
