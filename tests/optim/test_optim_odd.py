"""Unusual gradients and parameters, for every optimizer: NaN, overflow, empty trees, 16-bit dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jfit import optim

NAMES = sorted({entry: name for name, entry in reversed(optim.OPTIMIZERS.items())}.values())
START = {
    "a_weight": jnp.array([[0.5, -1.0], [2.0, 0.25]]),
    "z_weight": jnp.zeros((0, 2)),
    "h_weight": jnp.ones((1, 2), "float16"),
}


def moved(name, gradient, **params):
    made = optim.get(name, learning_rate=0.1, **params)
    grads = jax.tree.map(lambda w: jnp.full_like(w, 0.5), START)
    grads["a_weight"] = grads["a_weight"].at[0, 0].set(gradient)
    updates, state = jax.jit(made.update)(grads, made.init(START), START)
    return optax.apply_updates(START, updates), state


FAST = ("ftrl", "lars")  # a new weight, norms


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
@pytest.mark.repetitions(slow=8)
def test_a_nan_gradient_affects_only_its_own_parameter(name):
    after, _ = moved(name, jnp.nan)
    rests = name == "signum"  # the sign of NaN is 0, as in MXNet
    assert np.isnan(after["a_weight"][0, 0]) != rests
    plain, _ = moved(name, 0.5)
    np.testing.assert_array_equal(after["h_weight"], plain["h_weight"])
    assert {n: (w.shape, w.dtype) for n, w in after.items()} == {n: (w.shape, w.dtype) for n, w in START.items()}


def test_an_overflowing_sum_does_not_zero_an_ftrl_weight():
    """MXNet multiplies by |z| > lamda1, so that NaN stays."""
    after, _ = moved("ftrl", jnp.inf)
    assert np.isnan(after["a_weight"][0, 0])


def test_a_nan_makes_the_whole_lamb_parameter_nan_as_in_mxnet():
    assert np.isnan(moved("lamb", jnp.nan)[0]["a_weight"]).all()
    still = {"w": jnp.zeros(2)}
    made = optim.lamb(0.1)
    updates, _ = made.update({"w": jnp.ones(2)}, made.init(still), still)
    np.testing.assert_allclose(updates["w"], [-0.1, -0.1], rtol=1e-5)  # of size 0 a parameter still learns
