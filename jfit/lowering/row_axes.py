"""Which arrays of a function's batches have rows on axis 0: by default all; `row_axes=` of `jfit.fit` names the exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax

from jfit.checks import name_hint
from jfit.lowering.model import flatten_names

NO_ROWS = "the arrays of a batch have no rows in common"  # why a batch cannot be divided


class RowAxes(dict[str, int | None]):
    """The axes of the rows in the arrays of a batch, by pattern of their names: 0, or None for an array without rows.

    Args:
        axes: the argument `row_axes` of `jfit.fit`.
        arguments: names of the arguments of the function.
        per_batch: whether the loss is one scalar for the batch (`loss_per_batch=True`).

    Attributes:
        unit: whether no array of a batch has rows.  With `per_batch`, the first batch decides: its arrays have different
            numbers of rows.  None before that.

    Raises:
        ValueError: an axis is neither 0 nor None.

    Example:
        >>> axes = RowAxes({"mask": None})
        >>> axes.get("x/tokens"), axes.get("x/mask"), axes.get("mask/0")
        (0, None, None)
    """

    def __init__(self, axes: Any = 0, arguments: Sequence[str] = (), per_batch: bool = False) -> None:
        if isinstance(axes, tuple | list) and not hasattr(axes, "_fields"):
            axes = dict(zip(arguments, axes, strict=False))
        axes = {"*": axes} if axes is None or isinstance(axes, int) else axes
        leaves = flatten_names(jax.tree.map(lambda axis: "" if axis is None else axis, axes, is_leaf=lambda x: x is None))[0]
        super().__init__({name: None if axis == "" else axis for name, axis in leaves.items()})
        for name, axis in self.items():
            if axis not in (0, None):
                raise ValueError(f"row_axes has {axis!r} for {name!r}; expected 0 (rows along axis 0) or None (no rows)")
        self._per_batch, self._checked = per_batch, False
        self.unit: bool | None = None

    @property
    def program_key(self) -> Any:
        """What programs depend on."""
        return tuple(self.items()), self.unit

    def get(self, name: str, default: Any = 0) -> Any:
        """The axis of the rows in an array: that of the last pattern that matches its name, else `default`."""
        if self.unit:
            return None
        return next((axis for pattern, axis in reversed(self.items()) if _matches(name, pattern)), default)

    def decide(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Decide with the shapes of the first batch whether a batch is one unit; later calls have no effect."""
        if self.unit is None:
            sizes = {shape[:1] for name, shape in shapes.items() if self.get(name) is not None}
            self.unit = self._per_batch and (len(sizes) != 1 or () in sizes)

    def check(self, names: Iterable[str]) -> None:
        """Raise a ValueError if a pattern matches no array (input or label) of the first batch with labels."""
        names = list(names)
        for pattern in () if self._checked else self:
            if not any(_matches(name, pattern) for name in names):
                raise ValueError(f"row_axes has {pattern!r}, which matches no array of the batch; {name_hint(pattern, names)}")
        self._checked = True


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches the path of a leaf, or of a tree that contains it, with or without the name of the argument."""
    return any(fnmatchcase(path, end) for path in (name, name.partition("/")[2]) for end in (pattern, f"{pattern}/*"))
