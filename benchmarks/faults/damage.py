"""Damaged files: flipped bits, cut ends, lost blocks, and files of another run, in everything that a run is restored from.

A reader may return the same result, the result of the older checkpoint, or raise `FormatError`.  Formats of MXNet and
safetensors have no checksum of their values: a reader cannot notice a changed value, but must return exactly what is in the
file.  Writing it again then gives the damaged file, or it differs from the original in not more bytes than the file does.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jfit
from benchmarks.faults.victims import SGD, SIZE, X, Y, network
from jfit.data import NDArrayIter
from jfit.data.positions import decode, encode
from jfit.formats import FormatError, load_tensors, save_tensors
from jfit.formats.mxnet_arrays import dumps, loads
from jfit.formats.mxnet_states import dump_states, load_states
from jfit.formats.records import RecordReader, RecordWriter

SAME, OLDER, NOTICED, VALUE = "same", "older checkpoint", "noticed", "value in the file"
_DAMAGES = {"flipped bits": 5, "cut": 2, "lost block": 1, "appended": 1, "other file": 1}


class Wrong(AssertionError):
    """A damaged file was read as something that is not in it."""


def damage(kind: str, first: int, count: int, seed: int, folder: str) -> dict[str, Any]:
    """Damage files of a kind in many ways, and read each of them.

    Args:
        kind: key of `KINDS`.
        first: number of the first case; a case depends on `kind`, `seed` and its number only.
        count: number of cases.
        seed: seed of all cases.
        folder: folder for the files.

    Returns:
        dict: "counts" of the outcomes; "failures", a list of [number of the case, damage, problem].
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    failures: list[list[Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = KINDS[kind](target)
        for number in range(first, first + count):
            draw = random.Random(f"{seed} {kind} {number}")
            what: list[str] = []
            try:
                counts[case(draw, what)] += 1
            except Exception as error:
                failures.append([number, "; ".join(what), f"{type(error).__name__}: {error}"[:500]])
    return {"counts": dict(counts), "failures": failures}


def damaged(content: bytes, other: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Damaged content of a file, and what was done to it.

    Args:
        content: the content.
        other: content of a file of the same kind, of another run.
        draw: random numbers.
    """
    while True:
        how = draw.choices(list(_DAMAGES), list(_DAMAGES.values()))[0]
        at, result = draw.randrange(len(content)), bytearray(content)
        if how == "flipped bits":
            for _ in range(draw.choice([1, 1, 1, 2, 3])):
                at = draw.randrange(len(content))
                result[at] ^= 1 << draw.randrange(8)
        elif how == "cut":
            del result[at:]
        elif how == "lost block":
            size = min(draw.choice([1, 4, 16, 512]), len(content) - at)
            result[at : at + size] = bytes(size)
        elif how == "appended":
            result += draw.randbytes(draw.choice([1, 8, 64]))
        else:
            result = bytearray(other)
        if result != content:
            return bytes(result), f"{how} (byte {at})"


# ------------------------------------------------------------------------------------------------ checkpoints
def trained(folder: Path, seed: int = 0, **options: Any) -> jfit.Run:
    """The run whose checkpoints are damaged: from an iterator with a position, with sums of a metric on the host."""

    def spread(label: Any, output: Any) -> float:
        return float(np.std(output))

    common = {"batch_size": SIZE, "num_epoch": 2, "optimizer_params": SGD, "progress": False, "eval_metric": [spread, "acc"]}
    common |= {"checkpoint": folder, "checkpoint_every": 3, "steps_per_call": 1}
    return jfit.fit(network(), _iterator(seed), seed=seed, **common | options)


def _iterator(seed: int) -> NDArrayIter:
    np.random.seed(seed)
    return NDArrayIter(X, Y, SIZE, shuffle=True)


def _contents(folder: Path) -> dict[Path, bytes]:
    return {file.relative_to(folder): file.read_bytes() for file in sorted(folder.glob("step-*/*"))}


def _checkpoint(folder: Path) -> Callable[[random.Random, list[str]], str]:
    trained(folder / "a")
    trained(folder / "b", seed=1)
    contents, others = _contents(folder / "a"), _contents(folder / "b")
    steps = sorted({path.parent for path in contents})
    expected = {step: _read(folder / "a" / step) for step in steps}

    def case(draw: random.Random, what: list[str]) -> str:
        broken = steps[-draw.choice([1, 1, 1, 1, 1, 1, 1, 2, 2, len(steps)]) :]
        for step in broken:
            path = draw.choice([path for path in contents if path.parent == step])
            older = contents.get(steps[max(steps.index(step) - 1, 0)] / path.name, b"")
            other = draw.choice([older, others[path]])
            if draw.random() < 0.05:
                what.append(f"{path} deleted")
                (folder / "a" / path).unlink()
                continue
            content, how = damaged(contents[path], others[path] if other == contents[path] else other, draw)
            what.append(f"{path} {how}")
            (folder / "a" / path).write_bytes(content)
        try:
            result = _read(folder / "a")
            good = [step for step in steps if step not in broken]
            if not good or result != expected[good[-1]]:
                raise Wrong("the result is not that of the newest undamaged checkpoint")
            return OLDER
        except FormatError:
            if len(broken) < len(steps):
                raise
            return NOTICED
        finally:
            for step in broken:
                for path in contents:
                    if path.parent == step:
                        (folder / "a" / path).write_bytes(contents[path])

    return case


def _read(path: Path) -> str:
    arrays, meta = jfit.checkpoint.load_arrays(path), jfit.checkpoint.load_meta(path)
    text = json.dumps(meta, sort_keys=True).encode()
    for name in sorted(arrays):
        text += name.encode() + np.asarray(arrays[name]).tobytes()
    return hashlib.sha256(text).hexdigest()


def _resumed(folder: Path) -> Callable[[random.Random, list[str]], str]:
    """As `_checkpoint`, and the run is resumed from what is left."""
    reference = trained(folder / "whole")
    expected = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(reference.params)]
    trained(folder / "a")
    trained(folder / "b", seed=1)
    contents, others = _contents(folder / "a"), _contents(folder / "b")
    steps = sorted({path.parent for path in contents})

    def case(draw: random.Random, what: list[str]) -> str:
        for path in (folder / "a").glob("step-*/*"):
            path.unlink()
        for path, content in contents.items():
            (folder / "a" / path).parent.mkdir(exist_ok=True)
            (folder / "a" / path).write_bytes(content)
        path = draw.choice([path for path in contents if path.parent == steps[-1]])
        content, how = damaged(contents[path], others[path], draw)
        what.append(f"{path} {how}")
        (folder / "a" / path).write_bytes(content)
        run = trained(folder / "a", resume=True)
        if [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.params)] != expected:
            raise Wrong("the resumed run has other bits than the run that was not stopped")
        return OLDER

    return case


# ------------------------------------------------------------------------------------------------ single files
class Format(NamedTuple):
    """A kind of file.

    Attributes:
        content: a file.
        other: the same file of another run.
        read: file -> value; raises FormatError.
        is_faithful: (value, content) -> whether the value is what is in the content, by another way than `read`.
    """

    content: bytes
    other: bytes
    read: Callable[[Path], Any]
    is_faithful: Callable[[Any, bytes], bool] = lambda value, content: False


def _single(make: Callable[[Path], Format]) -> Callable[[Path], Callable[[random.Random, list[str]], str]]:
    def cases(folder: Path) -> Callable[[random.Random, list[str]], str]:
        form, path = make(folder), folder / "damaged"
        path.write_bytes(form.content)
        expected = _parts(form.read(path))

        def case(draw: random.Random, what: list[str]) -> str:
            content, how = damaged(form.content, form.other, draw)
            what.append(how)
            path.write_bytes(content)
            try:
                value = form.read(path)
            except FormatError:
                return NOTICED
            if _parts(value) == expected:
                return SAME
            if form.is_faithful(value, content):
                return VALUE
            if _differences(_parts(value), expected) > _differences([content], [form.content]):
                raise Wrong("the value has more changes than the file")
            return VALUE

        return case

    return cases


def _parts(value: Any) -> list[bytes]:
    """A value as a list of bytes: names, kinds, shapes and bits, in the order of the leaves."""
    if isinstance(value, dict):
        return [part for key, entry in value.items() for part in (*_parts(key), *_parts(entry))]
    if isinstance(value, (list, tuple)):
        return [part for entry in value for part in _parts(entry)]
    if isinstance(value, np.ndarray):
        return [f"{value.dtype} {value.shape}".encode(), value.tobytes()]
    if type(value) is int and value.bit_length() < 256:
        return [value.to_bytes(33, "little", signed=True)]
    return [value if isinstance(value, bytes) else repr(value).encode()]


def _differences(values: list[bytes], others: list[bytes]) -> int:
    """Number of bytes that differ; a large number if there are more parts, or parts of other sizes."""
    if [len(v) for v in values] != [len(v) for v in others]:
        return 1 << 40
    return sum(a != b for v, o in zip(values, others, strict=True) for a, b in zip(v, o, strict=True))


def _written_as(write: Callable[[Any], bytes]) -> Callable[[Any, bytes], bool]:
    return lambda value, content: write(value) == content


def _arrays(seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = {"arg:fc1_weight": (5, 6), "arg:fc1_bias": (5,), "arg:fc2_weight": (2, 5), "aux:bn_moving_mean": (5,)}
    return {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}


def _params(folder: Path) -> Format:
    return Format(dumps(_arrays(0)), dumps(_arrays(1)), lambda path: loads(path.read_bytes(), str(path)), _written_as(dumps))


def _states(folder: Path) -> Format:
    def content(seed: int) -> bytes:
        states = dict(enumerate(_arrays(seed).values()))
        return dump_states(states, dict.fromkeys(states, 7), 7)

    whole = load_states(content(0))

    def read(path: Path) -> Any:  # counts are left out if the states do not match their digest, as those that MXNet changed
        states = load_states(path)
        return tuple(whole if value in (None, {}) else value for value, whole in zip(states, whole, strict=True))

    return Format(content(0), content(1), read, _written_as(lambda states: dump_states(states[0])))


def _tensors(folder: Path) -> Format:
    def content(seed: int) -> bytes:
        return save_tensors(folder / "written", _arrays(seed), sync=False).read_bytes()

    def write(value: Any) -> bytes:
        return save_tensors(folder / "written", value[0], metadata=value[1] or None, sync=False).read_bytes()

    return Format(content(0), content(1), load_tensors, _written_as(write))


def _records(folder: Path) -> Format:
    def write(records: list[bytes]) -> bytes:
        with RecordWriter(folder / "written") as file:
            for record in records:
                file.write(record)
        return (folder / "written").read_bytes()

    def read(path: Path) -> list[bytes]:
        with RecordReader(path) as file:
            return list(iter(file.read, None))

    contents = [write([random.Random(f"{seed} {i}").randbytes(20 + 13 * i) for i in range(8)]) for seed in range(2)]
    return Format(contents[0], contents[1], read, _written_as(write))


def _symbol(folder: Path) -> Format:
    def read(path: Path) -> Any:
        return jfit.sym.load(str(path)).tojson(remove_amp_cast=False)

    def is_faithful(text: str, content: bytes) -> bool:
        return _nodes(json.loads(text)) == _nodes(json.loads(content))

    one, other = (network(dropout).tojson().encode() for dropout in (0.0, 0.5))
    return Format(one, other, read, is_faithful)


def _nodes(graph: Any) -> list[Any]:
    """The nodes on which the outputs of a graph file depend: operator, name, attributes and inputs of each."""

    def node(entry: Any) -> Any:
        item = graph["nodes"][entry[0]]
        attrs = {**item.get("attr", {}), **item.get("attrs", {})}
        return item["op"], item["name"], attrs, [node(source) for source in item["inputs"]], entry[1]

    return [node(head) for head in graph["heads"]]


def _position(folder: Path) -> Format:
    def read(path: Path) -> Any:
        try:
            state = decode(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise FormatError(path, "content", str(error), "save it again.") from error
        iterator = _iterator(0)
        try:
            iterator.load_state_dict(state)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise FormatError(path, "state", str(error), "save it again.") from error
        rows = [batch.index for batch in iterator]
        if any(row < 0 or row >= len(X) for batch in rows for row in batch):
            raise Wrong("the iterator yields rows that do not exist")
        return encode(iterator.state_dict())

    contents = [json.dumps(encode(_begun(seed).state_dict())).encode() for seed in range(2)]
    return Format(contents[0], contents[1], read)


def _begun(seed: int) -> NDArrayIter:
    iterator = _iterator(seed)
    iterator.next()
    return iterator


KINDS = {
    "checkpoint": _checkpoint,
    "checkpoint, run resumed": _resumed,
    ".params": _single(_params),
    ".states": _single(_states),
    "symbol.json": _single(_symbol),
    ".rec": _single(_records),
    "safetensors": _single(_tensors),
    "iterator position": _single(_position),
}
SHARES = {
    "checkpoint": 0.45,
    "checkpoint, run resumed": 0.02,
    ".params": 0.12,
    ".states": 0.1,
    "symbol.json": 0.1,
    ".rec": 0.08,
    "safetensors": 0.08,
    "iterator position": 0.05,
}
