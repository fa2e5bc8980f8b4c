"""`PickleNames`: the classes and functions that a .states pickle may use, and the functions that replace them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from jfit.formats.mxnet_arrays import Array, load_record
from jfit.formats.pickles import Inert, Machine, Name, key

DENSE = "mxnet.ndarray.ndarray.NDArray"
SPARSE = {"row_sparse": "mxnet.ndarray.sparse.RowSparseNDArray", "csr": "mxnet.ndarray.sparse.CSRNDArray"}
_ARRAYS = (DENSE, *SPARSE.values(), "mxnet.ndarray.NDArray", "mxnet.numpy.multiarray.ndarray", "mxnet.numpy.ndarray")
# Modules of classes that become `Inert` records. Classes in other modules are users' own, whose state jfit cannot interpret.
_INERT = ("mxnet.optimizer.", "mxnet.lr_scheduler.")
_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_SCALARS = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


class NDArrayPlaceholder:
    """Replaces an NDArray while its pickle is read; `value` is the array.

    Args:
        names: the `PickleNames` of the file that is read.
    """

    def __init__(self, names: PickleNames) -> None:
        self.names = names
        self.value: Array = None

    def set_state(self, state: Any) -> None:
        """Read the array from the pickled state of an NDArray."""
        parts = state if isinstance(state, tuple) else (state,)
        (record,) = [part["handle"] for part in parts if isinstance(part, dict) and "handle" in part]
        if record is not None:
            self.names.machine.spend(len(record))
            self.value = load_record(bytes(record), self.names.path, "an NDArray")


class NumpyPlaceholder:
    """Replaces a NumPy array while its pickle is read; `value` is the array.

    Args:
        names: the `PickleNames` of the file that is read.
    """

    def __init__(self, names: PickleNames) -> None:
        self.names = names
        self.value: np.ndarray | None = None

    def set_state(self, state: Any) -> None:
        """Build the array from the pickled state of a NumPy array: (version, shape, dtype, order, bytes)."""
        _, shape, dtype, is_fortran, raw = state
        self.value = self.names.values(raw, dtype, shape, "F" if is_fortran else "C")


class DtypePlaceholder:
    """Replaces a NumPy dtype while its pickle is read; `value` is the dtype.

    Args:
        code: kind and size in bytes, such as "f4".
    """

    def __init__(self, code: str) -> None:
        self.value = np.dtype(code)

    def set_state(self, state: Any) -> None:
        """Set the byte order from the pickled state of a NumPy dtype."""
        self.value = self.value.newbyteorder(">" if state[1] == ">" else "<")


class PickleNames:
    """Table of the names that one file may use: dotted name -> `Name` with the function that replaces it.

    Args:
        path: the file, for messages.

    Example:
        >>> PickleNames("a.states").resolve("os.system") is None
        True
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.machine = Machine(b"", path, self.resolve)  # replaced by the machine that reads the file
        functions: dict[str, Callable[..., Any] | None] = {
            **dict.fromkeys(_ARRAYS, lambda *_: NDArrayPlaceholder(self)),
            **dict.fromkeys((f"numpy.{name}" for name in ("ndarray", *_SCALARS)), None),
            "numpy.dtype": self._dtype,
            "collections.OrderedDict": self._dict,
            "_codecs.encode": self._bytes,
        }
        for module in ("builtins", "__builtin__"):
            # A bytearray becomes bytes: no copy is needed, because it is only read.
            functions |= {f"{module}.bytearray": self._bytes, f"{module}.bytes": self._bytes, f"{module}.object": None}
            functions[f"{module}.set"] = lambda items=(): set(self._keys(items))
            functions[f"{module}.frozenset"] = lambda items=(): frozenset(self._keys(items))
        for module in ("copyreg", "copy_reg"):
            functions[f"{module}._reconstructor"] = lambda name, base, state: name.make()
        for core in ("numpy.core", "numpy._core"):
            functions[f"{core}.multiarray._reconstruct"] = lambda *_: NumpyPlaceholder(self)
            functions[f"{core}.multiarray.scalar"] = lambda dtype, raw: self.values(raw, dtype, (), "C")[()]
            functions[f"{core}.numeric._frombuffer"] = self.values
        self.table = {name: Name(name, make) for name, make in functions.items()}

    def resolve(self, name: str) -> Name | None:
        """Return the `Name` for the dotted name of a class or function; None if the file may not use it."""
        if name not in self.table and name.startswith(_INERT):
            self.table[name] = Name(name, lambda *_: Inert(name))
        return self.table.get(name)

    def values(self, raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
        """Build a NumPy array from its pickled fields, after checking them against each other."""
        raw = self._bytes(raw)
        array = np.ndarray(shape, dtype.value, raw, order=order)  # raises if there are too few bytes
        if array.nbytes != len(raw):
            raise ValueError(f"a NumPy array of shape {shape} and dtype {dtype.value} has {len(raw)} bytes")
        self.machine.spend(len(raw))
        return array.astype(dtype.value.newbyteorder("="))

    def _bytes(self, data: Any = b"", encoding: Any = "latin1") -> bytes:
        if isinstance(data, str) and encoding in ("latin1", "latin-1"):
            self.machine.spend(len(data))
            return data.encode("latin-1")
        return bytes(memoryview(data))  # type: ignore[arg-type]  bytes() alone would take a number as a length

    def _keys(self, items: Any) -> list[Any]:
        self.machine.spend(8 * len(items))
        return [key(item) for item in items]

    def _dict(self, pairs: Any = ()) -> dict[Any, Any]:
        self.machine.spend(8 * len(pairs))
        return {key(name): value for name, value in pairs}

    def _dtype(self, code: Any, *_: Any) -> DtypePlaceholder:
        if code not in _NUMBERS:
            raise ValueError("a NumPy dtype is not a plain number type")
        return DtypePlaceholder(code)
