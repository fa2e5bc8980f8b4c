"""`Batch`: a dict of input arrays with row weights for training and for metrics; and `Names`, the inputs of a graph.

Every data source yields `Batch` tuples.  The batch axis is axis 0 of every input unless `axes` maps the input to another one
(`{"data": 1}` for time-major sequences, `{"table": None}` for an input without a batch axis).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit import counters
from jfit.data.trees import expected_names, named_arrays, named_batch, others
from jfit.data.valid import check_values, valid_weights
from jfit.lowering.model import flatten_names
from jfit.lowering.row_axes import RowAxes
from jfit.ops.registry import nearest

Axes = Mapping[str, int | None]


class Batch(NamedTuple):
    """One batch: arrays by input name (labels included), row weights for the loss, row weights for metrics.

    Attributes:
        inputs: input name -> NumPy or JAX array, batch axis first.
        weight: (rows,) float32, finite and non-negative: weight of each row in the loss; None: all 1.  A step on a batch whose
            weights are all 0 does not change the parameters.
        metric_weight: (rows,) float32: weight of each row in metrics; None: the same as `weight`.

    Example:
        >>> import numpy as np
        >>> batch = Batch({"data": np.ones((3, 2), np.float32)})
        >>> rows(batch)
        3
    """

    inputs: dict[str, Any]
    weight: Any | None = None
    metric_weight: Any | None = None


def as_batch(batch: Any) -> Batch:
    """Convert a dict of inputs to a `Batch`; return a `Batch` unchanged, and raise a TypeError for other types."""
    if not isinstance(batch, dict) and not hasattr(batch, "inputs"):
        raise TypeError(f"the batch is {type(batch).__name__}; expected a jfit.Batch, or a dict of arrays by input name")
    return Batch(batch) if isinstance(batch, dict) else batch


def parts_of(batch: Any) -> tuple[dict[str, Array], Array | None, Array | None]:
    """Split a `Batch` or a dict of inputs, which may be pytrees, into (inputs, weight, metric weight), with float32 weights."""
    batch = as_batch(batch)
    weight, metric_weight = (None if w is None else jnp.asarray(w, jnp.float32) for w in (batch.weight, batch.metric_weight))
    return dict(flat_inputs(batch.inputs)), weight, weight if metric_weight is None else metric_weight


def flat_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Replace pytrees in a batch by their leaves, 'x/ids'; a dict of arrays is returned unchanged.

    Example:
        >>> list(flat_inputs({"x": {"ids": np.zeros(2)}, "label": np.ones(2)}))
        ['x/ids', 'label']
    """
    if not any(isinstance(v, Mapping | tuple) for v in inputs.values()):
        return inputs if isinstance(inputs, dict) else dict(inputs)
    return {
        f"{name}/{path}" if isinstance(value, Mapping | tuple) else name: leaf
        for name, value in inputs.items()
        for path, leaf in (flatten_names(value)[0] if isinstance(value, Mapping | tuple) else {"": value}).items()
    }


def row_axis(name: str, axes: Axes | None) -> int | None:
    """Return the batch axis of the input `name`; None for an input without a batch axis."""
    return 0 if axes is None else axes.get(name, 0)


def rows(batch: Batch, axes: Axes | None = None) -> int:
    """Number of rows in a batch, padding rows included.

    Args:
        batch: the batch.
        axes: input name -> batch axis (default 0; None: the input has no batch axis).

    Returns:
        int: size of the batch axis of the first input that has one; 1 for a batch of a function without such an input.

    Raises:
        ValueError: no input has a batch axis, or an array has too few axes.

    Example:
        >>> import numpy as np
        >>> rows(Batch({"data": np.ones((5, 4, 2))}, None), axes={"data": 1})
        4
    """
    for name, value in batch.inputs.items():
        axis = row_axis(name, axes)
        if axis is not None:
            if np.ndim(value) <= axis:
                break
            return np.shape(value)[axis]
    else:
        if batch.inputs and isinstance(axes, RowAxes):
            return 1
    shapes = {name: np.shape(value) for name, value in batch.inputs.items()}
    raise ValueError(
        f"a batch with inputs of shapes {shapes} has no rows: at least one input needs a batch axis; if the data yields "
        "single rows, pass jfit.data.Rows(data)."
    )


def on_host(batch: Any, platform: str | None = None) -> Any:
    """Copy the JAX arrays of a batch, or of another pytree, to the host; with a platform, only those that are on its devices.

    Reading arrays on a CPU device copies nothing, and JAX would compile the padding for every number of rows.
    """
    leaves, tree = jax.tree.flatten(batch)
    arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.Array)}
    if platform is not None:
        arrays = {i: x for i, x in arrays.items() if any(device.platform == platform for device in x.devices())}
    if arrays:
        for i, x in counters.read(arrays).items():  # sync: on the thread of the batches
            leaves[i] = x
    return jax.tree.unflatten(tree, leaves)


def wrapped_rows(batch: Batch) -> int:
    """Number of trailing rows that an iterator repeated from the start of the data: they train, their metric weight is 0.

    Example:
        >>> import numpy as np
        >>> wrapped_rows(Batch({"data": np.ones((4, 2))}, None, np.array([1.0, 1.0, 0.0, 0.0])))
        2
    """
    if batch.weight is not None or batch.metric_weight is None:
        return 0
    weighted = np.flatnonzero(np.asarray(batch.metric_weight))
    return len(batch.metric_weight) - (int(weighted[-1]) + 1 if len(weighted) else 0)


def pad_rows(batch: Batch, size: int, axes: Axes | None = None, real: int | None = None) -> Batch:
    """Pad a batch to `size` rows with rows of weight 0, so that weighted sums Σᵢ wᵢ xᵢ do not change.

    The padding rows repeat the batch cyclically.  Rows of zeros could produce inf in the forward pass, and 0 · inf = NaN would
    then reach the gradient; repeated rows produce only values that the batch produces anyway.

    Args:
        batch: a batch of 1 to `size` rows.
        size: number of rows of the result.
        axes: input name -> batch axis (default 0; None: the input has no batch axis).
        real: number of rows that keep their weight; the others get weight 0.  None: all rows of the batch, and a batch of
            `size` rows is returned as it is.

    Returns:
        Batch of `size` rows with `weight` and `metric_weight` filled in, (size,) float32.

    Raises:
        ValueError: the batch has 0 rows, or more than `size`.

    Example:
        >>> import numpy as np
        >>> padded = pad_rows(Batch({"data": np.array([1.0, 2.0])}), 5)
        >>> padded.inputs["data"].tolist(), padded.weight.tolist()
        ([1.0, 2.0, 1.0, 2.0, 1.0], [1.0, 1.0, 0.0, 0.0, 0.0])
    """
    count, inputs = rows(batch, axes), batch.inputs
    if real is None:
        if count == size:
            return batch
        if not 0 < count < size:
            raise ValueError(f"a batch of {count} rows cannot be padded to {size} rows; pass 1 to {size} rows.")
        real = count
    if count != size:
        index = np.arange(size) % count
        arrays = {name: value if hasattr(value, "take") else np.asarray(value) for name, value in inputs.items()}
        along = {name: row_axis(name, axes) for name in inputs}
        inputs = {name: inputs[name] if along[name] is None else x.take(index, axis=along[name]) for name, x in arrays.items()}
    metric_weight = batch.weight if batch.metric_weight is None else batch.metric_weight
    return Batch(inputs, _pad_weight(batch.weight, real, size), _pad_weight(metric_weight, real, size))


def _pad_weight(weight: Any | None, real: int, size: int) -> np.ndarray:
    out = np.zeros(size, np.float32)  # (size,)
    out[:real] = 1.0 if weight is None else np.asarray(weight, np.float32)
    return out


def check_weights(weight: Any, name: str, where: str = "") -> None:
    """Raise an error unless every row weight is finite and non-negative.

    Args:
        weight: (rows,) numbers.  A JAX array is not checked: reading it would block the host.
        name: "weight" or "metric_weight", for the message.
        where: prefix of the message, such as "batch 3: ".

    Raises:
        ValueError: a weight is nan, infinite or negative; the message names the first such row.

    Example:
        >>> check_weights([1.0, -2.0], "weight")
        Traceback (most recent call last):
        ...
        ValueError: weight of row 1 is -2.0; row weights must be finite and at least 0; use 0 to exclude a row.
    """
    if not isinstance(weight, jax.Array):
        check_values(weight, valid_weights(name), where)


def equal_rows(counts: Mapping[str, int], where: str = "", axes: Axes | None = None) -> int | None:
    """Return the number of rows of all inputs, None without inputs; raise an error that names two inputs if they differ."""
    if not counts:
        return None
    (first, expected), *others = counts.items()
    for name, count in others:
        if count != expected:
            numbers = f"{where}input {first!r} has {expected} rows, input {name!r} has {count}"
            odd = min(counts, key=lambda n: [*counts.values()].count(counts[n]))
            remedy = f"pass row_axes={{{odd!r}: None}} for an array without rows, or loss_per_batch=True and row_axes=None if"
            remedy = f"; {remedy} a batch is one unit, such as a graph" if isinstance(axes, RowAxes) else ""
            raise ValueError(f"{numbers}; all inputs need the same number of rows{remedy}.")
    return expected


def check_batch(batch: Batch, axes: Axes | None = None, where: str = "") -> Batch:
    """Check that the inputs and weights of a batch have the same number of rows and that all weights are valid.

    Args:
        batch: the batch to check.
        axes: input name -> batch axis (default 0; None: the input has no batch axis).
        where: prefix of the error message, such as "batch 3: ".

    Returns:
        `batch`, unchanged.

    Raises:
        ValueError: unequal numbers of rows (the message names both inputs); or a weight that is nan, infinite or
            negative (weights that are JAX arrays are not checked: reading them would block the host).

    Example:
        >>> import numpy as np
        >>> check_batch(Batch({"data": np.ones((3, 2)), "label": np.ones(2)}))
        Traceback (most recent call last):
        ...
        ValueError: input 'data' has 3 rows, input 'label' has 2; all inputs need the same number of rows.
    """
    if isinstance(axes, RowAxes):
        axes.decide({name: np.shape(x) for name, x in batch.inputs.items()})
    counts = {name: rows(Batch({name: x}), axes) for name, x in batch.inputs.items() if row_axis(name, axes) is not None}
    count = equal_rows(counts, where, axes)
    for name, weight in (("weight", batch.weight), ("metric_weight", batch.metric_weight)):
        if weight is None:
            continue
        if np.shape(weight) != (count,):
            raise ValueError(f"{where}{name} has shape {np.shape(weight)}, the batch has {count} rows; pass one number per row")
        check_weights(weight, name, where)
    return batch


# ------------------------------------------------------------------------------------------------ names
def is_array(value: Any) -> bool:
    """Return whether a value is an array, tensor or data frame of any library (a list of numbers is not)."""
    return (
        isinstance(value, np.ndarray) or hasattr(value, "__array__") or hasattr(value, "asnumpy") or hasattr(value, "to_numpy")
    )


def is_mxnet_iter(value: Any) -> bool:
    """Return whether a value has the interface of an MXNet DataIter: `provide_data`, `reset` and `__next__`."""
    if hasattr(value, "provide_data") and hasattr(value, "next") and not hasattr(value, "__next__"):
        raise TypeError(f"{type(value).__name__} has provide_data and next, but no __next__; add `__next__ = next` to it")
    return all(hasattr(value, name) for name in ("provide_data", "reset", "__next__"))


class Names(NamedTuple):
    """Input names of a graph: data inputs and label inputs, in order.

    Attributes:
        inputs: names of the data inputs.
        labels: names of the label inputs.
        require_labels: whether data without labels is an error.
        axes: input name -> batch axis of the batches in a stream (default 0; None: the input has no batch axis).
        structure: for functions, whose inputs and labels may be pytrees, the `jfit.lowering.structure.Structure` of the model.

    Example:
        >>> Names.of(["data", "label"], ["label"]).inputs
        ('data',)
    """

    inputs: tuple[str, ...]
    labels: tuple[str, ...]
    require_labels: bool = True
    axes: Axes | None = None
    structure: Any = None

    @classmethod
    def of(
        cls, inputs: Iterable[str], labels: Iterable[str] = (), require_labels: bool = True, axes: Axes | None = None
    ) -> Names:
        """Build `Names` from iterables of names; a name in both is a label."""
        labels = tuple(labels)
        return cls(tuple(n for n in inputs if n not in labels), labels, require_labels, axes)

    @property
    def all(self) -> tuple[str, ...]:
        """All names: data inputs, then labels."""
        return self.inputs + self.labels

    def check(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of the graph's inputs in their order, without those of other names (see `extra`).

        Raises:
            ValueError: an input is missing; the message lists expected and actual names, and the nearest match.
        """
        if self.structure is not None:
            arrays = named_batch(self.structure, arrays)
            inputs, labels = expected_names(self.structure, arrays, self.labels, self.require_labels)
            return self._replace(inputs=inputs, labels=labels, structure=None)._check(arrays, "model")
        return self._check(arrays, "graph")

    def _check(self, arrays: Mapping[str, Any], kind: str) -> dict[str, Any]:
        unknown = [n for n in arrays if n not in self.all]
        missing = [n for n in self.inputs + (self.labels if self.require_labels else ()) if n not in arrays]
        if not missing:
            return {n: arrays[n] for n in self.all if n in arrays}
        problem = []
        for name in unknown:
            near = nearest(str(name), missing or self.all)
            problem.append(f"{name!r} is not an input of the {kind}" + (f" (nearest: {near})" if near else ""))
        problem += [f"input {name!r} is missing" for name in missing]
        raise ValueError(
            f"{'; '.join(problem)}. The {kind} needs {quoted(self.all)}, the data has {quoted(arrays)}; "
            f"rename the arrays or pass a dict with the {kind}'s input names."
        )

    def extra(self, arrays: Iterable[str]) -> list[str]:
        """Names of arrays that are no input of the graph."""
        if self.structure is None:
            return [n for n in arrays if n not in self.all]
        only_loss = self.structure.only_loss
        unknown = [] if only_loss is None else [n for n in others(self.structure, arrays) if n not in only_loss]
        whole = len(self.structure.arguments) == 1 and len(unknown) == len(list(arrays))  # the dict is the argument
        return [] if whole else unknown

    def log_extra(self, arrays: Iterable[str]) -> None:
        """Log one line that names the arrays that are ignored because the model does not take them, if there are any."""
        names = self.extra(arrays)
        if names:
            logging.getLogger("jfit").warning(
                "the data has %s, which the model does not take: not used (the model takes %s)", quoted(names), quoted(self.all)
            )


def to_named(value: Any, names: Sequence[str], what: str, graph: Names) -> dict[str, Any]:
    """Convert `x` or `y` of a data argument `(x, y)` to a dict, input name -> array.

    Args:
        value: an array, a list of arrays in the order of `names`, a dict (returned as it is), or None for no arrays.
        names: input names, in order.
        what: "x" or "y", for messages.
        graph: all inputs of the graph, for messages.

    Returns:
        dict: name -> array, not converted to NumPy yet.

    Raises:
        ValueError: the number of arrays differs from the number of names.

    Example:
        >>> to_named([1.0, 2.0], ["data"], "x", Names.of(["data"]))
        {'data': [1.0, 2.0]}
    """
    if value is None:
        return {}
    named = None if graph.structure is None else named_arrays(graph.structure, value, what)
    if named is not None:
        return named
    if isinstance(value, Mapping):
        return dict(value)
    several = isinstance(value, (list, tuple)) and (len(names) != 1 or (len(value) == 1 and _has_rows(value[0])))
    arrays = list(value) if several else [value]
    if len(arrays) != len(names):
        model = "graph" if graph.structure is None else "model"
        kind = "data" if what == "x" else "label"
        raise ValueError(
            f"{what} has {len(arrays)} array{'s' * (len(arrays) != 1)}, the {model} has {len(names)} {kind} "
            f"input{'s' * (len(names) != 1)} ({quoted(names)}); pass one array per input, as a list in this order or as a dict "
            f"by name (all inputs of the {model}: {quoted(graph.all)})."
        )
    return dict(zip(names, arrays, strict=True))


def split_named(parts: Sequence[Any], names: Names, what: str) -> tuple[dict[str, Any], Any | None]:
    """Convert `(x,)`, `(x, y)` or `(x, y, weight)` to (dict input name -> array, row weights or None)."""
    if len(parts) > 3:
        raise ValueError(
            f"{what} is a tuple of length {len(parts)}, expected (x, y) or (x, y, weight); pass several inputs as a list x."
        )
    x, y, weight = (*parts, None, None, None)[:3]
    return {**to_named(x, names.inputs, "x", names), **to_named(y, names.labels, "y", names)}, weight


def _has_rows(value: Any) -> bool:
    return is_array(value) and np.ndim(value) > 0


def quoted(names: Iterable[Any]) -> str:
    """Format names for an error message: 'a', 'b'."""
    return ", ".join(repr(n) for n in names) or "none"
