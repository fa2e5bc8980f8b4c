"""Density operators (_random_pdf_*): recorded MXNet cases, rows, dtypes, errors."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from golden_ops import case_id, load_cases, run_case, spread_out

from jfit.ops import LOST, Ctx, RowLayout, lookup


@pytest.mark.repetitions(3)
@pytest.mark.parametrize(("case", "arrays"), spread_out(load_cases("density"), each=1), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)


def _run(name, *arrays, **attrs):
    op = lookup(name)
    return op.fn(Ctx(rows=(None,) * len(arrays), node="pdf"), op.parse(attrs), *arrays)


def test_half_precision_is_computed_in_float32():
    sample, mean, deviation = (jnp.full((2,), v, jnp.bfloat16) for v in (0.5, 0.25, 2.0))
    out = _run("_random_pdf_normal", sample, mean, deviation, is_log=True)
    exact = -0.5 * (0.125**2) - np.log(2.0) - 0.5 * np.log(2 * np.pi)
    assert out.dtype == jnp.bfloat16
    assert float(out[0]) == pytest.approx(exact, rel=4e-3)


def test_rows_stay_on_the_leading_axis():
    op, rows = lookup("random_pdf_normal"), RowLayout(0, 1, 4, 1)
    assert op.rows({}, [rows, None, rows], [(4, 2), (4,), (4,)], [(4, 2)]) == [rows]
    assert lookup("_random_pdf_dirichlet").rows({}, [rows, None], [(4, 3), (4, 3)], [(4,)]) == [rows]
    assert lookup("_random_pdf_dirichlet").rows({}, [RowLayout(1, 1, 3, 1), None], [(4, 3), (4, 3)], [(4,)]) == [LOST]
