"""Linear algebra, triangular matrices and attention: recorded cases, rows, shapes, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out
from op_support import call, filled, of_graph, rows_after
from refusals import refused

from jfit.ops import LOST, RowLayout

R = RowLayout(0, 1, 3, 1)
SEQUENCES = RowLayout(1, 1, 2, 1)


@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("matrices", "contrib_plain"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def draw(*shape):
    return np.random.RandomState(len(shape)).uniform(-1, 1, shape).astype(np.float32)


def spd(*lead):
    a = draw(*lead, 3, 3)
    return a @ np.swapaxes(a, -1, -2) + 3 * np.eye(3, dtype=np.float32)


ROWS = [
    ("linalg_gemm2", [draw(3, 2, 4), draw(3, 4, 2)], [R, R], {}, [R]),
    ("linalg_gemm2", [draw(3, 2, 4), draw(3, 4, 2)], [R, None], {}, [R]),
    ("linalg_gemm2", [draw(2, 3, 4), draw(4, 3, 2)], [R._replace(axis=1)] * 2, {"axis": 0}, [R._replace(axis=1)]),
    ("linalg_gemm2", [draw(3, 4), draw(4, 2)], [R, None], {}, [LOST]),
    ("linalg_gemm", [draw(3, 2, 4), draw(3, 4, 2), draw(3, 2, 2)], [R, R, None], {}, [R]),
    ("linalg_syrk", [draw(3, 2, 4)], [R], {}, [R]),
    ("linalg_trmm", [spd(3), draw(3, 3, 2)], [None, R], {}, [R]),
    ("linalg_trsm", [spd(3), draw(3, 3, 2)], [R, R], {}, [R]),
    ("linalg_trsm", [spd(), draw(3, 2)], [None, R], {}, [LOST]),
    ("linalg_potri", [spd(3)], [R], {}, [R]),
    ("linalg_inverse", [spd(3)], [R], {}, [R]),
    ("linalg_slogdet", [spd(3)], [R], {}, [R, R]),
    ("linalg_det", [spd()], [R], {}, [LOST]),
    ("linalg_gelqf", [draw(3, 2, 4)], [R], {}, [R, R]),
    ("linalg_sumlogdiag", [spd(3)], [R], {}, [R]),
    ("linalg_extractdiag", [draw(3, 4, 4)], [R], {"offset": 1}, [R]),
    ("linalg_makediag", [draw(3, 4)], [R], {"offset": -1}, [R]),
    ("linalg_makediag", [draw(3)], [R], {}, [LOST]),
    ("linalg_maketrian", [draw(3, 6)], [R], {}, [R]),
    ("diag", [draw(3, 4, 4)], [R], {"axis1": 1, "axis2": 2}, [R]),
    ("diag", [draw(4, 4, 3)], [R._replace(axis=2)], {}, [R]),
    ("diag", [draw(3, 4)], [R], {}, [LOST]),
    ("khatri_rao", [draw(3, 2), draw(3, 2)], [R, None], {}, [LOST]),
    ("_contrib_div_sqrt_dim", [draw(3, 4)], [R], {}, [R]),
    ("_contrib_interleaved_matmul_selfatt_qk", [draw(3, 2, 12)], [SEQUENCES], {"heads": 2}, [RowLayout(0, 1, 2, 2)]),
    (
        "_contrib_interleaved_matmul_selfatt_valatt",
        [draw(3, 2, 12), draw(4, 3, 3)],
        [SEQUENCES, RowLayout(0, 1, 2, 2)],
        {"heads": 2},
        [SEQUENCES],
    ),
    (
        "_contrib_interleaved_matmul_encdec_qk",
        [draw(4, 2, 4), draw(3, 2, 8)],
        [SEQUENCES, SEQUENCES],
        {"heads": 2},
        [RowLayout(0, 1, 2, 2)],
    ),
    (
        "_contrib_interleaved_matmul_encdec_valatt",
        [draw(3, 2, 8), draw(4, 4, 3)],
        [None, RowLayout(0, 1, 2, 2)],
        {"heads": 2},
        [SEQUENCES],
    ),
    ("_contrib_interleaved_matmul_selfatt_qk", [draw(3, 2, 12)], [R], {"heads": 2}, [LOST]),
]


@pytest.mark.parametrize(("name", "arrays", "rows", "attrs", "want"), ROWS, ids=[f"{r[0]}-{k}" for k, r in enumerate(ROWS)])
def test_a_row_affects_only_its_own_outputs(name, arrays, rows, attrs, want):
    assert rows_after(name, arrays, rows, **attrs) == want


def test_missing_shapes_are_inferred_from_each_other():
    assert filled("linalg_gemm", (2, 3), (0, 4), None) == [(2, 3), (3, 4), (2, 4)]
    assert filled("linalg_gemm2", (5, 0, 2), (0, 6, 0), transpose_a=True) == [(5, 6, 2), (5, 6, 0)]
    assert filled("linalg_gemm2", (3, 0), (3, 6), transpose_a=True) == [(3, 0), (3, 6)]
    assert filled("linalg_gemm2", (2, 0, 3), (3, 0, 4), axis=0, transpose_b=False) == [(2, 0, 3), (3, 0, 4)]
    assert filled("linalg_trsm", None, (2, 3, 4)) == [(2, 3, 3), (2, 3, 4)]
    assert filled("linalg_trmm", None, None, out=(3, 4), rightside=True) == [(4, 4), (3, 4)]
    assert filled("linalg_potrf", (0, 3, 3), out=(2, 3, 3)) == [(2, 3, 3)]


def test_a_matrix_without_a_factorization_gives_nan():
    assert np.isnan(call("linalg_potrf", -spd())).any()


def test_a_singular_matrix_has_no_gradient():
    singular = jnp.asarray([[1.0, 2], [2, 4]])
    for name, which in (("linalg_det", 0), ("linalg_slogdet", 1)):
        grad = jax.grad(lambda a, name=name, which=which: jax.tree.leaves(call(name, a))[which].sum())(singular)
        assert grad.tolist() == [[0, 0], [0, 0]]


test_errors_name_the_actual_and_expected_value = refused(
    (
        lambda: of_graph("linalg_gemm2", (2, 3), (4, 2)),
        r"'b' has shape \(4, 2\), _linalg_gemm2 needs \(3, 2\) because of input 'a'",
    ),
    (lambda: of_graph("linalg_gemm2", (5, 2, 3), (4, 3, 2)), r"'b' has shape \(4, 3, 2\), _linalg_gemm2 needs \(5, 3, 2\)"),
    (lambda: filled("linalg_trsm", (2, 2), (3, 4)), r"A is square and multiplies B"),
    (lambda: call("linalg_det", draw(2, 3)), r"must have shape \[..., n, n\], got \(2, 3\)"),
    (lambda: call("linalg_extractdiag", draw(2, 3)), r"A has shape \(2, 3\), expected square matrices"),
    (lambda: call("linalg_maketrian", draw(4)), r"Incompatible types for broadcasting"),
    (
        lambda: call("_contrib_interleaved_matmul_selfatt_qk", draw(3, 2, 8), heads=2),
        TypeError,
        r"cannot reshape array of shape",
    ),
)
