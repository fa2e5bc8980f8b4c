"""Search for labels out of range and nan in training data, on which MXNet trains without a word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jfit.data import Batch
from jfit.lowering.model import plan_of
from jfit.mxnet.module.binding import Binding
from jfit.mxnet.mutable import as_array
from jfit.step.batch_check import BatchLabels


class InputCheck:
    """Look for invalid values in the inputs of a bound module: nan, labels that are no classes, indices outside of tables.

    Args:
        binding: the graph with its bound shapes.
    """

    def __init__(self, binding: Binding) -> None:
        model = binding.model
        specs: dict[str, Any] = {name: binding.specs[name] for name in (*model.inputs, *model.labels) if name in binding.specs}
        self._axes, self._labels = model.batch_axes, BatchLabels(model, plan_of(model, specs))

    def problem(self, inputs: Mapping[str, Any], where: str) -> str | None:
        """Describe the first invalid value, or return None.

        Args:
            inputs: arrays by name.  Only those are looked at whose values the host has without waiting for a device.
            where: start of the text, such as "epoch 0, batch 3".
        """
        arrays = {name: x for name, value in inputs.items() if (x := _on_host(as_array(value))) is not None}
        for name, x in arrays.items():
            if _has_nan(x):
                rows = np.moveaxis(np.isnan(x), self._axes.get(name, 0), 0)
                row = int(np.argmax(rows.reshape(len(rows), -1).any(axis=1)))
                return f"{where}: input {name!r} has nan in row {row}; drop such rows, or replace the values."
        try:
            self._labels.check(Batch(arrays), where)
        except ValueError as error:
            return str(error)
        return None


def _on_host(value: Any) -> np.ndarray | None:
    if isinstance(value, np.ndarray):
        return value
    # A computed array on one CPU device is memory of the host, so that reading it neither waits nor copies.
    local = isinstance(value, jax.Array) and [device.platform for device in value.devices()] == ["cpu"]
    return np.asarray(value) if local and getattr(value, "is_ready")() else None  # noqa: B009 (pyright: jax hides it)


def _has_nan(x: np.ndarray) -> bool:
    if x.dtype.kind != "f":
        return False
    with np.errstate(all="ignore"):  # the sum, which needs no array of flags, is nan or infinite if one value is
        return not np.isfinite(x.sum()) and bool(np.isnan(x).any())
