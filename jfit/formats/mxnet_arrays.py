"""Read and write MXNet's array files (.params, `nd.save`): all versions since 0.8 are read, the current one is written.

A file is a list of records, one array each, and a list of names (empty for a list of arrays).  Records are written in version
2, which MXNet reads since 0.12.  Version 2 cannot represent arrays of shape () or with an axis of size 0: if the file has such
an array, all its dense records are written in version 3, as MXNet does under `np_shape` (MXNet reads one of the versions 2 and
3 at a time, never both).  Missing arrays (None) and sparse arrays exist in version 2 only.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import ml_dtypes
import numpy as np

from jfit import counters
from jfit.checks import one_of
from jfit.formats.atomic import FormatError, atomic_write, open_file
from jfit.formats.sparse import STYPES, SparseArray, bounded_dense, sparse_problem

LIST = 0x112
V1, V2, V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
# Index = the code of the dtype in the file. MXNet 1.9.1 itself reads the codes 0 to 7 and 12 only.
# fmt: off
_NAMES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool", "int16", "uint16", "uint32", "uint64")
# fmt: on
DTYPES: tuple[np.dtype[Any], ...] = (*map(np.dtype, _NAMES), np.dtype(ml_dtypes.bfloat16))
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
MAX_RANK = 64
SPARSE = ("keep", "dense")  # values of the argument `sparse`
ALIGNMENT = 64  # XLA's CPU backend uses host memory with this alignment without a copy
_CPU = struct.pack("<ii", 1, 0)  # device type and index of a record: always the CPU
_DAMAGED = "the file is damaged or truncated: restore it from another copy, or save it again."

Array = np.ndarray | SparseArray | None


def load_arrays(path: str | os.PathLike[str], sparse: str = "keep") -> list[Any] | dict[str, Any]:
    """Read an MXNet array file; all sizes in it are checked against the size of the file before allocation.

    Args:
        path: a .params file or another file written by `nd.save`, of any MXNet version.
        sparse: type of row_sparse and csr arrays in the result: "keep" (`SparseArray`) or "dense" (NumPy array of at most 64 MB
            + 64 times its bytes in the file).

    Returns:
        dict name -> array, or a list of arrays if the file has no names; NumPy arrays, or None for a missing array.

    Raises:
        FormatError: the file is damaged, truncated, or not an array file, or a sparse array is too large for "dense".
        FileNotFoundError: the file does not exist.

    Example:
        >>> import tempfile
        >>> path = save_arrays(tempfile.mkdtemp() + "/net-0001.params", {"arg:w": np.ones((2, 3), "float32")})
        >>> load_arrays(path)["arg:w"].shape
        (2, 3)

    Source: MXNet 1.9.1, NDArray::Load (facts of the format only).
    """
    one_of(SPARSE, sparse=sparse)
    with open_file(path) as file:
        arrays = _read_list(_Source(file, os.fstat(file.fileno()).st_size, path))
    if sparse == "keep":
        return arrays
    if isinstance(arrays, dict):
        return {name: bounded_dense(value, path, f"array {name[:80]!r}") for name, value in arrays.items()}
    return [bounded_dense(value, path, f"array {number}") for number, value in enumerate(arrays)]


def loads(data: bytes, where: str = "bytes") -> list[Array] | dict[str, Array]:
    """Read arrays from the content of an MXNet array file.

    Args:
        data: content of the file.
        where: name of the content in error messages.

    Returns:
        dict name -> array, or a list of arrays; NumPy arrays, `SparseArray`, or None for a missing array.

    Raises:
        FormatError: the content is damaged, truncated, or not an array file.

    Example:
        >>> loads(dumps([np.int8([1, 2])]))
        [array([1, 2], dtype=int8)]

    Source: MXNet 1.9.1, NDArray::Load (facts of the format only).
    """
    return _read_list(_Source(io.BytesIO(data), len(data), where))


def load_record(data: bytes, path: str | os.PathLike[str], where: str) -> Array:
    """Read a single record, one array without a name (the content of a pickled NDArray).

    Args:
        data: the record.
        path: file that contains it, for messages.
        where: its position in the file, for messages.

    Returns:
        NumPy array, `SparseArray`, or None for a missing array.

    Raises:
        FormatError: the record is damaged or truncated, or bytes follow it.

    Example:
        >>> load_record(dump_record(np.int8([1, 2])), "net.states", "index 0")
        array([1, 2], dtype=int8)
    """
    source = _Source(io.BytesIO(data), len(data), path)
    source.where = where
    array = _read_record(source)
    source.finish()
    return array


class _Source:
    """Reader of an open file that checks every size against the bytes left, and has the position for error messages."""

    def __init__(self, file: io.BufferedIOBase, size: int, path: str | os.PathLike[str]) -> None:
        self.file, self.left, self.size, self.path, self.where = file, size, size, path, "list"

    def error(self, problem: str, remedy: str = _DAMAGED) -> FormatError:
        return FormatError(self.path, f"{self.where}, byte {self.size - self.left}", problem, remedy)

    def need(self, count: int, what: str) -> None:
        if count > self.left:
            raise self.error(f"{what} needs {count} bytes, {self.left} are left")

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        self.left -= count
        return self.file.read(count)

    def number(self, kind: str, what: str) -> int:
        return struct.unpack("<" + kind, self.take(struct.calcsize("<" + kind), what))[0]

    def sizes(self, count: int, kind: str = "q") -> tuple[int, ...]:
        if not 0 <= count <= MAX_RANK:
            raise self.error(f"a shape has {count} axes, expected at most {MAX_RANK}")
        shape = struct.unpack(f"<{count}{kind}", self.take(count * struct.calcsize("<" + kind), "a shape"))
        # Without the zeros, because NumPy multiplies the other sizes of an empty array too and may overflow.
        if any(n < 0 for n in shape) or math.prod(filter(None, shape)) >= 2**59:
            raise self.error(f"shape {shape} has negative or impossibly large sizes")
        return shape

    def shape(self) -> tuple[int, ...]:
        return self.sizes(self.number("i", "a shape"))

    def dtype(self) -> np.dtype[Any]:
        code = self.number("i", "a dtype")
        if not 0 <= code < len(DTYPES):
            raise self.error(f"unknown dtype code {code}, expected 0 to {len(DTYPES) - 1}", "cast the array, save it again.")
        return DTYPES[code]

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        # Python integers, so that a malicious shape cannot overflow.
        count = math.prod(shape) * dtype.itemsize
        self.need(count, f"shape {shape} of {dtype}")
        array = empty_aligned(shape, np.dtype(np.uint8) if dtype == np.bool_ else dtype)
        if count and self.file.readinto(array.reshape(-1).view(np.uint8).data) != count:
            raise self.error("the file ended while an array was being read")
        self.left -= count
        # A bool array must not contain bytes other than 0 and 1: NumPy's behavior would be undefined.
        return np.not_equal(array, 0, out=np.empty(shape, np.bool_)) if dtype == np.bool_ else array

    def finish(self) -> None:
        if self.left:
            raise self.error(f"{self.left} bytes follow the end")


def _read_list(source: _Source) -> list[Array] | dict[str, Array]:
    if (magic := source.number("Q", "the file's first number")) != LIST:
        raise source.error(f"found {magic:#x}, expected {LIST:#x}", "this is not an array file of MXNet: check the path.")
    source.number("Q", "the reserved number")
    arrays = []
    for index in range(_count(source, "arrays", 4)):
        source.where = f"array {index}"
        arrays.append(_read_record(source))
    source.where = "names"
    count = _count(source, "names", 8)
    names = [source.take(source.number("Q", "a name's length"), "a name") for _ in range(count)]
    try:
        named = dict(zip((name.decode("utf-8") for name in names), arrays, strict=True)) if names else {}
    except ValueError as error:
        raise source.error(f"the names of the arrays are invalid ({error})") from None
    if len(named) != count:
        raise source.error("a name occurs twice")
    source.finish()
    return named if count else arrays


def _count(source: _Source, what: str, least: int) -> int:
    count = source.number("Q", f"the number of {what}")
    source.need(count * least, f"a list of {count} {what}")
    return count


def _read_record(source: _Source) -> Array:
    version, stype, storage = source.number("I", "a version"), 0, ()
    if version in (V2, V3):
        stype = source.number("i", "a storage type")
        if not 0 <= stype < len(STYPES):
            raise source.error(f"unknown storage type {stype}, expected 0 (dense), 1 (row_sparse) or 2 (csr)")
        storage = source.shape() if stype else ()
        rank = source.number("i", "a shape")
        if rank == (0 if version == V2 else -1):
            return None
        shape = source.sizes(rank)
    elif version == V1 or version <= MAX_RANK:  # oldest files have no version: the first number is the number of axes
        shape = source.shape() if version == V1 else source.sizes(version, "I")
        if not shape:
            return None
    else:
        raise source.error(f"found {version:#x}, expected the version number of an array record")
    source.take(8, "a device")
    dtype = source.dtype()
    if not stype:
        return source.array(dtype, shape)
    kinds = [(source.dtype(), source.shape()) for _ in range(stype)]
    if stype == 1 and storage[:1] == (0,) and len(kinds[0][1]) == 1:
        # MXNet may write the shape of the values before they are computed, with 0 rows; the number of indices is correct.
        storage = (*kinds[0][1], *storage[1:])
    data = source.array(dtype, storage)
    sparse = SparseArray(STYPES[stype], data, tuple(source.array(*kind) for kind in kinds), shape)
    if problem := sparse_problem(sparse):
        raise source.error(f"{sparse.stype} of shape {shape}: {problem}")
    return sparse


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any] | Iterable[Any]) -> Path:
    """Write arrays to an MXNet array file (.params), atomically.

    Args:
        path: the file.
        arrays: dict name -> array, or an iterable of arrays: NumPy, jax.Array, NDArray, SparseArray, or None for a
            missing array.

    Returns:
        pathlib.Path of the file.

    Raises:
        TypeError: an array has an unsupported dtype.
        ValueError: the fields of a sparse array are inconsistent.

    Example:
        >>> import tempfile
        >>> load_arrays(save_arrays(tempfile.mkdtemp() + "/a.params", [np.float16([1, 2])]))
        [array([1., 2.], dtype=float16)]

    Source: MXNet 1.9.1, NDArray::Save (facts of the format only).
    """
    prepared = _prepared(arrays)
    return atomic_write(path, lambda file: _write_list(file, *prepared))


def dumps(arrays: Mapping[str, Any] | Iterable[Any]) -> bytes:
    """Return the content of the file that `save_arrays` writes.

    Args:
        arrays: dict name -> array, or an iterable of arrays, as for `save_arrays`.

    Returns:
        bytes.

    Raises:
        TypeError: an array has an unsupported dtype.

    Example:
        >>> len(dumps({}))
        32
    """
    file = io.BytesIO()
    _write_list(file, *_prepared(arrays))
    return file.getvalue()


def dump_record(array: Any) -> bytes:
    """Return a single record, one array without a name (the content of a pickled NDArray).

    Args:
        array: NumPy, jax.Array, NDArray or SparseArray, or None for a missing array.

    Returns:
        bytes.

    Raises:
        TypeError: the array has an unsupported dtype.

    Example:
        >>> len(dump_record(np.zeros((2, 3), "float32")))
        64
    """
    file = io.BytesIO()
    value = host_array(array, "array")
    _write_record(file, value, _version([value]))
    return file.getvalue()


def _prepared(arrays: Mapping[str, Any] | Iterable[Any]) -> tuple[list[str], list[Array]]:
    """Return (names, host arrays), all checked before anything is written."""
    names = list(arrays) if isinstance(arrays, Mapping) else []
    values = to_host(arrays.values() if isinstance(arrays, Mapping) else arrays)
    return names, [host_array(value, f"array {repr(names[i]) if names else i}") for i, value in enumerate(values)]


def to_host(values: Iterable[Any]) -> list[Any]:
    """Replace the JAX arrays among the values by NumPy arrays, with one transfer for all of them.

    Example:
        >>> to_host([None, jax.numpy.ones(2)])
        [None, array([1., 1.], dtype=float32)]
    """
    values = list(values)
    at = [i for i, value in enumerate(values) if isinstance(value, jax.Array)]
    for i, value in zip(at, counters.read([values[i] for i in at]) if at else [], strict=True):
        values[i] = value
    return values


def host_array(value: Any, where: str) -> Array:
    """Convert to a C-contiguous little-endian NumPy array (or `SparseArray` of them, or None), and check the dtype.

    Raises:
        TypeError: unsupported dtype; the message begins with `where`.
        ValueError: the fields of a sparse array are inconsistent.

    Example:
        >>> host_array([1.0, 2.0], "array 0").dtype
        dtype('float64')
    """
    if value is None:
        return None
    if isinstance(value, SparseArray):
        data, *aux = (host_array(part, where) for part in (value.data, *value.aux))
        sparse = SparseArray(value.stype, data, tuple(aux), tuple(value.shape))  # type: ignore[arg-type]
        if value.stype not in STYPES[1:] or (problem := sparse_problem(sparse)):
            raise ValueError(f"{where} is a {value.stype} array of shape {value.shape}, but {problem}")
        return sparse
    value = value.asnumpy() if hasattr(value, "asnumpy") else to_host([value])[0]
    # Not np.ascontiguousarray, which reshapes () to (1,).
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    if array.dtype not in CODES:
        raise TypeError(f"{where} has dtype {array.dtype}, expected one of {', '.join(map(str, DTYPES))}; cast it first.")
    return array


def _version(arrays: Sequence[Array]) -> int:
    return V3 if any(isinstance(a, np.ndarray) and (a.ndim == 0 or a.size == 0) for a in arrays) else V2


def _write_list(file: BinaryIO, names: list[str], arrays: list[Array]) -> None:
    version = _version(arrays)
    file.write(struct.pack("<QQQ", LIST, 0, len(arrays)))
    for array in arrays:
        _write_record(file, array, version)
    file.write(struct.pack("<Q", len(names)))
    for name in names:
        raw = name.encode("utf-8")
        file.write(struct.pack("<Q", len(raw)) + raw)


def _write_record(file: BinaryIO, array: Array, version: int) -> None:
    if array is None:
        file.write(struct.pack("<Iii", V2, 0, 0))
        return
    sparse = array if isinstance(array, SparseArray) else None
    data, aux = (sparse.data, sparse.aux) if sparse else (array, ())
    assert isinstance(data, np.ndarray)
    stype = STYPES.index(sparse.stype) if sparse else 0
    file.write(struct.pack("<Ii", V2 if sparse else version, stype))
    if sparse:
        file.write(_shape(data.shape))
    file.write(_shape(array.shape) + _CPU + struct.pack("<i", CODES[data.dtype]))
    for part in aux:
        file.write(struct.pack("<i", CODES[part.dtype]) + _shape(part.shape))
    for part in (data, *aux):
        file.write(part.reshape(-1).view(np.uint8).data)


def _shape(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


def empty_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Like np.empty; the address is a multiple of `ALIGNMENT`, so that JAX on CPU can use the array without a copy.

    Example:
        >>> empty_aligned((1000, 1000), np.float32).ctypes.data % ALIGNMENT
        0
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
