"""Fuzz tests: for any bytes, a reader returns a value or raises a FormatError with the position, in bounded memory.

`fuzz/run.py` runs the same targets with atheris for hours; the failures that it found are regression cases here.
"""

import json
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from fuzz import targets
from jfit.formats import FormatError, load_states, save_tensors
from jfit.graph.serial import GraphFileError

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = {
    "arrays": [path.read_bytes() for path in targets.TARGETS["arrays"].seeds],
    "states": [path.read_bytes() for path in targets.TARGETS["states"].seeds],
    "graph": [path.read_bytes() for path in targets.TARGETS["graph"].seeds if path.stat().st_size < 12_000],
    "mutant": [b"seed"],
    "header": [b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"__metadata__":{"k":"v"}}\nabcd'],
}


@pytest.fixture(scope="module", autouse=True)
def _tensors(tmp_path_factory):
    path = save_tensors(tmp_path_factory.mktemp("seeds") / "a.safetensors", {"a": np.ones((2, 3)), "b": np.int8([1])})
    SAMPLES["tensors"] = [path.read_bytes()]


@st.composite
def damaged(draw, name):
    """A good file with bytes changed, cut out, repeated, or with words of its kind put in."""
    raw = bytearray(draw(st.sampled_from(SAMPLES[name])))
    words = st.sampled_from([b"", b"\xff\xff\xff\xff", b"-1", b"1e9", b"[", b'"', b"\x00" * 8, *targets.TARGETS[name].words])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(raw) - 1)))
        upto = at + draw(st.sampled_from([0, 1, 1, 4, 8, 40]))
        raw[at:upto] = draw(st.one_of(st.binary(max_size=8), words))
    return bytes(raw)


@pytest.mark.slow
@pytest.mark.repetitions(3)
@pytest.mark.parametrize("name", ["arrays", "states", "graph", "mutant", "header", "tensors"])
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_read_or_raises_in_bounded_memory(name, data):
    targets.check(name, data.draw(damaged(name)))


@pytest.mark.parametrize("name", ["arrays", "states", "graph", "header", "tensors"])
@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=300))
def test_random_bytes_raise_a_format_error(name, data):
    targets.check(name, data)


# ------------------------------------------------------------------------------------------ graphs
def graph(*nodes, heads=((0, 0),), **top):
    return json.dumps({"nodes": list(nodes), "heads": [list(h) for h in heads], **top})


X = {"op": "null", "name": "x", "inputs": []}


def node(op, *inputs, name="n", **attrs):
    return {"op": op, "name": name, "attrs": {k: str(v) for k, v in attrs.items()}, "inputs": [list(i) for i in inputs]}


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("[" * 200_000, "top level", "nested too deep"),
        ('{"nodes":\n [,', "line 2, column 3", "not valid JSON"),
        (graph(X) + "x", "line 1", "Extra data"),
        ('{"nodes": [{"op": "null", "name": "' + "\\ud800" + '"}], "heads": [[0, 0]]}', "node 0", "a lone surrogate"),
        (graph({"op": "null", "name": "x" * 5000}), "node 0", "the name has 5000 characters, the maximum is 4096"),
        (graph(X, node("relu", (1, 0)), heads=[(1, 0)]), "node 1 ('n')", "refers to node 1, but only the 1 earlier"),
        (graph(X, node("relu", (2, 0)), node("relu", (1, 0)), heads=[(1, 0)]), "node 1 ('n')", "refers to node 2"),
        (graph(X, node("relu", (10**30, 0))), "node 1 ('n')", "refers to node 1000000"),
        (graph(X, node("relu", (0, -1))), "node 1 ('n')", "refers to output -1 of 'x', which has 1"),
        (graph(X, node("SliceChannel", (0, 0), num_outputs=10**12)), "node 1 ('n')", "num_outputs=1000000000000, the maximum"),
        (graph(X, node("SliceChannel", (0, 0), num_outputs="1_000_000_000")), "node 1 ('n')", "the maximum is 100000"),
        (graph(X, *[node("SliceChannel", (0, 0), num_outputs=60_000)] * 2), "node 2 ('n')", "more than 100000 outputs"),
        (graph(X, node("SliceChannel", (0, 0), num_outputs=-5), heads=[(1, 0)]), "", "output 0"),
        (graph(X, node("Concat", (0, 0), num_args=10**12)), "node 1 ('n')", "num_args=1000000000000, but the node has 1"),
        (graph(X, node("Concat", (0, 0), num_args=-1)), "node 1 ('n')", "num_args=-1, but the node has 1"),
        (graph(X, node("BatchNorm", (0, 0), use_global_stats="Fal0se")), "node 1 ('n')", "use_global_stats is 'Fal0se'"),
        (graph(X, node("Crop", num_args=0)), "node 1 ('n')", "Crop"),
        (graph(X, node("relu" * 100_000, (0, 0))), "node 1 ('n'), field 'op'", "unknown operator"),
        (graph({"op": "null", "name": "x" * 4000}, heads=[(0, 0)] * 3000), "field 'heads'", "more than 10000000 characters"),
        ('{"nodes": [NaN], "heads": [[0, 0]]}', "node 0", "expected an object with the strings 'op' and 'name', found nan"),
        (graph(X, {**node("relu", (0, 0)), "inputs": [[0, 0.0]]}), "node 1 ('n')", "an input is [0, 0.0]"),
    ],
)
def test_a_malformed_graph_raises_with_the_position(tmp_path, text, where, message):
    path = tmp_path / "bad-symbol.json"
    path.write_text(text)
    with pytest.raises(GraphFileError) as caught:
        jfit.sym.load(path).list_outputs()
    assert isinstance(caught.value, FormatError) and isinstance(caught.value, jfit.sym.GraphError)
    assert caught.value.path == str(path) and caught.value.where.startswith(where) and message in caught.value.problem
    assert len(str(caught.value)) < 2000
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_last_of_two_equal_fields_is_used_as_in_mxnet():
    text = '{"nodes": [{"op": "null", "name": "a", "name": "b", "attrs": {"k": "1", "k": "2"}}], "heads": [[0, 0]]}'
    assert jfit.sym.load_json(text).attr_dict() == {"b": {"k": "2"}}


def many(item, count, first=5):
    inputs = ",".join(['{"op":"null","name":"x"}'] * first)
    return ('{"nodes":[' + ",".join([inputs, *[item] * count]) + '],"heads":[[0,0]]}').encode()


@pytest.mark.slow
@pytest.mark.repetitions(2)
@pytest.mark.parametrize(
    "data",
    [
        many('{"op":"null","name":""}', 20_000),
        many('{"op":"BatchNorm","name":"","inputs":[[0,0]]}', 10_000),
        many('{"op":"BatchNorm","name":"","inputs":[]}', 10_000, first=1),
        many('{"op":"Pooling","name":"","inputs":[[0,0]]}', 10_000),
        many(
            '{"op":"BatchNorm","name":"","inputs":[[0,0]],"attrs":{' + ",".join(f'"{i:x}":""' for i in range(300)) + "}}", 300
        ),
        b'{"nodes":[],"heads":[' + b"{}," * 300_000 + b"0]}",
        b'{"nodes":[{"op":"null","name":"x"}],"heads":[' + b"[0,0]," * 50_000 + b"[0,0]]}",
    ],
    ids=["variables", "states", "inputs", "defaults", "attributes", "objects", "heads"],
)
@pytest.mark.repetitions(slow=4)
def test_a_graph_file_takes_at_most_64_times_its_size(data):
    # With 8 MB on top in place of 64: files of any size keep it.
    text = data.decode()
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jfit.sym.load_json(text)
    except FormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 * len(data) + (8 << 20), peak / len(data)


# ------------------------------------------------------------------------------------------ pickles
class Call:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


MARK = "code of a pickle ran"
PAYLOADS = {
    "system": Call(os.system, f"echo {MARK}"),
    "popen": Call(subprocess.Popen, ["echo", MARK]),
    "eval": Call(eval, f"print('{MARK}')"),
    "exec": Call(exec, f"print('{MARK}')"),
    "print": Call(print, MARK),
    "import": Call(__import__, "this"),
    "getattr": Call(getattr, "a", "upper"),
    "nested": [Call(map, Call(print, MARK), [1])],
    "numpy": Call(np.load, "/etc/passwd"),
    "memmap": Call(np.memmap, "/etc/passwd"),
    "open": Call(open, "/etc/passwd"),
}


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_reading_a_pickle_runs_no_code(name, protocol, capfd):
    data = pickle.dumps({0: PAYLOADS[name]}, protocol)
    with pytest.raises(FormatError, match="not allowed"):
        load_states(data)
    assert MARK not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'echo x'\ntR.",
        b"(S'echo x'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'echo x'\no.",  # OBJ
        b"\x80\x02ccopyreg\n_reconstructor\n(cos\nsystem\nc__builtin__\nobject\nNtR.",
        b"\x80\x02cmxnet.optimizer\nos.system\n)R.",
        b"\x80\x04\x8c\x0fmxnet.optimizer\x8c\x14__class__.__bases__\x6e\x93.",
        b"\x80\x02\x82\x01.",  # EXT1: copyreg's extension registry
        b"\x80\x02cbuiltins\nbytearray\n}b.",
        b"\x80\x02ccollections\nOrderedDict\n)R}(X\x09\x00\x00\x00__class__K\x01ub.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncos\nsystem\n\x85R.",
    ],
)
def test_indirect_ways_to_run_code_in_a_pickle_raise(data):
    with pytest.raises(FormatError):
        load_states(data)


# ------------------------------------------------------------------------------------------ the process as a whole
LIMITED = """
import resource, sys
import jfit
from jfit.formats import FormatError, load_arrays, load_states, load_tensors
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
read = {"params": load_arrays, "states": load_states, "safetensors": load_tensors, "json": jfit.sym.load}
for path in sys.argv[1:]:
    try:
        print("read", read[path.rsplit(".", 1)[-1]](path))
    except FormatError as error:
        print("refused", error.where)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_small_files_that_declare_large_sizes_use_little_memory(tmp_path):
    head = struct.pack("<QQQ", 0x112, 0, 1)
    files = {
        "count.params": struct.pack("<QQQ", 0x112, 0, 2**40),
        "shape.params": head + struct.pack("<Iiiqiii", 0xF993FAC9, 0, 1, 2**33, 1, 0, 0),
        "names.params": head + struct.pack("<IiiqiiifQQ", 0xF993FAC9, 0, 1, 1, 1, 0, 0, 1.0, 1, 2**40),
        "memo.states": b"\x80\x04}r\xff\xff\xff\x7f.",
        "bytes.states": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        "long.safetensors": struct.pack("<Q", 2**40) + b"{}",
        "shape.safetensors": struct.pack("<Q", 62) + b'{"a":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,4]}}',
        "split.json": graph(X, node("SliceChannel", (0, 0), num_outputs=10**11)).encode(),
        "args.json": graph(X, node("add_n", (0, 0), num_args=10**11)).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    run = [sys.executable, "-c", LIMITED, *(str(tmp_path / name) for name in files)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "read" if n == "memo.states" else "refused" for n in files
    ]


def test_shapes_of_quantized_batch_norm_reach_its_states():
    data = jfit.sym.Variable("data", dtype="int8")
    net = jfit.sym._contrib_quantized_batch_norm(data, min_calib_range=-1, max_calib_range=1, name="n")
    arguments, _, states = net.infer_shape_partial(data=(2, 3, 4, 4))
    assert states == [(3,), (3,)] and (3,) in arguments
