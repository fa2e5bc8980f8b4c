"""Rows that affect each other: found in the jaxpr or by experiment, never padded, and computed per device with a warning."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import jfit
from jfit.lowering.dependence import Mixed, batch_rows, row_layouts
from jfit.lowering.model import specs_of
from jfit.ops.rows import RowLayout

X = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("float32")
W = np.random.default_rng(1).normal(size=(2, 2)).astype("float32")
IDS = np.array([0, 2, 1, 2])


def layout_of(fn, *arrays):
    closed = jax.make_jaxpr(fn)(*arrays)
    return row_layouts(closed, [batch_rows(4)] * len(arrays))[0]


def kind_of(layout):
    return layout.kind if isinstance(layout, Mixed) else "rows" if isinstance(layout, RowLayout) else "none"


def mapped_norm(x):
    return x / jnp.sqrt((x**2).sum())


def window(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 1, 1), "VALID")


def attention(x):
    scores = jnp.einsum("btc,bsc->bts", x, x)
    return jnp.einsum("bts,bsc->btc", jax.nn.softmax(scores), x)


def convolution(x):
    return lax.conv_general_dilated(x, jnp.ones((2, 2, 5)), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))


def over_time(x):  # (batch, time, channels)
    return lax.scan(lambda h, t: (jnp.tanh(h @ W + t), h), jnp.zeros((4, 2)), jnp.moveaxis(x, 1, 0))[1]


def over_rows_with_memory(x):
    return lax.scan(lambda total, row: (total + row.sum(), row * total), 0.0, x)[1]


def pairs_of_loops(x):
    return lax.map(lambda a: lax.map(lambda b: (a * b).sum(), x).sum(), x)


def newton(x):
    return lax.while_loop(lambda v: jnp.abs(v[0] ** 2 - v[1]).max() > 1e-3, lambda v: ((v[0] + v[1] / v[0]) / 2, v[1]), (x, x))[
        0
    ]


PROGRAMS = {
    "rows": [
        lambda x: jnp.tanh(x) * 2 + x,
        lambda x: jax.nn.softmax(x, axis=-1) @ W,
        lambda x: x.mean(axis=(1, 2)),
        lambda x: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
        lambda x: x.reshape(12, 2).reshape(4, 6),
        lambda x: x.transpose(1, 0, 2).swapaxes(0, 1),
        lambda x: jnp.sort(x, axis=1)[:, ::-1, :1],
        lambda x: jnp.concatenate([x, x], axis=2).cumsum(axis=1),
        lambda x: jnp.split(jnp.concatenate([x, 2 * x]), 2)[1],  # two views of each row
        lambda x: jax.vmap(mapped_norm)(x),
        lambda x: jax.vmap(lambda r: jnp.linalg.cholesky(r @ r.T + jnp.eye(3)))(x),
        lambda x: lax.map(mapped_norm, x),
        lambda x: jax.checkpoint(jax.nn.gelu)(x),
        lambda x: jax.jit(jax.nn.relu)(x),
        lambda x: x.at[:, 0].set(1.0),
        lambda x: x.at[:, :, 1].add(x[:, :, 0]),
        lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1, keepdims=True), axis=1),
        lambda x: jnp.pad(x, ((0, 0), (1, 1), (0, 0))),
        lambda x: lax.top_k(x, 1)[0],
        lambda x: x * jax.random.bernoulli(jax.random.key(0), 0.5, x.shape),
        lambda x: jnp.fft.fft(x, axis=1).real,
        lambda x: jnp.where(x > 0, x, x.max(1, keepdims=True)),
        lambda x: lax.cond(True, jnp.sin, jnp.cos, x),
        lambda x: lax.fori_loop(0, 3, lambda _, v: jnp.sin(v), x),
        window,
        attention,
        convolution,
        over_time,
    ],
    "dependent": [
        lambda x: x - x.mean(0, keepdims=True),
        lambda x: x / x.max(),
        lambda x: jnp.einsum("btc,dtc->bd", x, x),
        lambda x: x[:, None] - x[None],
        lambda x: jnp.sort(x, axis=0),
        lambda x: jnp.cumsum(x, axis=0),
        lambda x: x[::-1],
        lambda x: x - x[:1],
        lambda x: x[1:] - x[:-1],
        lambda x: jnp.roll(x, 1, axis=0),
        lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        lambda x: jnp.fft.fft(x, axis=0).real,
        over_rows_with_memory,
        pairs_of_loops,
    ],
    "unknown": [
        lambda x: x[jnp.arange(4), IDS],
        lambda x: x[(jnp.arange(4) + 1) % 4],
        newton,
    ],
    "none": [lambda x: jnp.zeros((4, 2)), lambda x: jnp.ones(4) * x.shape[0]],
}  # fmt: skip


@pytest.mark.parametrize("kind, program", [(k, p) for k, programs in PROGRAMS.items() for p in programs])
def test_the_jaxpr_tells_whether_rows_affect_each_other(kind, program):
    layout = layout_of(program, X)
    assert kind_of(layout) == kind, layout


def test_lookups_keep_the_rows_of_their_indices():
    table = jnp.arange(10.0).reshape(5, 2)
    assert layout_of(lambda i: table[i], IDS) == batch_rows(4)
    assert layout_of(lambda i: jax.nn.one_hot(i, 3), IDS) == batch_rows(4)
    assert layout_of(lambda i, x: jnp.take_along_axis(x[:, :, 0], i[:, None], axis=1), IDS, X) == batch_rows(4)
    assert layout_of(lambda i: jnp.zeros(5).at[i].add(1.0)[i], IDS).kind == "unknown"  # counts of the labels


def test_the_rows_are_followed_to_other_axes():
    assert layout_of(lambda x: x.swapaxes(0, 2), X) == batch_rows(4, axis=2)
    assert layout_of(lambda x: x.reshape(12, 2), X) == RowLayout(axis=0, before=1, size=4, after=3)
    assert layout_of(lambda x: jnp.concatenate([x, x]), X) == RowLayout(axis=0, before=2, size=4, after=1)


def test_the_reason_names_the_operation_and_where_it_is():
    def centred(x):
        return x - x.mean(0, keepdims=True)

    assert layout_of(centred, X).reason.startswith("reduce_sum over the batch axis in centred (test_coupling.py, line ")
    nnx = pytest.importorskip("flax.nnx")
    norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0), use_running_average=False)
    graph, state = nnx.split(norm)

    def call(x):
        return nnx.merge(graph, jax.tree.map(jnp.asarray, state))(x)

    assert "reduce_sum over the batch axis in flax BatchNorm" in layout_of(call, X).reason


# ------------------------------------------------------------------------------------------------ random programs
AXIS = st.integers(0, 9)
STEPS = {
    "tanh": lambda x, a: jnp.tanh(x),
    "swap": lambda x, a: jnp.swapaxes(x, a % x.ndim, -1),
    "flatten": lambda x, a: x.reshape(-1, *x.shape[2:]) if x.ndim > 2 else x,
    "unflatten": lambda x, a: x.reshape(x.shape[0] // 2, 2, *x.shape[1:]) if x.shape[0] % 2 == 0 and x.ndim < 4 else x,
    "sum": lambda x, a: x.sum(a % x.ndim) if x.ndim > 2 else x,
    "center": lambda x, a: x - x.mean(a % x.ndim, keepdims=True),
    "cumsum": lambda x, a: jnp.cumsum(x, axis=a % x.ndim),
    "sort": lambda x, a: jnp.sort(x, axis=a % x.ndim),
    "flip": lambda x, a: jnp.flip(x, a % x.ndim),
    "twice": lambda x, a: jnp.concatenate([x, x * 2], axis=a % x.ndim) if x.size < 200 else x,
    "half": lambda x, a: jnp.split(x, 2, axis=a % x.ndim)[0] if x.shape[a % x.ndim] % 2 == 0 else x,
    "dense": lambda x, a: x @ jnp.sin(jnp.arange(x.shape[-1] * 2.0)).reshape(-1, 2),
    "gram": lambda x, a: jnp.einsum("a...,b...->ab...", x, x) if x.ndim < 4 and x.size < 100 else x,
    "batched": lambda x, a: jnp.einsum("...ij,...kj->...ik", x, x),
    "expand": lambda x, a: jnp.expand_dims(x, a % x.ndim) * jnp.ones(2)[0] if x.ndim < 4 else x,
    "map": lambda x, a: lax.map(lambda r: r / (1 + jnp.abs(r).sum()), x),
    "scan": lambda x, a: lax.scan(lambda h, r: (h + r, h * r), jnp.zeros(x.shape[1:]), x)[1],
    "select": lambda x, a: jnp.where(x > 0, x, jnp.swapaxes(x, 0, 1) if x.shape[0] == x.shape[1] else 0),
    "first": lambda x, a: jnp.take_along_axis(x, jnp.argmax(x, a % x.ndim, keepdims=True), a % x.ndim),
    "norm": lambda x, a: jax.vmap(mapped_norm)(x),
    "write": lambda x, a: x.at[:, 0].set(3.0) if x.ndim > 1 else x,
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), AXIS), min_size=1, max_size=6), row=st.integers(0, 3))
def test_rows_called_independent_never_change_when_another_row_does(steps, row):
    def program(x):
        for name, axis in steps:
            x = STEPS[name](x, axis)
        return x

    layout = layout_of(program, X)
    if isinstance(layout, Mixed):
        return
    changed = X.copy()
    changed[row] = changed[row] * 3 + 1
    before, after = (np.asarray(program(jnp.asarray(x))) for x in (X, changed))
    differs = before != after
    if isinstance(layout, RowLayout):
        places = np.arange(before.shape[layout.axis])
        assert len(places) == layout.before * 4 * layout.after
        differs = differs.compress((places // layout.after) % 4 != row, axis=layout.axis)
    assert not differs.any(), (layout, steps)


# ------------------------------------------------------------------------------------------------ models
ROWS, CLASSES = 40, 3
RNG = np.random.default_rng(3)
FLAT = RNG.normal(size=(ROWS, 6)).astype("float32")
LABELS = RNG.integers(0, CLASSES, ROWS)
P = {
    "a": RNG.normal(size=(6, 8)).astype("float32") / 3,
    "b": RNG.normal(size=(8, CLASSES)).astype("float32") / 3,
}
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def mlp(p, x):
    return jax.nn.relu(x @ p["a"]) @ p["b"]


def centred(p, x):
    h = x @ p["a"]
    return jax.nn.relu(h - h.mean(0, keepdims=True)) @ p["b"]


def indexed(output, label):
    return -jax.nn.log_softmax(output)[jnp.arange(len(label)), label]


def contrastive(output, label):
    same = label[:, None] == label[None]
    return -jnp.where(same, jax.nn.log_softmax(output @ output.T), 0).sum(1) / same.sum(1)


def share_of_class(output, label):  # rows are combined by an operation without a rule
    counts = jnp.zeros(CLASSES).at[label].add(1.0)
    return cross_entropy(output, label) / counts[label]


def share_of_batch(output, label):  # each row depends on the number of rows
    return cross_entropy(output, label) / len(label)


MODELS = {
    "loss by row numbers": (mlp, FLAT, indexed, True),
    "batch mean": (centred, FLAT, cross_entropy, False),
    "contrastive loss": (mlp, FLAT, contrastive, False),
    "divided by the number of rows": (mlp, FLAT, share_of_batch, False),
    "counts of labels": (mlp, FLAT, share_of_class, False),
}


def by_hand(apply, loss, x, batch, epochs=2, rate=0.1):
    """(parameters, mean loss of each epoch) of training with batches of their true size."""

    @jax.jit
    def step(p, x, y):
        value, gradient = jax.value_and_grad(lambda p: loss(apply(p, x), y).mean())(p)
        return jax.tree.map(lambda w, g: w - rate * g, p, gradient), value

    p, losses = {k: P[k] for k in P}, []
    for _ in range(epochs):
        values = []
        for low in range(0, ROWS, batch):
            p, value = step(p, x[low : low + batch], LABELS[low : low + batch])
            values += [float(value)] * len(x[low : low + batch])
        losses.append(np.mean(values))
    return p, losses


def fitted(apply, loss, x, batch, **options):
    options = {"params": P, "loss": loss, "num_epoch": 2, "shuffle": False, "eval_metric": None, "progress": False, **options}
    return jfit.fit(apply, (x, LABELS), batch_size=batch, optimizer_params={"learning_rate": 0.1}, **options)


@pytest.mark.repetitions(1, slow=6)
@pytest.mark.parametrize("name, on_device", [(name, at % 2 == 0) for at, name in enumerate(MODELS)])
def test_incomplete_batches_train_as_by_hand(name, on_device):
    apply, x, loss, paddable = MODELS[name]
    run = fitted(apply, loss, x, 16, data_on_device=on_device)
    params, losses = by_hand(apply, loss, x, 16)
    np.testing.assert_allclose(run.history.column("loss"), losses, rtol=2e-5)
    for key in P:
        np.testing.assert_allclose(run.params[key], params[key], rtol=1e-4, atol=1e-6)
    model = jfit.Model.from_function(apply, loss=loss, params=P)
    model.verify(P, {}, {"x": x[:16], "label": LABELS[:16]})
    assert model.plan(specs_of({"x": x, "label": LABELS})).paddable == paddable


def test_outputs_of_rows_that_affect_each_other_are_predicted_in_batches_of_their_own_size():
    out = jfit.predict(centred, FLAT, params=P, loss=cross_entropy, batch_size=64)
    np.testing.assert_allclose(out, centred(P, FLAT), rtol=1e-5, atol=1e-6)


def assert_trees_close(actual, expected, tolerance=1e-6):
    assert sorted(actual) == sorted(expected)
    for key in actual:
        np.testing.assert_allclose(np.asarray(actual[key]), np.asarray(expected[key]), rtol=tolerance, atol=1e-6)


# ------------------------------------------------------------------------------------------------ functions that take weights
def masked_center(p, x, *, mask):
    h = x @ p["a"]
    mean = jnp.where(mask[:, None], h, 0).sum(0, keepdims=True) / mask.sum()
    return jax.nn.relu(h - mean) @ p["b"]


def weighted_center(p, x, weight=None):
    return masked_center(p, x, mask=weight > 0)


def weighted_contrastive(output, label, weight=None):
    same = (label[:, None] == label[None]) * weight[None]
    scores = jnp.where(weight[None] > 0, output @ output.T, -1e30)
    return -jnp.where(same > 0, jax.nn.log_softmax(scores), 0).sum(1) / jnp.maximum(same.sum(1), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "apply, loss, plain",
    [
        (masked_center, cross_entropy, (centred, cross_entropy)),
        (weighted_center, cross_entropy, (centred, cross_entropy)),
        (mlp, weighted_contrastive, (mlp, contrastive)),
        (weighted_center, weighted_contrastive, (centred, contrastive)),
    ],
)
def test_functions_that_take_row_weights_are_padded(apply, loss, plain, caplog):
    run = fitted(apply, loss, FLAT, 16)
    params, losses = by_hand(*plain, FLAT, 16)
    np.testing.assert_allclose(run.history.column("loss"), losses, rtol=2e-5)
    for key in P:
        np.testing.assert_allclose(run.params[key], params[key], rtol=1e-4, atol=1e-6)
    assert not caplog.records
    model = jfit.Model.from_function(apply, loss=loss, params=P)
    plan = model.plan(specs_of({"x": FLAT, "label": LABELS}))
    assert plan.paddable and plan.in_evaluation.paddable and plan.coupled
    np.testing.assert_allclose(run.predict(FLAT, batch_size=64), plain[0](run.params, FLAT), rtol=1e-4, atol=1e-6)


def test_the_promise_of_apply_does_not_cover_the_loss():
    model = jfit.Model.from_function(weighted_center, loss=contrastive, params=P)
    plan = model.plan(specs_of({"x": FLAT, "label": LABELS}))
    assert not plan.paddable and "in contrastive" in plan.reason


# ------------------------------------------------------------------------------------------------ announcements and devices
@pytest.mark.slow
def test_a_batch_of_its_own_size_is_announced_once(caplog):
    with caplog.at_level(logging.WARNING, "jfit"):
        fitted(centred, cross_entropy, FLAT, 16)
    (record,) = caplog.records
    assert "a batch of 8 rows is not padded to 16 rows but trained in a second program, because the rows of a batch affect" in (
        record.getMessage()
    )
    assert "reduce_sum over the batch axis in centred" in record.getMessage()
    caplog.clear()
    fitted(mlp, cross_entropy, FLAT, 16)
    assert not caplog.records


PER_DEVICE = "affect each other: .*; on 2 devices this is computed per device, from its slice of each batch"


def test_rows_that_affect_each_other_on_several_devices_are_warned_of():
    with pytest.warns(UserWarning, match=PER_DEVICE):
        run = fitted(centred, cross_entropy, FLAT, 20, devices=2, num_epoch=1)

    def per_device(p, x):
        return jnp.concatenate([centred(p, half) for half in jnp.split(x, 2)])

    params, _ = by_hand(per_device, cross_entropy, FLAT, 20, epochs=1)
    assert_trees_close(run.params, params, 1e-4)


def test_unequal_slices_of_rows_that_affect_each_other_raise(recwarn):
    with pytest.raises(ValueError, match=r"a batch of 5 rows does not divide into 2 equal parts, .*reduce_sum.* in centred"):
        fitted(centred, cross_entropy, FLAT, 5, devices=2)
    model = jfit.Model.from_function(centred, loss=cross_entropy, params=P)
    batch = {"x": FLAT[:5], "label": LABELS[:5]}
    parallel = jfit.data_parallel(jfit.train_step(model), 2)
    with pytest.raises(ValueError, match=r"the batch has 5 rows, which do not divide into 2 equal parts, .*in centred"):
        parallel(parallel.place(jfit.init_state(model, "sgd", batch)), batch)


def normalized(p, x, *, aux, axis_name):
    h = x @ p["a"]
    mean = h.mean(0, keepdims=True)
    mean = mean if axis_name is None else lax.pmean(mean, axis_name)
    return jax.nn.relu(h - mean) @ p["b"], {"mean": 0.9 * aux["mean"] + 0.1 * mean}


@pytest.mark.slow
def test_sync_batch_stats_passes_the_axis_name():
    aux = {"mean": jnp.zeros((1, 8))}
    runs = [fitted(normalized, cross_entropy, FLAT, 20, aux=aux, devices=n, sync_batch_stats=True) for n in (1, 2)]
    assert_trees_close(runs[0].named_params, runs[1].named_params, 1e-5)
    assert_trees_close(runs[0].named_aux, runs[1].named_aux, 1e-5)


def test_sync_batch_stats_without_axis_name_raises():
    with pytest.raises(
        ValueError, match=r"sync_batch_stats=True needs a function that takes axis_name=.*but this one does not"
    ):
        fitted(centred, cross_entropy, FLAT, 20, sync_batch_stats=True)


def together(output, label):
    return cross_entropy(output, label) * jax.nn.softmax(output[:, 0])


@pytest.mark.parametrize("loss", ["together", "cross_entropy"])
@pytest.mark.parametrize("gathered", [False, True])
def test_synchronized_statistics_do_not_hide_that_the_loss_combines_rows(loss, gathered, recwarn):
    options = {"loss": globals()[loss], "params": P, "aux": {"mean": jnp.zeros((1, 8))}, "gather_outputs": gathered}
    model, batch = jfit.Model.from_function(normalized, **options), {"x": FLAT, "label": LABELS}
    parallel = jfit.data_parallel(jfit.train_step(model, "sgd", sync_batch_stats=True), 2)
    state = jfit.init_state(model, "sgd", batch)
    parallel._check_rows(state, jfit.Batch(batch), ROWS)
    warnings = [str(w.message) for w in recwarn.list]
    if loss == "together" and not gathered:
        assert len(warnings) == 1 and "in together" in warnings[0] and warnings[0].endswith("the loss of the whole batch")
    else:
        assert not warnings


def counting(p, x, *, aux, key):
    key = jax.random.fold_in(key, 1)
    many = aux["many"] + (x > 0).sum().astype(jnp.int32)
    return x @ p["w"], {"many": many, "key": key, "any": x[0, 0] > 0}


@pytest.mark.filterwarnings("ignore:.*computed per device")
def test_integer_states_and_keys_are_equal_on_all_devices():
    aux = {"many": jnp.int32(0), "key": jax.random.key(0), "any": jnp.bool_(False)}
    model = jfit.Model.from_function(counting, loss=optax.l2_loss, params={"w": np.ones(6, "float32")}, aux=aux)
    batch = {"x": FLAT[:8], "label": np.ones(8, "float32")}
    parallel = jfit.data_parallel(jfit.train_step(model, "sgd"), 2)
    state, _ = parallel(parallel.place(jfit.init_state(model, "sgd", batch)), batch)
    for value in (state.aux["many"], state.aux["any"], jax.random.key_data(state.aux["key"])):
        first, second = (np.asarray(shard.data) for shard in value.addressable_shards)
        np.testing.assert_array_equal(first, second)
    assert int(state.aux["many"]) == (FLAT[:4] > 0).sum()


# ------------------------------------------------------------------------------------------------ the experiment
def test_a_model_with_a_key_in_its_aux_is_tested():
    def apply(p, x, *, aux, train):
        key, drop = jax.random.split(aux["key"])
        return mlp(p, x * jax.random.bernoulli(drop, 0.5, (1, 6)) if train else x), {"key": key}

    aux = {"key": jax.random.key(0)}
    model = jfit.Model.from_function(apply, loss=indexed, params=P, aux=aux)
    model.verify(P, aux, {"x": FLAT, "label": LABELS})
    plan = model.plan(specs_of({"x": FLAT, "label": LABELS}))
    assert plan.paddable and plan.in_evaluation.paddable


def test_rows_of_a_batch_of_one_row_that_would_affect_each_other_are_found():
    def centered(p, x):
        return (x - x.mean(0, keepdims=True)) @ p["w"]

    model = jfit.Model.from_function(centered, loss=lambda z, label: (z - label) ** 2, params={"w": np.ones(3, "float32")})
    step = jfit.data_parallel(jfit.train_step(model, "sgd"), 2)
    with pytest.raises(ValueError, match="it cannot be padded: the rows of a batch affect each other: reduce_sum over"):
        step(jfit.init_state(model, "sgd"), {"x": np.ones((1, 3), "float32"), "label": np.zeros(1, "float32")})
