"""Updates of some rows of a table: MXNet's values, equal to a dense update in those rows, without copying the table."""

import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from jfit.optim import SparseRows, apply_updates
from jfit.optim.rows import coalesce

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rows.json").read_text())["updates"]
LAZY = {
    "sgd": {"wd": 0.1},
    "momentum": {"name": "sgd", "momentum": 0.9, "wd": 0.1, "clip_gradient": 0.5},
    "adam": {"wd": 0.1, "clip_gradient": 0.5},
    "adagrad": {"wd": 0.1},
    "group_adagrad": {},
}
lazily = pytest.mark.parametrize("rule", LAZY)


def optimizer(rule, **more):
    params = {"learning_rate": 0.25, **LAZY[rule], **more}
    return jfit.optim.get(params.pop("name", rule), **params)


def stepped(opt):
    """(params, state, gradients) -> (params, state), both donated."""

    def step(params, state, gradients):
        updates, state = opt.update(gradients, state, params)
        return apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1))


@pytest.mark.repetitions(6)
@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: f"{c['name']}-{c['settings']}")
def test_mxnets_lazy_and_dense_updates_are_reproduced(case):
    name = {"groupadagrad": "group_adagrad"}.get(case["name"], case["name"])
    opt = jfit.optim.get(name, learning_rate=0.25, lr_mult={"w": case["lr_mult"]}, wd_mult=None, **case["settings"])
    weights = {"w": jnp.asarray(case["before"])}
    state, step = opt.init(weights), stepped(opt)
    for gradient in case["gradients"]:
        values = jnp.asarray(gradient["values"]) * 0.5  # MXNet's rescale_grad
        weights, state = step(weights, state, {"w": SparseRows(jnp.asarray(gradient["indices"], jnp.int32), values)})
    np.testing.assert_allclose(weights["w"], case["after"], rtol=2e-6, atol=1e-7)
    for slot, expected in zip(state.slots.values(), case["slots"], strict=True):
        np.testing.assert_allclose(slot["w"], expected, rtol=2e-6, atol=1e-7)


@pytest.mark.repetitions(3)
@lazily
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_given_rows_are_updated_as_in_a_dense_update_and_no_others(rule, dtype, rng):
    opt = optimizer(rule, multi_precision=dtype == "bfloat16")
    weights = {"w_weight": jnp.asarray(rng.normal(size=(9, 4)), dtype)}
    state = jax.tree.map(lambda s: s + jnp.asarray(0.25, s.dtype), opt.init(weights))  # slots that are not zero
    if dtype == "bfloat16":
        state.slots["master"] = {"w_weight": weights["w_weight"].astype(jnp.float32)}
    rows = SparseRows(jnp.array([7, 2, 7]), jnp.asarray(rng.normal(size=(3, 4)), dtype))
    one = stepped(opt)(jax.tree.map(jnp.copy, weights), jax.tree.map(jnp.copy, state), {"w_weight": rows})
    all_rows = stepped(opt)(
        jax.tree.map(jnp.copy, weights), jax.tree.map(jnp.copy, state), {"w_weight": coalesce(rows, 9).dense(9)}
    )
    old, named = (weights, state), np.isin(np.arange(9), [2, 7])
    for before, lazy, whole in zip(*map(jax.tree.leaves, (old, one, all_rows)), strict=True):
        if before.ndim == 0:  # the count goes on
            assert lazy == whole
            continue
        np.testing.assert_array_equal(np.asarray(lazy)[~named], np.asarray(before)[~named])
        np.testing.assert_allclose(
            np.asarray(lazy, np.float32)[named], np.asarray(whole, np.float32)[named], rtol=2e-6, atol=1e-7
        )


@pytest.mark.optimized
@pytest.mark.repetitions(2)
@lazily
def test_the_compiled_update_copies_no_table(rule):
    size, width, few = 5003, 16, 7
    opt = optimizer(rule)
    weights = {"w_weight": jnp.zeros((size, width))}
    rows = {"w_weight": SparseRows(jnp.zeros(few, jnp.int32), jnp.zeros((few, width)))}
    compiled = stepped(opt).lower(weights, opt.init(weights), rows).compile()
    tables = [line for line in compiled.as_text().splitlines() if re.search(rf"= f32\[{size},\d+\].* copy\(", line)]
    assert not tables, tables
    memory, state = compiled.memory_analysis(), sum(x.nbytes for x in jax.tree.leaves((weights, opt.init(weights))))
    assert memory.alias_size_in_bytes >= state - 8
    assert memory.temp_size_in_bytes < size * width * 4 / 10


def test_a_rule_without_lazy_update_treats_rows_as_a_dense_gradient(rng):
    weights = {"w_weight": jnp.asarray(rng.normal(size=(5, 2)), jnp.float32)}
    rows = SparseRows(jnp.array([3, 0, 3]), jnp.asarray(rng.normal(size=(3, 2)), jnp.float32))
    for opt in (jfit.optim.rmsprop(wd=0.1), jfit.optim.lamb(wd=0.1), jfit.optim.sgd(momentum=0.9, wd=0.1, lazy_update=False)):
        assert not opt.state_spec.lazy
        given_rows, given_table = (
            opt.update({"w_weight": g}, opt.init(weights), weights)[0]["w_weight"] for g in (rows, rows.dense(5))
        )
        np.testing.assert_array_equal(given_rows, given_table)


@functools.partial(jax.jit, static_argnums=1)
def ways(rows, size):
    once = coalesce(rows, size)
    return rows.dense(size), once.dense(size), apply_updates(jnp.ones((size, 2)), rows), once


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.integers(-9, 19), min_size=12, max_size=12), st.sampled_from([1, 12]))
def test_coalescing_sums_duplicates_and_keeps_each_row_once(numbers, size):
    rows = SparseRows(jnp.asarray(numbers, jnp.int32), jnp.arange(24, dtype=jnp.float32).reshape(12, 2) + 1)
    dense, dense_once, applied, once = ways(rows, size)
    table = np.zeros((size, 2), np.float32)
    for number, value in zip(numbers, np.asarray(rows.values), strict=True):
        if 0 <= number < size:
            table[number] += value
    np.testing.assert_array_equal(dense, table)
    np.testing.assert_array_equal(dense_once, table)
    np.testing.assert_array_equal(applied, 1 + table)
    found = np.asarray(once.indices)
    assert len(set(found)) == len(found) and (found >= 0).all()
    assert list(found[found < size]) == sorted({n for n in numbers if 0 <= n < size})


def test_an_update_without_rows_changes_only_the_count():
    weights, opt = {"w_weight": jnp.ones((3, 2))}, jfit.optim.adam(wd=0.1)
    updates, state = opt.update(
        {"w_weight": SparseRows(jnp.zeros(0, jnp.int32), jnp.zeros((0, 2)))}, opt.init(weights), weights
    )
    assert apply_updates(weights, updates)["w_weight"].tolist() == weights["w_weight"].tolist()
    assert int(state.count) == 1


def test_apply_updates_equals_optaxs_for_dense_updates():
    params = {"a": jnp.arange(3, dtype=jnp.bfloat16), "b": [jnp.ones(2)]}
    updates = {"a": jnp.full(3, 0.5), "b": [jnp.ones(2)]}
    both = apply_updates(params, updates), optax.apply_updates(params, updates)
    for ours, theirs in zip(*map(jax.tree.leaves, both), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
