"""One batch: inputs by name, and how much each row counts in training and in metrics; the names that a graph needs.

Every data source gives batches as this one tuple.  Rows lie on axis 0 of every input unless `axes` says otherwise
(`{"data": 1}` for time-major sequences, `{"table": None}` for an input that has no rows at all).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.ops.registry import nearest

Axes = Mapping[str, int | None]


class Batch(NamedTuple):
    """inputs by name (labels included), weight of each row in training, weight of each row in metrics.

    Attributes:
        inputs: name -> array, numpy or jax, rows on axis 0.
        weight: (rows,) float32, finite and at least 0, or None for all 1.  A batch whose weights are all 0 changes nothing.
        metric_weight: (rows,) float32, or None for the same as `weight`.

    Example:
        >>> import numpy as np
        >>> batch = Batch({"data": np.ones((3, 2), np.float32)})
        >>> rows(batch)
        3
    """

    inputs: dict[str, Any]
    weight: Any | None = None
    metric_weight: Any | None = None


def parts_of(batch: Any) -> tuple[dict[str, Array], Array | None, Array | None]:
    """(inputs, weight, metric weight) of a Batch or of a plain dict of inputs; weights float32."""
    if isinstance(batch, dict):
        return batch, None, None
    weight, metric_weight = (None if w is None else jnp.asarray(w, jnp.float32) for w in (batch.weight, batch.metric_weight))
    return dict(batch.inputs), weight, weight if metric_weight is None else metric_weight


def row_axis(name: str, axes: Axes | None) -> int | None:
    """The axis of an input that counts rows; None where the input has none."""
    return 0 if axes is None else axes.get(name, 0)


def rows(batch: Batch, axes: Axes | None = None) -> int:
    """Number of rows in a batch, padded ones included.

    Args:
        batch: the batch.
        axes: input name -> axis of its rows (0 where not named; None: the input has no rows).

    Returns:
        The row count of the first input that has rows.

    Raises:
        ValueError: no input has rows.

    Example:
        >>> import numpy as np
        >>> rows(Batch({"data": np.ones((5, 4, 2))}, None), axes={"data": 1})
        4
    """
    for name, value in batch.inputs.items():
        axis = row_axis(name, axes)
        if axis is not None:
            shape = np.shape(value)
            if len(shape) <= axis:
                raise ValueError(
                    f"input {name!r} has shape {shape}, its rows are needed on axis {axis}; pass arrays with a batch axis."
                )
            return shape[axis]
    raise ValueError(f"a batch with the inputs {list(batch.inputs)} has no rows; at least one input needs a batch axis.")


def wrapped_rows(batch: Batch) -> int:
    """Number of rows at the end that an iterator repeated to fill the batch: they train, but their metric weight is 0.

    Example:
        >>> import numpy as np
        >>> wrapped_rows(Batch({"data": np.ones((4, 2))}, None, np.array([1.0, 1.0, 0.0, 0.0])))
        2
    """
    if batch.weight is not None or batch.metric_weight is None:
        return 0
    counted = np.flatnonzero(np.asarray(batch.metric_weight))
    return len(batch.metric_weight) - (int(counted[-1]) + 1 if len(counted) else 0)


def pad_rows(batch: Batch, size: int, axes: Axes | None = None) -> Batch:
    """Σᵢ wᵢ xᵢ is the same before and after: a batch grown to `size` rows whose new rows weigh 0.

    The new rows repeat the real ones cyclically: zeros could make 0 · inf = NaN in a gradient, real rows cannot make
    anything that was not there before.

    Args:
        batch: a batch of at least 1 and at most `size` rows.
        size: rows wanted.
        axes: input name -> axis of its rows (0 where not named; None: the input has no rows).

    Returns:
        A batch of `size` rows with both weights filled in, (size,) float32; the same batch when it already has `size` rows.

    Raises:
        ValueError: the batch has no row to repeat, or more rows than `size`.

    Example:
        >>> import numpy as np
        >>> padded = pad_rows(Batch({"data": np.array([1.0, 2.0])}), 5)
        >>> padded.inputs["data"].tolist(), padded.weight.tolist()
        ([1.0, 2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 0.0, 0.0, 0.0])
    """
    count = rows(batch, axes)
    if count == size:
        return batch
    if count > size:
        raise ValueError(f"a batch of {count} rows cannot be padded to {size}; pass a size of at least {count}.")
    if count == 0:
        raise ValueError("a batch of 0 rows cannot be padded: there is no real row to repeat; leave empty batches out.")
    index = np.arange(size) % count
    inputs = {}
    for name, value in batch.inputs.items():
        axis = row_axis(name, axes)
        array = value if hasattr(value, "take") else np.asarray(value)
        inputs[name] = value if axis is None else array.take(index, axis=axis)
    counted = batch.weight if batch.metric_weight is None else batch.metric_weight
    return Batch(inputs, _pad_weight(batch.weight, count, size), _pad_weight(counted, count, size))


def _pad_weight(weight: Any | None, count: int, size: int) -> np.ndarray:
    out = np.zeros(size, np.float32)  # (size,)
    out[:count] = 1.0 if weight is None else np.asarray(weight, np.float32)
    return out


def check_weights(weight: Any, name: str, where: str = "") -> None:
    """Raises an error unless every row weight is a finite number of at least 0.

    Args:
        weight: (rows,) numbers.  An array on a device is not read: that would make the host wait.
        name: "weight" or "metric_weight", for the message.
        where: the beginning of the message.

    Raises:
        ValueError: a weight is nan, infinite or negative; the message names the first such row.

    Example:
        >>> check_weights([1.0, -2.0], "weight")
        Traceback (most recent call last):
        ...
        ValueError: weight of row 1 is -2.0; row weights must be finite and at least 0; use 0 for a row that must not count.
    """
    if hasattr(weight, "addressable_shards"):  # a jax array
        return
    values = np.asarray(weight)
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        more = f" ({len(bad)} such rows)" if len(bad) > 1 else ""
        raise ValueError(
            f"{where}{name} of row {bad[0]} is {values[bad[0]]}{more}; row weights must be finite and at least 0; "
            "use 0 for a row that must not count."
        )


def check_batch(batch: Batch, axes: Axes | None = None, where: str = "") -> Batch:
    """The batch itself, if its inputs and weights agree on the number of rows and no weight is nan, infinite or negative.

    Args:
        batch: the batch to check.
        axes: input name -> axis of its rows (0 where not named; None: the input has no rows).
        where: the beginning of a message, such as the number of the batch.

    Returns:
        `batch`, unchanged.

    Raises:
        ValueError: no inputs, inputs or weights that disagree on the number of rows (the message names both), or a weight
            that is nan, infinite or negative (weights on a device are not read: the host would wait).

    Example:
        >>> import numpy as np
        >>> check_batch(Batch({"data": np.ones((3, 2)), "label": np.ones(2)}))
        Traceback (most recent call last):
        ...
        ValueError: input 'data' has 3 rows, input 'label' has 2; all inputs of a batch need the same number of rows.
    """
    if not isinstance(batch.inputs, dict) or not batch.inputs:
        raise ValueError(f"{where}a batch needs a non-empty dict of inputs by name, found {type(batch.inputs).__name__}.")
    first, count = "", None
    for name in batch.inputs:
        if row_axis(name, axes) is None:
            continue
        found = rows(Batch({name: batch.inputs[name]}), axes)
        if count is None:
            first, count = name, found
        elif found != count:
            raise ValueError(
                f"{where}input {first!r} has {count} rows, input {name!r} has {found}; "
                "all inputs of a batch need the same number of rows."
            )
    for name, weight in (("weight", batch.weight), ("metric_weight", batch.metric_weight)):
        if weight is None:
            continue
        if np.shape(weight) != (count,):
            raise ValueError(
                f"{where}{name} has shape {np.shape(weight)}, the batch has {count} rows; pass one number per row, "
                f"shape ({count},)."
            )
        check_weights(weight, name, where)
    return batch


def check_labels(labels: Any, num_classes: int, name: str, ignore_label: float | None = None) -> None:
    """0 ≤ labelᵢ ≤ n − 1 for every row, or a sentence that names the first row where it does not hold.

    Args:
        labels: class indices, any shape with rows on axis 0, integer or float.
        num_classes: n, the number of classes.
        name: the label input's name, for messages.
        ignore_label: a value that is allowed besides, for rows that do not count.

    Raises:
        ValueError: a label is NaN, outside 0..n-1, or not a whole number.

    Example:
        >>> check_labels([0, 2, 5], 5, "y")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: label 'y': row 2 is 5, allowed are the classes 0..4; renumber them from 0, or give the last layer ...
    """
    array = np.asarray(labels)
    whole = array if array.dtype.kind in "iub" else np.trunc(array)
    good = (array >= 0) & (array < num_classes) & (whole == array)  # NaN compares false
    if ignore_label is not None:
        good |= array == ignore_label
    if good.all():
        return
    where = np.unravel_index(np.argmin(good), array.shape)
    place = f"row {where[0]}" + (f", position {tuple(int(k) for k in where[1:])}" if len(where) > 1 else "")
    extra = "" if ignore_label is None else f" and {ignore_label:g} (ignored)"
    raise ValueError(
        f"label {name!r}: {place} is {array[where]}, allowed are the classes 0..{num_classes - 1}{extra}; "
        "renumber them from 0, or give the last layer more outputs."
    )


# ------------------------------------------------------------------------------------------------ names
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
            f"{'; '.join(problem)}. The graph needs {quoted(self.all)}, the data has {quoted(found)}; "
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
            f"input{'s' * (len(names) != 1)} ({quoted(names)}); its inputs are {quoted(graph.all)}: pass one array for each, "
            "as a list in this order or as a dict by name."
        )
    return dict(zip(names, given, strict=True))


def _has_rows(value: Any) -> bool:
    return is_array(value) and np.ndim(value) > 0


def quoted(names: Iterable[Any]) -> str:
    """Names for a sentence."""
    return ", ".join(repr(n) for n in names) or "none"
