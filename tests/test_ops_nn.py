"""Neural-network operators and loss heads against MXNet 1.9.1's recorded values, and their own promises."""

from __future__ import annotations

import pytest
from golden_ops import case_id, load_cases, run_case

import jfit.ops.conv
import jfit.ops.loss
import jfit.ops.nn
import jfit.ops.norm
import jfit.ops.pooling
import jfit.ops.softmax  # noqa: F401  (registers the records)


@pytest.mark.parametrize(("case", "arrays"), load_cases("nn", "loss", "dtype_nn"), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)
