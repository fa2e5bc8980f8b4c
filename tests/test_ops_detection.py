"""Boxes, single-shot detection and region proposals against MXNet 1.9.1's recorded results."""

import dataclasses
import functools

import golden_ops
import jax
import pytest
from golden_ops import case_id, load_cases, run_case

from jfit.ops import lookup


@pytest.fixture
def compiled(monkeypatch):
    """Operators run compiled: loops cost more to run step by step than to compile once."""

    def find(name):
        op = lookup(name)

        @functools.cache
        def jitted(attrs):
            return jax.jit(lambda *inputs: op.fn(golden_ops.Ctx(rows=(None,) * len(inputs)), attrs, *inputs))

        return dataclasses.replace(op, fn=lambda ctx, attrs, *inputs: jitted(attrs)(*inputs))

    monkeypatch.setattr(golden_ops, "lookup", find)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("case", "arrays"), load_cases("detection"), ids=case_id)
def test_recorded_case(case, arrays):
    run_case(case, arrays)
