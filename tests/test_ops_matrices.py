"""Linear algebra, triangles and attention: recorded cases, rows, shapes, half precision, errors."""

from __future__ import annotations

import pytest
from golden_ops import case_id, load_cases, run_case


@pytest.mark.parametrize(("case", "arrays"), load_cases("matrices", "contrib_plain"), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)
