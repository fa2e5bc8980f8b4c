"""Regions of feature maps and deformable convolutions: MXNet's recorded results, plain loops, numeric gradients."""

import pytest
from detection_support import compiled  # noqa: F401  a fixture
from golden_ops import case_id, load_cases, run_case


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("case", "arrays"), load_cases("regions"), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)
