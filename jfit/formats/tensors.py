"""Read and write safetensors files; the library checks a header against the size of the file before allocation."""

import errno
import io
import json
import os
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from jfit.formats.atomic import FormatError, atomic_path, read_file

_NAMES = {  # in the files -> of the dtype
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": ml_dtypes.bfloat16, "F32": "float32", "F64": "float64",
}  # fmt: skip
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(dtype) for name, dtype in _NAMES.items()}
_MAX_HEADER = 100_000_000
_REMEDY = f"expected a safetensors file of {', '.join(_DTYPES)}: restore it from another copy, or save it again."


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
            code = int(number[1]) if number else errno.EIO
            raise OSError(code, f"the file cannot be written ({error})", str(path)) from error
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
        header, size = _read_header(file)
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
        allowed = ", ".join(map(str, _DTYPES.values()))
        raise TypeError(f"array {name!r} has dtype {array.dtype}, expected one of {allowed}; cast it first.")
    return array


def load_tensors(path: str | os.PathLike[str], content: bytes | None = None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file; the library checks its header against the size of the file before allocation.

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
    content, where = read_file(path) if content is None else content, "header"
    try:
        tensors, (header, _) = dict(safetensors.deserialize(content)), _read_header(io.BytesIO(content))
        metadata, arrays = header.pop("__metadata__", None) or {}, {}
        for name in header:
            where, tensor = f"tensor {name!r}", tensors[name]
            arrays[name] = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    except (safetensors.SafetensorError, struct.error, KeyError, ValueError, OverflowError) as error:
        raise FormatError(path, where, f"{type(error).__name__}: {error}", _REMEDY) from error
    return arrays, metadata


def _read_header(file: Any) -> tuple[dict[str, Any], int]:
    """Return the fields of the header, and the number of bytes before the data."""
    (length,) = struct.unpack("<Q", file.read(8))
    return json.loads(file.read(min(length, _MAX_HEADER)), object_pairs_hook=_unique), 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields
