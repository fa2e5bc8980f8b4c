"""What every reader of files promises for any bytes whatever: a value, or a FormatError that says where; bounded memory.

A target is a function of bytes and a list of files to start from.  `tests/test_fuzz.py` drives them with hypothesis,
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
MOST = 64 << 20  # bytes of memory, besides 64 times the file
_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
FILE = _FOLDER / f"jfit-fuzz-{os.getpid()}"


class Broken(AssertionError):
    """A promise that some bytes broke."""


class Target(NamedTuple):
    """A reader under test.

    Args:
      read: reads bytes and uses what it got; raises FormatError for what is no such file.
      seeds: files to start from.
      words: byte strings that mean something in such files.
    """

    read: Callable[[bytes], Any]
    seeds: list[Path]
    words: tuple[bytes, ...] = ()


def _arrays(data: bytes) -> None:
    found = loads(data, "fuzzed")
    for value in found.values() if isinstance(found, dict) else found:
        if isinstance(value, SparseArray):
            bounded_dense(value, "fuzzed", "array")


def _states(data: bytes) -> None:
    load_states(data, "fuzzed")


def _tensors(data: bytes) -> None:
    FILE.write_bytes(data)
    load_tensors(FILE)


def _header(data: bytes) -> None:
    """The header of a safetensors file, behind the right length: no fuzzer guesses that one."""
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
        raise Broken("a graph that was read and written reads as another one")


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
    """A small graph with operators, attributes, inputs and fields changed: the bytes choose, so that the text stays JSON."""
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
            given = node.setdefault("attrs", {})
            if isinstance(given, dict):
                given[choose.choice([*given, *known, "__shape__", "__dtype__", "weight_lr_mult"])] = choose.choice(_ODD)
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


def _found(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in GOLDEN.glob(pattern))


_FIELDS = b"nodes heads op name inputs attrs attr param null subgraphs num_args num_outputs sections kernel mxnet_version"
_OPERATORS = sorted(ALIASES)
TARGETS = {
    "arrays": Target(_arrays, _found("checkpoint/*.params", "checkpoint/*.v0")),
    "states": Target(_states, _found("checkpoint/*.states"), (b"cbuiltins\n", b"cmxnet.", b"\x80\x04", b"handle")),
    "header": Target(_header, [], (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\nabcd', b"__metadata__", b"BF16")),
    "tensors": Target(_tensors, [], (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"__metadata__")),
    "mutant": Target(_mutant, []),
    "graph": Target(_graph, _found("models/*.json", "checkpoint/*.json"), (*_FIELDS.split(), b"__shape__")),
}


def check(name: str, data: bytes) -> bool:
    """Reads the bytes and holds the reader to its promises.

    Returns:
      Whether they were a file of that kind.

    Raises:
      Broken: another error than FormatError, one that does not say where, or too much memory.
    """
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[name].read(data)
        good = True
    except FormatError as error:
        if not error.where or not error.problem or len(str(error)) > 2000:
            raise Broken(f"{name}: the message {str(error)[:200]!r} does not say what is wrong where") from error
        good = False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        FILE.unlink(missing_ok=True)
    if peak > MOST + 64 * len(data):
        raise Broken(f"{name}: {len(data)} bytes took {peak} bytes of memory")
    return good
