"""Models from JAX functions: parameter names, auxiliary state, random keys, precision."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit
from jfit.lowering.model import row_weights
from jfit.ops.rows import LOST, RowLayout

KEY = jax.random.key(1)


def linear(params, x):
    return x @ params["w"]


def model_of(apply=linear, loss=optax.l2_loss, params=None, **options):
    return jfit.Model.from_function(apply, loss=loss, params={"w": jnp.ones(3)} if params is None else params, **options)


@pytest.fixture
def line(rng):
    x = rng.normal(size=(40, 3)).astype("float32")
    return {"x": x, "label": x @ np.array([1.0, -2.0, 0.5], "float32")}


def test_parameters_may_come_from_an_init_function(line):
    model = jfit.Model.from_function(linear, loss=optax.l2_loss, init=lambda key, x: {"w": jax.random.normal(key, x.shape[1:])})
    with pytest.raises(ValueError, match="tree structure of params is unknown before init"):
        model.apply({}, {}, line)
    params, _ = model.init(KEY, jfit.lowering.model.specs_of(line))
    assert params["w"].shape == (3,)
    assert model.plan(jfit.lowering.model.specs_of(line)).rows == (RowLayout(0, 1, 40, 1),)


def test_an_output_without_a_batch_axis_is_reported(line):
    assert model_of(lambda p, x: (x @ p["w"])[:5]).plan(jfit.lowering.model.specs_of(line)).rows == (LOST,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: jfit.Model.from_function(linear, loss=optax.l2_loss), "pass either params= .* or init="),
        (lambda x: model_of(lambda params: 1), "no input was found in its signature"),
        (lambda x: model_of().apply({"w": jnp.ones(3)}, {}, {"z": x}), "input 'x' is missing; the model takes"),
        (lambda x: model_of().apply({"v": jnp.ones(3)}, {}, {"x": x}), r"^'w' is missing; found \['v'\]"),
        (
            lambda x: model_of(lambda p, x, *, aux: x, aux={"n": x}).apply({"w": x}, {"n": x}, {"x": x}),
            "must return .output, new aux",
        ),
        (
            lambda x: model_of(lambda p, x, *, aux: (x, {"m": x}), aux={"n": x}).apply({"w": x}, {"n": x}, {"x": x}),
            r"apply returned aux with the leaves \['m'\], expected the tree it was passed: \['n'\]",
        ),
        (lambda x: model_of(params={"a/b": x, "a": {"b": x}}), "two leaves of the pytree have the same name: 'a/b'"),
        (
            lambda x: model_of(loss=lambda o, y: jnp.mean(o - y)).outputs[0].loss(x, {"label": x}),
            r"loss returned shape \(\), expected one value per example, \(2,\).*before averaging",
        ),
        (lambda x: model_of().outputs[0].loss(x, {}), "the loss needs the label 'label'"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make(jnp.ones(2))


def test_a_policy_computes_in_its_dtype_and_returns_float32():
    seen = []

    def apply(params, x):
        seen.append((params["w"].dtype, x.dtype))
        return x @ params["w"]

    model = model_of(apply)
    (out,), _ = model.apply({"w": jnp.ones(3)}, {}, {"x": np.ones((2, 3), "float32")}, policy=jfit.Policy("bfloat16"))
    assert (seen, out.dtype) == ([(jnp.bfloat16, jnp.bfloat16)], jnp.float32)


def test_weights_of_rows_that_occur_several_times_follow_the_order_of_the_output():
    weight = jnp.array([1.0, 2.0])
    within, around = RowLayout(axis=0, before=1, size=2, after=3), RowLayout(axis=0, before=3, size=2, after=1)
    assert row_weights(weight, within, 6).tolist() == [1, 1, 1, 2, 2, 2]
    assert row_weights(weight, around, 6).tolist() == [1, 2, 1, 2, 1, 2]
    assert row_weights(weight, around, 4) is None
