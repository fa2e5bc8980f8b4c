"""Optimizers by name for functions and modules: the numbers of optax, with the learning rate in the state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit
import jfit.counters
from jfit.optim.registry import get_for

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 5)).astype("float32")
Y = (X @ RNG.normal(size=5) + 0.5).astype("float32")
START = {"in": {"w": jnp.asarray(RNG.normal(size=(5, 4)) * 0.5, jnp.float32), "b": jnp.zeros(4)}, "out": jnp.ones(4) * 0.3}
# name -> (parameters of optax's factory, default learning rate)
NAMES = {
    "sgd": ({"momentum": 0.9, "nesterov": True}, 0.01),
    "adam": ({"b1": 0.8, "b2": 0.95, "eps": 1e-3, "eps_root": 1e-6}, 0.001),
    "adamw": ({"b1": 0.8, "weight_decay": 0.1}, 0.001),
    "adamax": ({"b2": 0.95}, 0.002),
    "nadam": ({"b1": 0.8}, 0.001),
    "rmsprop": ({"decay": 0.8, "initial_scale": 0.5, "centered": True, "momentum": 0.7}, 0.001),
    "adagrad": ({"initial_accumulator_value": 0.3, "eps": 1e-5}, 0.01),
    "adadelta": ({"rho": 0.8, "weight_decay": 0.01}, 1.0),
    "lamb": ({"weight_decay": 0.1, "eps": 1e-4}, 0.001),
    "lars": ({"weight_decay": 0.1, "momentum": 0.8, "trust_coefficient": 0.02}, 0.01),
    "signum": ({"beta": 0.7}, 0.01),
    "lion": ({"weight_decay": 0.1}, 1e-3),
}


def apply(params, x):
    return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"][None]) @ params["out"]


def fitted(optimizer, start=START, **options):
    fixed = {"params": start, "loss": optax.l2_loss, "batch_size": 16, "num_epoch": 3, "shuffle": False, "progress": False}
    return jfit.fit(apply, (X, Y), optimizer=optimizer, **fixed | options)


def by_hand(transform, start=START, epochs=3):
    @jax.jit
    def step(params, state, x, y):
        grads = jax.grad(lambda p: optax.l2_loss(apply(p, x), y).mean())(params)
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params, state = start, transform.init(start)
    for _ in range(epochs):
        for i in range(0, 64, 16):
            params, state = step(params, state, X[i : i + 16], Y[i : i + 16])
    return params


def assert_close(found, expected, rtol=1e-6, atol=1e-7):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a, "f4"), np.asarray(b, "f4"), rtol, atol), found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_optimizer_of_optax_for_a_function(name):
    params, default = NAMES[name]
    assert get_for(False, name).learning_rate == default
    run = fitted(name, optimizer_params={"learning_rate": 0.03, **params})
    assert_close(run.params, by_hand(getattr(optax, name)(0.03, **params)))
    assert run.base_lr == np.float32(0.03) and run.lr == pytest.approx(0.03)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", ["sgd", "adamw", "rmsprop", "lars"])
def test_named_optimizers_follow_schedules_as_optax_does(name):
    params, rate = NAMES[name][0], optax.cosine_decay_schedule(0.1, 12)
    expected = by_hand(getattr(optax, name)(rate, **params))
    given = fitted(name, optimizer_params=params, schedule=rate)
    own = fitted(name, optimizer_params=params | {"learning_rate": rate})
    assert_close(given.params, expected)
    assert_close(own.params, expected)
    assert own.base_lr is None and own.lr == pytest.approx(float(rate(11)))


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", ["sgd", "adamw", "rmsprop", "lars"])
def test_multipliers_of_the_learning_rate_are_those_of_multi_transform(name):
    params = NAMES[name][0]
    run = fitted(name, optimizer_params={"learning_rate": 0.03, "lr_mult": {"out": 0.1, "in/b": 0.0}, **params})
    rates = {"in": {"w": "1", "b": "0"}, "out": "0.1"}
    each = {key: getattr(optax, name)(0.03 * float(key), **params) for key in ("1", "0", "0.1")}
    # the trust ratio of lars is that of one parameter, so that parts do not affect each other
    assert_close(run.params, by_hand(optax.multi_transform(each, rates)))
    of_name = fitted(
        name, optimizer_params={"learning_rate": 0.03, "lr_mult": lambda n: {"out": 0.1, "in/b": 0.0}.get(n, 1)} | params
    )
    assert_close(of_name.params, run.params, 0, 0)


def test_an_unknown_name_among_the_multipliers_raises():
    with pytest.raises(ValueError, match="lr_mult has 'inn/b', which is no parameter"):
        fitted("adam", optimizer_params={"lr_mult": {"inn/b": 2.0}})


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_master_copies_of_16_bit_parameters_are_updated_in_float32(name):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), START) | {"out": START["out"]}
    params = {"learning_rate": 0.01, **NAMES[name][0]}
    run = fitted(name, half, optimizer_params=params | {"multi_precision": True})
    masters = run.state.opt_state.master
    assert run.params["in"]["w"].dtype == jnp.bfloat16 and masters["in/w"].dtype == jnp.float32
    assert masters["out"] == optax.MaskedNode()
    np.testing.assert_array_equal(run.params["in"]["w"], masters["in/w"].astype(jnp.bfloat16))
    exact = by_hand(getattr(optax, name)(**params), jax.tree.map(lambda x: x.astype(jnp.float32), half))
    # gradients are those of 16-bit parameters
    assert_close(masters["in/w"], exact["in"]["w"], rtol=0.05, atol=5e-3)
    plain = fitted(name, half, optimizer_params=params)  # 16-bit arithmetic, as optax computes with Python numbers
    assert_close(plain.params, fitted(getattr(optax, name)(**params), half).params, 0, 0)


def test_other_learning_rates_and_numbers_compile_nothing():
    fitted("sgd", optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    fitted("adamw", optimizer_params={"learning_rate": 0.1, "weight_decay": 0.01})
    with jfit.counters.counted() as counts:
        run = fitted("sgd", optimizer_params={"learning_rate": 0.03, "momentum": 0.7})
        other = fitted("adamw", optimizer_params={"learning_rate": 0.02, "weight_decay": 0.3})
        run.set_base_lr(0.01)
    assert counts["compiles"] == 0
    assert_close(run.params, by_hand(optax.sgd(0.03, momentum=0.7)))
    assert_close(other.params, by_hand(optax.adamw(0.02, weight_decay=0.3)))


def test_a_sweep_has_the_numbers_of_optax():
    over = {"learning_rate": [0.01, 0.1], "b1": [0.8, 0.95], "eps": [1e-6, 1e-3]}
    result = jfit.sweep(
        apply, (X, Y), over=over, params=START, loss=optax.l2_loss, optimizer="adam", batch_size=16, num_epoch=3, shuffle=False
    )
    assert len(result) == 8
    for member in result:
        assert_close(member.params, by_hand(optax.adam(**member.settings)), 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("adam", "beta1", "'adam' has no parameter 'beta1'.* it is optax.adam, which calls it 'b1'"),
        ("adam", "epsilon", "optax.adam, which calls it 'eps'"),
        ("adamw", "wd", "optax.adamw, which calls it 'weight_decay'"),
        ("rmsprop", "gamma1", "optax.rmsprop, which calls it 'decay'"),
        ("sgd", "wd", r"it is optax.sgd; MXNet's is jfit.optim.sgd\(..., wd=...\)"),
        ("sgd", "weight_decay", r"it is optax.sgd; MXNet's is jfit.optim.sgd\(..., wd=...\)"),
        ("adam", "clip_gradient", r"it is optax.adam; MXNet's is jfit.optim.adam\(..., clip_gradient=...\)"),
        ("lion", "lr_mult", "'lion' has no parameter 'lr_mult'"),
    ],
)
def test_names_of_mxnet_raise_with_the_name_in_optax(name, key, message):
    with pytest.raises(ValueError, match=message):
        fitted(name, optimizer_params={key: 0.1})


def test_names_and_instances_of_mxnet_stay_for_graphs_and_functions():
    sym = jfit.sym.LinearRegressionOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=1), name="out")
    graph = jfit.lower(sym)
    assert type(jfit.init_state(graph, "adam", {"data": X}).opt_state).__name__ == "OptState"
    function = jfit.Model.from_function(apply, loss=optax.l2_loss, params=START)
    assert type(jfit.init_state(function, "adam").opt_state).__name__ == "NamedState"
    assert type(jfit.init_state(function, "nag").opt_state).__name__ == "OptState"
    assert type(jfit.init_state(function, jfit.optim.adam()).opt_state).__name__ == "OptState"


def test_train_step_takes_names_too():
    model = jfit.Model.from_function(apply, loss=optax.l2_loss, params=START)
    step, state = jax.jit(jfit.train_step(model, "adagrad")), jfit.init_state(model, "adagrad", learning_rate=0.1)
    for i in range(0, 64, 16):
        state, _ = step(state, {"x": X[i : i + 16], "label": Y[i : i + 16]})
    assert_close(model.structure.params.unflatten(state.params), by_hand(optax.adagrad(0.1), epochs=1))


@pytest.mark.parametrize("name", ["adam", "adagrad", "lamb", "novograd"])
def test_the_initial_state_is_that_of_the_compiled_init(name):
    params = {"w": np.ones((3, 2), "float32"), "b": np.ones(2, "float32")}
    model = jfit.Model.from_function(lambda p, x: x @ p["w"] + p["b"], loss=optax.l2_loss, params=params)
    for optimizer in (
        getattr(optax, name)(0.1),
        optax.MultiSteps(getattr(optax, name)(optax.cosine_decay_schedule(0.1, 9)), 2),
    ):
        state, expected = jfit.init_state(model, optimizer).opt_state, jax.jit(optimizer.init)(params)
        assert jax.tree.structure(state) == jax.tree.structure(expected)
        for leaf, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            assert leaf.dtype == other.dtype and leaf.weak_type == other.weak_type
            np.testing.assert_array_equal(leaf, other)
