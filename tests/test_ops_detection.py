"""Boxes, single-shot detection and region proposals against MXNet 1.9.1's recorded results."""

import pytest
from detection_support import compiled  # noqa: F401  a fixture
from golden_ops import case_id, load_cases, run_case


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("case", "arrays"), load_cases("detection"), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)
