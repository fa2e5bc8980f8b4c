"""Fuzz targets: for any bytes, a file reader must return a value or raise a FormatError with a position, in bounded memory.

A target is a function of bytes with a list of seed files. `tests/faults/test_fuzz.py` runs the targets with hypothesis,
`fuzz/run.py` with atheris.
"""

from __future__ import annotations

import json
import os
import random
import struct
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jfit.formats import FormatError, SparseArray, bounded_dense, load_tensors
from jfit.formats.mxnet_arrays import loads
from jfit.formats.mxnet_states import load_states
from jfit.graph import load
from jfit.graph.nodes import GraphError
from jfit.graph.serial import GraphFileError
from jfit.ops import ALIASES, REGISTRY

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
MOST = 64 << 20  # memory limit in bytes, in addition to 64 times the size of the input
_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
FILE = _FOLDER / f"jfit-fuzz-{os.getpid()}"


class Broken(AssertionError):
    """A reader violated its contract (see `check`)."""


class Target(NamedTuple):
    """A reader under test.

    Attributes:
        read: reads bytes and uses the result; raises FormatError if the bytes are not a valid file.
        seeds: files to start fuzzing from.
        words: byte strings with a meaning in such files, for libFuzzer's dictionary.
    """

    read: Callable[[bytes], Any]
    seeds: list[Path]
    words: tuple[bytes, ...] = ()


def _arrays(data: bytes) -> None:
    arrays = loads(data, "fuzzed")
    for value in arrays.values() if isinstance(arrays, dict) else arrays:
        if isinstance(value, SparseArray):
            bounded_dense(value, "fuzzed", "array")


def _states(data: bytes) -> None:
    load_states(data, "fuzzed")


def _tensors(data: bytes) -> None:
    FILE.write_bytes(data)
    load_tensors(FILE)


def _header(data: bytes) -> None:
    """A safetensors file from a header line and values; inserts the header length, which a fuzzer cannot guess."""
    header, _, values = data.partition(b"\n")
    _tensors(struct.pack("<Q", len(header)) + header + values)


def _graph(data: bytes) -> None:
    FILE.write_bytes(data)
    net = load(FILE)
    try:
        net.list_arguments(), net.list_outputs(), net.list_auxiliary_states(), net.attr_dict()
        net.infer_shape_partial()
        net.infer_type()
    except GraphError as error:
        assert str(error) and not isinstance(error, GraphFileError)
    again = net.tojson(remove_amp_cast=False)
    FILE.write_text(again, encoding="utf-8")
    if load(FILE).tojson(remove_amp_cast=False) != again:
        raise Broken("a graph that was loaded and saved loads as a different graph")


_ODD = [
    *(
        "",
        "-1",
        "0",
        "1e9",
        "nan",
        "None",
        "(",
        "()",
        "(0, 0)",
        "(-1, 2)",
        "(1, 2, 3, 4, 5, 6)",
        "True",
        "float16",
        "12",
        "x" * 50,
    ),
    *(None, True, -1, 0, 1, 7, 10**30, 0.5, [], [[0, 0]], [[0, 0, 0, 0]], {}, {"": ""}, ["0", 0]),
]


def _mutant(data: bytes) -> None:
    """Mutate operators, attributes, inputs and fields of a valid graph; the bytes seed the choices, so it stays valid JSON."""
    choose = random.Random(data)
    seeds = [path for path in TARGETS["graph"].seeds if path.stat().st_size < 50_000 and path.name != "manifest.json"]
    graph = json.loads(choose.choice(seeds).read_text(encoding="utf-8"))
    nodes = graph["nodes"]
    for _ in range(choose.randint(1, 4)):
        node, what = choose.choice(nodes), choose.randrange(6)
        if what == 0:
            node["op"] = choose.choice(_OPERATORS)
        elif what == 1:
            op = node.get("op")
            known = REGISTRY[ALIASES[op]].attrs if isinstance(op, str) and op in ALIASES else {}
            attrs = node.setdefault("attrs", {})
            if isinstance(attrs, dict):
                attrs[choose.choice([*attrs, *known, "__shape__", "__dtype__", "weight_lr_mult"])] = choose.choice(_ODD)
        elif what == 2 and isinstance(node.get("inputs"), list):
            node["inputs"] = [
                *node["inputs"][: choose.randrange(6)],
                *[[choose.randrange(-1, len(nodes)), 0]] * choose.randrange(3),
            ]
        elif what == 3:
            node[choose.choice(["op", "name", "inputs", "attrs", "attr", "param", "subgraphs"])] = choose.choice(_ODD)
        elif what == 4:
            graph[choose.choice(["nodes", "heads", "attrs"])] = choose.choice(_ODD)
        else:
            graph["attrs"] = {"mxnet_version": ["int", choose.choice([800, 900, 904, 1100, 10901])]}
    _graph(json.dumps(graph).encode())


def _golden(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in GOLDEN.glob(pattern))


_FIELDS = b"nodes heads op name inputs attrs attr param null subgraphs num_args num_outputs sections kernel mxnet_version"
_OPERATORS = sorted(ALIASES)
TARGETS = {
    "arrays": Target(_arrays, _golden("checkpoint/*.params", "checkpoint/*.v0")),
    "states": Target(_states, _golden("checkpoint/*.states"), (b"cbuiltins\n", b"cmxnet.", b"\x80\x04", b"handle")),
    "header": Target(_header, [], (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\nabcd', b"__metadata__", b"BF16")),
    "tensors": Target(_tensors, [], (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"__metadata__")),
    "mutant": Target(_mutant, []),
    "graph": Target(_graph, _golden("models/*.json", "checkpoint/*.json"), (*_FIELDS.split(), b"__shape__")),
}


def check(name: str, data: bytes) -> bool:
    """Read the bytes with a target's reader and check the reader's contract.

    Args:
        name: key of `TARGETS`.
        data: contents of the file.

    Returns:
        True if the bytes are a valid file, False if the reader raised a FormatError.

    Raises:
        Broken: the FormatError has no position or description, or the reader used too much memory. Any other exception of
            the reader propagates, which is a failure too.
    """
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[name].read(data)
        good = True
    except FormatError as error:
        if not error.where or not error.problem or len(str(error)) > 2000:
            raise Broken(f"{name}: the message {str(error)[:200]!r} has no position or problem, or is too long") from error
        good = False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        FILE.unlink(missing_ok=True)
    if peak > MOST + 64 * len(data):
        raise Broken(f"{name}: reading {len(data)} bytes used {peak} bytes of memory")
    return good
