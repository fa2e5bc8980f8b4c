"""Properties of single update rules: agreement with optax, differences from MXNet, special values, the table in docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from docs_scripts import docs_script
from refusals import refused

from jfit import optim
from jfit.optim.registry import register

ROOT = Path(__file__).parents[2]


def tree(seed: int, dtype: Any = jnp.float32) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {name: jnp.array(draw.normal(size=(3, 2)), dtype) for name in ("fc_bias", "fc_weight")}


def run(transform: Any, gradients: list[Any], weights: Any, rates: Any = None) -> tuple[Any, Any]:
    """(weights, state) after a step for each gradient."""
    state = transform.init(weights)
    for k, g in enumerate(gradients):
        fed = {} if rates is None else {"learning_rate": jnp.float32(rates[k])}
        updates, state = transform.update(g, state, weights, **fed)
        weights = optax.apply_updates(weights, updates)
    return weights, state


def close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), a, b)


# ------------------------------------------------------------------------------------------------ where MXNet errs
def test_adamax_is_unchanged_where_every_gradient_was_zero():
    weights = {"w": jnp.array([1.0, 2.0])}
    found, state = run(optim.adamax(0.1), [{"w": jnp.array([0.0, 1.0])}] * 2, weights)
    np.testing.assert_allclose(found["w"], [1.0, 1.8], rtol=1e-6)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


def test_dcasgd_has_momentum():
    gradients = [tree(k) for k in range(1, 4)]
    found, _ = run(optim.dcasgd(0.1, momentum=0.9, lamda=0.5, wd=0.1, clip_gradient=1.0, wd_mult=None), gradients, tree(0))
    for name in found:
        w = previous = np.asarray(tree(0)[name], np.float64)
        m = np.zeros_like(w)
        for step in gradients:
            g = np.clip(np.asarray(step[name], np.float64), -1, 1)
            m = 0.9 * m - 0.1 * (g + 0.1 * w + 0.5 * g * g * (w - previous))
            previous, w = w, w + m
        np.testing.assert_allclose(found[name], w, rtol=2e-6, atol=1e-6)


def test_lamb_updates_its_float32_master_weight():
    weights = tree(0, jnp.float16)
    found, state = run(optim.lamb(0.1, multi_precision=True), [weights] * 2, weights)
    masters = state.slots["master"]
    for name in found:
        assert float(jnp.abs(masters[name] - weights[name]).min()) > 0
        np.testing.assert_array_equal(found[name], masters[name].astype(jnp.float16))


def test_an_overflowing_weight_becomes_inf_and_stays_inf_as_in_mxnet():
    weights = {"a_weight": jnp.array([60000, -jnp.inf, 1], jnp.float16)}
    steps = [{"a_weight": jnp.array([g, 0, 0], jnp.float16)} for g in (-10000, 0, 0)]
    found, state = run(optim.sgd(1.0, multi_precision=True), steps, weights)
    assert found["a_weight"].tolist() == [np.inf, -np.inf, 1]
    assert state.slots["master"]["a_weight"].tolist() == [70000, -np.inf, 1]


@pytest.mark.parametrize(("momentum", "after"), [(0.0, 1.9), (0.9, 2.0)])
def test_the_sign_of_nan_is_0_as_in_mxnet(momentum, after):
    steps = [{"a_weight": jnp.array(g, jnp.float32)} for g in ([1, np.nan, -1], [1, 1, -1])]
    found, _ = run(optim.signum(0.1, momentum), steps, {"a_weight": jnp.array([1.0, 2.0, 3.0])})
    np.testing.assert_allclose(found["a_weight"], [0.8, after, 3.2], rtol=1e-6)


@pytest.mark.parametrize("bound", [0, 0.0, -1.0, None])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "nadam"])
def test_a_clipping_bound_that_is_not_positive_disables_clipping(name, bound):
    make = optim.OPTIMIZERS[name].make
    found, _ = run(make(0.1, clip_gradient=bound), [tree(1)], tree(0))
    close(found, run(make(0.1), [tree(1)], tree(0))[0])


# ------------------------------------------------------------------------------------------------ large batches
def test_lars_excludes_the_given_parameters():
    weights, gradients = tree(0), tree(1)

    def moved(**given: Any) -> dict[str, bool]:
        """Whether the rate was adapted, by name; a plain step is lr * g."""
        found, _ = run(optim.lars(0.1, **given), [gradients], weights)
        steps = {k: float(jnp.abs((found[k] - weights[k]) / gradients[k]).max()) for k in found}
        return {k: step < 0.05 for k, step in steps.items()}

    assert moved() == {"fc_bias": False, "fc_weight": True}
    assert moved(adapt={"fc_bias": True}) == {"fc_bias": True, "fc_weight": True}
    assert moved(adapt=lambda name: False) == {"fc_bias": False, "fc_weight": False}
    listed = optim.lars(0.1, adapt=[False, True])
    pair = list(weights.values())
    updates, _ = listed.update(list(gradients.values()), listed.init(pair), pair)
    np.testing.assert_allclose(updates[0], -0.1 * gradients["fc_bias"], rtol=1e-6)
    assert float(jnp.abs(updates[1]).max()) < 0.01


def test_lars_decays_weights_only():
    tree = {name: jnp.ones(2) for name in ("a_beta", "b_gamma", "c_weight")}
    decays = lambda **given: optim.lars(0.1, wd=0.1, **given).init(tree).wd_mult.tolist()  # noqa: E731
    assert decays() == [0.0, 0.0, 1.0]
    assert decays(wd_mult="mxnet") == [0.0, 1.0, 1.0]
    assert decays(wd_mult={"a_beta": 0.5}) == [0.5, 0.0, 1.0]
    assert decays(wd_mult=lambda name: 2.0) == [2.0, 2.0, 2.0]


def test_momentum_is_rescaled_for_a_new_learning_rate():
    plain = lambda **given: optim.lars(1.0, momentum=0.5, adapt=lambda name: False, wd_mult=None, **given)  # noqa: E731
    ones = {name: jnp.ones(()) for name in "abc"}
    zero = jax.tree.map(jnp.zeros_like, ones)
    for group, kept in ((None, [2, 2, 2]), (1, [2, 1, 1]), (2, [2, 2, 1])):
        found, _ = run(plain(group=group), [ones, zero], zero, rates=[1.0, 2.0])
        # after the first step w = m = -1; then m = -0.5 * k
        assert [(-1 - float(x)) / 0.5 for x in found.values()] == kept
    still, _ = run(plain(momentum_correction=False), [ones, zero], zero, rates=[1.0, 2.0])
    assert [float(x) for x in still.values()] == [-1.5] * 3


@pytest.mark.parametrize("make", [optim.nadam, lambda lr: optim.lars(lr, 0.9, group=4)])
def test_shared_scalars_do_not_serialize_the_parameters(make):
    def depth(n):  # how many operations follow from one another
        weights = {f"w{i:03d}_weight": jnp.ones(2) for i in range(n)}
        rule = make(0.1)
        jaxpr, far = jax.make_jaxpr(rule.update)(weights, rule.init(weights), weights).jaxpr, {}
        for eqn in jaxpr.eqns:
            read = [v for v in eqn.invars if isinstance(v, jax.extend.core.Var)]
            far |= dict.fromkeys(eqn.outvars, 1 + max((far.get(v, 0) for v in read), default=0))
        return max(far.values())

    assert depth(32) == depth(8)  # a chain through the turns is compiled into every rule: minutes for hundreds


def test_an_lbsgd_warm_up_of_more_than_32_bits_never_ends():
    weight = {"fc_weight": jnp.ones(())}
    for length in ({"warmup_epochs": 10**9}, {"warmup_epochs": 5, "begin_epoch": 10**9}):
        rule = optim.lbsgd(0.5, warmup_strategy="power2", batch_scale=1, updates_per_epoch=10**3, **length)
        assert float(rule.update(weight, rule.init(weight), weight)[0]["fc_weight"]) == -0.5


test_errors_describe_the_problem = refused(
    (lambda: optim.group_adagrad(0.1, wd=0.1), "group_adagrad: wd is 0.1, but it must be 0"),
    (lambda: optim.group_adagrad(0.1).init({"b": jnp.ones(3)}), r"has shape \(3,\), but it must be a matrix"),
    (
        lambda: optim.get("sgd", rescale_grad=1.0),
        "no parameter 'rescale_grad'.*train step rescales gradients \\(rescale=\\)",
    ),
    (lambda: optim.get("adam", lr_scheduler=1), "no parameter 'lr_scheduler'.*learning_rate=, or as schedule="),
    (lambda: optim.get("adagrad", lazy_update=True), "no parameter 'lazy_update'.*Only sgd, adam and ftrl"),
    (lambda: optim.get("adam", b1=0.5), "no parameter 'b1'.*optax's adam has it: pass optax.adam"),
    (lambda: optim.lbsgd(0.1, batch_scale=0), "lbsgd: batch_scale is 0; it must be a whole number"),
    (lambda: run(optim.lars(0.1, adapt="all"), [tree(1)], tree(0)), "lars: adapt is 'all'"),
    (lambda: optim.Optimizer(abs, abs, nmae="x"), TypeError, "no field 'nmae'; did you mean 'name'"),
    (lambda: optim.get("ladam"), "unknown optimizer 'ladam'; did you mean 'adam'"),
)


# ------------------------------------------------------------------------------------------------ the table
def test_every_optimizer_has_a_table_row_with_its_state():
    rows = {row[0]: row for row in docs_script("tables").optimizer_rows()}
    assert {name for row in rows.values() for name in (row[0], *row[1].split(", ")) if name != "none"} == set(optim.OPTIMIZERS)
    assert rows["dcasgd"][3] == "momentum (momentum), previous"
    assert rows["rmsprop"][3] == "n, g (centered), delta (centered)"
    assert rows["nadam"][3] == "mean, var, shared: m_schedule"
    assert "wd=0.01" in rows["adamw"][2]
    assert "wd" not in rows["adam"][2]


def test_user_registered_optimizers_are_in_the_table():
    register("mine", lambda learning_rate=0.5: optim.sgd(learning_rate), "own")
    try:
        assert optim.get("own").learning_rate == 0.5
        assert [row[:2] for row in docs_script("tables").optimizer_rows() if row[0] == "mine"] == [("mine", "own")]
    finally:
        for name in ("mine", "own"):
            del optim.OPTIMIZERS[name]


def test_docs_page_is_up_to_date():
    page = ROOT / "docs" / "optimizers.md"
    if not page.parent.exists():
        pytest.skip("an installed package has no docs folder")
    assert page.read_text().endswith(docs_script("tables").optimizers()), "run python docs/tables.py optimizers"
