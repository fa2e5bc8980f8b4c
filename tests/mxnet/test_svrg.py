"""SVRG as a gradient transformation: its value, decreasing variance, convergence; full gradients and means over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit
from jfit.optim import svrg, svrg_snapshot

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype("float32")
Y = X @ np.array([1, 2, 3], "float32") + X[:, 0] ** 2  # no parameters fit all rows
BEST = np.linalg.lstsq(X, Y, rcond=None)[0]
BATCHES = [{"x": X[i : i + 6], "label": Y[i : i + 6]} for i in range(0, 60, 6)]


def square(output, label):
    return (output - label) ** 2


def linear(p, x):
    return x @ p["w"]


MODEL = jfit.Model.from_function(linear, loss=square, params={"w": jnp.zeros(3)})
GRADIENT = jax.jit(jfit.gradients.mean_gradients(MODEL), static_argnames="axis_name")
EVERYTHING = jfit.gradients.full_gradients(MODEL)


def trained(inner, epochs, reduce, batches=BATCHES):
    """Distance to the optimum after each epoch."""
    optimizer = svrg(inner)

    @jax.jit
    def step(params, state, batch):
        at_snapshot = GRADIENT(state.snapshot, {}, batch)
        added, state = optimizer.update(GRADIENT(params, {}, batch), state, params, snapshot_gradients=at_snapshot)
        return optax.apply_updates(params, added), state

    params, found = {"w": jnp.zeros(3)}, []
    state = optimizer.init(params)
    for _ in range(epochs):
        if reduce:
            state = svrg_snapshot(state, params, EVERYTHING(params, {}, batches))
        for batch in batches:
            params, state = step(params, state, batch)
        found.append(float(np.abs(params["w"] - BEST).max()))
    return np.asarray(found)


def test_the_error_decreases_linearly_where_sgd_stalls():
    reduced, plain = (trained(jfit.optim.sgd(0.1), 10, reduce) for reduce in (True, False))
    factors = reduced[1:] / reduced[:-1]
    assert np.all(factors < 0.4)
    assert reduced[-1] < 1e-4
    assert plain.min() > 0.1


@pytest.mark.parametrize("inner", [optax.chain(optax.clip_by_global_norm(5.0), jfit.optim.adam(0.1))])
def test_any_optimizer_can_be_wrapped(inner):
    assert trained(inner, 15, True)[-1] < 0.02


def test_before_the_first_snapshot_it_equals_the_wrapped_optimizer():
    inner = jfit.optim.sgd(0.5, momentum=0.9)
    params, grads = {"a_weight": jnp.ones(2), "b": {"c": jnp.ones((), jnp.bfloat16)}}, None
    grads = jax.tree.map(lambda w: w * 2, params)
    nan = jax.tree.map(lambda w: w * jnp.nan, params)
    around = svrg(inner)
    wanted, _ = inner.update(grads, inner.init(params), params)
    found, state = around.update(grads, around.init(params), params, snapshot_gradients=nan)
    assert jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype and bool(jnp.all(a == b)), found, wanted))
    assert state.full["b"]["c"].dtype == jnp.float32
    half = jax.tree.map(lambda w: w / 2, params)
    found, _ = around.update(grads, svrg_snapshot(state, params, half), params, snapshot_gradients=half, learning_rate=1.0)
    assert float(found["a_weight"][0]) == pytest.approx(-0.9 - 2)  # 2 - 0.5 + 0.5 at the rate that was fed, and the momentum


def test_the_state_owns_its_buffers_and_can_be_donated():
    params = {"w": jnp.ones(3)}
    optimizer = svrg(jfit.optim.sgd(0.1))
    state = svrg_snapshot(optimizer.init(params), params, params)
    leaves = [x.unsafe_buffer_pointer() for x in jax.tree.leaves((params, state))]
    assert len(set(leaves)) == len(leaves)
    step = jax.jit(lambda s, p: optimizer.update(p, s, p, snapshot_gradients=p), donate_argnums=0)
    added, state = step(state, params)
    assert added["w"].tolist() == pytest.approx([-0.1] * 3)
    assert optimizer.init(params).snapshot["w"].unsafe_buffer_pointer() != params["w"].unsafe_buffer_pointer()


def test_full_gradients_weight_rows_and_not_batches():
    whole = GRADIENT({"w": jnp.ones(3)}, {}, {"x": X, "label": Y})["w"]
    ragged = [{"x": X[a:b], "label": Y[a:b]} for a, b in ((0, 25), (25, 50), (50, 60))]
    np.testing.assert_allclose(EVERYTHING({"w": jnp.ones(3)}, {}, ragged)["w"], whole, rtol=1e-5)
    weight = np.r_[np.ones(10), np.zeros(50)].astype("float32")
    some = GRADIENT({"w": jnp.ones(3)}, {}, jfit.Batch({"x": X, "label": Y}, weight))["w"]
    first = GRADIENT({"w": jnp.ones(3)}, {}, {"x": X[:10], "label": Y[:10]})["w"]
    np.testing.assert_allclose(some, first, rtol=1e-5)
    none = GRADIENT({"w": jnp.ones(3)}, {}, jfit.Batch({"x": X, "label": Y}, weight * 0))["w"]
    assert none.tolist() == [0, 0, 0]


def test_the_mean_over_devices_equals_that_of_the_whole_batch():
    whole = GRADIENT({"w": jnp.ones(3)}, {}, {"x": X, "label": Y})["w"]
    cut = {"x": X.reshape(4, 15, 3), "label": Y.reshape(4, 15)}
    each = jax.vmap(lambda b: GRADIENT({"w": jnp.ones(3)}, {}, b, axis_name="d"), axis_name="d")(cut)["w"]
    np.testing.assert_allclose(each, jnp.tile(whole, (4, 1)), rtol=1e-5)


def test_invalid_arguments_raise():
    params = {"w": jnp.ones(3)}
    optimizer = svrg(optax.sgd(0.1))
    with pytest.raises(ValueError, match="needs the gradient of the same batch at its snapshot"):
        optimizer.update(params, optimizer.init(params), params)
    with pytest.raises(ValueError, match="no batch"):
        EVERYTHING(params, {}, iter(()))
    with pytest.raises(ValueError, match=r"jfit\.fit and jfit\.train_step compute one gradient per step"):
        jfit.fit(MODEL, BATCHES, optimizer=optimizer, num_epoch=1, eval_metric=None)
