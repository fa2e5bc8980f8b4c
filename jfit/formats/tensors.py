"""Read and write safetensors files; sizes in a header are checked against the size of the file before allocation."""

import errno
import io
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from jfit.formats.atomic import FormatError, atomic_path, open_file

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
_MAX_HEADER = 100_000_000
_MAX_RANK = 64
_REMEDY = "the file is damaged or not a safetensors file: restore it from another copy, or save it again."


class _Entry(NamedTuple):
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def save_tensors(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None, sync: bool = True
) -> Path:
    """Write a dict of arrays to a safetensors file, atomically and without a second copy in memory.

    Args:
        path: the file.
        arrays: name -> NumPy or JAX array of any shape and layout; bool, integers, float16, bfloat16, float32 or float64.
        metadata: dict of str -> str, stored in the header.
        sync: whether to wait until the bytes are on the disk (fsync).

    Returns:
        pathlib.Path of the file.

    Raises:
        TypeError: an array has an unsupported dtype, or the name "__metadata__".
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> path = save_tensors(tempfile.mkdtemp() + "/a.safetensors", {"w": np.ones((2, 3))}, {"by": "me"})
        >>> load_tensors(path)[0]["w"].shape
        (2, 3)

    Source: https://github.com/huggingface/safetensors (format description).
    """
    plain = _all_plain(arrays)
    with atomic_path(path, sync=sync) as temporary:
        try:
            safetensors.numpy.save_file(plain, temporary, dict(metadata or {}) or None)
        except safetensors.SafetensorError as error:
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(
                int(number[1]) if number else errno.EIO, f"the file cannot be written ({error})", str(path)
            ) from error
    return Path(path)


def checksum(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> tuple[int, int]:
    """Return (crc32, size in bytes) of the correct content of a file written by `save_tensors`, computed from the arrays.

    A checkpoint compares it with the file later, to detect damage, including damage during the write.

    Args:
        path: the file; only its header is read.
        arrays: the arrays passed to `save_tensors`.

    Returns:
        (int, int).

    Example:
        >>> import tempfile
        >>> path = save_tensors(tempfile.mkdtemp() + "/a.safetensors", {"w": np.ones((2, 3))})
        >>> checksum(path, {"w": np.ones((2, 3))}) == (zlib.crc32(path.read_bytes()), path.stat().st_size)
        True
    """
    plain = _all_plain(arrays)
    with open(path, "rb") as file:
        header, size = _read_header(path, file, os.fstat(file.fileno()).st_size)
        file.seek(0)
        crc = zlib.crc32(file.read(size))
    header.pop("__metadata__", None)
    for name in sorted(header, key=lambda name: header[name]["data_offsets"]):
        crc = zlib.crc32(plain[name].reshape(-1).view(np.uint8).data, crc)
        size += plain[name].nbytes
    return crc, size


def _all_plain(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    plain = {str(name): _plain(str(name), value) for name, value in arrays.items()}
    if "__metadata__" in plain:
        raise TypeError("array '__metadata__': the safetensors format reserves this name; rename the array.")
    return plain


def _plain(name: str, value: Any) -> np.ndarray:
    """Convert to a C-contiguous little-endian array and check the dtype."""
    # The library writes the memory of an array without its strides: a transposed array would be read back in another order.
    # Not np.ascontiguousarray, which reshapes () to (1,).
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    if array.dtype not in _DTYPES.values():
        raise TypeError(
            f"array {name!r} has dtype {array.dtype}, expected one of {', '.join(str(dtype) for dtype in _DTYPES.values())}, "
            "the dtypes that jfit stores in safetensors files; cast it first."
        )
    return array


def load_tensors(path: str | os.PathLike[str], content: bytes | None = None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file; its header is checked against the size of the file before allocation.

    Args:
        path: a safetensors file.
        content: the bytes of the file, if they were read already; `path` is then used in error messages only.

    Returns:
        (dict name -> writable NumPy array, dict of metadata str -> str).

    Raises:
        FormatError: the file is damaged, truncated, or not a safetensors file.
        FileNotFoundError: the file does not exist.

    Example:
        >>> import tempfile
        >>> path = save_tensors(tempfile.mkdtemp() + "/a.safetensors", {"step": np.int32(3)})
        >>> load_tensors(path)
        ({'step': array(3, dtype=int32)}, {})

    Source: https://github.com/huggingface/safetensors (format description).
    """
    with open_file(path) if content is None else io.BytesIO(content) as file:
        size = os.fstat(file.fileno()).st_size if content is None else len(content)
        header, begin = _read_header(path, file, size)
        metadata = _metadata(path, header.pop("__metadata__", None))
        entries = [_entry(path, name, field, size - begin) for name, field in header.items()]
        _check_cover(path, entries, size - begin)
        file.seek(0)
        try:
            tensors = dict(safetensors.deserialize(file.read()))
        except safetensors.SafetensorError as error:  # the file changed after the header was checked
            raise FormatError(path, "data", f"the file cannot be read ({error})", _REMEDY) from error
    arrays = {e.name: np.frombuffer(tensors[e.name]["data"], e.dtype).reshape(e.shape) for e in entries}
    return arrays, metadata


def _read_header(path: Any, file: Any, size: int) -> tuple[dict[str, Any], int]:
    if size < 8:
        raise FormatError(path, "byte 0", f"found {size} bytes, expected at least 8 for the length of the header", _REMEDY)
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(size - 8, _MAX_HEADER):
        raise FormatError(path, "byte 0", f"the header should have {length} bytes, but {size - 8} bytes follow", _REMEDY)
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(path, "header", f"it is not valid JSON ({error})", _REMEDY) from error
    if not isinstance(header, dict):
        raise FormatError(path, "header", f"found a JSON {type(header).__name__}, expected an object", _REMEDY)
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _metadata(path: Any, field: Any) -> dict[str, str]:
    if field is None:
        return {}
    if not isinstance(field, dict) or not all(isinstance(value, str) for value in field.values()):
        raise FormatError(path, "header field '__metadata__'", "expected an object of strings", _REMEDY)
    return field


def _entry(path: Any, name: str, field: Any, present: int) -> _Entry:
    where = f"tensor {name!r}"
    try:
        kind, shape, (start, stop) = field["dtype"], field["shape"], field["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise FormatError(path, where, "its entry has no dtype, shape or two data_offsets", _REMEDY) from error
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise FormatError(path, where, f"dtype {kind!r} is not one of {', '.join(_DTYPES)}", "cast it where the file was made.")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(_is_size(n) for n in shape):
        raise FormatError(path, where, f"shape {str(shape)[:80]} is not a list of at most {_MAX_RANK} sizes", _REMEDY)
    if not (_is_size(start) and _is_size(stop) and start <= stop <= present):
        raise FormatError(path, where, f"data_offsets {start}..{stop} are outside of the {present} data bytes", _REMEDY)
    dtype = _DTYPES[kind]
    # Python integers, so that a malicious shape cannot overflow.
    if (needed := math.prod(shape) * dtype.itemsize) != stop - start:
        raise FormatError(
            path, where, f"shape {tuple(shape)} of {kind} needs {needed} bytes, its entry has {stop - start}", _REMEDY
        )
    if math.prod(filter(None, shape)) >= 2**59:
        # The array is empty, but NumPy multiplies the other sizes and may overflow.
        raise FormatError(path, where, f"shape {tuple(shape)} has impossibly large sizes", _REMEDY)
    return _Entry(name, dtype, tuple(shape), start, stop)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_cover(path: Any, entries: list[_Entry], present: int) -> None:
    """Check that the tensors cover the `present` bytes of data without gaps or overlaps.

    Otherwise a small file could define many huge arrays.
    """
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            raise FormatError(path, f"tensor {entry.name!r}", f"its data begins at byte {entry.start}, expected {end}", _REMEDY)
        end = entry.stop
    if end != present:
        raise FormatError(path, f"data byte {end}", f"{present - end} bytes belong to no tensor", _REMEDY)
