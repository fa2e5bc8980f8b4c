"""Positions of iterators as plain JSON: what a checkpoint keeps of them."""

from __future__ import annotations

import base64
import math
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAY, _BYTES = "__array__", "__bytes__"


def encode(state: Any) -> Any:
    """Dicts, lists, numbers, texts, bytes, arrays and torch tensors as what JSON can hold.

    Args:
        state: what a `state_dict()` gave; keys are texts, tuples become lists.

    Returns:
        The same, arrays as {"__array__": dtype, "shape": [...], "data": text}, bytes as {"__bytes__": text}.

    Raises:
        TypeError: something else is in it.

    Example:
        >>> decode(encode({"order": np.array([2, 0, 1]), "batch": 4}))
        {'order': array([2, 0, 1]), 'batch': 4}
    """
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, bytes):  # grain's DataLoader
        return {_BYTES: base64.b64encode(state).decode("ascii")}
    if hasattr(state, "detach") and hasattr(state, "numpy"):  # the state of torch's generators
        return {**encode(np.asarray(state.detach().cpu().numpy())), "tensor": True}
    if isinstance(state, np.ndarray) and state.dtype.kind in "biuf":
        packed = base64.b64encode(zlib.compress(np.ascontiguousarray(state).tobytes(), 1)).decode("ascii")
        return {_ARRAY: state.dtype.str, "shape": list(state.shape), "data": packed}
    if isinstance(state, Mapping) and all(isinstance(key, str) for key in state):
        return {key: encode(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [encode(value) for value in state]
    raise TypeError(
        f"a position holds a {type(state).__name__}, needed numbers, texts, arrays, lists and dicts with texts as keys."
    )


def decode(value: Any) -> Any:
    """What `encode` was given, tuples as lists; tensors are tensors where torch has been imported, else arrays.

    Raises:
        ValueError: an array is damaged.
    """
    if isinstance(value, Mapping) and _ARRAY in value:
        found, torch = _array(value), sys.modules.get("torch")
        return torch.from_numpy(found) if torch is not None and value.get("tensor") else found
    if isinstance(value, Mapping) and set(value) == {_BYTES}:
        return _bytes(value[_BYTES])
    if isinstance(value, Mapping):
        return {key: decode(inner) for key, inner in value.items()}
    return [decode(inner) for inner in value] if isinstance(value, list) else value


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a saved position is damaged: no bytes can be made of it ({error}).") from error


def _array(value: Mapping[str, Any]) -> np.ndarray:
    try:
        dtype, shape = np.dtype(value[_ARRAY]), tuple(int(size) for size in value["shape"])
        size = math.prod(shape) * dtype.itemsize
        if dtype.kind not in "biuf" or min(shape, default=0) < 0:
            raise ValueError(f"dtype {dtype}, shape {shape}")
        # no more is unpacked than the shape says
        data = zlib.decompressobj().decompress(base64.b64decode(value["data"], validate=True), size + 1)
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes for shape {shape} of {dtype}")
    except (KeyError, OverflowError, SyntaxError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"a saved position is damaged: no array can be made of it ({error}).") from error
    return np.frombuffer(data, dtype).reshape(shape).copy()
