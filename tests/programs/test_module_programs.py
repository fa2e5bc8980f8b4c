"""Programs of modules of JAX frameworks: equal modules share them, modules that differ do not; `run.model` of a state."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import jfit
from jfit import counters
from jfit.programs import key_of_structure, read_key

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int32")


@pytest.fixture(autouse=True)
def empty():
    jfit.clear_programs()


class Nnx(nnx.Module):
    def __init__(self, rngs, rate=0.1, act=nnx.relu, scale=1):
        self.first, self.drop = nnx.Linear(4, 8, rngs=rngs), nnx.Dropout(rate, rngs=rngs)
        self.last, self.act, self.scale = nnx.Linear(8, 2, rngs=rngs), act, scale

    def __call__(self, x):
        return self.last(self.drop(self.act(self.first(x)))) * self.scale


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear
    act: Callable[..., jax.Array]
    scale: float = eqx.field(static=True)

    def __init__(self, key, rate=0.1, act=jax.nn.relu, scale=1):
        self.first, self.last = eqx.nn.Linear(4, 8, key=key), eqx.nn.Linear(8, 2, key=key)
        self.drop, self.act, self.scale = eqx.nn.Dropout(rate), act, scale

    def __call__(self, x, key):
        return self.last(self.drop(self.act(self.first(x)), key=key)) * self.scale


class Linen(linen.Module):
    rate: float = 0.1
    act: Callable[..., jax.Array] = linen.relu
    scale: float = 1

    @linen.compact
    def __call__(self, x, train):
        x = linen.Dropout(self.rate, deterministic=not train)(self.act(linen.Dense(8)(x)))
        return linen.Dense(2)(x) * self.scale


MAKERS = {
    "nnx": lambda **options: Nnx(nnx.Rngs(0), **options),
    "equinox": lambda **options: Equinox(jax.random.key(0), **options),
    "linen": lambda **options: Linen(**options),
}


def fitted(module, **options):
    """Train, score and predict; return (run, parameters, predictions, counts)."""
    options = {"loss": "cross_entropy", "batch_size": 10, "num_epoch": 1, "progress": False} | options
    with counters.counted() as counts:
        run = jfit.fit(module, (X, Y), **options)
        predicted = run.predict(X)
    return run, run.named_params, predicted, counts


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a[1:3]), jax.tree.leaves(b[1:3]), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("kind", ["nnx", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("equinox", "linen"))])
def test_a_second_fit_of_an_equal_module_traces_and_compiles_nothing_with_the_bits_of_the_first(kind):
    options = {} if kind == "nnx" else {"batch_size": 8, "eval_data": (X, Y)}  # an incomplete last batch, an evaluation
    first, second = (fitted(MAKERS[kind](), **options) for _ in range(2))
    assert first[-1]["traces:train"] == 1 and second[-1]["traces"] == 0
    assert second[-1]["compiles"] == (
        kind == "linen"
    )  # the initial values of a linen module are drawn by a program of their own
    assert_same_bits(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*MAKERS])
@pytest.mark.parametrize("change", [{"rate": 0.5}, {"act": jnp.tanh}, {"scale": 1.0}, {"scale": True}])
def test_a_module_that_differs_in_a_static_field_is_another_program(kind, change):
    fitted(MAKERS[kind]())
    other = fitted(MAKERS[kind](**change))
    assert other[-1]["traces:train"] == 1
    jfit.clear_programs()
    assert_same_bits(other, fitted(MAKERS[kind](**change)))


@pytest.mark.slow
def test_a_class_defined_again_with_another_body_is_another_program():
    def defined(factor):
        class Net(nnx.Module):
            def __init__(self, rngs):
                self.layer = nnx.Linear(4, 2, rngs=rngs)

            def __call__(self, x):
                return self.layer(x) * factor

        return Net(nnx.Rngs(0))

    first, second = fitted(defined(1.0)), fitted(defined(2.0))
    assert second[-1]["traces:train"] == 1
    assert not np.array_equal(first[2], second[2])


@pytest.mark.slow
def test_a_stateful_equinox_module_of_coupled_rows_is_tested_and_compiled_once():
    class Net(eqx.Module):
        layer: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self):
            self.layer, self.norm = eqx.nn.Linear(4, 2, key=jax.random.key(0)), eqx.nn.BatchNorm(2, "batch", mode="ema")

        def __call__(self, x, state):
            return self.norm(self.layer(x), state)

    first, second = (fitted(eqx.nn.make_with_state(Net)()) for _ in range(2))
    assert first[-1]["traces:rows"] and not second[-1]["traces"] and not second[-1]["compiles"]
    assert_same_bits(first, second)


def test_a_structure_whose_parts_cannot_be_compared_has_no_key():
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    assert not key_of_structure(Unhashable()).is_complete
    assert not key_of_structure(np.zeros(2000)).is_complete  # too large to be part of a key
    assert key_of_structure(np.zeros(2, "float32")) == key_of_structure(jnp.zeros(2, "float32"))
    assert key_of_structure(jax.random.key(0)) != key_of_structure(jax.random.key(1))
    assert not read_key((key_of_structure(Unhashable()),)).is_complete


# ------------------------------------------------------------------------------------------------ run.model
class Tied(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)
        self.b.kernel = self.a.kernel

    def __call__(self, x):
        return self.b(nnx.relu(self.a(x)))


class Shared(eqx.Module):
    shared: eqx.nn.Shared

    def __init__(self, key):
        pair = eqx.nn.Linear(4, 4, key=key), eqx.nn.Linear(4, 4, key=key)
        self.shared = eqx.nn.Shared(pair, lambda pair: pair[1].weight, lambda pair: pair[0].weight)

    def __call__(self, x):
        a, b = self.shared()
        return b(jax.nn.relu(a(x)))


def test_run_model_is_one_object_until_the_state_changes_and_keeps_ties(tmp_path):
    seen = []
    run = fitted(Tied(nnx.Rngs(0)), callbacks=[lambda event: seen.append(event.run.model)])[0]
    model = run.model
    assert model is run.model is seen[-1] and model.a.kernel is model.b.kernel and len(run.named_params) == 3
    run.set_base_lr(0.5)
    run.score((X, Y))
    assert run.model is model
    before = np.asarray(model.a.kernel)
    model.a.bias[...] = model.a.bias[...] + 1  # the run has its own arrays
    predicted = run.predict(X)
    run.save(tmp_path)
    run.train(1)
    assert run.model is not model and run.model is run.model and not np.array_equal(run.model.a.kernel, before)
    np.testing.assert_array_equal(model.a.kernel, before)
    run.resume_from(tmp_path)
    np.testing.assert_array_equal(run.model.a.kernel, before)
    np.testing.assert_allclose(run.model(X), predicted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_run_model_of_an_equinox_module_keeps_shared_layers():
    run, _, predicted, _ = fitted(Shared(jax.random.key(0)))
    a, b = run.model.shared()
    assert run.model is run.model and a.weight is b.weight and len(run.named_params) == 3
    np.testing.assert_allclose(jax.vmap(run.model)(X), predicted, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------------ the first fit
def mlp(params, x):
    return jnp.tanh(x @ params["w"]) + params["b"][None]


def test_a_first_fit_compiles_no_programs_but_its_steps_and_a_callback_of_each_step_none():
    params = {"w": np.ones((4, 3), "float32"), "b": np.zeros(3, "float32")}
    options = {"params": params, "optimizer": "adam"}
    first = fitted(mlp, **options)
    assert first[-1]["compiles"] <= first[-1]["traces"] + 1  # and the copy of the running sums, once per process
    steps = []
    every = jfit.callbacks.Callback(on=lambda event, state: steps.append(event.step), events=("step",), every=1)
    again = fitted(mlp, callbacks=[every], **options)
    assert not again[-1]["compiles"] and steps == [1, 2]
    assert_same_bits(first, again)
