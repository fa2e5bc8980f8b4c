"""Embedding tables trained by rows, from the graph to the update: MXNet's values, without copying the table."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases.rows import DATA, LABEL, fitted, network

import jfit
import jfit.mx as mx
from jfit.feed.batches import data_of
from jfit.loop.dispatch import DispatchSpec, ResidentDispatcher
from jfit.optim import SparseRows

NETS = json.loads((Path(__file__).parents[1] / "golden" / "rows.json").read_text())["nets"]
BATCH = {"data": DATA, "softmax_label": LABEL}


def embedding(sparse, size=20, data=None):
    table = jfit.sym.Variable("emb_weight")
    data = jfit.sym.Variable("data") if data is None else data
    return jfit.sym.Embedding(data, table, input_dim=size, output_dim=3, sparse_grad=sparse, name="emb")


def classified(rows):
    hidden = jfit.sym.FullyConnected(jfit.sym.mean(rows, axis=1), num_hidden=2, name="fc")
    return jfit.lower(jfit.sym.SoftmaxOutput(hidden, name="softmax"))


def stepped(sparse, optimizer, batch=BATCH, steps=2, size=20, **how):
    model = classified(embedding(sparse, size))
    state, step = jfit.init_state(model, optimizer, BATCH), jax.jit(jfit.train_step(model, optimizer, **how))
    for _ in range(steps):
        state, out = step(state, batch)
    return state, out


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("case", NETS, ids=lambda c: "-".join(map(str, (*c["net"][:2], *c["net"][2].values(), c["net"][3]))))
def test_module_trains_an_embedding_table_as_mxnet_does(case):
    np.testing.assert_allclose(fitted(mx, *case["net"]), case["after"], rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    "how", [{"clip_norm": 0.01}, {"clip_value": 0.01}, {"micro_batches": 3}, {"policy": "bfloat16"}, {"size": 8}]
)
def test_sgd_by_rows_equals_dense_sgd(how):
    (by_rows, _), (whole, _) = (stepped(sparse, "sgd", **how) for sparse in (True, False))
    for name, value in whole.params.items():
        np.testing.assert_allclose(by_rows.params[name], value, rtol=1e-5, atol=2e-3 if "policy" in how else 1e-6)


@pytest.mark.parametrize("size", [8, 20])  # fewer rows than the 12 lookups of the batch, and more
def test_table_rows_used_only_by_zero_weight_rows_are_unchanged(size):
    optimizer = jfit.optim.sgd(0.5, momentum=0.5, wd=0.5)
    weight, counted = np.array([1, 0, 1, 0, 0, 0], "float32"), np.ones(6, "float32")
    batch = jfit.Batch({"data": DATA, "softmax_label": LABEL}, jnp.asarray(weight), jnp.asarray(counted))
    before = jfit.init_state(classified(embedding(True, size)), optimizer, BATCH).params["emb_weight"]
    state, _ = stepped(True, optimizer, batch, size=size)
    moved = np.flatnonzero((np.asarray(state.params["emb_weight"]) != np.asarray(before)).any(axis=1))
    assert moved.tolist() == [1, 2]
    none, _ = stepped(True, optimizer, batch._replace(weight=jnp.zeros(6)), size=size)
    np.testing.assert_array_equal(none.params["emb_weight"], before)


@pytest.mark.repetitions(1)
def test_devices_gather_the_indices_and_rows_of_a_table_once():
    model = classified(embedding(True, size=5000))
    indices = np.random.default_rng(0).integers(0, 5000, (8, 3)).astype("float32")
    indices[5] = indices[0]  # rows that several devices have
    batch, states = {"data": indices, "softmax_label": np.arange(8, dtype="float32") % 2}, []
    for devices in (1, 4):
        step = jfit.data_parallel(jfit.train_step(model, "adam"), devices)
        state = step.place(jfit.init_state(model, "adam", batch))
        for _ in range(2):
            state, _ = step(state, batch)
        states.append(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), states[1].params, states[0].params)
    jfit.parallel.check_replicas(states[1])
    traffic = jfit.parallel.collectives(step, state, batch)
    assert traffic.all_gather.operand_bytes == 2 * 3 * (4 + 3 * 4)  # of a device: 2 rows of 3 indices, each with 3 floats
    assert traffic.all_gather.count <= 2 and traffic.all_reduce.count == 1
    assert traffic.all_reduce.operand_bytes < 100  # the dense layer and sums, not the table


@pytest.mark.parametrize("size", [8, 20])
def test_gradients_of_tables_are_sparse_rows(size):
    _, out = stepped(True, "sgd", steps=1, size=size, gradients=True)
    found, (_, whole) = out.gradients["emb_weight"], stepped(False, "sgd", steps=1, size=size, gradients=True)
    assert isinstance(found, SparseRows) and len(found.indices) == min(DATA.size, size)
    np.testing.assert_allclose(found.dense(size), whole.gradients["emb_weight"], rtol=1e-5, atol=1e-7)


def test_a_factor_row_that_no_row_of_a_csr_batch_uses_is_neither_read_nor_written():
    data, weight = jfit.sym.Variable("data", stype="csr"), jfit.sym.Variable("weight", shape=(4, 2))
    model = jfit.lower(jfit.sym.LinearRegressionOutput(jfit.sym.dot(data, weight), jfit.sym.Variable("label"), name="out"))
    batch = {"data": np.array([[1, 0, 0, 2], [0, 3, 0, 0]], "float32"), "label": np.ones((2, 2), "float32")}
    optimizer = jfit.optim.sgd(0.1, momentum=0.9, wd=0.1)
    state = jfit.init_state(model, optimizer, batch, seed=1)
    before = np.asarray(state.params["weight"]).copy()
    before[2] = np.nan
    state, _ = jfit.train_step(model, optimizer)(state._replace(params={"weight": jnp.asarray(before)}), batch)
    after = np.asarray(state.params["weight"])
    used = [0, 1, 3]
    gradient = batch["data"].T @ (batch["data"][:, used] @ before[used] - 1) / 4  # mean over two rows and two outputs
    np.testing.assert_allclose(after[used], before[used] - 0.1 * (gradient[used] + 0.1 * before[used]), rtol=1e-5)
    assert np.isnan(after[2]).all()


@pytest.mark.optimized
@pytest.mark.slow
def test_the_compiled_step_copies_no_table():
    size = 5003
    model, optimizer = classified(embedding(True, size)), jfit.optim.adam(wd=0.1)
    state = jfit.init_state(model, optimizer, BATCH)
    step = jfit.train_step(model, optimizer)
    one = jax.jit(step, donate_argnums=0)
    batches = data_of(model, {"data": np.tile(DATA, (2, 1)), "softmax_label": np.tile(LABEL, 2)}, 6)
    dispatcher = ResidentDispatcher(batches, DispatchSpec(model, step, jax.devices()[:1], 6, steps_per_call=2))
    next(dispatcher.dispatches(0, 0, 0, lambda step: 2))  # makes the program of many steps
    many = dispatcher._programs["train"].lower(state, dispatcher.batches.epoch_data(batches.order(0)), dispatcher._count(2))
    for lowered in (one.lower(state, BATCH), one.lower(state, jfit.Batch(BATCH, jnp.ones(6), jnp.ones(6))), many):
        compiled = lowered.compile()
        assert not re.findall(rf"= f32\[{size},3\]\S* (?:copy|select)\(", compiled.as_text())
        assert compiled.memory_analysis().temp_size_in_bytes < size * 3 * 4 / 2


def test_only_parameters_read_solely_by_sparse_embeddings_are_trained_by_rows():
    data = jfit.sym.Variable("data")
    assert list(jfit.lower(embedding(True)).tables) == ["emb_weight"]
    assert not jfit.lower(embedding(False)).tables
    assert not jfit.lower(jfit.sym.Group([embedding(True), embedding(False)])).tables
    assert not jfit.lower(
        jfit.sym.dot(jfit.sym.mean(embedding(True), axis=1), jfit.sym.Variable("emb_weight"), transpose_b=True)
    ).tables
    learned = jfit.sym.argmax(jfit.sym.FullyConnected(data, num_hidden=8), axis=1)
    assert not jfit.lower(embedding(True, data=learned)).tables
    assert list(jfit.lower(network(mx, "SparseEmbedding")).tables) == ["emb_weight"]
    assert list(jfit.lower(embedding(True, data=jfit.sym.transpose(data) + 1)).tables) == ["emb_weight"]


@pytest.mark.parametrize("shape", [(6, 5), (6, 4, 5)])
def test_the_factor_of_a_csr_input_is_updated_at_its_nonzero_columns(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x[..., 2] = 0
    product = jfit.sym.dot(jfit.sym.Variable("data", stype="csr"), jfit.sym.Variable("fc_weight", shape=(5, 3)))
    net = jfit.sym.SoftmaxOutput(product if len(shape) == 2 else jfit.sym.mean(product, axis=1), name="softmax")
    options = {"optimizer_params": {"learning_rate": 0.1, "wd": 0.5}, "batch_size": 3, "num_epoch": 1, "progress": False}
    start = {"fc_weight": np.ones((5, 3), "float32")}
    trained = jfit.fit(net, (x, np.zeros(6)), params=start, shuffle=False, **options).params["fc_weight"]
    changed = (np.asarray(trained) != 1).any(1)
    assert changed.tolist() == [True, True, False, True, True]
