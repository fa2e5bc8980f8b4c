"""Modules of JAX frameworks as the model of `fit`: the oracle is the same training in plain framework code with optax."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import jfit

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when keras is first imported

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 5)).astype("float32")
Y = (X @ RNG.normal(size=(5, 3)).astype("float32")).argmax(1)
EPOCHS = 3
INIT_KEY, RUN_KEY = jax.random.split(jax.random.key(0))  # of a run with seed 0
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


@pytest.fixture(autouse=True, scope="module")
def rank_promotion():
    """Keras adds biases to arrays of another rank."""
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_rank_promotion", "raise")


class Plain(NamedTuple):
    """A module as pure functions in the code of its framework.

    Attributes:
        module: the argument of `fit`.
        params, aux: initial values.
        apply: `apply(params, aux, x, key) -> (output, new aux)` in training mode.
        evaluate: `evaluate(params, aux, x) -> output` in evaluation mode.
    """

    module: Any
    params: Any
    aux: Any
    apply: Any
    evaluate: Any


def train(module, **options):
    options = {"batch_size": 16, "num_epoch": EPOCHS, "shuffle": False, "progress": False, "eval_metric": None, **options}
    return jfit.fit(module, (X, Y), **{"loss": cross_entropy, "optimizer": optax.sgd(0.1, momentum=0.9), **options})


def by_hand(plain, size):
    """(params, aux, mean loss of each epoch) of the training that `train` does, in plain JAX and optax."""
    params, aux, optimizer, means = plain.params, plain.aux, optax.sgd(0.1, momentum=0.9), []
    opt_state, number = optimizer.init(params), 0

    @jax.jit
    def step(params, aux, opt_state, key, x, y):
        def loss_of(params):
            output, new_aux = plain.apply(params, aux, x, key)
            return cross_entropy(output, y).mean(), new_aux

        (loss, aux), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), aux, opt_state, loss

    for _ in range(EPOCHS):
        total = 0.0
        for start in range(0, len(X), size):  # the last batch of an epoch is incomplete
            x, y = X[start : start + size], Y[start : start + size]
            key = jax.random.fold_in(jax.random.fold_in(RUN_KEY, number), 0)  # step, micro-batch
            params, aux, opt_state, loss = step(params, aux, opt_state, key, x, y)
            number, total = number + 1, total + float(loss) * len(x)
        means.append(total / len(X))
    return params, aux, means


def assert_close(tree, expected, rtol=2e-4, atol=2e-6):
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


# ------------------------------------------------------------------------------------------------ the module of each framework
class Nnx(nnx.Module):
    """An MLP with batch normalization and two dropout layers."""

    def __init__(self, rate, rngs):
        self.first, self.last = nnx.Linear(5, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.drop = nnx.List([nnx.Dropout(rate, rngs=rngs), nnx.Dropout(rate, rngs=rngs)])

    def __call__(self, x):
        return self.last(self.drop[1](nnx.relu(self.norm(self.drop[0](self.first(x))))))


def nnx_module(rate=0.5):
    module = Nnx(rate, nnx.Rngs(0, dropout=1))
    graphdef, params, rngs, stats = nnx.split(module, nnx.Param, nnx.RngState, nnx.BatchStat)

    def apply(params, stats, x, key):
        m = nnx.merge(graphdef, params, rngs, stats, copy=True)
        m.train()
        nnx.reseed(m, dropout=jax.random.fold_in(key, zlib.crc32(b"dropout")))
        return m(x), nnx.state(m, nnx.BatchStat)

    def evaluate(params, stats, x):
        m = nnx.merge(graphdef, params, rngs, stats)
        m.eval()
        return m(x)

    return Plain(module, params, stats, apply, evaluate)


class Linen(linen.Module):
    rate: float

    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9)(linen.Dense(8)(x))
        return linen.Dense(3)(linen.Dropout(self.rate, deterministic=not train)(linen.relu(x)))


def linen_module(rate=0.5):
    module = Linen(rate)
    variables = module.init(INIT_KEY, X[:1], train=False)

    def apply(params, aux, x, key):
        return module.apply({"params": params, **aux}, x, True, rngs={"dropout": key}, mutable=["batch_stats"])

    def evaluate(params, aux, x):
        return module.apply({"params": params, **aux}, x, train=False)

    return Plain(module, variables["params"], {"batch_stats": variables["batch_stats"]}, apply, evaluate)


class Eqx(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, rate, key):
        self.first, self.last = (eqx.nn.Linear(*n, key=k) for n, k in zip([(5, 8), (8, 3)], jax.random.split(key), strict=True))
        self.norm, self.drop = eqx.nn.BatchNorm(8, axis_name="rows", mode="batch"), eqx.nn.Dropout(rate)

    def __call__(self, x, state, key):
        x, state = self.norm(self.first(x), state)
        return self.last(self.drop(jax.nn.relu(x), key=key)), state


def equinox_module(rate=0.5):
    module, state = eqx.nn.make_with_state(Eqx)(rate, jax.random.key(0))
    params, static = eqx.partition(module, eqx.is_inexact_array)

    def apply(params, state, x, key):
        keys = jnp.stack([jax.random.fold_in(key, i) for i in range(len(x))])
        model = eqx.combine(params, static)
        return jax.vmap(model, axis_name="rows", in_axes=(0, None, 0), out_axes=(0, None))(x, state, keys)

    def evaluate(params, state, x):
        model = eqx.nn.inference_mode(eqx.combine(params, static))
        return jax.vmap(model, axis_name="rows", in_axes=(0, None, None))(x, state, None)[0]

    return Plain((module, state), params, state, apply, evaluate)


def haiku_module(rate=0.5):
    hk = pytest.importorskip("haiku")

    def net(x, is_training):
        x = jax.nn.relu(hk.BatchNorm(True, True, 0.9)(hk.Linear(8)(x), is_training))
        return hk.Linear(3)(hk.dropout(hk.next_rng_key(), rate, x) if is_training else x)

    pair = hk.transform_with_state(net)

    def apply(params, state, x, key):
        return pair.apply(params, state, key, x, is_training=True)

    def evaluate(params, state, x):
        return pair.apply(params, state, None, x, is_training=False)[0]

    return Plain(pair, *pair.init(INIT_KEY, X[:1], is_training=True), apply, evaluate)


def keras_module(rate=0.5):
    keras = pytest.importorskip("keras")
    layers = keras.layers
    model = keras.Sequential([layers.Input((5,)), layers.Dense(8), layers.BatchNormalization(momentum=0.9), layers.ReLU()])
    model.add(layers.Dropout(rate))
    model.add(layers.Dense(3))
    names = [f"sequential/{layer}" for layer in ("dense", "batch_normalization", "dense_1")]
    trained = [
        f"{layer}/{v}"
        for layer, v in zip(np.repeat(names, 2), ["kernel", "bias", "gamma", "beta", "kernel", "bias"], strict=True)
    ]
    moving = [f"{names[1]}/moving_mean", f"{names[1]}/moving_variance"]
    params = dict(zip(trained, [v.value for v in model.trainable_variables], strict=True))
    aux = dict(zip(moving, [v.value for v in model.non_trainable_variables][:2], strict=True))

    def call(params, aux, x, training, seed):
        others = [*(aux[n] for n in moving), *seed]
        output, others = model.stateless_call([params[n] for n in trained], others, x, training=training)
        return output, dict(zip(moving, others[:2], strict=True))

    def apply(params, aux, x, key):
        return call(params, aux, x, True, [jax.random.bits(jax.random.fold_in(key, 0), (2,), "uint32")] if rate else [])

    def evaluate(params, aux, x):
        return call(params, aux, x, False, [jnp.zeros(2, "uint32")] if rate else [])[0]

    return Plain(model, params, aux, apply, evaluate)


MODULES = [nnx_module, linen_module, equinox_module, haiku_module, keras_module]
keras_is_slow = pytest.param(keras_module, marks=pytest.mark.slow)  # its import takes seconds


@pytest.fixture(scope="module", params=MODULES, ids=lambda make: make.__name__)
def trained(request, rank_promotion):
    """(module as pure functions, run of 40 rows in batches of 16)."""
    plain = request.param()
    return plain, train(plain.module)


# ------------------------------------------------------------------------------------------------ the same numbers
@pytest.mark.repetitions(1)
def test_a_module_trains_as_in_plain_code_of_its_framework(trained):
    plain, run = trained
    params, aux, losses = by_hand(plain, 16)
    np.testing.assert_allclose(run.history.column("loss"), losses, rtol=1e-5)
    assert_close(run.params, params)
    assert_close(run.aux, aux)
    np.testing.assert_allclose(run.predict(X), plain.evaluate(params, aux, X), rtol=1e-4, atol=1e-5)


def equinox_dropout():
    module = eqx.nn.Sequential([eqx.nn.Linear(5, 3, key=jax.random.key(0)), eqx.nn.Dropout(0.5)])
    params, static = eqx.partition(module, eqx.is_inexact_array)

    def apply(params, aux, x, key):
        keys = jnp.stack([jax.random.fold_in(key, i) for i in range(len(x))])
        return jax.vmap(lambda row, key: eqx.combine(params, static)(row, key=key))(x, keys), aux

    return Plain(module, params, (), apply, None)


@pytest.mark.slow
def test_dropout_in_padded_batches_draws_the_masks_of_batches_without_padding():
    plain = equinox_dropout()
    run, (params, _, losses) = train(plain.module), by_hand(plain, 16)
    assert run.functions.plan(run.settings.inputs).paddable
    np.testing.assert_allclose(run.history.column("loss"), losses, rtol=1e-5)
    assert_close(run.params, params)


# ------------------------------------------------------------------------------------------------ what comes back
@pytest.mark.repetitions(2)
def test_run_model_is_the_trained_module_and_the_module_passed_is_unchanged(trained):
    plain, run = trained
    model, start = run.model, plain.evaluate(plain.params, plain.aux, X)
    if isinstance(model, linen.Module):
        output = model(X, train=False)
    elif isinstance(model, tuple) and isinstance(model[0], eqx.Module):
        output = plain.evaluate(eqx.filter(model[0], eqx.is_inexact_array), model[1], X)
    elif isinstance(model, tuple):  # Haiku's pair has no values
        output = model.apply(run.params, run.aux, None, X, False)[0]
    else:
        output = model(X)
        assert type(model) is type(plain.module) and model is not plain.module
    np.testing.assert_allclose(output, run.predict(X), rtol=1e-5, atol=1e-6)
    fresh = jfit.predict(plain.module, X, params=plain.params, aux=plain.aux)
    np.testing.assert_allclose(fresh, start, rtol=1e-5, atol=1e-6)
    assert abs(fresh - output).max() > 0.1


@pytest.mark.slow
@pytest.mark.repetitions(1)
def test_a_resumed_run_of_a_module_equals_an_uninterrupted_one(trained, tmp_path):
    plain, run = trained
    train(plain.module, num_epoch=EPOCHS - 1, checkpoint=tmp_path)
    again = train(plain.module, checkpoint=tmp_path, resume=True)
    assert again.position == run.position
    assert_close((again.params, again.aux), (run.params, run.aux), rtol=0, atol=0)
    loaded = jfit.Run.load(tmp_path, plain.module, loss=cross_entropy)
    np.testing.assert_array_equal(loaded.predict(X), again.predict(X))
    assert jax.tree.structure(loaded.params) == jax.tree.structure(run.params)
    assert loaded.score((X, Y)) == again.score((X, Y), "auto")


@pytest.mark.slow
@pytest.mark.repetitions(1)
def test_score_predict_lr_find_and_fit_of_a_run_take_modules(trained):
    plain, run = trained
    values = {"params": run.params, "aux": run.aux}
    np.testing.assert_array_equal(jfit.predict(plain.module, X, **values), run.predict(X))
    assert jfit.score(plain.module, (X, Y), None, loss=cross_entropy, batch_size=16, **values) == run.score((X, Y))
    longer = train(run, num_epoch=1, loss=None)
    assert longer.history.column("loss")[-1] < run.history.column("loss")[0]
    assert len(jfit.lr_find(plain.module, (X, Y), loss=cross_entropy, steps=3, batch_size=16)) == 3


# ------------------------------------------------------------------------------------------------ several devices
@pytest.mark.slow
@pytest.mark.parametrize("make", [equinox_module, linen_module, nnx_module])
def test_synchronized_batch_statistics_of_two_devices_are_those_of_one(make):
    one, two = (train(make(rate=0.0).module, devices=n, sync_batch_stats=True, num_epoch=1) for n in (1, 2))
    assert_close((two.params, two.aux), (one.params, one.aux), 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [haiku_module, keras_is_slow])
def test_statistics_that_cannot_be_synchronized_are_refused(make):
    with pytest.raises(ValueError, match=r"sync_batch_stats=True: .* so jfit cannot average batch statistics of this"):
        train(make().module, devices=2, sync_batch_stats=True)


def test_a_module_without_batch_normalization_is_not_synchronized():
    for module in (nnx.Linear(5, 3, rngs=nnx.Rngs(0)), linen.Dense(3), eqx.nn.Linear(5, 3, key=jax.random.key(0))):
        with pytest.raises(ValueError, match="sync_batch_stats=True: it has no"):
            train(module, devices=2, sync_batch_stats=True)


# ------------------------------------------------------------------------------------------------ parameters
@pytest.mark.slow
def test_optax_masks_and_frozen_names_see_the_tree_of_the_module():
    mask = lambda params: jax.tree.map(lambda x: x.ndim == 2, params)  # noqa: E731
    optimizer = optax.chain(optax.sgd(0.1), optax.masked(optax.set_to_zero(), mask))
    module = eqx.nn.MLP(5, 3, 4, 1, key=jax.random.key(0))
    run = train(module, optimizer=optimizer, num_epoch=1)
    assert (run.params.layers[0].weight == module.layers[0].weight).all()
    assert (run.params.layers[0].bias != module.layers[0].bias).all()
    linear = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    run, before = train(linear, frozen=["kernel*"], num_epoch=1), np.array(linear.bias[...])
    assert (run.params["kernel"][...] == linear.kernel[...]).all() and (linear.bias[...] == before).all()
    nnx.update(linear, run.params)
    assert (linear.bias[...] == run.params["bias"][...]).all() and (linear.bias[...] != before).all()


# ------------------------------------------------------------------------------------------------ what is refused
class NoMode(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(3)(linen.Dropout(0.5, deterministic=False)(x))


def test_what_a_module_lacks_is_said_before_training():
    linear = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match="a module as model needs loss="):
        train(linear, loss=None)
    with pytest.raises(TypeError, match="needs loss="):
        jfit.score(linear, (X, Y))
    with pytest.raises(ValueError, match=r"params= is not a State like that of the Flax nnx module: .*bias"):
        train(linear, params={"w": X})
    with pytest.raises(ValueError, match=r"NoMode has the layer 'Dropout_0' .* takes no argument for the mode"):
        train(NoMode())
    with pytest.raises(ValueError, match="params is missing"):
        jfit.predict(linen.Dense(3), X)
    torch_module = type("Module", (), {"__module__": "torch.nn.modules.module", "__call__": lambda self, x: x})
    with pytest.raises(TypeError, match="the model is a Module of torch; pass a JAX module"):
        train(torch_module())
    with pytest.raises(TypeError, match="is no module of Flax, Equinox, Haiku or Keras"):
        jfit.Model.from_module(len)


@pytest.mark.slow
def test_keras_models_with_regularizers_or_another_backend_are_refused(monkeypatch):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(3, kernel_regularizer="l2")])
    with pytest.raises(ValueError, match=r"adds 1 losses .* which fit would leave out"):
        train(model)
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="the backend of Keras is 'torch', but jfit trains JAX programs"):
        train(model)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("make", [linen_module, haiku_module])
def test_auxiliary_states_alone_are_used_and_wrong_values_raise(make):
    plain = make()
    shifted = jax.tree.map(lambda x: x + 7, plain.aux)
    model = jfit.Model.from_module(plain.module, loss=cross_entropy, aux=shifted)
    specs = {model.inputs[0]: jax.ShapeDtypeStruct((4, 5), "float32")}
    params, aux = model.init(INIT_KEY, specs)
    assert_close((model.structure.params.unflatten(params), model.structure.aux.unflatten(aux)), (plain.params, shifted), 1e-6)
    wrong = jax.tree.map(lambda x: jnp.concatenate([x, x]), plain.params)
    state = {"aux": plain.aux}
    one = jax.tree.map(lambda x: jnp.ones(1), plain.aux)
    for values, message in (
        ({"params": {}, **state}, "params= is not a dict like that of the .* is missing, the module's of shape"),
        (
            {"params": {**plain.params, "Dense_9": {"kernel": X}}, **state},
            "params= is not .* 'Dense_9/kernel' is of shape .*, the module's missing",
        ),
        ({"params": wrong, **state}, r"params= is not .* is of shape \(.*, the module's of shape \("),
        ({"params": plain.params}, "aux= is not .*mean.* is missing, the module's"),
        ({"params": plain.params, "aux": one}, r"aux= is not .*mean.* is of shape \(1,\), the module's"),
        ({"aux": {}}, "aux= is not .*mean.* is missing, the module's"),
    ):
        with pytest.raises(ValueError, match=message):
            train(plain.module, **values)
    with pytest.raises(ValueError, match=r"aux= is not .*mean.* is of shape \(1,\), the module's"):
        jfit.predict(plain.module, X, params=plain.params, aux=one)


def test_parameters_of_other_shapes_than_those_of_the_module_raise():
    module = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"params= is not .*: 'bias' is of shape \(6,\), the module's of shape \(3,\)"):
        train(module, params=jax.tree.map(lambda x: jnp.concatenate([x, x]), nnx.state(module)))


class Last(nnx.Module):
    """Keeps its last outputs, of a shape that depends on the batch."""

    def __init__(self):
        self.linear, self.last = nnx.Linear(5, 3, rngs=nnx.Rngs(0)), nnx.Variable(jnp.zeros((1, 3)))

    def __call__(self, x):
        self.last.set_value(self.linear(x))
        return self.last[...]


def test_auxiliary_states_of_the_shape_of_a_batch_are_accepted():
    module = Last()
    module(X[:16])
    aux = nnx.state(module, nnx.Not(nnx.Param))
    assert jfit.predict(Last(), X[:16], aux=aux).shape == (16, 3)


def test_from_module_takes_names_of_inputs():
    module = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    assert jfit.Model.from_module(module, loss="mse", inputs=("x",)).inputs == ("x",)


class Frozen(nnx.Module):
    def __init__(self, **modes):
        self.norm = nnx.BatchNorm(5, rngs=nnx.Rngs(0), use_running_average=modes["norm"])
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0), deterministic=modes["drop"])
        self.last = nnx.Linear(5, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.last(self.drop(self.norm(x)))


def test_nnx_layers_in_evaluation_mode_stay_in_it_among_layers_in_training_mode():
    def trained(norm, drop):
        model = jfit.Model.from_module(Frozen(norm=norm, drop=drop), loss="mse")
        params, aux = model.init(INIT_KEY, {})
        (output,), aux = model.apply(params, aux, {"x": X}, key=RUN_KEY, train=True)
        return output, aux["norm/mean"]

    output, mean = trained(norm=False, drop=True)
    np.testing.assert_allclose(output, Frozen(norm=False, drop=True)(X), rtol=1e-5)  # no dropout
    assert (mean != 0).all()
    output, mean = trained(norm=True, drop=False)
    assert (mean == 0).all() and not np.allclose(output, Frozen(norm=True, drop=True)(X))
    output, mean = trained(norm=True, drop=True)  # all layers in evaluation mode: all are trained
    assert (mean != 0).all() and not np.allclose(output, Frozen(norm=False, drop=True)(X))


# ------------------------------------------------------------------------------------------------ tables
@pytest.mark.repetitions(2)
@pytest.mark.parametrize("make", [nnx_module, linen_module, equinox_module, haiku_module, keras_is_slow])
def test_summary_counts_the_parameters_of_a_module_and_shows_its_outputs(make):
    plain = make()
    lines = jfit.summary(plain.module, (X, Y)).splitlines()
    arrays = jax.tree.leaves(plain.params)
    assert (
        lines[len(arrays) + 1]
        == f"parameters: {sum(a.size for a in arrays)} values in 6 arrays, {sum(a.nbytes for a in arrays)} bytes"
    )
    assert lines[-1] == "output: 40x3 float32" and lines[-2].startswith("auxiliary states: ")
    assert {tuple(line.split()[1:4]) for line in lines[1:7]} >= {("8", "float32", "8"), ("3", "float32", "3")}
    assert jfit.summary(plain.module, (40, 5)) == "\n".join(lines)


def test_summary_takes_functions_runs_and_graphs():
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3)
    assert jfit.summary(net, X) == net.summary(data=X.shape)
    several = {"a": {"u": (4, 2)}, "b": jax.ShapeDtypeStruct((4,), "int32")}
    text = jfit.summary(lambda p, a, b: {"s": a["u"] * p["k"], "t": b}, several, params={"k": np.float32(1)})
    assert text.splitlines()[-2:] == ["s: 4x2 float32", "t: 4 int32"]
    run = train(nnx.Linear(5, 3, rngs=nnx.Rngs(0)), num_epoch=1)
    assert "parameters: 18 values in 2 arrays, 72 bytes" in jfit.summary(run, (X, Y))
    with pytest.raises(ValueError, match="summary: the input 'b' is missing; found"):
        jfit.summary(lambda p, a, b: a, {"a": X}, params=X)


# ------------------------------------------------------------------------------------------------ forms of modules
def test_a_linen_module_starts_from_variables_that_are_passed_or_bound():
    plain = linen_module()
    start = jax.tree.map(lambda x: x + 0.5, {"params": plain.params, **plain.aux})
    for module, values in (
        (plain.module, {"params": start}),
        (plain.module, {"params": start["params"], "aux": {"batch_stats": start["batch_stats"]}}),
        (plain.module.bind(start), {}),
    ):
        model = jfit.Model.from_module(module, loss="mse", **values)
        trees = [
            t.unflatten(x) for t, x in zip((model.structure.params, model.structure.aux), model.init(INIT_KEY, {}), strict=True)
        ]
        assert_close({"params": trees[0], **trees[1]}, start, 0, 0)


class Counted(nnx.Module):
    """Takes its mode and its random stream as arguments, has the same layer twice, and counts its calls in training."""

    def __init__(self):
        self.first, self.last, self.drop = (
            nnx.Linear(5, 5, rngs=nnx.Rngs(0)),
            nnx.Linear(5, 3, rngs=nnx.Rngs(0)),
            nnx.Dropout(0.5),
        )
        self.again, self.calls = self.first, nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x, *, train, rngs=None):
        self.calls[...] += train
        return self.last(self.drop(self.again(self.first(x)), rngs=rngs))


@pytest.mark.slow
def test_an_nnx_module_may_share_layers_count_and_take_its_random_streams_as_an_argument():
    run = train(Counted(), num_epoch=2)
    assert len(run.named_params) == 4 and int(run.model.calls[...]) == 6
    assert run.model.first is not None and run.history.column("loss")[1] < run.history.column("loss")[0]


@pytest.mark.slow
def test_a_keras_model_with_two_inputs_takes_a_dict_or_a_list():
    keras = pytest.importorskip("keras")
    a, b = keras.Input((5,), name="a"), keras.Input((2,), name="b")
    model = keras.Model([a, b], keras.layers.Dense(3)(keras.layers.Concatenate()([a, b])))
    inputs = {"a": X, "b": X[:, :2]}
    runs = [
        jfit.fit(model, data, loss=cross_entropy, num_epoch=1, progress=False)
        for data in ({**inputs, "label": Y}, (list(inputs.values()), Y))
    ]
    assert_close(runs[0].params, runs[1].params, 0, 0)
    np.testing.assert_allclose(runs[0].model(list(inputs.values())), runs[0].predict(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_keras_model_without_variables_is_built_from_the_data():
    keras = pytest.importorskip("keras")

    class Small(keras.Model):  # Keras cannot copy it, because it has no get_config
        def __init__(self, classes):
            super().__init__()
            self.layer = keras.layers.Dense(classes)

        def call(self, x):
            return self.layer(x)

    for make in (lambda: keras.Sequential([keras.layers.Dense(3)]), lambda: Small(3)):
        model, options = make(), {"num_epoch": 1, "optimizer": "sgd"}
        run = train(model, **options)
        assert model.built == isinstance(model, Small)
        if isinstance(model, Small):
            with pytest.raises((TypeError, NotImplementedError), match="get_config"):
                _ = run.model
        else:
            np.testing.assert_allclose(run.model(X), run.predict(X), rtol=1e-5, atol=1e-6)
        assert sorted(train(make(), **options).params) == sorted(run.params)  # names do not depend on models made before
    assert sorted(run.params) == ["small/dense/bias", "small/dense/kernel"]


@pytest.mark.slow  # another process
def test_fit_of_a_function_imports_no_framework():
    code = """
import sys, numpy as np, jfit
run = jfit.fit(lambda p, x: x @ p, (np.ones((8, 2)), np.ones((8, 1))), params=np.ones((2, 1)), loss="mse", progress=False)
run.predict(np.ones((8, 2))), run.model
print([name for name in ("flax", "equinox", "haiku", "keras", "torch", "tensorflow") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr
