"""Sorting, scattering, counting, summaries, copies, arrays made from shapes: recorded cases, rows, errors, what MXNet lacks."""

from __future__ import annotations

import pytest
from golden_ops import case_id, load_cases, run_case


@pytest.mark.parametrize(("case", "arrays"), load_cases("ordering"), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)
