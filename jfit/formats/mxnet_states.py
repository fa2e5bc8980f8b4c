"""MXNet's optimizer states (.states): pickles read without running anything, and written so that MXNet reads them.

MXNet pickles `{index: state}` with a state of None, an NDArray, or nested tuples of them; gluon's Trainer pickles the pair of
that dict and its optimizer object.  MXNet's Module keeps no update counts there, so that Adam and every schedule start again
after a resume.  jfit adds them as one more entry of the dict, `__jfit__`: plain numbers under a key that MXNet's Updater
carries along and never looks up.  A checksum of the states is with them, so that counts which MXNet's own updates made stale
are not used (states that are all None, as those of SGD without momentum, cannot show that: there the counts are believed).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jfit.formats.atomic import FormatError
from jfit.formats.mxnet_arrays import dump_record, plain, to_host
from jfit.formats.pickle_names import DENSE, SPARSE, Held, HeldDtype, HeldNumpy, Names
from jfit.formats.pickles import Inert, Machine, Name
from jfit.formats.sparse import SparseArray

NOTE = "__jfit__"
_DEEPEST = 16
_REMEDY = "the file is damaged or no .states file of MXNet: check the path, or save it again."


class States(NamedTuple):
    """What a .states file holds.

    Args:
        states: index or parameter name -> None, array, SparseArray, number, or nested tuples and lists of them.
        counts: index or name -> number of updates, or None where the file has none.
        num_update: number of updates of the run, or None.
        optimizer: gluon Trainer's optimizer as an inert record (class name, attributes), what `dump_states` got, or None.

    Example:
        >>> load_states(dump_states({0: None}, counts={0: 7}, num_update=7)).counts
        {0: 7}
    """

    states: dict[Any, Any]
    counts: dict[Any, int] | None = None
    num_update: int | None = None
    optimizer: Inert | dict[str, Any] | None = None


def load_states(source: str | os.PathLike[str] | bytes | bytearray, where: str | os.PathLike[str] = "bytes") -> States:
    """Reads a .states file of MXNet or of jfit; no class is imported and no code of the file runs.

    Args:
        source: the file, or its content.
        where: what error messages call the content.

    Returns:
        The states with their arrays as numpy, and the update counts where the file has them: gluon's Trainer stores them in its
        optimizer, jfit under `__jfit__`; MXNet's Module does not store them.

    Raises:
        FormatError: the file is damaged or cut off, or uses a class that is not MXNet's, numpy's or a plain container.
        FileNotFoundError: there is no such file.

    Example:
        >>> load_states(dump_states({"fc_weight": (np.float32([1, 2]), None)})).states
        {'fc_weight': (array([1., 2.], dtype=float32), None)}

    Source: MXNet 1.9.1, Updater.set_states (facts of the format only).
    """
    if isinstance(source, (bytes, bytearray)):
        return _read(bytes(source), where)
    with open(source, "rb") as file:
        return _read(file.read(), source)


def _read(data: bytes, path: str | os.PathLike[str]) -> States:
    names = Names(path)
    names.machine = Machine(data, path, names.resolve)
    value, optimizer = names.machine.run(), None
    if isinstance(value, tuple) and len(value) == 2:
        value, optimizer = value
        if not isinstance(optimizer, Inert):
            raise FormatError(path, "optimizer", f"found a {type(optimizer).__name__}, needed an optimizer", _REMEDY)
    if not isinstance(value, dict):
        raise FormatError(path, "states", f"found a {type(value).__name__}, needed a dict by index", _REMEDY)
    note = value.pop(NOTE, None)
    # One visit for each operation that made a value, twice over for shared ones: a few bytes can describe a tree without end.
    settle = _Settle(path, 2 * names.machine.operations + 100)
    states = {index: settle(state, f"state {str(index)[:80]!r}") for index, state in value.items()}
    for index in states:
        if isinstance(index, bool) or not isinstance(index, (int, str)):
            raise FormatError(path, "states", f"an index is a {type(index).__name__}, needed an int or a name", _REMEDY)
    if optimizer is None:
        return _with_note(path, states, settle(note, "note"))
    found = settle(optimizer, "optimizer", inert=True).attributes
    return States(states, *_progress(path, "optimizer", found, "_index_update_count"), optimizer)


class _Settle:
    """Puts the arrays in place of what stood for them, in at most so many visits."""

    def __init__(self, path: str | os.PathLike[str], visits: int) -> None:
        self.path, self.visits = path, visits
        self.settled: set[int] = set()

    def __call__(self, value: Any, where: str, inert: bool = False, depth: int = 0) -> Any:
        self.visits -= 1
        if depth > _DEEPEST or self.visits < 0:
            raise FormatError(self.path, where, "it is nested without end", _REMEDY)
        if isinstance(value, (Held, HeldNumpy, HeldDtype)):
            return value.value
        if isinstance(value, (tuple, list)):
            return type(value)([self(part, where, inert, depth + 1) for part in value])
        if isinstance(value, dict):
            return {name: self(part, where, inert, depth + 1) for name, part in value.items()}
        if isinstance(value, (Inert, Name)) and not inert:
            raise FormatError(self.path, where, f"found {str(value)[:80]}, needed arrays", _REMEDY)
        if isinstance(value, Inert) and id(value) not in self.settled:
            self.settled.add(id(value))
            value.attributes = self(value.attributes, where, inert, depth + 1)
        return value


def _progress(
    path: str | os.PathLike[str], where: str, found: Mapping[Any, Any], name: str
) -> tuple[dict[Any, int] | None, int | None]:
    """(counts by index or name, number of updates), each None where the file has none."""
    counts, number = found.get(name), found.get("num_update")
    return (
        None if counts is None else _counts(path, f"{where}, {name!r}", counts),
        None if number is None else _count(path, f"{where}, 'num_update'", number),
    )


def _count(path: str | os.PathLike[str], where: str, value: Any) -> int:
    value = value.item() if isinstance(value, np.integer) else value
    if type(value) is not int or not 0 <= value < 2**63:
        raise FormatError(path, where, f"found {shown(value)}, needed a whole number of updates from 0 on", _REMEDY)
    return value


def _counts(path: str | os.PathLike[str], where: str, value: Any) -> dict[Any, int]:
    if not isinstance(value, dict) or not all(isinstance(key, (int, str, np.integer)) for key in value):
        raise FormatError(path, where, f"found {shown(value)}, needed a dict by index or name", _REMEDY)
    return {
        int(key) if isinstance(key, np.integer) else key: _count(path, f"{where}, entry {shown(key)}", count)
        for key, count in value.items()
    }


def _with_note(path: str | os.PathLike[str], states: dict[Any, Any], note: Any) -> States:
    """The states with the counts of jfit's note, if the states are still those that it was written with."""
    if not isinstance(note, dict) or note.get("digest") != digest(states):
        return States(states)
    optimizer = note.get("optimizer")
    if not isinstance(optimizer, (dict, type(None))):
        raise FormatError(path, f"{NOTE}, optimizer", f"found a {type(optimizer).__name__}, needed a dict", _REMEDY)
    return States(states, *_progress(path, NOTE, note, "counts"), optimizer)


def digest(states: Mapping[Any, Any]) -> int:
    """A checksum of all arrays in states, whatever device or order they were written in.

    Example:
        >>> digest({0: None, 1: np.float32([1])}) == digest({1: np.float32([1]), 0: None})
        True
    """
    total = 0
    for index in sorted(states, key=str):
        total = zlib.crc32(repr(index).encode("utf-8", "backslashreplace"), total)
        for leaf in _leaves(states[index]):
            parts = (leaf.data, *leaf.aux) if isinstance(leaf, SparseArray) else (leaf,) if isinstance(leaf, np.ndarray) else ()
            # Python refuses to write down an integer of more than 4300 decimal digits.
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
    """The content of a .states file that MXNet's Updater.set_states reads.

    Args:
        states: index or parameter name -> None, array, number, or nested tuples and lists of them.
        counts: index or name -> number of updates of the parameter; written under the key `__jfit__`.
        num_update: number of updates of the run; written under the key `__jfit__`.
        optimizer: dict of plain values, also written under `__jfit__`; or an `Inert` record of an MXNet optimizer, written as
            gluon's Trainer writes it, as the pair (states, optimizer).  Then `counts` and `num_update` are not written: the
            attributes of the optimizer contain them.

    Returns:
        bytes, content of the file.

    Raises:
        TypeError: a value is of a kind that a .states file does not hold.

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
    """The states with plain arrays, all brought from the device in one wait."""
    leaves = iter(to_host(_leaves(states)))

    def rebuilt(state: Any, where: str) -> Any:
        if isinstance(state, dict):
            return {name: rebuilt(part, where) for name, part in state.items()}
        if isinstance(state, (tuple, list)) and not isinstance(state, SparseArray):
            return type(state)([rebuilt(part, where) for part in state])
        leaf = next(leaves)
        return plain(leaf, where) if _is_array(leaf) else leaf.item() if isinstance(leaf, np.generic) else leaf

    return {index: rebuilt(state, f"state {index!r}") for index, state in states.items()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "asnumpy") or (hasattr(value, "dtype") and not isinstance(value, np.generic))


def _emit(out: list[bytes], value: Any) -> None:
    """Appends the operations of pickle protocol 4 that make a value; arrays become NDArrays, without MXNet."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is True or value is False:
        out.append({None: b"N", True: b"\x88", False: b"\x89"}[value])
    elif isinstance(value, int):
        raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        out.append(b"\x8a" + bytes([len(raw)]) + raw)
    elif isinstance(value, float):
        out.append(b"G" + struct.pack(">d", value))
    elif isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        out.append(b"X" + struct.pack("<I", len(raw)) + raw)
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
        raise TypeError(
            f"a {type(value).__name__} is to be written, but a .states file holds arrays, numbers, texts and plain containers "
            "only; leave it out or store its plain values."
        )


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
    # NDArray(None), then its state: {"handle": bytearray(record)}, as NDArray pickles itself.
    _emit_name(out, SPARSE[array.stype] if isinstance(array, SparseArray) else DENSE)
    out.append(b"N\x85R}")
    _emit(out, "handle")
    _emit_name(out, "builtins.bytearray")
    _emit(out, dump_record(array))
    out.append(b"\x85Rsb")


def shown(value: Any) -> str:
    """A value of a file, short enough for a sentence.

    Example:
        >>> shown("a" * 100), shown(10**5000)
        ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...", 'int')
    """
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        return type(value).__name__
    return text if len(text) <= 60 else f"{text[:60]}..."
