"""Data as named columns: pandas and polars DataFrames, and dicts of columns with `label="column"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jfit.data.arrays import to_array
from jfit.data.batch import Names, quoted
from jfit.data.valid import unmasked
from jfit.formats.mxnet_arrays import empty_aligned
from jfit.ops.registry import nearest


class Columns(NamedTuple):
    """Which columns are the labels, and which are the features.

    Attributes:
        label: names of the label columns; None: the columns that have the names of the label inputs.
        features: names of the feature columns, in the order in which they are stacked to one array; None: all other columns.

    Example:
        >>> Columns.of("price").label
        ('price',)
    """

    label: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None

    @classmethod
    def of(cls, label: Any) -> Columns | None:
        """Convert an argument `label=` (a name, a list of names, a `Columns` or None) to `Columns`; None stays None."""
        if label is None or isinstance(label, cls):
            return label
        if isinstance(label, str):
            return cls((label,))
        return cls(tuple(label))

    def to_json(self) -> list[Any]:
        """Return the names as JSON values, for a checkpoint; `from_json` is the inverse.

        Example:
            >>> Columns.from_json(Columns(("y",), (("a", 1), 2)).to_json())
            Columns(label=('y',), features=(('a', 1), 2))
        """
        return [None if names is None else [_as_json(name) for name in names] for names in self]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Columns:
        """Return the `Columns` of a checkpoint; names that are dates or other objects are text, which `select` finds."""
        return cls(*(None if names is None else tuple(_from_json(name) for name in names) for names in values))


def _as_json(name: Any) -> Any:
    """Name of a column as a JSON value: tuples become lists, and names that are no strings or integers, such as dates, text."""
    if isinstance(name, tuple):
        return [_as_json(part) for part in name]
    if isinstance(name, np.integer):
        return int(name)
    return name if isinstance(name, (str, int)) else str(name)


def _from_json(name: Any) -> Any:
    return tuple(_from_json(part) for part in name) if isinstance(name, list) else name


def label_without_columns(columns: Columns | None, found: str) -> str:
    """Error message for an argument `label=` with data that has no named columns; `found` describes the data."""
    name = quoted(columns.label or () if columns else ())
    return (
        f"label={name} names a column, but {found}; expected a DataFrame, a dict of columns, or rows or batches that are dicts."
    )


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame (pandas, polars or an object with the same methods)."""
    return all(hasattr(value, name) for name in ("columns", "dtypes", "to_numpy", "__getitem__"))


def column_names(data: Any) -> list[Any]:
    """Return the names of the columns of a DataFrame, a dict or a Hugging Face Dataset; [] for other data."""
    if isinstance(data, Mapping):
        return list(data)
    if is_frame(data):
        return list(data.columns)
    names = getattr(data, "column_names", None)
    return list(names) if isinstance(names, (list, tuple)) else []


def select(data: Any, names: Names, columns: Columns | None) -> tuple[dict[str, Any], Columns | None]:
    """Choose and stack the columns of a DataFrame or a dict for the inputs of a graph.

    Args:
        data: DataFrame, or dict of column name -> array.
        names: the inputs of the graph.
        columns: the label and feature columns.  None: a dict has arrays by input name, and a DataFrame has columns with the
            names of the label inputs.

    Returns:
        (dict of input name -> array; the columns that were used, or None for a dict of arrays by input name).  Feature columns
        of a DataFrame become one float32 array (rows, columns), or, if the graph has several inputs, the column of the name of
        each.  Columns of several axes in a dict become the dict that is the argument of a function.

    Raises:
        ValueError: a column is missing or does not contain numbers.

    Example:
        >>> arrays, used = select({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [0, 1]}, Names.of(["x"], ["y"]), Columns(("c",)))
        >>> arrays["x"].tolist(), arrays["y"], used.features
        ([[1.0, 3.0], [2.0, 4.0]], [0, 1], ('a', 'b'))
    """
    frame, have = is_frame(data), column_names(data)
    if columns is None and not frame:
        return dict(data), None
    labels, used = _labels(data, have, names, columns)
    rest = [n for n in have if n not in used]
    by_name = all(n in rest for n in names.inputs) and (not frame or len(names.inputs) > 1)
    if by_name:
        optional = () if names.structure is None else names.structure.optional
        inputs = {n: _column(data, n) for n in (*names.inputs, *(n for n in optional if frame and n in rest))}
        extra = {} if frame else {n: data[n] for n in rest if n not in names.inputs}  # a dict may have more columns than inputs
        if frame:
            names.log_extra([*names.labels, *rest])
        return {**inputs, **extra, **labels}, Columns(used)
    missing = [n for n in names.inputs if n not in rest]
    if len(names.inputs) > 1:
        problem = f"the data has no column {quoted(missing)} (its columns are {quoted(rest)})"
        raise ValueError(
            f"{problem} of the inputs {quoted(names.inputs)}; rename the columns, or pass (x, y) with x as a dict."
        )
    features = _features(rest, names, columns)
    if not frame and len(features) > 1 and names.structure is not None and any(np.ndim(data[n]) > 1 for n in features):
        return {**{key: {n: data[n] for n in features} for key in names.inputs}, **labels}, Columns(used, features)
    if not frame and len(features) == 1:
        return {**dict.fromkeys(names.inputs, data[features[0]]), **labels}, Columns(used, features)
    return {**dict.fromkeys(names.inputs, _stacked(data, features)), **labels}, Columns(used, features)


def _labels(data: Any, have: list[Any], names: Names, columns: Columns | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (dict of the name of a label input -> array, names of the label columns)."""
    used = names.labels if columns is None or columns.label is None else columns.label
    missing = [n for n in used if n not in have]
    if missing and (names.require_labels or len(missing) < len(used)):
        near = nearest(str(missing[0]), [str(n) for n in have])
        near = f" (nearest: {near})" if near else ""
        raise ValueError(
            f"the data has no column {missing[0]!r}{near}; pass that of the label as label=, one of {quoted(have)}."
        )
    labels = names.labels or ((names.structure.label,) if used and names.structure is not None else ())
    if missing or not labels:
        return {}, used
    if len(labels) == 1 and len(used) > 1:
        return {labels[0]: np.stack([np.asarray(_column(data, n)) for n in used], axis=1)}, used
    return {label: _column(data, n) for label, n in zip(labels, used, strict=True)}, used


def _features(rest: list[Any], names: Names, columns: Columns | None) -> tuple[str, ...]:
    if columns is None or columns.features is None:
        return tuple(rest)
    by_json = {str(_as_json(n)): n for n in rest}  # the names of a run that was loaded are text if they were dates
    chosen = tuple(n if n in rest else by_json.get(str(_as_json(n)), n) for n in columns.features)
    missing = [n for n in chosen if n not in rest]
    if missing:
        raise ValueError(
            f"the data has no column {missing[0]!r}, one of the {len(chosen)} feature columns of the model; it has {rest}"
        )
    names._replace(inputs=chosen, structure=None).log_extra(rest)
    return chosen


def _stacked(data: Any, features: Sequence[str]) -> np.ndarray:
    """Stack columns of numbers to one float32 array (rows, columns), one column at a time to save memory."""
    columns = {name: np.asarray(_column(data, name)) for name in features}
    shapes = {column.shape for column in columns.values()}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 1:
        found = {name: column.shape for name, column in columns.items()}
        raise ValueError(f"the feature columns have the shapes {found}; expected columns of one axis and one length")
    result = empty_aligned((*shape, len(features)), np.float32)
    for j, (name, column) in enumerate(columns.items()):
        result[:, j] = column if column.dtype.kind in "biu" else to_array(column, name)
    return result


def _column(data: Any, name: str) -> Any:
    """Return one column; for a DataFrame, as a NumPy array of numbers."""
    column = data[name]
    if not is_frame(data):
        return unmasked(column, name)
    dtype = str(column.dtype)
    array = np.asarray(column.to_numpy())
    whole = dtype.lower().rstrip("0123456789") in ("int", "uint", "boolean")
    missing = (array.dtype.kind == "f" and np.isnan(array).any()) if whole else array.dtype.kind == "O" and dtype[:5] == "Float"
    if array.dtype.kind in "biuf" and not missing and not dtype.lower().startswith(("categor", "enum")):
        return array
    if missing or (whole and array.dtype.kind == "O"):
        problem = "has missing values; fill them (df.fillna) or drop their rows first"
    else:
        problem = "has no numbers; encode them (categories as integer codes or one-hot columns), or drop the column"
    raise ValueError(f"column {name!r} ({dtype}) {problem}")
