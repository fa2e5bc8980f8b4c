"""Row tracking in lowered graphs: zero-weight rows have no effect, dropout is drawn per row, lost rows are reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from jfit import sym
from jfit.ops.rows import LOST, RowLayout, RowsLost

V = sym.Variable
KEY = jax.random.key(3)


def plan_of(net, **shapes):
    return jfit.lower(net).plan({k: jax.ShapeDtypeStruct(s, "float32") for k, s in shapes.items()})


def sums(model, params, aux, inputs, weight=None):
    """Summed gradients, new states, summed loss."""
    plan = model.plan(jfit.lowering.model.specs_of(inputs))

    def total(p):
        outputs, moved = model.apply(p, aux, inputs, train=True, key=KEY, weight=weight)
        return jfit.lowering.model.objective(model, outputs, inputs, weight), (outputs, moved)

    def found(p):
        grads, (outputs, moved) = jax.grad(total, has_aux=True)(p)
        return grads, moved, jfit.lowering.model.loss_sums(model, outputs, inputs, weight, plan.rows).mean

    return jax.jit(found)(params)


# ------------------------------------------------------------------------------------------ where rows are
def test_rows_are_tracked_through_reshapes_and_transposes():
    x = V("data")
    assert plan_of(sym.Reshape(x, shape=(-1, 3)), data=(4, 5, 3)).rows == (RowLayout(0, 1, 4, 5),)
    assert plan_of(sym.transpose(x, axes=(1, 0, 2)), data=(4, 5, 3)).rows == (RowLayout(1, 1, 4, 1),)
    back = sym.transpose(sym.Reshape(sym.transpose(x, axes=(1, 0, 2)), shape=(-3, 0)), axes=(1, 0))
    assert plan_of(back, data=(4, 5, 3)).rows == (RowLayout(1, 5, 4, 1),)
    assert plan_of(sym.sum(x, axis=1), data=(4, 5, 3)).rows == (RowLayout(0, 1, 4, 1),)
    assert plan_of(sym.mean(x), data=(4, 5)).rows == (LOST,)
    assert plan_of(sym.FullyConnected(sym.SwapAxis(x, dim1=0, dim2=1), num_hidden=2), data=(4, 5)).rows == (LOST,)


def test_rows_of_a_time_major_network_are_tracked():
    time_major = sym.SwapAxis(V("data"), dim1=0, dim2=1)
    out = sym.SwapAxis(sym.RNN(time_major, V("r_weight"), state_size=3, num_layers=1, mode="gru"), dim1=0, dim2=1)
    net = sym.SoftmaxOutput(
        sym.FullyConnected(sym.Reshape(out, shape=(-1, 3)), num_hidden=2), sym.Reshape(V("label"), shape=(-1,))
    )
    plan = plan_of(net, data=(4, 5, 2), label=(4, 5))
    assert (plan.rows, plan.paddable) == ((RowLayout(0, 1, 4, 5),), True)


def test_lost_rows_are_reported_with_the_node():
    mixed = sym.SoftmaxOutput(
        sym.FullyConnected(sym.Reshape(V("data"), shape=(3, -1)), num_hidden=3), V("label"), name="softmax"
    )
    plan = plan_of(mixed, data=(4, 6), label=(3,))
    assert not plan.paddable and plan.rows == (LOST,)
    assert plan.reason.startswith("softmax: the rows of the batch cannot be identified in its input")
    model = jfit.lower(mixed)
    inputs = {"data": np.ones((4, 6), "float32"), "label": np.zeros(3, "float32")}
    params, aux = model.init(KEY, jfit.lowering.model.specs_of(inputs))
    with pytest.raises(RowsLost, match="softmax: the rows of the batch"):
        model.apply(params, aux, inputs, train=True, weight=jnp.ones(4))
    assert model.apply(params, aux, inputs, train=True)[0][0].shape == (3, 3)


# ------------------------------------------------------------------------------------------ weights
def blocks():
    """Small layers (B, T, C) -> (B, T, C'), by name."""
    return {
        "dense": lambda x, n: sym.FullyConnected(x, num_hidden=3, flatten=False, name=n),
        "norm": lambda x, n: sym.BatchNorm(x, axis=2, fix_gamma=False, name=n),
        "norm1": lambda x, n: sym.BatchNorm(x, name=n),
        "layer": lambda x, n: sym.LayerNorm(x, name=n),
        "tanh": lambda x, n: sym.tanh(x, name=n),
        "turned": lambda x, n: sym.transpose(sym.BatchNorm(sym.transpose(x, axes=(1, 0, 2)), axis=2, name=n), axes=(1, 0, 2)),
        "merged": lambda x, n: sym.Reshape(sym.BatchNorm(sym.Reshape(x, shape=(-3, 0)), name=n), shape=(-4, -1, 4, 0)),
        "double": lambda x, n: x * 2 + sym.sigmoid(x),
        "dropout": lambda x, n: sym.Dropout(x, p=0.5, name=n),
    }


def heads():
    wide = lambda x: sym.Reshape(x, shape=(-3, 0))  # noqa: E731
    label = V("label")
    return {
        "softmax": lambda x: sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=3, name="out"), label, name="head"),
        "valid": lambda x: sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=3, name="out"), label, normalization="valid"),
        "batch": lambda x: sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=3, name="out"), label, normalization="batch"),
        "steps": lambda x: sym.SoftmaxOutput(
            sym.FullyConnected(wide(x), num_hidden=3, name="out"), sym.Reshape(V("step_label"), shape=(-1,)), name="head"
        ),
        "line": lambda x: sym.LinearRegressionOutput(sym.FullyConnected(x, num_hidden=1, name="out"), label, name="head"),
        "own": lambda x: sym.MakeLoss(sym.square(sym.FullyConnected(x, num_hidden=2, name="out")), name="head"),
    }


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(blocks())), min_size=1, max_size=3), st.sampled_from(sorted(heads())), st.integers(0, 99)
)
def test_padding_rows_never_change_gradients_states_or_losses(names, head, seed):
    x = V("data")
    for i, name in enumerate(names):
        x = blocks()[name](x, f"n{i}")
    net = heads()[head](x)
    rng = np.random.default_rng(seed)
    real = {
        "data": rng.normal(size=(3, 4, 3)).astype("float32"),
        "label": rng.integers(0, 3, 3).astype("float32"),
        "step_label": rng.integers(0, 3, (3, 4)).astype("float32"),
    }
    real = {k: v for k, v in real.items() if k in net.list_arguments()}
    padded = {k: np.concatenate([v, v[:2] * 3]) for k, v in real.items()}
    model = jfit.lower(net)
    params, aux = model.init(KEY, jfit.lowering.model.specs_of(real), "uniform")
    want = sums(model, params, aux, real)
    got = sums(model, params, aux, padded, jnp.array([1.0, 1.0, 1.0, 0.0, 0.0]))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_a_weight_multiplies_the_gradient_of_its_row():
    net = sym.SoftmaxOutput(sym.FullyConnected(V("data"), num_hidden=3), V("label"))
    model = jfit.lower(net)
    x = {"data": np.eye(4, dtype="float32"), "label": np.array([0, 1, 2, 0], "float32")}
    params, aux = model.init(KEY, jfit.lowering.model.specs_of(x))
    weighted, _, (loss, count) = sums(model, params, aux, x, jnp.array([2.0, 0.0, 1.0, 0.0]))
    doubled = {k: v[[0, 0, 2]] for k, v in x.items()}
    plain, _, (want, rows) = sums(model, params, aux, doubled)
    for k in plain:
        np.testing.assert_allclose(weighted[k], plain[k], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([loss, count], [want, rows], rtol=1e-6)


def test_a_batch_of_zero_weights_has_zero_gradient_and_keeps_the_statistics():
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.BatchNorm(V("data"), name="b"), num_hidden=3), V("label"))
    model = jfit.lower(net)
    x = {"data": np.eye(4, dtype="float32"), "label": np.zeros(4, "float32")}
    params, aux = model.init(KEY, jfit.lowering.model.specs_of(x))
    grads, moved, (loss, count) = sums(model, params, aux, x, jnp.zeros(4))
    assert all(not np.any(g) for g in grads.values())
    assert all(np.array_equal(moved[k], aux[k]) for k in aux)
    assert (float(loss), float(count)) == (0, 0)


def test_padding_rows_are_excluded_from_statistics_on_any_batch_axis(rng):
    model = jfit.lower(sym.BatchNorm(V("data"), name="b"), batch_axes={"data": 2})
    x = rng.normal(size=(2, 3, 4, 5)).astype("float32")
    params, aux = model.init(KEY, jfit.lowering.model.specs_of({"data": x}))
    run = lambda rows, weight: model.apply(params, aux, {"data": rows}, train=True, key=KEY, weight=weight)[1]  # noqa: E731
    moved, want = run(x, jnp.array([1.0, 1.0, 1.0, 0.0])), run(x[:, :, :3], None)
    for k in want:
        np.testing.assert_allclose(moved[k], want[k], rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------ randomness
@pytest.mark.slow
def test_the_dropout_mask_of_a_row_does_not_depend_on_the_split_of_the_batch():
    model = jfit.lower(sym.Dropout(sym.relu(V("data")), p=0.5, name="drop"))
    x = np.ones((8, 16), "float32")
    run = lambda rows: model.apply({}, {}, {"data": x[rows]}, train=True, key=KEY, row_ids=jnp.asarray(rows))[0][0]  # noqa: E731
    whole = run(np.arange(8))
    for size in (1, 2, 4):
        parts = [run(np.arange(i, i + size)) for i in range(0, 8, size)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert len({tuple(row) for row in np.asarray(whole).tolist()}) == 8, "rows differ from each other"


def test_each_device_draws_the_masks_of_its_own_rows():
    model, x = jfit.lower(sym.Dropout(V("data"), p=0.5, name="drop")), jnp.ones((8, 16))
    run = lambda rows, axis=None: model.apply({}, {}, {"data": rows}, train=True, key=KEY, axis_name=axis)[0][0]  # noqa: E731
    parts = jax.vmap(lambda rows: run(rows, "devices"), axis_name="devices")(x.reshape(2, 4, 16))
    np.testing.assert_array_equal(parts.reshape(8, 16), run(x))


def test_a_dropout_mask_depends_only_on_the_key_and_the_node_name():
    def run(name, key, before=0):
        x = V("data")
        for _ in range(before):
            x = sym.relu(x)
        return jfit.lower(sym.Dropout(x, name=name)).apply({}, {}, {"data": np.ones((2, 64), "float32")}, train=True, key=key)[
            0
        ][0]

    np.testing.assert_array_equal(run("a", KEY), run("a", KEY, before=3))
    assert not np.array_equal(run("a", KEY), run("b", KEY))
    assert not np.array_equal(run("a", KEY), run("a", jax.random.key(4)))


@pytest.mark.slow
def test_a_dropout_mask_is_the_same_for_channels_first_and_last(monkeypatch):
    from jfit.lowering import interpret

    net = sym.Dropout(sym.Convolution(V("data"), kernel=(1, 1), num_filter=3, no_bias=True, name="c"), axes=(2, 3), name="drop")
    model = jfit.lower(net)
    x = {"data": np.ones((3, 2, 4, 4), "float32")}
    params, aux = model.init(KEY, jfit.lowering.model.specs_of(x), "one")
    (fast,), _ = model.apply(params, aux, x, train=True, key=KEY)
    monkeypatch.setattr(interpret, "_runs_channels_last", lambda *_: False)
    (slow,), _ = model.apply(params, aux, x, train=True, key=KEY)
    np.testing.assert_array_equal(fast[:, :, 0, 0] > 0, slow[:, :, 0, 0] > 0)
    assert all(len(np.unique(channel)) == 1 for row in np.asarray(fast) for channel in row)
