"""Shared scalars of an optimizer, one per optimizer rather than per parameter: Nadam's m_schedule, SGLD's PRNG key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.mxnet.optimizer import saved


class Shared:
    """Shared scalars on the devices, read and replaced by each update; stored in a Module's train state while attached to it.

    Args:
        make: function that returns the initial values, by name.

    Example:
        >>> shared = Shared(lambda: {"m_schedule": jnp.ones(())})
        >>> shared.value("m_schedule")
        1.0
        >>> shared.keep({"m_schedule": jnp.float32(0.5)})
        >>> shared.value("m_schedule")
        0.5
    """

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._values: dict[str, Any] | None = None
        self._training_state: Any = None

    def values(self) -> dict[str, Any]:
        """Return the current scalars as arrays; copies if they are in a train state, because an update donates its buffers."""
        if self._training_state is not None:
            return {name: jnp.array(value) for name, value in self._training_state.shared_scalars().items()}
        if not self._values:  # not only None: changing a hyperparameter may give a rule its first shared scalars
            self._values = dict(self._make())
        return dict(self._values)

    def keep(self, scalars: Mapping[str, Any]) -> None:
        """Replace all shared scalars (such as Nadam's m_schedule) by the values that an update returned.

        Args:
            scalars: new values by name; {}, from an update rule without shared scalars, changes nothing.
        """
        if scalars and self._training_state is not None:
            self._training_state.set_shared_scalars(scalars)
        elif scalars:
            self._values = dict(scalars)

    def attach(self, training_state: Any) -> None:
        """Store the scalars in a Module's train state from now on (`shared_scalars`, `set_shared_scalars`)."""
        if self.values():
            self._training_state = training_state

    def detach(self, training_state: Any) -> None:
        """Store the scalars in this object again, with the values from `training_state`, a Module's train state.

        Called when the Module gets another optimizer.
        """
        if self._training_state is training_state:
            self._values, self._training_state = self.values(), None

    def value(self, name: str) -> Any:
        """Return one scalar as a Python number (an array if it is not a scalar); blocks until it is computed."""
        value = np.asarray(counters.read(self.values()[name]))  # sync: the caller asked for the number
        return value.item() if value.ndim == 0 else value

    def set_value(self, name: str, value: Any) -> None:
        """Replace one scalar."""
        now = self.values()
        self.keep({**now, name: jnp.asarray(value, now[name].dtype)})

    def plain(self) -> dict[str, Any]:
        """Return all scalars as numbers and lists of numbers, for a file; blocks until they are computed."""
        return {name: np.asarray(value).tolist() for name, value in counters.read(self.values()).items()}  # sync: for a file

    def restore(self, plain: Mapping[str, Any], path: saved.Path = "settings") -> None:
        """Set the scalars to a result of `plain`; unknown names are ignored.

        Args:
            plain: the scalars by name.
            path: the file they were read from, for error messages.

        Raises:
            FormatError: a value is not numeric, not finite, or has the wrong shape.
        """
        self.keep({name: _like(path, name, plain.get(name), value) for name, value in self.values().items()})

    def __getstate__(self) -> dict[str, Any]:
        # a copy of an optimizer must not share the train state of the original
        return {"_make": self._make, "_values": {k: np.asarray(v) for k, v in self.values().items()}, "_training_state": None}


def _like(path: saved.Path, name: str, saved_value: Any, value: Any) -> Any:
    """Return the saved value of a scalar as an array of the dtype and shape of its current value `value`.

    If none was saved (None), return `value`.  A value that does not fit raises FormatError; `path` and `name` are for its
    message.
    """
    if saved_value is None:
        return value
    try:
        fits = np.asarray(saved_value).dtype.kind in ("iu" if value.dtype.kind in "iu" else "iuf")
        with np.errstate(over="ignore"):
            array = np.asarray(saved_value, value.dtype) if fits else None
    except (ValueError, TypeError, OverflowError):
        array = None
    if array is None or array.shape != value.shape or not np.isfinite(array).all():
        saved.reject(path, f"scalar {name!r} of all parameters", saved_value, f"finite {value.dtype} of shape {value.shape}")
    return jnp.asarray(array)
