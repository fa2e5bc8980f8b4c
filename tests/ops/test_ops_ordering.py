"""Sorting, scattering, counting, copies, arrays created from shapes: recorded cases and rows, and operators without a case."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out
from op_support import call, filled, rows_after
from refusals import refused

from jfit.ops import LOST, RowLayout, lookup

R = RowLayout(0, 1, 3, 1)
SECOND = R._replace(axis=1)


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("ordering"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def draw(*shape):
    return np.random.RandomState(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def gradient(name, *arrays, which=0, **attrs):
    values = [jnp.asarray(a) for a in arrays]

    def total(v):
        return sum(o.sum() for o in jax.tree.leaves(call(name, *values[:which], v, *values[which + 1 :], **attrs)))

    return jax.grad(total)(values[which])


FIRST = np.array([[0, 2, 1]], np.int32)
ROWS = [
    ("sort", [draw(3, 4)], [R], {}, [R]),
    ("sort", [draw(3, 4)], [R], {"axis": 0}, [LOST]),
    ("argsort", [draw(4, 3)], [SECOND], {"axis": 0}, [SECOND]),
    ("argsort", [draw(3, 4)], [R], {"axis": None}, [LOST]),
    ("topk", [draw(3, 4)], [R], {"k": 2, "ret_typ": "both"}, [R, R]),
    ("topk", [draw(3, 4)], [R], {"k": 2, "ret_typ": "mask", "axis": 0}, [LOST]),
    ("gather_nd", [draw(4, 2), FIRST], [None, SECOND], {}, [R]),
    ("gather_nd", [draw(3, 2), FIRST], [R, None], {}, [LOST]),
    ("gather_nd", [draw(4, 3), FIRST], [SECOND, None], {}, [SECOND]),
    ("gather_nd", [draw(4, 2, 2), FIRST.T.copy()], [None, R], {}, [LOST]),
    ("scatter_nd", [draw(3), FIRST], [R, None], {"shape": (4,)}, [LOST]),
    ("_scatter_set_nd", [draw(4), draw(3), FIRST], [None, R, None], {"shape": (4,)}, [LOST]),
    ("_contrib_index_copy", [draw(4, 3), FIRST[0, :2], draw(2, 3)], [SECOND, None, SECOND], {}, [SECOND]),
    ("_contrib_index_copy", [draw(3, 3), FIRST[0], draw(3, 3)], [R, None, None], {}, [LOST]),
    ("batch_take", [draw(3, 4), FIRST[0]], [R, R], {}, [R]),
    ("batch_take", [draw(4, 3), np.zeros(4, np.int32)], [SECOND, None], {}, [LOST]),
    ("ravel_multi_index", [np.abs(FIRST)], [SECOND], {"shape": (4,)}, [R]),
    ("ravel_multi_index", [FIRST.T.copy()], [R], {"shape": (4, 2, 3)}, [LOST]),
    ("unravel_index", [FIRST[0]], [R], {"shape": (2, 2)}, [SECOND]),
    ("_slice_assign", [draw(3, 4), draw(3, 2)], [R, R], {"begin": (None, 1), "end": (None, 3)}, [R]),
    ("_slice_assign", [draw(3, 4), draw(2, 4)], [R, None], {"begin": (1,), "end": (3,)}, [LOST]),
    ("_slice_assign_scalar", [draw(3, 4)], [R], {"begin": (None, 1), "end": (None, 3)}, [R]),
    ("_slice_assign_scalar", [draw(3, 4)], [R], {"begin": (1,), "end": (3,)}, [LOST]),
    ("_histogram", [draw(3)], [R], {"bin_cnt": 2, "range": (0, 1)}, [LOST, LOST]),
    ("_contrib_getnnz", [draw(3, 4)], [R], {"axis": 1}, [R]),
    ("_contrib_getnnz", [draw(3, 4)], [R], {}, [LOST]),
    ("moments", [draw(3, 4)], [R], {"axes": (1,)}, [R, R]),
    ("moments", [draw(3, 4)], [R], {"axes": (0,)}, [LOST, LOST]),
    ("cumsum", [draw(3, 4)], [R], {"axis": 1}, [R]),
    ("cumsum", [draw(3, 4)], [R], {}, [LOST]),
    ("_square_sum", [draw(4, 3)], [SECOND], {"axis": 0}, [R]),
    ("multi_sum_sq", [draw(3, 4), draw(2)], [R, None], {}, [LOST]),
    ("all_finite", [draw(3, 4)], [R], {}, [LOST]),
    ("_contrib_allclose", [draw(3, 4), draw(3, 4)], [R, R], {}, [LOST]),
    ("amp_multicast", [draw(3, 4), draw(4)], [R, None], {}, [R, None]),
    ("_sparse_retain", [draw(3, 4), FIRST[0, :2]], [R, None], {}, [R]),
    ("_contrib_round_ste", [draw(3, 4)], [R], {}, [R]),
    ("_contrib_quadratic", [draw(3, 4)], [R], {"a": 1}, [R]),
    ("_identity_with_attr_like_rhs", [draw(3, 4), draw(3, 4)], [R, None], {}, [R]),
    ("_contrib_arange_like", [draw(3, 4)], [R], {}, [R]),
    ("_contrib_arange_like", [draw(4, 3)], [SECOND], {"axis": 1}, [R]),
    ("_contrib_arange_like", [draw(4, 3)], [SECOND], {"axis": 0}, [None]),
    ("_contrib_index_array", [draw(4, 3)], [SECOND], {}, [SECOND]),
    ("shape_array", [draw(3, 4)], [R], {}, [LOST]),
    ("size_array", [draw(3, 4)], [R], {}, [LOST]),
    ("depth_to_space", [draw(3, 4, 1, 2)], [R], {"block_size": 2}, [R]),
    ("space_to_depth", [draw(2, 3, 2, 2)], [SECOND], {"block_size": 2}, [LOST]),
    ("_contrib_fft", [draw(3, 4)], [R], {}, [R]),
    ("_contrib_ifft", [draw(4, 6)], [SECOND._replace(size=6)], {}, [LOST]),
    ("_contrib_count_sketch", [draw(3, 4), np.float32([[0, 1, 1, 0]]), draw(1, 4)], [R, None, None], {"out_dim": 2}, [R]),
    ("_rnn_param_concat", [draw(3, 4), draw(3, 2)], [R, R], {}, [R]),
]


@pytest.mark.parametrize(("name", "arrays", "rows", "attrs", "want"), ROWS, ids=[f"{r[0]}-{k}" for k, r in enumerate(ROWS)])
def test_a_row_affects_only_its_own_outputs(name, arrays, rows, attrs, want):
    assert rows_after(name, arrays, rows, **attrs) == want


def test_a_hawkes_process_tracks_its_rows():
    draws = np.random.RandomState(0)
    lda, lags = draws.rand(3, 2).astype(np.float32), draws.rand(3, 4).astype(np.float32)
    marks = draws.randint(0, 2, (3, 4)).astype(np.int32)
    shared = [np.float32([0.2, 0.3]), np.float32([1, 2])]
    arrays = [lda, *shared, lda, lags, marks, np.float32([2, 3, 4]), np.float32([9, 9, 9])]
    marked = [None if k in (1, 2, 5) else R for k in range(8)]
    assert rows_after("_contrib_hawkesll", arrays, marked) == [R, R]
    op, shapes = lookup("_contrib_hawkesll"), [a.shape for a in arrays]
    for lost in ([SECOND, *[None] * 7], [R, R, *[None] * 6]):
        assert list(op.rows(op.parse({}), lost, shapes, [(3,), (3, 2)])) == [LOST, LOST]
    assert filled("_contrib_hawkesll", (3, 2), None, None, None, (3, 4), None, None, None)[5:] == [(3, 4), (3,), (3,)]


# ------------------------------------------------------------------ what has no recorded case


def test_fourier_transforms():
    x = draw(2, 6)
    want = np.fft.fft(x)
    y = np.asarray(call("_contrib_fft", x))
    np.testing.assert_allclose(y[:, ::2] + 1j * y[:, 1::2], want, atol=1e-5)
    np.testing.assert_allclose(call("_contrib_ifft", y), 6 * x, atol=1e-5)
    # MXNet: the gradient of each is the other one, not divided by the length
    head = draw(2, 12)
    _, pull = jax.vjp(lambda v: call("_contrib_fft", v), jnp.asarray(x))
    np.testing.assert_allclose(pull(jnp.asarray(head))[0], 6 * np.fft.ifft(head[:, ::2] + 1j * head[:, 1::2]).real, atol=1e-5)
    _, pull = jax.vjp(lambda v: call("_contrib_ifft", v), jnp.asarray(y))
    back = np.asarray(pull(jnp.asarray(x))[0])
    np.testing.assert_allclose(back[:, ::2] + 1j * back[:, 1::2], want, atol=1e-5)


def test_count_sketch():
    places, signs = np.float32([[0, 2, 0, 1]]), np.float32([[1, -1, 1, -1]])
    y = call("_contrib_count_sketch", np.float32([[1, 2, 3, 4]]), places, signs, out_dim=3)
    assert y.tolist() == [[4, -4, -2]]
    assert gradient("_contrib_count_sketch", np.float32([[1, 2, 3, 4]]), places, signs, out_dim=3).tolist() == [[1, -1, 1, -1]]
    assert filled("_contrib_count_sketch", (2, 4), None, None, out_dim=3) == [(2, 4), (1, 4), (1, 4)]


def test_getnnz_counts_nonzero_entries():
    x = np.float32([[1, 0, 2], [0, 0, 3]])
    assert call("_contrib_getnnz", x).tolist() == [3]
    assert call("_contrib_getnnz", x, axis=0).tolist() == [1, 0, 2]
    assert call("_contrib_getnnz", x, axis=1).tolist() == [2, 1]


def test_sparse_retain_zeroes_the_other_rows():
    x = draw(3, 2)
    y = call("_sparse_retain", x, np.float32([2, 0]))
    assert y.tolist() == [x[0].tolist(), [0, 0], x[2].tolist()]
    assert gradient("_sparse_retain", x, np.int32([1])).tolist() == [[0, 0], [1, 1], [0, 0]]


def test_scatter_writes_at_indices():
    y = call("_scatter_set_nd", np.zeros((2, 3), np.float32), np.float32([7, 8]), np.int32([[0, 1], [1, -1]]), shape=(2, 3))
    assert y.tolist() == [[0, 7, 0], [0, 0, 8]]


def test_square_sum():
    x = np.float32([[1, 2], [3, 4]])
    assert call("_square_sum", x).tolist() == [30]
    assert call("_square_sum", x, axis=1, keepdims=True).tolist() == [[5], [25]]
    assert call("_square_sum", x, axis=1, exclude=True).tolist() == [10, 20]
    assert gradient("_square_sum", x, axis=0).tolist() == (2 * x).tolist()
    wide = call("_square_sum", np.full(64, 64, np.float16))
    assert wide.dtype == jnp.float16 and np.isinf(wide).all()


def test_copies_return_the_input():
    x = draw(2, 3)
    for name in ("_copyto", "_CrossDeviceCopy"):
        assert call(name, x).tolist() == x.tolist()


def test_zeros_accept_the_number_of_a_dtype():
    assert call("_zeros_without_dtype", shape=(2,)).dtype == jnp.float32
    assert call("_zeros_without_dtype", shape=(2,), dtype=4).dtype == jnp.int32
    assert call("_zeros_without_dtype", shape=(2,), dtype=12).dtype == jnp.bfloat16


def test_out_of_range_indices_are_clipped():
    x = np.arange(3, dtype=np.float32)
    assert call("gather_nd", x, np.int32([[-9, -1, 9]])).tolist() == [0, 2, 2]
    assert call("scatter_nd", np.float32([1, 2]), np.int32([[-1, 9]]), shape=(3,)).tolist()[:2] == [0, 0]


def test_unravel_keeps_the_shape_of_the_indices():
    assert call("unravel_index", np.int32([[0, 7], [19, 5]]), shape=(4, 5)).tolist() == [[[0, 1], [3, 1]], [[0, 2], [4, 0]]]


def test_several_arrays_are_promoted_to_one_dtype():
    types = lookup("amp_multicast").types
    assert types is not None
    for kinds, narrow, want in [
        (["float16", "float32", "int32"], False, ["float32", "float32", "int32"]),
        (["float16", "float32"], True, ["float16", "float16"]),
        (["float32", "float32"], True, ["float32", "float32"]),
        (["float16", "float16"], False, ["float16", "float16"]),
    ]:
        attrs = lookup("amp_multicast").parse({"num_outputs": len(kinds), "cast_narrow": narrow})
        assert [np.dtype(t).name for t in types(attrs, [np.dtype(k) for k in kinds])[1]] == want


test_errors_name_the_actual_and_expected_value = refused(
    (lambda: call("topk", draw(2, 3), k=4), TypeError, r"got limit_indices \(2, 4\) for operand shape \(2, 3\)"),
    (lambda: call("gather_nd", draw(2), np.zeros((2, 1), np.int32)), r"is shorter than"),
    (lambda: call("ravel_multi_index", np.zeros((2, 1), np.int32), shape=(3,)), r"argument 2 is shorter"),
)


def test_unsigned_integers_are_sorted_in_descending_order_too():
    given = np.array([0, 2, 1, 2], np.uint8)  # -0 is the least of the negatives
    assert call("argsort", given, is_ascend=False).tolist() == [1, 3, 2, 0]
    assert call("topk", given, k=2, ret_typ="value").tolist() == [2, 2]
