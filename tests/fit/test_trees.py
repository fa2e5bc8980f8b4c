"""Models made of functions keep the tree of the user's parameters: in runs, optimizers, checkpoints and files.

The oracle is the same training written by hand: optax on the original tree, batch by batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jfit

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 3)).astype("float32"), RNG.normal(size=(32, 3)).astype("float32")
BATCH, EPOCHS = 8, 2


def squared(output, label):
    return ((output - label) ** 2).mean(axis=1)


class Affine(NamedTuple):
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scaled:
    inner: Affine
    scale: Any


def affine(seed):
    r = np.random.default_rng(seed)
    return Affine(
        jnp.asarray(r.normal(size=(3, 3)).astype("float32") / 2), jnp.asarray(r.normal(size=(1, 3)).astype("float32"))
    )


def as_dict(layer):
    return {"w": layer.w, "b": layer.b}


def mlp():
    return eqx.partition(eqx.nn.MLP(3, 3, 4, 2, activation=jnp.tanh, key=jax.random.key(3)), eqx.is_array)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.rest = nnx.Linear(3, 3, rngs=rngs), nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        x = jnp.tanh(self.first(x))
        for layer in self.rest:
            x = layer(x)
        return x


def dict_of_dicts():
    params = {"body": as_dict(affine(1)), "top": {"head": as_dict(affine(2))}}

    def apply(p, x):
        x = jnp.tanh(x @ p["body"]["w"] + p["body"]["b"])
        return x @ p["top"]["head"]["w"] + p["top"]["head"]["b"]

    return apply, params


def twelve_layers():
    def apply(p, x):
        for layer in p:
            x = x + jnp.tanh(x @ layer.w + layer.b) / 4
        return x

    return apply, [affine(i) for i in range(12)]


def dataclass():
    return lambda p, x: p.scale * (x @ p.inner.w + p.inner.b), Scaled(affine(6), jnp.ones((1, 3)))


def flax_module():
    graphdef, params = nnx.split(Net(nnx.Rngs(0)))
    return lambda p, x: nnx.merge(graphdef, p)(x), params


def equinox_module():
    params, static = mlp()
    return lambda p, x: jax.vmap(eqx.combine(p, static))(x), params


def single_array():
    return lambda p, x: x * p, jnp.ones((1, 3))


MODELS = [dict_of_dicts, twelve_layers, dataclass, flax_module, equinox_module, single_array]


def by_hand(apply, params, optimizer, epochs=EPOCHS, state=None):
    """Train in plain JAX: the batches of `fit` without shuffling."""
    state = optimizer.init(params) if state is None else state

    @jax.jit
    def step(params, state, x, y):
        grads = jax.grad(lambda p: squared(apply(p, x), y).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(epochs):
        for i in range(0, len(X), BATCH):
            params, state = step(params, state, X[i : i + BATCH], Y[i : i + BATCH])
    return params


def fit(apply, params, optimizer, **options):
    options = {"num_epoch": EPOCHS, "batch_size": BATCH, "shuffle": False, "progress": False, "eval_metric": None, **options}
    return jfit.fit(apply, (X, Y), params=params, loss=squared, optimizer=optimizer, **options)


def assert_same(tree, expected, rtol=2e-5, atol=1e-6):
    """The same structure, the same values."""
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


def matrices(params):
    return jax.tree.map(lambda p: p.ndim == 2 and p.shape[0] > 1, params)


def two_groups(params):
    return jax.tree.map(lambda matrix: "matrix" if matrix else "vector", matrices(params))


# optimizers that look at the tree of the parameters
OPTIMIZERS = {
    "adam": lambda params: optax.adam(0.02),
    "noise": lambda params: optax.chain(optax.add_noise(0.01, 0.55, jax.random.key(2)), optax.sgd(0.02)),
    "decay of matrices, by a function": lambda params: optax.adamw(0.02, weight_decay=0.5, mask=matrices),
    "decay of matrices, by a tree": lambda params: optax.chain(
        optax.add_decayed_weights(0.5, mask=matrices(params)), optax.sgd(0.02, momentum=0.9)
    ),
    "masked": lambda params: optax.chain(optax.masked(optax.trace(0.9), matrices(params)), optax.scale(-0.02)),
    # in a function, because optax would call a tree that is callable, such as an Equinox module
    "labels by a tree": lambda params: optax.multi_transform(
        {"matrix": optax.adam(0.02), "vector": optax.set_to_zero()}, lambda _: two_groups(params)
    ),
    "labels by a function": lambda params: optax.multi_transform(
        {"matrix": optax.sgd(0.01), "vector": optax.rmsprop(0.01)}, two_groups
    ),
    "jfit's in a chain": lambda params: optax.chain(optax.clip(0.5), jfit.optim.nadam(0.01)),
    "jfit's nadam": lambda params: jfit.optim.nadam(0.01),
}


# Every model with half of the optimizers, and every optimizer with half of the models.
PAIRS = [(m, o) for i, m in enumerate(MODELS) for j, o in enumerate(OPTIMIZERS) if (i + j) % 2 == 0]


@pytest.mark.repetitions(1, slow=8)
@pytest.mark.parametrize("model, optimizer", [pytest.param(m, OPTIMIZERS[o], id=f"{m.__name__}-{o}") for m, o in PAIRS])
def test_fit_trains_the_tree_as_optax_by_hand(model, optimizer):
    apply, params = model()
    optimizer = optimizer(params)
    run = fit(apply, params, optimizer)
    assert_same(run.params, by_hand(apply, params, optimizer))


@pytest.mark.slow
@pytest.mark.repetitions(1, slow=3)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("model", [twelve_layers, flax_module, equinox_module])
def test_train_step_and_data_parallel_pass_the_tree_to_optax(model, devices):
    apply, params = model()
    optimizer = OPTIMIZERS["decay of matrices, by a tree"](params)
    made = jfit.Model.from_function(apply, loss=squared, params=params)
    step = jfit.data_parallel(jfit.train_step(made, optimizer), devices=devices)
    state = step.place(jfit.init_state(made, optimizer, {"x": X[:BATCH]}))
    for i in range(0, len(X), BATCH):
        state, _ = step(state, {"x": X[i : i + BATCH], "label": Y[i : i + BATCH]})
    expected = by_hand(apply, params, optimizer, epochs=1)
    assert_same(made.structure.params.unflatten(state.params), expected)
    assert list(jax.tree.leaves(state.opt_state, is_leaf=lambda s: isinstance(s, dict))[0]) == sorted(
        made.structure.params.names
    )


@pytest.mark.slow
@pytest.mark.repetitions(slow=4)
@pytest.mark.parametrize("kind", ["decay of matrices, by a tree", "labels by a tree", "jfit's nadam"])
@pytest.mark.parametrize("model", [twelve_layers, flax_module, equinox_module])
def test_frozen_parameters_keep_their_place_in_the_tree(model, kind):
    apply, params = model()
    frozen = jfit.Model.from_function(apply, loss=squared, params=params).structure.params.names[1]
    run = fit(apply, params, OPTIMIZERS[kind](params), frozen=[frozen])
    still = [name == frozen for name in run.named_params]
    label = jax.tree.unflatten(jax.tree.structure(params), ["frozen" if s else "trained" for s in still])
    groups = {"frozen": optax.set_to_zero(), "trained": OPTIMIZERS[kind](params)}
    assert_same(run.params, by_hand(apply, params, optax.multi_transform(groups, lambda _: label)))


# ------------------------------------------------------------------------------------------------ continuing, files
@pytest.mark.repetitions(1, slow=4)
@pytest.mark.parametrize("model", MODELS)
def test_training_continues_from_a_run_or_its_parameters(model):
    apply, params = model()
    optimizer = optax.sgd(0.02)
    first = fit(apply, params, optimizer, num_epoch=1)
    expected = by_hand(apply, params, optimizer)
    assert_same(fit(apply, first.params, optimizer, num_epoch=1).params, expected)
    options = {"num_epoch": 1, "batch_size": BATCH, "shuffle": False, "progress": False, "eval_metric": None}
    assert_same(jfit.fit(first, (X, Y), optimizer=optimizer, **options).params, expected)
    assert_same(jfit.fit(first.model, (X, Y), params=first.params, optimizer=optimizer, **options).params, expected)


@pytest.mark.repetitions(1, slow=4)
@pytest.mark.parametrize("model", MODELS)
def test_checkpoints_and_files_keep_the_tree(model, tmp_path):
    apply, params = model()
    optimizer = OPTIMIZERS["labels by a tree"](params)
    whole = fit(apply, params, optimizer)
    fit(apply, params, optimizer, num_epoch=1, checkpoint=tmp_path / "half")
    resumed = fit(apply, params, optimizer, checkpoint=tmp_path / "half", resume=True)
    assert_same(resumed.params, whole.params, 0, 0)
    whole.save(tmp_path / "whole")
    zeros = jax.tree.map(jnp.zeros_like, params)
    loaded = jfit.Run.load(tmp_path / "whole", jfit.Model.from_function(apply, loss=squared, params=zeros))
    assert_same(loaded.params, whole.params, 0, 0)
    np.testing.assert_array_equal(loaded.predict(X), whole.predict(X))
    np.testing.assert_array_equal(jfit.predict(apply, X, params=whole.params, loss=squared), whole.predict(X))
    file = jfit.export.safetensors(tmp_path / "params.safetensors", whole)
    assert set(jfit.formats.load_tensors(file)[0]) == set(whole.named_params)
    program = jfit.export.stablehlo(whole, {"x": (None, 3)})
    np.testing.assert_allclose(program(whole.params, {}, {"x": X})[0], whole.predict(X), rtol=1e-5, atol=1e-6)


def test_a_run_of_a_graph_continues_in_fit():
    net = jfit.sym.LinearRegressionOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="out")
    options = {"num_epoch": 1, "batch_size": BATCH, "shuffle": False, "progress": False, "eval_metric": None}
    run = jfit.fit(net, (X, Y), **options)
    again = jfit.fit(run, (X, Y), **options)
    assert run.params is run.state.params and run.named_params is run.params
    whole = jfit.fit(net, (X, Y), **{**options, "num_epoch": 2})
    assert_same(again.params, whole.params)


def test_multipliers_and_frozen_patterns_match_names_in_the_tree():
    apply, params = twelve_layers()
    run = fit(apply, params, "sgd", optimizer_params={"lr_mult": {"3/w": 0.0}}, frozen=["1*"])
    moved = {n for n, old in zip(run.named_params, jax.tree.leaves(params), strict=True) if (run.named_params[n] != old).any()}
    assert moved == {f"{i}/{name}" for i in (0, 2, 3, 4, 5, 6, 7, 8, 9) for name in "wb"} - {"3/w"}


def test_a_leaf_that_is_no_array_is_named():
    with pytest.raises(TypeError, match=r"params: 'activation' is a .*, expected an array or a number; .*equinox.partition"):
        fit(lambda p, x: p["activation"](x * p["w"]), {"w": jnp.ones((1, 3)), "activation": jnp.tanh}, "sgd")


def test_a_tree_in_place_of_names_and_a_mask_of_another_tree_raise():
    apply, params = twelve_layers()
    model = jfit.Model.from_function(apply, loss=squared, params=params)
    with pytest.raises(ValueError, match=r"'0/w' is missing; found a list, .* pass model.structure.params.flatten\(tree\)"):
        model.apply(params, {}, {"x": X})
    model.apply(model.structure.params.flatten(params), {}, {"x": X})
    with pytest.raises(ValueError, match="pytree structure"):
        fit(apply, params, optax.masked(optax.sgd(0.1), {"w": True}))


# ------------------------------------------------------------------------------------------------ typed PRNG keys
def with_keys():
    """A key among the parameters, and one in the auxiliary state that every step replaces."""

    def apply(p, x, aux, train):
        new, noise = jax.random.split(aux["key"])
        fixed = jax.random.normal(p["key"], (1, 3))
        return x @ p["w"] + fixed + train * jax.random.normal(noise, (1, 3)), {"key": new, "count": aux["count"] + 1}

    params = {"w": affine(1).w, "key": jax.random.key(4)}
    return apply, params, {"key": jax.random.key(5, impl="rbg"), "count": jnp.int32(0)}


def data_of(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("optimizer", [lambda: OPTIMIZERS["noise"](None), lambda: "adam"], ids=["optax", "jfit"])
def test_typed_keys_are_state_that_is_not_trained(optimizer, devices, tmp_path):
    apply, params, aux = with_keys()
    go = lambda **options: fit(apply, params, optimizer(), aux=aux, devices=devices, **options)  # noqa: E731
    whole = go()
    expected = aux["key"]
    for _ in range(EPOCHS * len(X) // BATCH):
        expected = jax.random.split(expected)[0]
    assert jax.random.key_impl(whole.aux["key"]) == "rbg" and int(whole.aux["count"]) == 8
    np.testing.assert_array_equal(jax.random.key_data(whole.aux["key"]), jax.random.key_data(expected))
    np.testing.assert_array_equal(jax.random.key_data(whole.params["key"]), jax.random.key_data(params["key"]))
    assert whole.snapshot().aux["key"].dtype == aux["key"].dtype
    go(num_epoch=1, checkpoint=tmp_path / "half")
    resumed = go(checkpoint=tmp_path / "half", resume=True)
    assert_same(data_of(resumed.state), data_of(whole.state), 0, 0)
    whole.save(tmp_path / "whole")
    loaded = jfit.Run.load(tmp_path / "whole", whole.model, devices=devices)
    assert_same(data_of((loaded.params, loaded.aux)), data_of((whole.params, whole.aux)), 0, 0)
    np.testing.assert_array_equal(loaded.predict(X), whole.predict(X))
    again = jfit.fit(loaded, (X, Y), batch_size=BATCH, num_epoch=1, progress=False, eval_metric=None)
    assert_same(data_of(again.params["key"]), data_of(params["key"]), 0, 0)
