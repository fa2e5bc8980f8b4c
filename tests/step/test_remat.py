"""Rematerialization: `remat=` of `fit` and `train_step`, and MXNet's mirroring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jfit
from jfit import mx
from jfit.lowering.remat import KEEP_BARRIERS, cut, is_mirrored

ROWS = 256


def deep(layers=12, width=64, dropout=0.0, **attrs):
    x = jfit.sym.Variable("data")
    for i in range(layers):
        x = jfit.sym.FullyConnected(x, num_hidden=width, name=f"fc{i}")
        x = jfit.sym.BatchNorm(x, fix_gamma=False, name=f"bn{i}", **attrs)
        x = jfit.sym.Activation(x, act_type="tanh", name=f"act{i}", **attrs)
        x = jfit.sym.Dropout(x, p=dropout, name=f"drop{i}") if dropout else x
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(x, num_hidden=4, name="last"), name="softmax")


def batch_of(width=64, rows=ROWS):
    rng = np.random.RandomState(0)
    return {"data": rng.randn(rows, width).astype("float32"), "softmax_label": rng.randint(0, 4, rows).astype("float32")}


def one_step(net, remat="none", batch=None, **options):
    """Return (state after a step, bytes of temporary buffers)."""
    model, batch = net if isinstance(net, jfit.Model) else jfit.lower(net), batch or batch_of()
    step = jfit.train_step(model, "sgd", remat=remat, **options)
    how = KEEP_BARRIERS if step.recomputes else None
    state = jfit.init_state(model, "sgd", batch, learning_rate=0.1)
    compiled = jax.jit(step, compiler_options=how).lower(state, batch).compile()
    return compiled(state, batch)[0], compiled.memory_analysis().temp_size_in_bytes


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves((a.params, a.aux)), jax.tree.leaves((b.params, b.aux)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-6)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("remat", ["full", "act*", ["bn*", "act*"], ["fc3", "drop*"]])
def test_remat_trains_alike_with_the_same_dropout_and_moving_statistics(remat):
    plain, _ = one_step(deep(4, dropout=0.5))
    again, _ = one_step(deep(4, dropout=0.5), remat)
    assert_same(plain, again)
    assert not np.allclose(plain.aux["bn0_moving_mean"], 0)


@pytest.mark.optimized
def test_remat_lowers_the_bytes_of_a_step():
    _, whole = one_step(deep(4))
    _, some = one_step(deep(4), ["bn*", "act*"])
    _, full = one_step(deep(4), "full")
    assert full < 0.6 * whole
    assert some < 0.8 * whole
    costs = [jfit.cost(deep(4), {"data": (ROWS, 64)}, remat=remat, measure=False).memory for remat in ("none", "full")]
    assert costs[1].activations < 0.6 * costs[0].activations


def test_full_remat_keeps_the_arrays_of_about_sqrt_n_places():
    net = deep(layers=33)
    operators = [n for n in net.nodes() if n.op is not None]
    parts = cut(operators, net.heads, "full")
    assert len(parts) == 10 and len(operators) == 101
    assert [len(part.results) for part in parts] == [1] * 10
    assert not parts[-1].again  # the backward pass begins there


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_remat_of_a_function_computes_named_values_again(micro_batches):
    def net(params, x, key):
        for i, w in enumerate(params["layers"]):
            x = checkpoint_name(jnp.tanh(x @ w), f"act{i % 2}")
            x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, x.shape), 2 * x, 0)
        return x

    params = {"layers": [jnp.full((8, 8), 0.1 * i) + jnp.eye(8) for i in range(2)]}
    model = jfit.Model.from_function(net, loss="mse", params=params)
    batch = {"x": np.random.RandomState(0).randn(16, 8).astype("float32"), "label": np.zeros((16, 8), "float32")}
    plain, *others = [one_step(model, r, batch, micro_batches=micro_batches)[0] for r in ("none", "full", "act0", ["act*"])]
    for other in others:
        assert_same(plain, other)


def saved_names(remat):
    def net(params, x):
        return checkpoint_name(jnp.sin(checkpoint_name(jnp.sin(x @ params["w"]), "first")), "second") ** 2

    model = jfit.Model.from_function(net, loss="mse", params={"w": jnp.eye(4)})
    step = jfit.train_step(model, "sgd", remat=remat)
    batch = {"x": np.ones((2, 4), "float32"), "label": np.zeros((2, 4), "float32")}
    state = jfit.init_state(model, "sgd", batch)
    inner = next(e for e in jax.make_jaxpr(step)(state, batch).eqns if e.primitive.name in ("remat2", "checkpoint", "remat"))
    return str(inner.params["jaxpr"]).count("sin")


def test_values_under_names_that_match_are_not_saved():
    assert saved_names("second") < saved_names("full")


def test_repeated_blocks_are_computed_again_in_their_loop():
    cell = mx.rnn.LSTMCell(16, prefix="lstm_")
    outputs, _ = cell.unroll(8, jfit.sym.Variable("data"), merge_outputs=True, layout="NTC")
    net = jfit.sym.SoftmaxOutput(
        jfit.sym.FullyConnected(jfit.sym.reshape(outputs, shape=(-1, 16)), num_hidden=4), name="softmax"
    )
    rng = np.random.RandomState(0)
    batch = {"data": rng.randn(8, 8, 5).astype("float32"), "softmax_label": rng.randint(0, 4, 64).astype("float32")}
    plain, _ = one_step(net, "none", batch)
    for remat in ("full", ["lstm_*"]):
        assert_same(plain, one_step(net, remat, batch)[0])


def test_fit_takes_remat_also_with_several_devices():
    batch = batch_of(rows=64)
    data = (batch["data"], batch["softmax_label"])
    runs = [jfit.fit(deep(2), data, num_epoch=2, progress=False, remat=r, devices=2) for r in ("none", "full", ["act*"])]
    for run in runs[1:]:
        assert_same(runs[0].state, run.state)
        assert run.score(data)["accuracy"] == pytest.approx(runs[0].score(data)["accuracy"], abs=0.05)


def test_an_invalid_remat_raises():
    with pytest.raises(ValueError, match="'act99\\*', which matches no node of the graph; did you mean"):
        one_step(deep(2), ["act99*"])
    with pytest.raises(ValueError, match=r'remat is 3; expected "none", "full", or a name'):
        jfit.train_step(jfit.lower(deep(2)), "sgd", remat=3)


@pytest.mark.optimized
def test_mxnets_attribute_force_mirroring_computes_nodes_again():
    net = deep(4, attr={"force_mirroring": "True"})
    assert sum(is_mirrored(n) for n in net.nodes() if n.op is not None) == 8
    plain, whole = one_step(deep(4))
    again, less = one_step(net)
    assert_same(plain, again)
    assert less < 0.8 * whole


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "1"])
def test_mxnets_environment_variable_computes_all_but_large_products_again(monkeypatch, value):
    monkeypatch.setenv("MXNET_BACKWARD_DO_MIRROR", value)
    net = deep(dropout=0.5)
    names = [n.name for n in net.nodes() if n.op is not None and is_mirrored(n)]
    assert names == ([] if value == "0" else [f"{kind}{i}" for i in range(12) for kind in ("bn", "act")])
    state, _ = one_step(net)
    monkeypatch.delenv("MXNET_BACKWARD_DO_MIRROR")
    assert_same(one_step(net)[0], state)


def test_module_and_executor_mirror_too():
    batch, results = batch_of(rows=32), []
    for net in (deep(3), deep(3, attr={"force_mirroring": "True"})):
        symbol = mx.sym.load_json(net.tojson())
        module = mx.mod.Module(symbol)
        data = mx.io.NDArrayIter(batch["data"], batch["softmax_label"], batch_size=32)
        module.fit(data, num_epoch=2, initializer=mx.init.One(), optimizer_params={"learning_rate": 0.1})
        executor = symbol.simple_bind(mx.cpu(), data=(32, 64))
        for name in ("fc1_weight", "last_weight"):
            executor.arg_dict[name][:] = np.random.RandomState(1).randn(*executor.arg_dict[name].shape)
        executor.arg_dict["data"][:] = batch["data"]
        executor.forward(is_train=True)
        executor.backward()
        results.append(({**module.get_params()[0], **module.get_params()[1]}, executor.grad_dict))
    for plain, again in zip(*results, strict=True):
        for name, value in plain.items():
            np.testing.assert_allclose(np.asarray(value), np.asarray(again[name]), rtol=1e-4, atol=1e-6)
