"""MXNet's array files and optimizer-state files: recorded files are read and written again, malformed ones raise."""

import pickle
import struct
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jfit.formats import FormatError
from jfit.formats.mxnet_arrays import V1, V2, V3, dump_record, dumps, load_arrays, loads, save_arrays
from jfit.formats.mxnet_states import States, dump_states, load_states
from jfit.formats.pickles import Inert
from jfit.formats.sparse import SparseArray
from jfit.mxnet.mutable import MutableArray

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint"


def dense(array):
    return array.todense() if isinstance(array, SparseArray) else array


def same(got, want):
    got = dense(got)
    assert got.dtype == want.dtype and got.shape == want.shape
    assert got.tobytes() == want.tobytes()


def head(count):
    return struct.pack("<QQQ", 0x112, 0, count)


def record(version, shape, data=b"", dtype=0, stype=0):
    start = struct.pack("<Ii", version, stype) if version != V1 else struct.pack("<I", version)
    return start + struct.pack(f"<i{len(shape)}q", len(shape), *shape) + struct.pack("<iii", 1, 0, dtype) + data


NONE = struct.pack("<Q", 0)  # no names


# ------------------------------------------------------------------------------------------ files that MXNet wrote


@pytest.mark.parametrize("file", sorted(p.name for p in GOLDEN.glob("*.params")))
def test_what_mxnet_wrote_is_written_again_byte_for_byte(file):
    assert dumps(load_arrays(GOLDEN / file)) == (GOLDEN / file).read_bytes()


# ------------------------------------------------------------------------------------------ writing
@pytest.mark.parametrize(
    ("arrays", "version"),
    [([np.ones(2)], V2), ([np.ones(())], V3), ([np.ones(2), np.ones((0, 3))], V3), ([np.ones(2), None], V2)],
)
def test_version_3_is_written_where_version_2_cannot_represent_an_array(arrays, version):
    data = dumps(arrays)
    assert struct.unpack_from("<I", data, 24)[0] == version
    for got, want in zip(loads(data), arrays, strict=True):
        assert got is None if want is None else (got == want).all() and got.shape == want.shape


def test_device_arrays_mutable_arrays_and_lists_are_written():
    got = loads(dumps({"a": jnp.ones((2,), jnp.bfloat16), "b": MutableArray(jnp.arange(3)), "c": [1.5, 2.5], "d": None}))
    assert got["a"].dtype == ml_dtypes.bfloat16 and got["b"].tolist() == [0, 1, 2] and got["c"].tolist() == [1.5, 2.5]
    assert got["d"] is None
    assert isinstance(loads(dumps(iter([np.ones(1)]))), list)
    assert loads(dumps({})) == [] == loads(dumps([]))


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[::-1], lambda x: x.astype(">f4")])
def test_memory_layout_never_changes_values(view):
    array = view(np.arange(12, dtype=np.float32).reshape(3, 4))
    got = loads(dumps([array]))[0]
    assert got.dtype == np.float32 and got.tolist() == array.tolist()


def test_unsupported_values_raise_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="array 'w' has dtype complex64, expected one of float32"):
        save_arrays(tmp_path / "a.params", {"b": np.ones(1), "w": np.ones(1, "complex64")})
    with pytest.raises(ValueError, match="array 0 is a csr array of shape \\(1, 1\\), but its indices range from 7 to 7"):
        dumps([SparseArray("csr", np.ones(1), (np.array([0, 1]), np.array([7])), (1, 1))])
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ hostile array files
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: the file's first number needs 8 bytes, 0 are left"),
        (b"PK\x03\x04" * 8, "expected 0x112; this is not an array file of MXNet"),
        (head(2**63) + NONE, "a list of 9223372036854775808 arrays needs .* 8 are left"),
        (
            head(1) + struct.pack("<II", 0xF993FAC7, 0) + NONE,
            "array 0, byte 28: found 0xf993fac7, expected the version number of an array record",
        ),
        (head(1) + record(V2, (2**35,)) + NONE, r"shape \(34359738368,\) of float32 needs 137438953472 bytes, 8 are left"),
        (head(1) + record(V2, (2**21,) * 4) + NONE, "has negative or impossibly large sizes"),
        (head(1) + record(V3, (0, 2**62, 2**62)) + NONE, "has negative or impossibly large sizes"),
        (head(1) + record(V3, (0, 2**30, 2**30)) + NONE, "has negative or impossibly large sizes"),
        (head(1) + record(V2, (-1,)) + NONE, r"shape \(-1,\) has negative or impossibly large sizes"),
        (head(1) + record(V2, (1,) * 65) + NONE, "a shape has 65 axes, expected at most 64"),
        (head(1) + struct.pack("<Iii", V2, 0, -5) + NONE * 9, "a shape has -5 axes"),
        (head(1) + struct.pack("<Iii", V2, 0, 2**31 - 1) + NONE * 9, "a shape has 2147483647 axes"),
        (head(1) + struct.pack("<Ii", V2, 7) + NONE, "unknown storage type 7"),
        (head(1) + record(V2, (1,), b"\0" * 8, dtype=13) + NONE, "unknown dtype code 13, expected 0 to 12; cast the array"),
        (head(1) + record(V2, (1,), b"\0" * 4) + NONE + b"x", "names, byte 68: 1 bytes follow the end"),
        (
            head(1) + record(V1, (1,), b"\0" * 4) + struct.pack("<Q", 2) + struct.pack("<QQ", 0, 0),
            "the names",
        ),
        (head(1) + record(V1, (1,), b"\0" * 4) + struct.pack("<QQ", 1, 2**40), "a name needs 1099511627776 bytes, 0 are left"),
        (head(1) + record(V1, (1,), b"\0" * 4) + struct.pack("<QQ", 1, 1) + b"\xff", "'utf-8' codec can't decode byte 0xff"),
        (head(2) + b"\0" * 8 + struct.pack("<QQ", 2, 1) + b"x" + struct.pack("<Q", 1) + b"x", "a name occurs twice"),
    ],
)
def test_a_broken_array_file_raises(tmp_path, data, message):
    with pytest.raises(FormatError, match=f"^net.params: .*{message}"):
        loads(data, "net.params")
    (tmp_path / "bad.params").write_bytes(data)
    with pytest.raises(FormatError, match=f"bad.params: .*{message}"):
        load_arrays(tmp_path / "bad.params")


def sparse_record(stype, storage, shape, aux, data):
    def sizes(shape):
        return struct.pack(f"<i{len(shape)}q", len(shape), *shape)

    out = struct.pack("<Ii", V2, stype) + sizes(storage) + sizes(shape) + struct.pack("<iii", 1, 0, 0)
    out += b"".join(struct.pack("<i", 6) + sizes((len(a),)) for a in aux)
    return head(1) + out + np.float32(data).tobytes() + b"".join(np.int64(a).tobytes() for a in aux) + NONE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (sparse_record(1, (1, 2), (3, 2), [[3]], [1, 1]), "its indices range from 3 to 3, expected 0 to 2"),
        (sparse_record(1, (1, 2), (3, 2), [[-1]], [1, 1]), "its indices range from -1 to -1"),
        (sparse_record(1, (1, 2), (3, 4), [[0]], [1, 1]), "1 row indices do not match"),
        (sparse_record(2, (1,), (2, 2), [[0, 1], [0]], [1]), "its indptr of size 2 does not increase"),
        (sparse_record(2, (1,), (2, 2), [[0, 5, 1], [0]], [1]), "its indptr of size 3 does not increase"),
        (sparse_record(2, (1,), (2, 2), [[0, 1, 1], [2]], [1]), "its indices range from 2 to 2, expected 0 to 1"),
        (sparse_record(2, (1,), (2, 2), [[0, 1, 1], [0, 1]], [1]), "2 column indices do not match"),
    ],
)
def test_an_inconsistent_sparse_array_raises(data, message):
    with pytest.raises(FormatError, match=message):
        loads(data)


# ------------------------------------------------------------------------------------------ .states


# trainer_*.states, sparse.states and protocol0.states were written by MXNet 1.9.1 (gluon Trainer, and pickle of NDArrays).
def test_a_trainers_file_gives_the_counts_and_the_optimizer_as_data():
    read = load_states(GOLDEN / "trainer_adam.states")
    assert read.counts == {0: 2, 1: 2} and read.num_update == 2
    assert read.optimizer.name == "mxnet.optimizer.optimizer.Adam" and read.optimizer.attributes["beta1"] == 0.9
    schedule = read.optimizer.attributes["lr_scheduler"]
    assert schedule.name == "mxnet.lr_scheduler.MultiFactorScheduler" and schedule.attributes["step"] == [1, 2]
    assert [part.shape for part in read.states[1]] == [(2, 3), (2, 3)]
    assert load_states(GOLDEN / "trainer_rmsprop.states").optimizer.attributes["gamma1"] == np.float64(0.9)
    assert "Adam with rescale_grad, " in repr(read.optimizer)


def test_sparse_states_and_the_oldest_pickle_protocol_are_read():
    read = load_states(GOLDEN / "sparse.states").states
    assert read[0].todense().tolist() == [[0, 0], [1, 1], [0, 0]] and read[1].stype == "csr"
    assert read["w"][0].tolist() == [1, 1] and read["w"][1] is None and read["e"][0].tolist() == [1, 1]
    assert load_states(GOLDEN / "protocol0.states").states[0][0].tolist() == [1, 1]


class StandIn:
    """What an unpickler without MXNet puts in the place of NDArray: its call and its state."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __setstate__(self, state):
        self.state = state


class Lenient(pickle.Unpickler):
    def find_class(self, module, name):
        return StandIn if module.startswith("mxnet.") else super().find_class(module, name)


def test_pythons_own_unpickler_reads_what_is_written_as_mxnets_ndarrays(tmp_path):
    # Checked once with MXNet 1.9.1 itself: Module.load_optimizer_states takes a file with `__jfit__`, trains on to the same
    # numbers as from MXNet's own file (adam, sgd, sgd without momentum; by index, and by name in a KVStore), and
    # Trainer.load_states takes it too.
    (tmp_path / "a.states").write_bytes(dump_states({0: np.float32([1, 2])}, {0: 1}, 1))
    with open(tmp_path / "a.states", "rb") as file:
        read = Lenient(file).load()
    assert read[0].arguments == (None,) and read[0].state == {"handle": bytearray(dump_record(np.float32([1, 2])))}
    assert read["__jfit__"]["counts"] == {0: 1}


def test_a_trainers_file_is_written_again_with_its_optimizer():
    # Checked once with MXNet 1.9.1 itself: the optimizer and its schedule unpickle with equal attributes.
    read = load_states(GOLDEN / "trainer_adam.states")
    again = load_states(dump_states(read.states, optimizer=read.optimizer))
    assert again.counts == read.counts and again.num_update == 2
    assert again.optimizer.attributes["lr_scheduler"].attributes == read.optimizer.attributes["lr_scheduler"].attributes
    assert again.states[0][0].tolist() == read.states[0][0].tolist()


def test_update_counts_that_mxnet_left_stale_are_ignored():
    # MXNet 1.9.1 loaded jfit's file, trained four batches and saved: `__jfit__` is still there, with the old counts.
    data = (GOLDEN / "adam_trained_on.states").read_bytes()
    assert b"__jfit__" in data
    assert load_states(data).counts is None and list(load_states(data).states) == list(range(6))
    # Without states there is nothing to see it by: documented.
    assert load_states(GOLDEN / "sgd_nomom_trained_on.states").num_update == 8


def test_values_that_a_states_file_cannot_store_raise():
    with pytest.raises(TypeError, match=r"a set cannot be written: a \.states file has only arrays"):
        dump_states({0: {1}})
    with pytest.raises(TypeError, match="state 0 has dtype complex64"):
        dump_states({0: np.ones(1, "complex64")})


# ------------------------------------------------------------------------------------------ hostile pickles
def deep(count):
    return b"\x80\x04)" + b"\x85" * count


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({0: Path("x")}), "it uses pathlib.PosixPath, which is not allowed; only MXNet's arrays"),
        (b"\x80\x04cmxnet.optimizer.optimizer\nSGD\n\x8c\x01x\x81.", "found a Inert, expected a dict"),
        (b"\x80\x04}K\x01)R.", "int is called, which is not allowed"),
        (b"\x80\x04cnumpy\nfloat32\n)R.", "<name numpy.float32> is called"),
        (b"\x80\x04}K\x01b.", "'dict' object has no attribute 'set_state'"),
        (b"\x80\x04}r\xff\xff\xff\x7fj\xfe\xff\xff\x7f.", r"the pickle is invalid \(KeyError: 2147483646\)"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b"x.", "expected 4611686018427387904 bytes"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.", "expected 4611686018427387904 bytes"),
        (b"\x80\x04cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "a bytes-like object is required, not 'int'"),
        (b"\x80\x04}" + deep(100_000)[2:] + b"Ns.", "a tuple is used as a key"),
        (b"\x80\x04}K\x00" + deep(100_000)[2:] + b"s.", "state '0': its nesting is too deep or too large"),
        (b"\x80\x04}K\x00]\x94h\x00as.", "state '0': its nesting is too deep or too large"),
        (b"\x80\x04}K\x00N" + b"2\x86" * 12 + b"s.", "state '0': its nesting is too deep or too large"),
        (b"\x80\x04K\x01.", "found a int, expected a dict with integers or names as keys"),
        (b"\x80\x04}G" + bytes(8) + b"Ns.", "expected a dict with integers or names as keys"),
        (
            b"\x80\x04}K\x00cmxnet.optimizer\nSGD\n)\x81s.",
            "state '0': found <mxnet.optimizer.SGD with no attributes>, expected arrays",
        ),
        (b"\x80\x04}P1\n.", "the pickle operation PERSID is unsupported"),
        (b"\x80\x04}I" + b"9" * 5000 + b"\nNs.", "the pickle is invalid"),
        (b"\x80\x04}\x8a\xff" + b"\x7f" * 255 + b"Ns.", "a number of more than 64 bits is used as a key"),
        (b"\x80\x04}.}", "1 bytes follow the end"),
        (b"\x80\x04}", "pickle exhausted before seeing STOP"),
        (b"\x80\x04u.", "pop from empty list"),
        (b"\x80\x04(K\x01u.", "the pickle is invalid"),
        (b"\x80\x04}(K\x01u.", "the pickle is invalid"),
        (b"", "pickle exhausted"),
        ((GOLDEN / "list.params").read_bytes(), "the pickle is invalid"),
    ],
)
def test_a_malicious_pickle_raises(data, message):
    with pytest.raises(FormatError, match=f"^bytes: .*{message}"):
        load_states(data)


def test_a_file_that_expands_exponentially_raises():
    text = b"X" + struct.pack("<I", 10_000) + b"a" * 10_000 + b"\x940"
    copies = b"(" + b"c_codecs\nencode\nh\x00\x85R" * 1000 + b"t"
    with pytest.raises(FormatError, match="it creates far more data than it contains"):
        load_states(b"\x80\x04" + text + b"}K\x00" + copies + b"s.")


def test_numpy_arrays_in_states_are_read_and_checked():
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((2, 3), ">f4")), np.zeros((0, 2)), np.array([True])):
        for protocol in range(6):
            got = load_states(pickle.dumps({0: array, 1: np.float32(2)}, protocol)).states
            same(got[0], np.ascontiguousarray(array).astype(array.dtype.newbyteorder("=")))
            assert got[1] == 2
    bad = pickle.dumps({0: np.zeros((2, 3))}).replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86")
    with pytest.raises(FormatError, match="buffer is too small for requested array"):
        load_states(bad)
    with pytest.raises(FormatError, match="a NumPy dtype is not a plain number type"):
        load_states(pickle.dumps({0: np.array([None])}))


def test_the_placeholder_of_a_pickled_class_runs_no_code():
    assert isinstance(load_states(GOLDEN / "trainer_adam.states").optimizer, Inert)
    assert States({}) == ({}, None, None, None)


def test_a_small_file_does_not_become_a_huge_dense_array(tmp_path):
    from jfit.formats.sparse import bounded_dense
    from jfit.mxnet import files
    from jfit.mxnet.gluon.parameter_dict import ParameterDict

    huge = SparseArray("row_sparse", np.zeros((0, 1024), "float32"), (np.zeros(0, np.int64),), (2**27, 1024))
    path = save_arrays(tmp_path / "a.params", {"arg:w": huge})
    with pytest.raises(FormatError, match=r"a\.params: array 'arg:w': a row_sparse array of shape \(134217728, 1024\)"):
        files.read_params(path)
    params = ParameterDict()
    params.get("w", shape=(0, 1024), allow_deferred_init=True)
    with pytest.raises(FormatError, match="array 'w'"):
        params.load(path)
    fine = SparseArray("row_sparse", np.zeros((0, 2), "float32"), (np.zeros(0, np.int64),), (2**24, 2))
    assert bounded_dense(fine, "a", "w", (2**24, 2)).shape == (2**24, 2)
    with pytest.raises(FormatError):
        bounded_dense(fine, "a", "w")
