"""Scalars that all parameters of an optimizer have in common: Nadam's schedule, SGLD's key, the last rate of LARS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jfit import counters
from jfit.mxnet.optimizer import saved


class Shared:
    """Scalars that each update reads and replaces, kept on the devices; those of a module are part of its training state.

    Args:
        make: the first values, by name.

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
        self._held: dict[str, Any] | None = None
        self._home: Any = None

    def given(self) -> dict[str, Any]:
        """The scalars now, as arrays; copies where they lie in a training state, whose buffers are donated."""
        if self._home is not None:
            return {name: jnp.array(value) for name, value in self._home.shared_scalars().items()}
        if not self._held:  # a rule that had none may have some with other settings
            self._held = dict(self._make())
        return dict(self._held)

    def keep(self, scalars: Mapping[str, Any]) -> None:
        """Take the scalars that an update gave."""
        if scalars and self._home is not None:
            self._home.set_shared_scalars(scalars)
        elif scalars:
            self._held = dict(scalars)

    def live_in(self, home: Any) -> None:
        """Read and write the scalars in the training state of a module's parameters from now on (`shared_scalars`)."""
        if self.given():
            self._home = home

    def leave(self, home: Any) -> None:
        """Take them along, as copies, out of a training state that gets another optimizer."""
        if self._home is home:
            self._held, self._home = self.given(), None

    def value(self, name: str) -> Any:
        """One of them as a number; waits for it."""
        value = np.asarray(counters.read(self.given()[name]))  # sync: the caller asked for the number
        return value.item() if value.ndim == 0 else value

    def set_value(self, name: str, value: Any) -> None:
        """Replace one of them."""
        now = self.given()
        self.keep({**now, name: jnp.asarray(value, now[name].dtype)})

    def plain(self) -> dict[str, Any]:
        """All of them as numbers and lists of numbers, for a file; waits."""
        return {name: np.asarray(value).tolist() for name, value in counters.read(self.given()).items()}  # sync: for a file

    def restore(self, plain: Mapping[str, Any], path: saved.Path = "settings") -> None:
        """Take over what `plain` gave; names that are not known here are left out.

        Args:
            plain: the scalars by name.
            path: the file that they are from, for messages.

        Raises:
            FormatError: one is no number, not finite, or not as many as there must be.
        """
        self.keep({name: _like(path, name, plain.get(name), value) for name, value in self.given().items()})

    def __getstate__(self) -> dict[str, Any]:
        # a copy of an optimizer does not belong to the module of the original
        return {"_make": self._make, "_held": {k: np.asarray(v) for k, v in self.given().items()}, "_home": None}


def _like(path: saved.Path, name: str, found: Any, value: Any) -> Any:
    """What a file has for a scalar, in its dtype and shape; the scalar itself where it has nothing."""
    if found is None:
        return value
    try:
        fits = np.asarray(found).dtype.kind in ("iu" if value.dtype.kind in "iu" else "iuf")
        with np.errstate(over="ignore"):
            taken = np.asarray(found, value.dtype) if fits else None
    except (ValueError, TypeError, OverflowError):
        taken = None
    if taken is None or taken.shape != value.shape or not np.isfinite(taken).all():
        saved.refuse(path, f"scalar {name!r} of all parameters", found, f"finite {value.dtype} of shape {value.shape}")
    return jnp.asarray(taken)
