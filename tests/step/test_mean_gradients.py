"""`jfit.gradients.mean_gradients`: row weights, and means over devices."""

import jax
import jax.numpy as jnp
import numpy as np

import jfit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype("float32")
Y = X @ np.array([1, 2, 3], "float32") + X[:, 0] ** 2
MODEL = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=lambda o, y: (o - y) ** 2, params={"w": jnp.zeros(3)})
GRADIENT = jax.jit(jfit.gradients.mean_gradients(MODEL), static_argnames="axis_name")


def test_rows_count_with_their_weights():
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
