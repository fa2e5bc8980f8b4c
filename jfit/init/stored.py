"""`Load`: initial values from a dict of arrays or a file.

>>> import tempfile, jax
>>> from jfit.formats import save_arrays
>>> path = tempfile.mkdtemp() + "/old.params"
>>> _ = save_arrays(path, {"arg:fc_weight": np.ones((1, 2), "float32")})
>>> Load(path, "zero")(jax.random.key(0), "fc_weight", (1, 2)).tolist()
[[1.0, 1.0]]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jfit.formats import FormatError, load_arrays, load_tensors
from jfit.init.core import InitDesc, Initializer, described, distribution_of, get, own_rules
from jfit.init.sampling import Distribution, Fixed


@dataclass(frozen=True, eq=False)
class Load(Initializer):
    """Initialize parameters with arrays from a dict or a file, and all others by `default_init`.

    Args:
        param: dict of name -> array, or path of a `.params` or `.safetensors` file.  Names may have the prefix `arg:` or
            `aux:`.
        default_init: initializer of parameters without an array: anything that `get` accepts.  None: they raise.
        verbose: ignored; accepted because MXNet has it.

    Raises:
        ValueError: a parameter has no array and `default_init` is None, or its array has another shape (raised when values
            are requested).
        FormatError: the file is damaged or its arrays have no names.
        FileNotFoundError: the file does not exist.

    Example:
        >>> import jax
        >>> start = Load({"arg:fc_weight": np.ones((1, 2))}, default_init="zero")
        >>> start(jax.random.key(0), "fc_weight", (1, 2)).tolist()
        [[1.0, 1.0]]
    """

    param: Any
    default_init: Any = None
    verbose: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.param, Mapping):
            object.__setattr__(self, "param", named_arrays(self.param))

    def __call__(self, key: Array, desc: str, shape: Sequence[int], dtype: Any = jnp.float32) -> Array:
        desc = described(desc)
        value = self._stored(desc, shape)
        return get(self.default_init)(key, desc, shape, dtype) if value is None else jnp.array(value, dtype)

    def distribution_of(self, desc: InitDesc, shape: tuple[int, ...]) -> Distribution | None:
        if not own_rules(type(self)):
            return None
        value = self._stored(desc, shape)
        return distribution_of(get(self.default_init), desc, shape) if value is None else Fixed(value)

    def _stored(self, desc: InitDesc, shape: Sequence[int]) -> np.ndarray | None:
        """Return the loaded array of a parameter, or None if `default_init` is to initialize it."""
        for name in (desc.name, f"arg:{desc.name}", f"aux:{desc.name}"):
            if name in self.param:
                value = np.asarray(self.param[name])
                if value.shape != tuple(shape):
                    raise ValueError(f"parameter {desc.name!r} in the file has shape {value.shape}, expected {tuple(shape)}.")
                return value
        if self.default_init is None:
            raise ValueError(f"parameter {desc.name!r} is not among the {len(self.param)} loaded arrays; pass default_init=")
        return None


def named_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read the arrays of a `.params` or `.safetensors` file as a dict.

    Raises:
        FormatError: the file is damaged or its arrays have no names.
        FileNotFoundError: the file does not exist.

    Example:
        >>> import tempfile
        >>> from jfit.formats import save_tensors
        >>> path = tempfile.mkdtemp() + "/new.safetensors"
        >>> _ = save_tensors(path, {"w": np.ones(2, "float32")})
        >>> named_arrays(path)["w"].tolist()
        [1.0, 1.0]
    """
    arrays: Any = load_tensors(path)[0] if str(path).endswith(".safetensors") else load_arrays(path, sparse="dense")
    if not isinstance(arrays, Mapping):
        raise FormatError(path, "names", f"the {len(arrays)} arrays have no names", "save a dict of name -> array.")
    return dict(arrays)


load = Load
