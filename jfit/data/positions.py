"""Encode the state of an iterator (`state_dict()`) as JSON values for a checkpoint, and decode it."""

from __future__ import annotations

import base64
import math
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAY, _BYTES = "__array__", "__bytes__"
MAX_LEVELS = 150  # maximum nesting of a state; `jfit.formats.manifest` allows some more, for what is around it


class Exhausted(ValueError):
    """A stream ended before the batch at which it should continue.

    Args:
        batch: number of that batch.
        done: number of batches until its end.
        last: the last of them, or None.

    Example:
        >>> Exhausted(4, 3, None).last is None
        True
    """

    def __init__(self, batch: int, done: int, last: Any) -> None:
        self.last = last
        super().__init__(
            f"cannot continue at batch {batch}: the source ended after {done} batches; it must yield the same batches as when "
            "the position was saved."
        )


def encode(state: Any, level: int = 0) -> Any:
    """Convert nested dicts, lists, numbers, strings, bytes, arrays and torch tensors to values that `json.dumps` accepts.

    Args:
        state: result of a `state_dict()`; keys must be strings, tuples become lists.
        level: number of lists and dicts around the state.

    Returns:
        The same structure, arrays as {"__array__": dtype, "shape": [...], "data": base64 of zlib}, bytes as
        {"__bytes__": base64}.

    Raises:
        TypeError: the state contains a value of any other type, or is nested too deep.

    Example:
        >>> decode(encode({"order": np.array([2, 0, 1]), "batch": 4}))
        {'order': array([2, 0, 1]), 'batch': 4}
    """
    if level > MAX_LEVELS:
        raise TypeError(f"lists and dicts are nested more than {MAX_LEVELS} levels deep.")
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, bytes):  # the state of grain's DataLoader
        return {_BYTES: base64.b64encode(state).decode("ascii")}
    if hasattr(state, "detach") and hasattr(state, "numpy"):  # the state of torch's generators
        return {**encode(np.asarray(state.detach().cpu().numpy())), "tensor": True}
    if isinstance(state, np.ndarray) and state.dtype.kind in "biuf":
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(state).tobytes(), 1)).decode("ascii")
        return {_ARRAY: state.dtype.str, "shape": list(state.shape), "data": packed}
    if isinstance(state, Mapping) and all(isinstance(key, str) for key in state):
        return {key: encode(value, level + 1) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [encode(value, level + 1) for value in state]
    raise TypeError(f"the state of an iterator contains a {type(state).__name__}, which a checkpoint cannot store.")


def decode(value: Any) -> Any:
    """Invert `encode`; tuples come back as lists, torch tensors as NumPy arrays unless torch has been imported.

    Raises:
        ValueError: an array or bytes value is damaged, or values are nested too deep.
    """
    try:
        return _decoded(value)
    except (KeyError, OverflowError, RecursionError, SyntaxError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"a saved position is damaged: it cannot be decoded ({error}).") from error


def _decoded(value: Any) -> Any:
    if isinstance(value, Mapping) and _ARRAY in value:
        array, torch = _array(value), sys.modules.get("torch")
        return torch.from_numpy(array) if torch is not None and value.get("tensor") else array
    if isinstance(value, Mapping) and set(value) == {_BYTES}:
        return base64.b64decode(value[_BYTES], validate=True)
    if isinstance(value, Mapping):
        return {key: _decoded(inner) for key, inner in value.items()}
    return [_decoded(inner) for inner in value] if isinstance(value, list) else value


def _array(value: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(value[_ARRAY]), tuple(int(size) for size in value["shape"])
    size = math.prod(shape) * dtype.itemsize
    # Bound the output by the size in `shape`: a small damaged text could decompress to any size.
    data = zlib.decompressobj().decompress(base64.b64decode(value["data"], validate=True), max(size, 0) + 1)
    if dtype.kind not in "biuf" or min(shape, default=0) < 0 or len(data) != size:
        raise ValueError(f"{len(data)} bytes for shape {shape} of {dtype}")
    return np.frombuffer(data, dtype).reshape(shape).copy()
