"""Whether the rows of a batch affect each other in a model, and what that means for padding and for several devices.

A model whose rows are independent may get padding rows: they change nothing.  Batch normalization and contrastive losses
combine rows, so that every row affects the results of all others; incomplete batches then run with their own number of rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jfit import counters
from jfit.lowering.dependence import Layout, Mixed
from jfit.lowering.model import Inputs, Plan
from jfit.lowering.row_axes import NO_ROWS
from jfit.ops.rows import RowLayout

TESTED_ROWS = 4  # rows that are replaced, one after the other, to see whether others change


class Coupling(NamedTuple):
    """Whether the rows of a batch affect each other.

    Attributes:
        kind: "" (they do not), "unknown" or "dependent".
        reason: the cause, such as "reduce_sum over the batch axis in flax BatchNorm"; "" if they do not.
        promised: whether the function takes the row weights, with which it excludes padding rows itself.
        in_loss: whether only the loss combines rows.
        of_loss: how the loss combines rows, if the outputs do too; else "".

    Example:
        >>> Coupling("dependent", "sort over the batch axis").sentence
        'the rows of a batch affect each other: sort over the batch axis'
    """

    kind: str = ""
    reason: str = ""
    promised: bool = False
    in_loss: bool = False
    of_loss: str = ""

    @property
    def sentence(self) -> str:
        """The reason as a clause for error messages."""
        if self.kind == "unknown":
            return f"the rows of a batch could not be shown to be independent: {self.reason}"
        return f"the rows of a batch affect each other: {self.reason}" if self.kind else ""


def coupling_of(layouts: Sequence[tuple[str, Layout]], row_axes: Sequence[int | None]) -> Coupling:
    """Summarize the abstract values of the results of a model.

    Args:
        layouts: (name, abstract value) of each result, see `jfit.lowering.dependence`.
        row_axes: for each result the axis on which the rows must be; None: any axis; -1: it may not depend on the batch.

    Returns:
        `Coupling`: the first "dependent" result if there is one, else the first "unknown" one.

    Example:
        >>> from jfit.lowering.dependence import batch_rows
        >>> coupling_of([("the output", batch_rows(4)), ("aux 'mean'", batch_rows(4))], [0, -1]).reason
        "aux 'mean' is computed from the rows of the batch"
    """
    worst = Coupling()
    for (name, layout), axis in zip(layouts, row_axes, strict=True):
        if isinstance(layout, Mixed):
            new = Coupling(layout.kind, layout.reason)
        elif isinstance(layout, RowLayout) and axis is not None and axis != layout.axis:
            cause = "is computed from the rows of the batch" if axis < 0 else f"has the rows on axis {layout.axis}, not {axis}"
            new = Coupling("dependent", f"{name} {cause}")
        else:
            continue
        if not worst.kind or (worst.kind == "unknown" and new.kind == "dependent"):
            worst = new
    return worst


# ------------------------------------------------------------------------------------------------ by experiment
def rows_are_independent(run: Callable[..., tuple[Any, Any]], inputs: Inputs) -> bool:
    """Test on one batch whether rows affect each other: replace single rows, and leave rows out.

    Args:
        run: compiled `run(inputs) -> (results with the rows on axis 0, results that do not depend on the batch)`, two pytrees.
        inputs: the batch, arrays by name; every array has the rows on axis 0.

    Returns:
        bool: True if replacing a row changed no result of the other rows, bit for bit, and if the first rows of the batch have
        the same results without the last ones, up to rounding.  False if the batch is too small to tell.

    Example:
        >>> import jax.numpy as jnp
        >>> x = np.arange(6.0, dtype="float32").reshape(3, 2)
        >>> rows_are_independent(lambda batch: (batch["x"] * 2, ()), {"x": x})
        True
        >>> rows_are_independent(lambda batch: (batch["x"].cumsum(0), ()), {"x": x})
        False
    """
    arrays = {k: np.asarray(v) for k, v in inputs.items()}
    size = next(iter(arrays.values())).shape[0]
    if size < 2 or any(x.shape[:1] != (size,) for x in arrays.values()):
        return False

    def results(batch: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
        # sync: before the first step
        return [[np.asarray(x).astype(np.float64) for x in jax.tree.leaves(side)] for side in counters.read(run(batch))]

    before = results(arrays)
    for row in sorted({size * k // TESTED_ROWS for k in range(TESTED_ROWS)} | {size - 1}):
        others = np.arange(size) != row
        for changed in _replacements(arrays, row):
            if not all(np.array_equal(x, y, equal_nan=True) for x, y in _pairs(before, results(changed), others)):
                return False
    half = (size + 1) // 2
    try:
        part = results({k: v[:half] for k, v in arrays.items()})
    except Exception:  # the function is written for one number of rows
        return False
    return all(_close(x, y) for x, y in _pairs(before, part, slice(half)))


def _replacements(arrays: dict[str, np.ndarray], row: int) -> list[dict[str, np.ndarray]]:
    """The batch with one row replaced by the row most unlike it, and by one with other numbers."""
    first = next(iter(arrays.values()))
    differing = [k for k in range(len(first)) if any((v[k] != v[row]).any() for v in arrays.values())]
    copies = []
    for other, scale in ((differing[len(differing) // 2] if differing else row, 1), (row, 3)):
        copy = {k: v.copy() for k, v in arrays.items()}
        for name, array in copy.items():
            floating = scale != 1 and np.issubdtype(array.dtype, np.floating)
            array[row] = arrays[name][other] * scale + 1 if floating else arrays[name][other]
        copies.append(copy)
    return copies


def _pairs(before: Any, after: Any, rows: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """The results of two batches side by side: these rows of the results with rows, and the other results."""
    with_rows = [(x[rows], y[rows]) for x, y in zip(before[0], after[0], strict=True)]
    return [*with_rows, *zip(before[1], after[1], strict=True)]


def _close(x: np.ndarray, y: np.ndarray) -> bool:
    finite = np.abs(x)[np.isfinite(x)]
    return x.shape == y.shape and np.allclose(x, y, 1e-4, 1e-5 * float(finite.max(initial=0)), equal_nan=True)


def warn_per_device(plan: Plan, devices: int, stacklevel: int = 3, synced: bool = False, slices: int | None = None) -> None:
    """Warn if rows affect each other and a batch is cut into parts: each device, or slice, then combines only its own rows.

    Args:
        plan: plan of the model.
        devices: number of devices.
        stacklevel: as for `warnings.warn`.
        synced: whether batch statistics are those of all devices (`sync_batch_stats=True`); losses are still per device.
        slices: number of virtual slices of a batch with `reduce="ordered"`; None: one part per device.

    Example:
        >>> warn_per_device(Plan((), (), True), 2)
    """
    in_loss, cause = (True, plan.of_loss) if synced or plan.in_loss else (False, plan.coupled)
    if slices is not None:
        if slices > 1 and cause and NO_ROWS not in cause:
            remedy = "the default reduce= with gather_outputs=True" if in_loss else "one device and the default reduce="
            what = (
                f"with reduce='ordered' this is computed for each of the {slices} slices of a batch, on any number of devices"
            )
            warnings.warn(f"{cause}; {what}; for the results of whole batches, pass {remedy}", stacklevel=stacklevel + 1)
    elif devices > 1 and cause and NO_ROWS not in cause and not (in_loss and plan.gathered):
        remedy = "; pass gather_outputs=True to compute the loss of the whole batch" if in_loss else ""
        what = f"on {devices} devices this is computed per device, from its slice of each batch"
        warnings.warn(f"{cause}; {what}, so the results differ from those of one device{remedy}", stacklevel=stacklevel + 1)
