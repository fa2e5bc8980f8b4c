"""mx.nd: the mutable NDArray behaves as MXNet's does."""

import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import jfit.mx as mx
from jfit import counters
from jfit.formats.atomic import FormatError


def values(array):
    return array.asnumpy().tolist()


def test_arrays_are_float32_unless_the_source_is_an_ndarray_or_a_dtype_is_given():
    assert mx.nd.array(np.arange(2)).dtype is np.float32
    assert mx.nd.array([True, False]).dtype is np.float32
    assert mx.nd.array(mx.nd.ones(2, dtype="float16")).dtype is np.float16
    assert mx.nd.array([1, 2], dtype="int32").dtype is np.int32


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_64_bit_data_is_exact_until_the_first_computation(dtype):
    data = np.array([2**31 + 1, 3], dtype)
    box = mx.nd.array(data, dtype=dtype)
    assert box.dtype is np.dtype(dtype).type
    np.testing.assert_array_equal(box.asnumpy(), data)
    box[1] = 4
    assert box.asnumpy()[0] == data[0] and box.dtype is np.dtype(dtype).type
    assert (box[1:] + 1).asnumpy().tolist() == [5]


def test_the_source_numpy_array_may_be_overwritten_afterwards():
    source = np.zeros(1000, np.float32)
    made, written = mx.nd.array(source), mx.nd.ones(1000)
    written[:] = source
    source[:] = 7
    assert made.asnumpy().max() == 0 and written.asnumpy().max() == 0


def test_writing_in_place_keeps_shape_dtype_and_identity():
    a = mx.nd.zeros((2, 3), dtype="int32")
    alias = a
    a[:] = 2.7
    a[0, 1:] = np.array([5, 6])
    a += 1
    assert alias is a and values(a) == [[3, 6, 7], [3, 3, 3]] and a.dtype is np.int32


def test_rows_slices_and_reshapes_are_views():
    a = mx.nd.array(np.arange(6).reshape(2, 3))
    row, flat = a[1], a.reshape((-1,))
    row[:] = 9
    flat[0] = 4
    row += 1
    assert values(a) == [[4, 1, 2], [10, 10, 10]]
    a[:] = 0
    assert values(row) == [0, 0, 0] and values(flat) == [0] * 6


def test_index_arrays_return_copies_and_may_be_floats():
    a = mx.nd.array([[1, 2], [3, 4], [5, 6]])
    picked = a[mx.nd.array([0, 2])]
    picked[:] = 0
    assert values(a[[2, 0]]) == [[5, 6], [1, 2]]


def test_a_single_entry_has_one_axis():
    a = mx.nd.array([[1, 2], [3, 4]])
    assert a[0, 1].shape == (1,) and a[0][1].asscalar() == 2 and float(a[1, 1]) == 4
    assert a[..., 1, 1].shape == (1,) and a[0, ..., 1:].shape == (1,) and a[None, 0, 1].shape == (1,)
    a[0, 1][:] = 8
    assert values(a) == [[1, 8], [3, 4]]


def test_an_index_beyond_the_end_raises():
    with pytest.raises(IndexError):
        mx.nd.zeros((2, 3))[5]
    with pytest.raises(IndexError):
        mx.nd.zeros((2, 3))[0, -4] = 1


def test_python_scalars_keep_the_dtype_of_the_array():
    a = mx.nd.array([1, 2, 3], dtype="int32")
    found = [values(x) for x in (a + 1.5, a / 2, 1 / a, a % 2, a**2, -a, 5 - a, 2**a)]
    assert found == [[2, 3, 4], [0, 1, 1], [1, 0, 0], [1, 0, 1], [1, 4, 9], [-1, -2, -3], [4, 3, 2], [2, 4, 8]]
    assert (a + 1.5).dtype is np.int32


def test_comparisons_return_the_dtype_of_the_array():
    a = mx.nd.array([1, 2])
    assert values(a == a) == [1, 1] and values(a > 1) == [0, 1] and (a <= 1).dtype is np.float32
    assert a != None  # noqa: E711


def test_arrays_of_other_ranks_broadcast():
    assert (mx.nd.ones((2, 3)) + mx.nd.ones(3)).shape == (2, 3)
    assert values(mx.nd.ones(2) - mx.nd.ones((1, 2)) * 2) == [[-1, -1]]


def test_numpy_arrays_on_the_left_defer_to_the_ndarray():
    assert isinstance(np.float32(2) * mx.nd.ones(2), mx.nd.NDArray)
    assert isinstance(np.ones(2, "float32") - mx.nd.ones(2), mx.nd.NDArray)


def test_a_changed_scalar_does_not_recompile():
    a = mx.nd.ones((3, 5))
    a *= 0.5
    with counters.counted() as seen:
        for rate in (0.1, 0.2, 0.3):
            a *= rate
    assert seen["compiles"] == 0


def test_every_operator_is_a_function_and_a_method():
    a = mx.nd.array([[1, -2], [3, 4]])
    assert values(mx.nd.relu(a)) == values(a.relu()) == [[1, 0], [3, 4]]
    assert values(a.sum(axis=1)) == [-1, 7] and a.sum().shape == (1,)
    assert values(mx.nd.clip(a, 0, 3)) == values(a.clip(0, 3)) == [[1, 0], [3, 3]]
    assert a.reshape((0, 1, -1)).shape == (2, 1, 2) and a.T.shape == (2, 2) and a.transpose((1, 0)).shape == (2, 2)
    assert [p.shape for p in mx.nd.split(a, num_outputs=2, axis=0)] == [(1, 2), (1, 2)]
    assert mx.nd.concat(a, a, dim=0).shape == mx.nd.concatenate([a, a]).shape == (4, 2)
    assert values(mx.nd.maximum(a, 2)) == values(mx.nd.maximum(2, a)) == [[2, 2], [3, 4]]
    assert values(mx.nd.subtract(1, a)) == [[0, 3], [-2, -3]]


def test_out_receives_the_result_in_place():
    a, out = mx.nd.array([1, 4]), mx.nd.zeros(2)
    assert mx.nd.sqrt(a, out=out) is out and values(out) == [1, 2]


def test_inputs_may_be_passed_by_name():
    given = {"data": mx.nd.ones((1, 2)), "weight": mx.nd.ones((3, 2)), "bias": mx.nd.zeros(3)}
    assert values(mx.nd.FullyConnected(num_hidden=3, **given)) == [[2, 2, 2]]


def test_mismatched_shapes_raise():
    with pytest.raises(mx.MXNetError, match=r"dot does not accept float32\[2, 3\], float32\[2, 3\]"):
        mx.nd.dot(mx.nd.ones((2, 3)), mx.nd.ones((2, 3)))
    with pytest.raises(AttributeError, match="'relu'"):
        mx.nd.relux  # noqa: B018


def test_arrays_are_on_their_context():
    one = mx.cpu(1)
    a = mx.nd.ones(2, ctx=one)
    assert a.context == one and (a * 2).context == one and a.as_in_context(one) is a
    with one:
        assert mx.nd.zeros(1).context == one
    b = a.copyto(mx.cpu(0))
    b[:] = a + 1
    assert b.context == mx.cpu(0) and values(b) == [2, 2]
    assert b.value.devices() == {jax.devices()[0]}


def test_a_copy_has_its_own_buffer():
    a = mx.nd.ones(4)
    b = a.copy()
    a.value.delete()
    assert values(b) == [1, 1, 1, 1]


def test_an_array_of_one_value_converts_to_a_scalar_and_a_bool():
    assert bool(mx.nd.array([2])) and not mx.nd.array([0]) and int(mx.nd.array([3])) == 3
    with pytest.raises(ValueError, match="ambiguous"):
        bool(mx.nd.ones(2))
    with pytest.raises(ValueError, match="into shape"):
        mx.nd.ones(2).asscalar()


def test_arrays_pickle_and_print():
    a = mx.nd.array([[1, 2]])
    assert values(pickle.loads(pickle.dumps(a))) == [[1, 2]]
    assert repr(a) == "\n[[1. 2.]]\n<NDArray 1x2 @cpu(0)>"
    assert [r.shape for r in mx.nd.ones((2, 3))] == [(3,), (3,)] and len(a) == 1


def test_jax_and_numpy_functions_accept_ndarrays():
    a = mx.nd.array([1, 2])
    assert jnp.sum(jnp.asarray(a)) == 3 and np.asarray(a).sum() == 3


def test_files_keep_names_dtypes_and_order(tmp_path):
    path = str(tmp_path / "x.params")
    mx.nd.save(path, {"a": mx.nd.ones((2, 2)), "b": mx.nd.array([1], dtype="int64")})
    found = mx.nd.load(path)
    assert found["b"].dtype is np.int64 and values(found["a"]) == [[1, 1], [1, 1]]
    mx.nd.save(path, [mx.nd.zeros(1), mx.nd.ones(1)])
    assert [values(a) for a in mx.nd.load(path)] == [[0], [1]]


def test_sparse_arrays_keep_their_storage_and_compute_densely(tmp_path):
    dense = np.array([[0, 2, 0], [0, 0, 0], [3, 0, 4]], np.float32)
    csr = mx.nd.sparse.csr_matrix(dense)
    rows = mx.nd.array(dense).tostype("row_sparse")
    assert (csr.stype, rows.stype) == ("csr", "row_sparse")
    assert values(csr.indptr) == [0, 1, 1, 3] and values(csr.indices) == [1, 0, 2] and values(rows.indices) == [0, 2]
    mx.nd.save(str(tmp_path / "s.params"), [csr, rows])
    back = mx.nd.load(str(tmp_path / "s.params"))
    assert [b.stype for b in back] == ["csr", "row_sparse"]
    for box in (csr, rows, *back):
        np.testing.assert_array_equal(box.asnumpy(), dense)
        np.testing.assert_array_equal((box * 2).asnumpy(), dense * 2)
    rows[:] = 1
    assert values(rows.indices) == [0, 1, 2]


def test_a_reshape_to_another_size_raises_at_the_call():
    for sizes in ((4, 2), (2, 2), (-1, 4), (7,)):
        for error in (mx.MXNetError, ValueError):
            with pytest.raises(error, match="reshape"):
                mx.nd.zeros((2, 3)).reshape(sizes)


@pytest.mark.parametrize("data", [{1: 0}, {"a": 1}, [1], 3, None])
def test_save_raises_for_invalid_data(data, tmp_path):
    data = {1: mx.nd.ones(1)} if data == {1: 0} else data
    with pytest.raises(TypeError, match="save needs"):
        mx.nd.save(str(tmp_path / "a.params"), data)
    assert not list(tmp_path.iterdir())


test_calls_without_arrays_or_with_other_loop_variables_raise = refused(
    (lambda: mx.nd.add(None, None), TypeError, "expected an NDArray .*, found NoneType and NoneType"),
    (lambda: mx.nd.maximum(2, 3), TypeError, "expected an NDArray .*, found int and int"),
    (lambda: mx.sym.maximum("2", 3), TypeError, "expected Symbols or numbers, found str and int"),
    (
        lambda: mx.nd.contrib.foreach(lambda x, s: (x, s), mx.nd.array(np.zeros((0, 2))), []),
        "at least one step along its first axis",
    ),
    (
        lambda: mx.nd.contrib.while_loop(lambda a, b: a < 2, lambda a, b: (a, [a + 1]), [mx.nd.zeros(1)] * 2, 3),
        "returned 1 loop variables, expected 2",
    ),
)


def test_a_file_is_written_after_one_wait(tmp_path):
    with counters.counted() as seen:
        mx.nd.save(str(tmp_path / "a.params"), {n: mx.nd.ones(3) for n in "abcd"})
    assert seen["host_syncs"] == 1


def test_file_errors_are_mxnet_errors_and_python_errors(tmp_path):
    missing, damaged = str(tmp_path / "no.params"), str(tmp_path / "bad-0001.params")
    Path(damaged).write_bytes(b"nonsense of some length, no header")
    Path(tmp_path / "bad-symbol.json").write_text("{}")
    calls = [
        mx.nd.load,
        mx.sym.load,
        lambda path: mx.model.load_checkpoint(path, 1),
        lambda path: mx.model.load_params(path, 1),
    ]
    for call in (*calls, lambda path: mx.model.load_params(path, 1)):
        for error in (mx.MXNetError, FileNotFoundError):
            with pytest.raises(error, match=r"no\.params"):
                call(missing)
    for error in (mx.MXNetError, FormatError):
        for call in (lambda: mx.nd.load(damaged), lambda: mx.model.load_params(str(tmp_path / "bad"), 1)):
            with pytest.raises(error, match=r"bad-0001\.params"):
                call()
    with pytest.raises(mx.MXNetError):
        mx.sym.load(str(tmp_path / "bad-symbol.json"))


def test_zeros_like_is_on_the_device_of_its_input():
    a = mx.nd.ones(2, mx.cpu(1))
    assert [mx.nd.zeros_like(a).context, mx.nd.ones_like(a).context, (a * 0).context] == [mx.cpu(1)] * 3
    assert mx.cpu(1).device_typeid == 1


def test_invalid_attributes_raise_mxnet_errors():
    with pytest.raises(mx.MXNetError, match="attribute a_min is 'low', expected a number"):
        mx.nd.clip(mx.nd.ones(2), a_min="low", a_max=1)
    with pytest.raises(
        mx.MXNetError, match=r"scatter_nd does not accept float32\[2\], .*data has shape \(2,\), expected \(3,\)"
    ):
        mx.nd.scatter_nd(mx.nd.ones(2), mx.nd.zeros((1, 3)), shape=(4,))
    with pytest.raises(mx.MXNetError, match=r"BatchNorm does not accept .*gamma has shape \(4,\), expected \(3,\)"):
        mx.nd.BatchNorm(mx.nd.ones((2, 3)), mx.nd.ones(4), *[mx.nd.ones(3)] * 3)
