"""Batches whose arrays do not all have rows: graphs, constant arrays, collocation points."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import jfit

RNG = np.random.default_rng(0)
OPTIONS: Any = {"progress": False, "shuffle": False, "eval_metric": None, "optimizer": optax.adam(0.05)}


def by_hand(loss, params, batches, epochs=1):
    """(parameters, mean loss of each epoch) of training with optax: `loss(params, batch, step)` is a scalar."""
    optimizer = optax.adam(0.05)
    state, means, step = optimizer.init(params), [], 0
    value_and_grad = jax.jit(jax.value_and_grad(loss))
    for _ in range(epochs):
        values = []
        for batch in batches:
            value, gradient = value_and_grad(params, batch, jnp.int32(step))
            updates, state = optimizer.update(gradient, state, params)
            params, step = optax.apply_updates(params, updates), step + 1
            values.append(float(value))
        means.append(np.mean(values))
    return params, means


def assert_close(tree, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), tree, other)


# ------------------------------------------------------------------------------------------------ graphs
class GraphsTuple(NamedTuple):
    """The fields of `jraph.GraphsTuple`."""

    nodes: Any
    edges: Any
    receivers: Any
    senders: Any
    globals: Any
    n_node: Any
    n_edge: Any


N, E, G = 12, 20, 4  # the last graph is padding


def graphs(seed):
    rng = np.random.default_rng(seed)
    n_node, n_edge = np.array([3, 4, 2, 3]), np.array([6, 5, 4, 5])
    graph = np.repeat(np.arange(G), n_edge)
    ends = [(n_node.cumsum() - n_node)[graph] + rng.integers(n_node[graph]) for _ in range(2)]
    nodes, edges = rng.normal(size=(N, 3)).astype("float32"), rng.normal(size=(E, 2)).astype("float32")
    batch = GraphsTuple(nodes, edges, *ends, None, n_node, n_edge)
    return batch, rng.integers(0, 2, G).astype("float32")


GRAPHS = [graphs(seed) for seed in range(3)]
WEIGHTS = {n: RNG.normal(size=s).astype("float32") for n, s in {"edge": (5, 6), "node": (9, 6), "out": (6,)}.items()}


def gnn(params, graph):
    messages = jnp.tanh(jnp.concatenate([graph.nodes[graph.senders], graph.edges], 1) @ params["edge"])
    received = jax.ops.segment_sum(messages, graph.receivers, N)
    nodes = jnp.tanh(jnp.concatenate([graph.nodes, received], 1) @ params["node"])
    number = jnp.repeat(jnp.arange(G), graph.n_node, total_repeat_length=N)
    return jax.ops.segment_sum(nodes, number, G) @ params["out"]


def masked_loss(output, label):
    mask = jnp.arange(G) < G - 1
    return jnp.where(mask, optax.sigmoid_binary_cross_entropy(output, label), 0).sum() / mask.sum()


def graph_loss(params, batch, step):
    return masked_loss(gnn(params, jax.tree.map(jnp.asarray, batch[0])), batch[1])


def test_padded_graphs_train_as_with_optax():
    options = {"params": WEIGHTS, "loss": masked_loss, "loss_per_batch": True, "num_epoch": 2, **OPTIONS}
    run = jfit.fit(gnn, GRAPHS, GRAPHS[:2], **options)
    params, means = by_hand(graph_loss, WEIGHTS, GRAPHS, 2)
    assert_close(run.params, params)
    np.testing.assert_allclose([row["loss"] for row in run.history.epochs], means, rtol=1e-6)
    scored = np.mean([jax.jit(graph_loss)(params, batch, 0) for batch in GRAPHS[:2]])
    np.testing.assert_allclose([run.score(GRAPHS[:2])["loss"], run.history.epochs[-1]["val_loss"]], scored, rtol=1e-6)
    outputs = np.concatenate([jax.jit(gnn)(params, graph) for graph, _ in GRAPHS])
    for data in (GRAPHS, [graph for graph, _ in GRAPHS]):
        np.testing.assert_allclose(run.predict(data), outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.predict(GRAPHS[0][0]), outputs[:G], rtol=1e-5, atol=1e-6)


def test_outputs_of_other_shapes_are_not_concatenated():
    def outer(params, x):
        return jnp.outer(x["a"], x["b"]) * params["w"]

    data = [{"a": np.ones(2), "b": np.ones(size)} for size in (3, 4)]
    options = {"params": {"w": np.ones(())}, "loss": lambda outputs, batch: outputs.sum(), "loss_per_batch": True}
    run = jfit.fit(outer, data, num_epoch=1, **options, **OPTIONS)
    assert run.predict(data[:1]).shape == (2, 3)
    with pytest.raises(ValueError, match=r"an output of the batches has the shapes \[\(2, 3\), \(2, 4\)\]"):
        run.predict(data)


def test_a_batch_of_graphs_is_not_split_over_devices():
    with pytest.raises(ValueError, match=r"have no rows in common, so that a batch cannot be split over 2 .* pass devices=1"):
        jfit.fit(gnn, GRAPHS, params=WEIGHTS, loss=masked_loss, loss_per_batch=True, devices=2, **OPTIONS)
    options = {"params": WEIGHTS, "loss": masked_loss, "loss_per_batch": True, "num_epoch": 1, "devices": "auto", **OPTIONS}
    assert len(jfit.fit(gnn, GRAPHS, **options).settings.devices) == 1


def test_arrays_without_rows_are_one_batch():
    """A whole data set of points, kept on the device."""
    data = {"inside": RNG.normal(size=(9, 2)).astype("float32"), "edge": RNG.normal(size=(4, 2)).astype("float32")}
    options = {"params": POISSON, "loss": residual, "loss_per_batch": True, "num_epoch": 3, **OPTIONS}
    run = jfit.fit(solution, data, row_axes=None, **options)
    params, means = by_hand(poisson_loss, POISSON, [data], 3)
    assert_close(run.params, params)
    np.testing.assert_allclose([row["loss"] for row in run.history.epochs], means, rtol=1e-6)
    with pytest.raises(ValueError, match=r"row_axes=\{'points/edge': None\} for an array .* row_axes=None if a batch is one"):
        jfit.fit(solution, data, **options)


# ------------------------------------------------------------------------------------------------ collocation points
POISSON = {"w": RNG.normal(size=(2, 8)).astype("float32"), "v": RNG.normal(size=8).astype("float32")}


def u(params, point):
    return jnp.tanh(point @ params["w"]) @ params["v"]


def solution(params, points):
    laplacian = jax.vmap(lambda p: jnp.trace(jax.hessian(u, 1)(params, p)))(points["inside"])
    return {"laplacian": laplacian, "edge": u(params, points["edge"])}


def residual(outputs, batch):
    return ((outputs["laplacian"] - batch["points"]["inside"].sum(1)) ** 2).mean() + (outputs["edge"] ** 2).mean()


def poisson_loss(params, batch, step):
    return residual(solution(params, batch), {"points": batch})


def test_collocation_points_of_a_generator_train_as_with_optax():
    def points(epoch):
        rng = np.random.default_rng(epoch)
        for _ in range(4):
            yield {k: rng.normal(size=(n, 2)).astype("float32") for k, n in (("inside", 9), ("edge", 4))}

    run = jfit.fit(solution, points, params=POISSON, loss=residual, loss_per_batch=True, num_epoch=2, **OPTIONS)
    params, _ = by_hand(poisson_loss, POISSON, [*points(0), *points(1)])
    assert_close(run.params, params)


# ------------------------------------------------------------------------------------------------ constant arrays
TOKENS, T = RNG.normal(size=(11, 4)).astype("float32"), 4
CAUSAL = np.tril(np.ones((T, T), "float32"))
MIX = {"w": RNG.normal(size=(T, T)).astype("float32")}


def mixed(params, x):
    return x["tokens"] @ (params["w"] * x["mask"])


def mixed_loss(params, batch, step):
    return ((mixed(params, {"tokens": batch, "mask": CAUSAL}) - batch) ** 2).mean()


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_constant_array_is_whole_in_every_batch(devices, on_device):
    """The batch size is that of the mask, and the last batch is incomplete."""
    data = {"tokens": TOKENS, "mask": CAUSAL}, TOKENS
    options = {"params": MIX, "loss": "mse", "row_axes": {"mask": None}, "batch_size": 4, "num_epoch": 2, **OPTIONS}
    run = jfit.fit(mixed, data, data, devices=devices, data_on_device=on_device, **options)
    params, _ = by_hand(mixed_loss, MIX, [TOKENS[:4], TOKENS[4:8], TOKENS[8:]], 2)
    assert_close(run.params, params)
    np.testing.assert_allclose(run.history.epochs[-1]["val_loss"], mixed_loss(params, TOKENS, 0), rtol=1e-6)
    outputs = run.predict({"tokens": TOKENS, "mask": CAUSAL})
    np.testing.assert_allclose(outputs, mixed(params, {"tokens": TOKENS, "mask": CAUSAL}), rtol=1e-5, atol=1e-6)


def two(params, tokens, mask):
    return tokens @ (params["w"] * mask)


@pytest.mark.parametrize(
    "row_axes",
    [(0, None), {"mask": None}, {"ma*": None}, {"tokens": 0, "mask": None}, {"*": None, "tokens": 0, "label": 0}],
    ids=str,
)
def test_forms_of_row_axes(row_axes):
    options = {"params": MIX, "loss": "mse", "batch_size": 4, "num_epoch": 1, **OPTIONS}
    run = jfit.fit(two, ([TOKENS, CAUSAL], TOKENS), row_axes=row_axes, **options)
    params, _ = by_hand(mixed_loss, MIX, [TOKENS[:4], TOKENS[4:8], TOKENS[8:]])
    assert_close(run.params, params)


def test_row_axes_in_the_structure_of_the_argument():
    class Text(NamedTuple):
        tokens: Any
        mask: Any

    def of_text(params, text):
        return two(params, *text)

    options = {"params": MIX, "loss": "mse", "batch_size": 4, "num_epoch": 1, **OPTIONS}
    run = jfit.fit(of_text, (Text(TOKENS, CAUSAL), TOKENS), row_axes=Text(0, None), **options)
    params, _ = by_hand(mixed_loss, MIX, [TOKENS[:4], TOKENS[4:8], TOKENS[8:]])
    assert_close(run.params, params)


def test_errors_of_row_axes():
    data = {"tokens": TOKENS, "mask": CAUSAL}, TOKENS
    options = {"params": MIX, "loss": "mse", **OPTIONS}
    with pytest.raises(ValueError, match=r"'x/mask' has 4 rows.*pass row_axes=\{'x/mask': None\}"):
        jfit.fit(mixed, data, **options)
    with pytest.raises(ValueError, match="row_axes has 'musk', which matches no array of the batch; did you mean"):
        jfit.fit(mixed, data, row_axes={"mask": None, "musk": None}, **options)
    with pytest.raises(ValueError, match="row_axes has 1 for 'mask'; expected 0"):
        jfit.fit(mixed, data, row_axes={"mask": 1}, **options)
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
    with pytest.raises(ValueError, match="row_axes= would be ignored"):
        jfit.fit(net, (TOKENS, np.zeros(11)), row_axes={"data": None}, progress=False)
    with pytest.raises(ValueError, match=r"input 'graph/nodes' has 12 rows, .*pass row_axes="):
        jfit.fit(gnn, GRAPHS, params=WEIGHTS, loss=masked_loss, **OPTIONS)


TABLE = {"emb": RNG.normal(size=(6, 3)).astype("float32"), "pos": RNG.normal(size=(5, 3)).astype("float32")}
IDS, POSITIONS = RNG.integers(0, 6, (11, 5)), np.arange(5)
CLASSES = RNG.integers(0, 3, 11)


def embedded(params, ids, positions):
    return (params["emb"][ids] + params["pos"][positions][None]).mean(1)


def embedded_loss(params, batch, step):
    logits = embedded(params, batch[0], POSITIONS)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


@pytest.mark.repetitions(2)
@pytest.mark.parametrize(
    "more", [{}, {"micro_batches": 2}, {"reduce": "ordered"}, {"devices": 2}, {"mesh": {"data": 2}}], ids=str
)
def test_indices_of_positions_have_no_rows(more):
    """As many positions as rows of a micro-batch; incomplete batches are padded, metrics and labels checked."""
    data = [IDS, POSITIONS], CLASSES
    options = {**OPTIONS, "params": TABLE, "loss": "cross_entropy", "row_axes": {"positions": None}, "batch_size": 10}
    run = jfit.fit(embedded, data, num_epoch=2, **{**options, "eval_metric": "acc"}, **more)
    params, _ = by_hand(embedded_loss, TABLE, [(IDS[:10], CLASSES[:10]), (IDS[10:], CLASSES[10:])], 2)
    assert_close(run.params, params)
    outputs = embedded(params, IDS, POSITIONS)
    accuracy = (outputs.argmax(1) == CLASSES).mean()
    assert run.score(data, eval_metric=["acc", lambda y, p: (p.argmax(1) == y).mean()])["accuracy"] == pytest.approx(accuracy)
    with pytest.raises(ValueError, match=r"input 'positions': row 4 is 9"):
        jfit.fit(embedded, ([IDS, np.array([0, 1, 2, 3, 9])], CLASSES), **options)


def test_validation_rows_and_streams_with_a_constant_array():
    data = {"tokens": TOKENS, "mask": CAUSAL}, TOKENS
    options = {"params": MIX, "loss": "mse", "row_axes": {"mask": None}, "batch_size": 4, "num_epoch": 1, **OPTIONS}
    run = jfit.fit(mixed, data, validation_split=0.3, **options)
    params, _ = by_hand(mixed_loss, MIX, [TOKENS[:4], TOKENS[4:7]])
    assert_close(run.params, params)
    np.testing.assert_allclose(run.history.epochs[-1]["val_loss"], mixed_loss(params, TOKENS[7:], 0), rtol=1e-6)
    stream = [({"tokens": part, "mask": CAUSAL}, part) for part in (TOKENS[:4], TOKENS[4:7])]
    assert_close(jfit.fit(mixed, stream, steps_per_call=2, devices=2, **options).params, params)


class Mixer(linen.Module):
    @linen.compact
    def __call__(self, x):
        assert x["mask"].shape == (T, T)  # also when it is initialized
        return x["tokens"] @ (self.param("w", lambda key: jnp.asarray(MIX["w"])) * x["mask"])


def test_modules_of_frameworks():
    data, options = ({"tokens": TOKENS, "mask": CAUSAL}, TOKENS), {"loss": "mse", "batch_size": 4, "num_epoch": 1, **OPTIONS}
    run = jfit.fit(Mixer(), data, row_axes={"mask": None}, **options)
    params, _ = by_hand(mixed_loss, MIX, [TOKENS[:4], TOKENS[4:8], TOKENS[8:]])
    assert_close(run.params, params)
    with pytest.raises(ValueError, match="row_axes= is passed with an Equinox module, which is called for each row"):
        jfit.fit(eqx.nn.Linear(4, 4, key=jax.random.key(0)), data, row_axes={"mask": None}, **options)


# ------------------------------------------------------------------------------------------------ tools
def test_tools_honour_row_axes(tmp_path):
    data = {"tokens": TOKENS[:8], "mask": CAUSAL}, TOKENS[:8]
    options = {"params": MIX, "loss": "mse", "row_axes": {"mask": None}, "batch_size": 4}
    fitted = {**options, "num_epoch": 2, "optimizer": "sgd", "progress": False, "eval_metric": "mse"}
    run = jfit.fit(mixed, data, checkpoint=tmp_path, **fitted)
    swept = jfit.sweep(mixed, data, over={"learning_rate": [0.01, 0.1]}, **fitted)
    np.testing.assert_allclose(swept[0].run.params["w"], run.params["w"], rtol=1e-6)
    assert jfit.cost(mixed, data, 4, measure=False, **{k: v for k, v in options.items() if k != "batch_size"}).batch_size == 4
    assert len(jfit.lr_find(mixed, data, steps=10, start=1e-3, end=1e-2, **options).losses) == 10
    assert jfit.verify(tmp_path, data, mixed, loss="mse", params=MIX).same
    assert run.replay(2).nodes
    scored = jfit.score(mixed, data, params=run.params, loss="mse", row_axes={"mask": None}, eval_metric=None)
    assert scored["loss"] == pytest.approx(run.score(data)["loss"])
    with pytest.raises(ValueError, match="row_axes: mask was None and is not set"):
        jfit.fit(mixed, data, checkpoint=tmp_path, resume=True, **{**fitted, "row_axes": {"x/mask": None}})
