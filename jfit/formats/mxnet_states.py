"""Read and write MXNet's optimizer states (.states), which are pickles, without executing code from the file.

MXNet pickles a dict `{index: state}`, where a state is None, an NDArray, or nested tuples of them; gluon's Trainer pickles the
pair (dict, optimizer object).  MXNet's Module does not save update counts, so that Adam's bias correction and learning rate
schedules restart after a resume.  jfit adds the counts as one more entry of the dict under the key `__jfit__`, which MXNet's
Updater ignores and writes again.  If MXNet has updated the states in between, the counts are outdated: they are used only if
the checksum saved with them matches the states.  (States that are all None, as in SGD without momentum, always match.)
"""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jfit.checks import shown
from jfit.formats.atomic import FormatError, read_file
from jfit.formats.mxnet_arrays import dump_record, host_array, to_host
from jfit.formats.pickle_names import DENSE, SPARSE, DtypePlaceholder, NDArrayPlaceholder, NumpyPlaceholder, PickleNames
from jfit.formats.pickles import Inert, Machine, Name
from jfit.formats.sparse import SparseArray

NOTE = "__jfit__"
_DEEPEST = 16  # maximum nesting of a state
_REMEDY = "the file is damaged or not a .states file of MXNet: check the path, or save it again."


class States(NamedTuple):
    """Content of a .states file.

    Args:
        states: dict index or parameter name -> None, array, SparseArray, number, or nested tuples and lists of them.
        counts: dict index or name -> number of updates of the parameter, or None if the file has none.
        num_update: number of updates of the run, or None if the file has none.
        optimizer: the optimizer of gluon's Trainer as an `Inert` record (class name and attributes), the dict passed to
            `dump_states`, or None.

    Example:
        >>> load_states(dump_states({0: None}, counts={0: 7}, num_update=7)).counts
        {0: 7}
    """

    states: dict[Any, Any]
    counts: dict[Any, int] | None = None
    num_update: int | None = None
    optimizer: Inert | dict[str, Any] | None = None


def load_states(source: str | os.PathLike[str] | bytes | bytearray, where: str | os.PathLike[str] = "bytes") -> States:
    """Read a .states file of MXNet or jfit without importing classes or executing code from it.

    Args:
        source: path of the file, or its content as bytes.
        where: name of the content in error messages.

    Returns:
        States, with NumPy arrays.  Files of gluon's Trainer (in its optimizer) and of jfit (under `__jfit__`) contain update
        counts, files of MXNet's Module do not.

    Raises:
        FormatError: the file is damaged or truncated, or uses classes other than those of MXNet, NumPy and plain containers.
        FileNotFoundError: the file does not exist.

    Example:
        >>> load_states(dump_states({"fc_weight": (np.float32([1, 2]), None)})).states
        {'fc_weight': (array([1., 2.], dtype=float32), None)}

    Source: MXNet 1.9.1, Updater.set_states (facts of the format only).
    """
    data, path = (bytes(source), where) if isinstance(source, (bytes, bytearray)) else (read_file(source), source)
    names = PickleNames(path)
    names.machine = Machine(data, path, names.resolve)
    content = names.machine.run()
    value, optimizer = content if isinstance(content, tuple) and len(content) == 2 else (content, None)
    if not isinstance(value, dict) or any(isinstance(i, bool) or not isinstance(i, (int, str)) for i in value):
        problem = f"found a {type(value).__name__}, expected a dict with integers or names as keys"
        raise FormatError(path, "states", problem, _REMEDY)
    note = value.pop(NOTE, None)
    # Bound the number of visits (one per operation that made a value, doubled for shared values): with references to the same
    # list, a few bytes can describe a tree of exponential size.
    resolve = _Resolve(path, 2 * names.machine.operations + 100)
    states = {index: resolve(state, f"state {str(index)[:80]!r}") for index, state in value.items()}
    if not isinstance(optimizer, Inert):
        return _with_note(path, states, resolve(note, "note"))
    attributes = resolve(optimizer, "optimizer", inert=True).attributes
    return States(states, *_progress(path, "optimizer", attributes, "_index_update_count"), optimizer)


class _Resolve:
    """Replace the placeholders of the pickle reader in a value by arrays and dtypes, in at most `visits` recursive calls."""

    def __init__(self, path: str | os.PathLike[str], visits: int) -> None:
        self.path, self.visits = path, visits
        self.done: set[int] = set()

    def __call__(self, value: Any, where: str, inert: bool = False, depth: int = 0) -> Any:
        self.visits -= 1
        if depth > _DEEPEST or self.visits < 0:
            raise FormatError(self.path, where, "its nesting is too deep or too large", _REMEDY)
        if isinstance(value, (NDArrayPlaceholder, NumpyPlaceholder, DtypePlaceholder)):
            return value.value
        if isinstance(value, (tuple, list)):
            return type(value)([self(part, where, inert, depth + 1) for part in value])
        if isinstance(value, dict):
            return {name: self(part, where, inert, depth + 1) for name, part in value.items()}
        if isinstance(value, (Inert, Name)) and not inert:
            raise FormatError(self.path, where, f"found {str(value)[:80]}, expected arrays", _REMEDY)
        if isinstance(value, Inert) and id(value) not in self.done:
            self.done.add(id(value))
            value.attributes = self(value.attributes, where, inert, depth + 1)
        return value


def _progress(
    path: str | os.PathLike[str], where: str, attributes: Mapping[Any, Any], name: str
) -> tuple[dict[Any, int] | None, int | None]:
    """Read update counts by index or name, and the number of updates."""
    counts, number = attributes.get(name), attributes.get("num_update")
    by_index = {} if counts is None else counts
    numbers = [0 if number is None else number, *by_index.values()] if isinstance(by_index, dict) else [None]
    if not all(isinstance(n, (int, np.integer)) and 0 <= n < 2**63 for n in numbers):
        found = f"{name!r} is {shown(counts)}, 'num_update' is {shown(number)}"
        raise FormatError(path, where, f"{found}; expected non-negative whole numbers of updates", _REMEDY)
    plain = {index.item() if isinstance(index, np.integer) else index: int(n) for index, n in by_index.items()}
    return None if counts is None else plain, None if number is None else int(number)


def _with_note(path: str | os.PathLike[str], states: dict[Any, Any], note: Any) -> States:
    """Add the counts of jfit's `__jfit__` entry to the states, if its checksum matches them."""
    if not isinstance(note, dict) or note.get("digest") != digest(states):
        return States(states)
    return States(states, *_progress(path, NOTE, note, "counts"), note.get("optimizer"))


def digest(states: Mapping[Any, Any]) -> int:
    """Return a checksum of optimizer states, which does not depend on the order of the indices.

    Example:
        >>> digest({0: None, 1: np.float32([1])}) == digest({1: np.float32([1]), 0: None})
        True
    """
    total = 0
    for index in sorted(states, key=str):
        total = zlib.crc32(repr(index).encode("utf-8", "backslashreplace"), total)
        for leaf in _leaves(states[index]):
            parts = (leaf.data, *leaf.aux) if isinstance(leaf, SparseArray) else (leaf,) if isinstance(leaf, np.ndarray) else ()
            # str() of an integer raises ValueError for more than 4300 decimal digits.
            plain_text = hex(leaf) if isinstance(leaf, int) and leaf.bit_length() > 10_000 else str(leaf)
            text = repr((type(leaf).__name__, *((p.shape, str(p.dtype)) for p in parts)) if parts else plain_text[:1000])
            total = zlib.crc32(text.encode("utf-8", "backslashreplace"), total)
            for part in parts:
                total = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, total)
    return total


def _leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for part in state.values() for leaf in _leaves(part)]
    if isinstance(state, (tuple, list)) and not isinstance(state, SparseArray):
        return [leaf for part in state for leaf in _leaves(part)]
    return [state]


def dump_states(
    states: Mapping[Any, Any],
    counts: Mapping[Any, int] | None = None,
    num_update: int | None = None,
    optimizer: Inert | Mapping[str, Any] | None = None,
) -> bytes:
    """Return the content of a .states file, for MXNet's Updater.set_states.

    Args:
        states: dict index or parameter name -> None, array, number, or nested tuples and lists of them.
        counts: index or name -> number of updates of the parameter; written under the key `__jfit__`.
        num_update: number of updates of the run; written under the key `__jfit__`.
        optimizer: dict of plain values, also written under `__jfit__`; or an `Inert` record of an MXNet optimizer, written as
            gluon's Trainer writes it, as the pair (states, optimizer).  Then `counts` and `num_update` are not written: the
            attributes of the optimizer contain them.

    Returns:
        bytes, content of the file.

    Raises:
        TypeError: a value has a type that a .states file cannot contain.

    Example:
        >>> load_states(dump_states({0: np.float32([1, 2])}, num_update=3)).num_update
        3

    Source: MXNet 1.9.1, Updater.get_states (facts of the format only).
    """
    plain_states = _on_host({index: state for index, state in states.items() if index != NOTE})
    value: Any = plain_states
    if isinstance(optimizer, Inert):
        value = (plain_states, optimizer)
    elif counts is not None or num_update is not None or optimizer is not None:
        note: dict[str, Any] = {"version": 1, "digest": digest(plain_states)}
        note |= {} if counts is None else {"counts": {index: int(count) for index, count in counts.items()}}
        note |= {} if num_update is None else {"num_update": int(num_update)}
        note |= {} if optimizer is None else {"optimizer": dict(optimizer)}
        value = {**plain_states, NOTE: note}
    out = [b"\x80\x04"]
    _emit(out, value)
    return b"".join([*out, b"."])


def _on_host(states: dict[Any, Any]) -> dict[Any, Any]:
    """Convert all arrays in optimizer states to host arrays, with one transfer from the devices."""
    leaves = iter(to_host(_leaves(states)))

    def rebuilt(state: Any, where: str) -> Any:
        if isinstance(state, dict):
            return {name: rebuilt(part, where) for name, part in state.items()}
        if isinstance(state, (tuple, list)) and not isinstance(state, SparseArray):
            return type(state)([rebuilt(part, where) for part in state])
        leaf = next(leaves)
        return host_array(leaf, where) if _is_array(leaf) else leaf.item() if isinstance(leaf, np.generic) else leaf

    return {index: rebuilt(state, f"state {index!r}") for index, state in states.items()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "asnumpy") or (hasattr(value, "dtype") and not isinstance(value, np.generic))


def _emit(out: list[bytes], value: Any) -> None:
    """Append the pickle operations (protocol 4) of a value; arrays are written as MXNet's NDArrays, without importing MXNet."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        out.append(pickle.dumps(value, 3)[2:-1])  # without the begin and the end of a file
    elif isinstance(value, (bytes, bytearray)):
        out.extend((b"\x8e" + struct.pack("<Q", len(value)), bytes(value)))
    elif isinstance(value, Inert):
        _emit_name(out, value.name)
        out.append(b")\x81")
        _emit(out, value.attributes)
        out.append(b"b")
    elif isinstance(value, SparseArray) or _is_array(value):
        _emit_array(out, value)
    elif isinstance(value, Mapping):
        _emit_all(out, b"}(", [part for pair in value.items() for part in pair], b"u")
    elif isinstance(value, (tuple, list)):
        _emit_all(out, *((b"(", value, b"t") if isinstance(value, tuple) else (b"](", value, b"e")))
    else:
        kind = type(value).__name__
        raise TypeError(f"a {kind} cannot be written: a .states file has only arrays, numbers, strings and plain containers")


def _emit_all(out: list[bytes], start: bytes, values: Iterable[Any], end: bytes) -> None:
    out.append(start)
    for value in values:
        _emit(out, value)
    out.append(end)


def _emit_name(out: list[bytes], name: str) -> None:
    for part in name.rpartition(".")[::2]:
        _emit(out, part)
    out.append(b"\x93")


def _emit_array(out: list[bytes], array: Any) -> None:
    # As NDArray pickles itself: NDArray(None) with the state {"handle": bytearray(record)}.
    _emit_name(out, SPARSE[array.stype] if isinstance(array, SparseArray) else DENSE)
    out.append(b"N\x85R}")
    _emit(out, "handle")
    _emit_name(out, "builtins.bytearray")
    _emit(out, dump_record(array))
    out.append(b"\x85Rsb")
