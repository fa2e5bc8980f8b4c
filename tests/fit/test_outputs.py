"""Functions of several inputs and outputs, and their losses: by output name, without labels, of parameters, of the whole batch.

The oracle is the same training written by hand: the gradient of the mean loss of each batch, and a step of SGD.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from jfit.data.trees import named_arrays

R = np.random.default_rng(0)
ROWS, BATCH, RATE = 20, 8, 0.1  # batches of 8, 8 and 4 rows
X = R.normal(size=(ROWS, 4)).astype("float32")
Y = {"a": R.integers(0, 3, ROWS), "b": R.normal(size=(ROWS, 2)).astype("float32")}
W = {"w": R.normal(size=(4, 3)).astype("float32") / 2, "v": R.normal(size=(4, 2)).astype("float32") / 2}


def two_heads(params, x):
    return {"a": x @ params["w"], "b": x @ params["v"]}


def squared(output, label):
    return ((output - label) ** 2).mean(axis=1)


def by_hand(loss, batches, params=W):
    """Train by SGD on loss(params, batch) -> (scalar, dict of values); return (params, means over rows of loss and values)."""
    params, sums, value_and_grad = jax.tree.map(jnp.asarray, params), {}, jax.jit(jax.value_and_grad(loss, has_aux=True))
    for batch in batches:
        (value, logged), gradient = value_and_grad(params, batch)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradient)
        rows = len(jax.tree.leaves(batch)[0])
        for name, x in {"loss": value, **logged}.items():
            sums[name] = sums.get(name, 0.0) + float(x) * rows
    return params, {name: x / ROWS for name, x in sums.items()}


def slices(*arrays):
    return [jax.tree.map(lambda x, i=i: x[i : i + BATCH], arrays) for i in range(0, ROWS, BATCH)]


def fit(model, data, *args, **options):
    defaults = {"batch_size": BATCH, "num_epoch": 1, "optimizer": optax.sgd(RATE), "shuffle": False, "progress": False}
    params = {} if isinstance(model, jfit.Model) else {"params": W}
    return jfit.fit(model, data, *args, **{**defaults, **params, **options})


def agree(run, expected, rtol=1e-5):
    params, means = expected
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, 1e-6), run.params, params)
    row = run.history.epochs[-1]
    assert {k: row[k] for k in means} == pytest.approx(means, rel=rtol)


# ------------------------------------------------------------------------------------------------ losses by output name
LOSSES, SCALES = {"a": "cross_entropy", "b": squared}, {"b": 0.3}


def sum_of_losses(params, batch):
    x, y = batch
    output = two_heads(params, x)
    a = optax.softmax_cross_entropy_with_integer_labels(output["a"], y["a"]).mean()
    b = squared(output["b"], y["b"]).mean()
    return a + 0.3 * b, {"a_loss": a, "b_loss": b}


def test_a_stream_of_batches_has_labels_by_output_name():
    batches = [
        {"x": X[:8], "label": {k: v[:8] for k, v in Y.items()}},
        (X[8:16], {k: v[8:16] for k, v in Y.items()}),
        jfit.Batch({"x": X[16:], "label/a": Y["a"][16:], "label/b": Y["b"][16:]}),
    ]
    run = fit(two_heads, batches, loss=LOSSES, loss_weights=SCALES)
    agree(run, by_hand(sum_of_losses, slices(X, Y)))
    assert run.score(batches)["a_loss"] == pytest.approx(float(sum_of_losses(run.params, (X, Y))[1]["a_loss"]), rel=1e-5)


@pytest.mark.slow
def test_steps_take_batches_with_nested_labels():
    model = jfit.Model.from_function(two_heads, loss=LOSSES, loss_weights=SCALES, params=W)
    batch, metrics = {"x": X[:BATCH], "label": {k: v[:BATCH] for k, v in Y.items()}}, jfit.metrics.get({"b": "mse"})
    state = jfit.init_state(model, optax.sgd(RATE), batch, metrics=metrics)
    state, out = jax.jit(jfit.train_step(model, optax.sgd(RATE), metrics=metrics))(state, batch)
    params, means = by_hand(sum_of_losses, slices(X, Y)[:1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), state.params, params)
    assert float(out.loss) == pytest.approx(means["loss"] * ROWS / BATCH, rel=1e-5)
    values = jfit.totals.values(metrics, jax.device_get(state.metrics))
    assert values["b_mse"] == pytest.approx(values["b_loss"], rel=1e-5)
    totals = jfit.eval_step(model)(state.params, {}, jfit.totals.zero_totals((), ("a_loss",)), batch)
    expected = sum_of_losses(params, slices(X, Y)[0])[1]["a_loss"]
    assert jfit.totals.values((), totals)["a_loss"] == pytest.approx(float(expected), rel=1e-5)
    assert [x.shape for x in jfit.predict_step(model)(state.params, {}, {"x": X})] == [(ROWS, 3), (ROWS, 2)]
    gradients = jfit.gradients.mean_gradients(model)(W, {}, batch)
    expected = jax.grad(lambda p: sum_of_losses(p, slices(X, Y)[0])[0])(jax.tree.map(jnp.asarray, W))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), gradients, expected)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_row_weights_scale_losses_by_output_name(devices):
    weight = R.random(ROWS).astype("float32") * (np.arange(ROWS) % 3 > 0)
    x = np.where(weight[:, None] > 0, X, np.nan)  # rows of weight 0 have no influence

    def mean(params, batch):
        x, y, w = batch
        output = two_heads(params, jnp.nan_to_num(x))
        a = optax.softmax_cross_entropy_with_integer_labels(output["a"], y["a"])
        return ((a + 0.3 * squared(output["b"], y["b"])) * w).sum() / w.sum(), {}

    run = fit(two_heads, (x, Y, weight), loss=LOSSES, loss_weights=SCALES, devices=devices)
    params, _ = by_hand(mean, slices(x, Y, weight))
    agree(run, (params, {}))
    output = two_heads(run.params, jnp.nan_to_num(x))
    expected = np.average(squared(output["b"], Y["b"]), weights=weight)
    assert run.score((x, Y, weight))["b_loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_outputs_of_any_kind_come_back():
    def apply(params, x):
        logits = x @ params["w"]
        return {"class": logits.argmax(1), "logits": logits, "norm": (params["w"] ** 2).sum(), "time": logits.T[:, :, None]}

    run = fit(apply, (X, {"logits": Y["a"]}), loss={"logits": "cross_entropy"}, policy="bfloat16")
    found, expected = run.predict(X), apply(run.params, X)
    assert found["logits"].dtype == found["norm"].dtype == np.float32 and found["class"].dtype == np.int32
    assert found["norm"].shape == (3,) and found["time"].shape == (3, ROWS, 1)  # one norm for each batch
    np.testing.assert_allclose(found["time"], expected["time"], 0.05, 0.05)
    assert run.predict(X, batch_size=ROWS)["norm"].shape == ()


def test_metrics_of_outputs_with_rows_on_another_axis_see_no_padding_rows():
    def time_major(params, x):
        return {"a": x @ params["w"], "b": (x @ params["v"]).T}

    def loss(output, label):
        return squared(output.T, label)

    metric = jfit.metrics.Metric(
        "rows", lambda: jnp.zeros(()), lambda y, o, w: jnp.float32(o[0].shape[1]), lambda a, b: a + b, lambda s: {"rows": s}
    )
    run = fit(time_major, (X, Y), loss={"a": "cross_entropy", "b": loss}, eval_metric={"b": metric})
    assert run.history.epochs[-1]["b_rows"] == ROWS


class Pair(NamedTuple):
    mean: Any
    scale: Any


def test_predictions_have_the_structure_of_the_outputs():
    def nested(params, x):
        return Pair(x @ params["w"], {"b": (x @ params["v"], x.sum(axis=1))})

    def loss(outputs, label):
        return squared(outputs.mean, label) + outputs.scale["b"][1] ** 2

    run = fit(nested, (X, X[:, :3]), loss=loss)
    found, expected = run.predict(X), nested(run.params, X)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), found, expected)
    assert [o.name for o in run.model.outputs] == ["mean", "scale/b/0", "scale/b/1"]
    data = nested(W, X)
    again = jfit.predict(nested, X, params=run.params, loss=loss)
    jax.tree.map(np.testing.assert_array_equal, again, found)
    assert jax.tree.structure(data) == jax.tree.structure(again)


@pytest.mark.slow
def test_losses_and_labels_may_be_nested_as_the_outputs():
    def nested(params, x):
        return {"top": two_heads(params, x), "x": x}

    run = fit(nested, (X, {"top": Y}), loss={"top": LOSSES}, loss_weights={"top": SCALES})
    params, means = by_hand(sum_of_losses, slices(X, Y))
    agree(run, (params, {"loss": means["loss"], "top/a_loss": means["a_loss"]}))
    tuples = fit(lambda p, x: tuple(two_heads(p, x).values()), (X, (Y["a"], Y["b"])), loss=("cross_entropy", squared))
    assert tuples.history.epochs[-1].keys() >= {"0_loss", "1_loss", "0_accuracy"}


@pytest.mark.slow
def test_metrics_by_output_name():
    metric = {"a": ["acc", lambda y, o: float((o.argmax(1) == y).mean())], "b": "mse"}
    run = fit(two_heads, (X, Y), (X, Y), loss=LOSSES, eval_metric=metric, batch_size=ROWS)
    output = jax.device_get(two_heads(run.params, X))
    accuracy, mse = (output["a"].argmax(1) == Y["a"]).mean(), ((output["b"] - Y["b"]) ** 2).mean()
    expected = {"a_accuracy": accuracy, "a_custom(<lambda>)": accuracy, "b_mse": mse}
    row = run.history.epochs[-1]
    assert {k: row[f"val_{k}"] for k in expected} == pytest.approx(expected, rel=1e-5)
    assert run.score((X, Y), {"b": "rmse"})["b_rmse"] == pytest.approx(mse**0.5, rel=1e-5)
    single = fit(lambda p, x: x @ p["w"], (X, Y["a"]), loss={"output": "cross_entropy"}, eval_metric={"output": "acc"})
    assert single.history.epochs[-1].keys() >= {"output_loss", "output_accuracy"}
    automatic = fit(two_heads, (X, Y), loss=LOSSES)
    assert automatic.history.epochs[-1].keys() >= {"a_accuracy", "b_mse"}
    assert automatic.settings.metric_choice.startswith("eval_metric='auto': a_accuracy (labels (rows,): class indices")


# ------------------------------------------------------------------------------------------------ losses of the batch
def autoencoder(params, x):
    code = x @ params["w"]
    return {"code": code, "x": code @ params["w"].T}


def reconstruction(outputs, batch, params):
    kl = (outputs["code"] ** 2).mean(axis=1)
    recon = ((outputs["x"] - batch["x"]) ** 2).mean(axis=1)
    return recon + 0.1 * kl + 0.01 * (params["v"] ** 2).sum(), {"kl": kl, "recon": recon, "norm": (params["v"] ** 2).sum()}


def mean_reconstruction(params, batch):
    losses, logged = reconstruction(autoencoder(params, batch[0]), {"x": batch[0]}, params)
    return losses.mean(), {k: v.mean() for k, v in logged.items()}


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("options", [{}, {"devices": 2, "micro_batches": 2}, {"data_on_device": False}])
def test_a_loss_of_the_batch_and_the_parameters_needs_no_labels(options):
    run = fit(autoencoder, X, X, loss=reconstruction, **options)
    agree(run, by_hand(mean_reconstruction, slices(X)))
    value, logged = mean_reconstruction(run.params, (X,))
    expected = {"loss": float(value), **{k: float(v) for k, v in logged.items()}}
    assert run.score((X,)) == pytest.approx(expected, rel=1e-5)
    assert {k.removeprefix("val_"): v for k, v in run.history.epochs[-1].items() if k.startswith("val_")} == pytest.approx(
        expected, rel=1e-5
    )


def test_a_loss_of_the_outputs_alone_and_of_the_auxiliary_states():
    def apply(params, x, aux):
        return x @ params["w"], {"count": aux["count"] + 1}

    run = fit(apply, X, loss=lambda output: (output**2).mean(axis=1), aux={"count": jnp.zeros(())})
    params, means = by_hand(lambda p, b: (((b[0] @ p["w"]) ** 2).mean(), {}), slices(X))
    agree(run, (params, means))

    def with_aux(output, label, aux):
        return squared(output, label), {"count": aux["count"]}

    run = fit(apply, (X, X[:, :3]), loss=with_aux, aux={"count": jnp.zeros(())})
    assert run.history.epochs[-1]["count"] == pytest.approx((8 * 1 + 8 * 2 + 4 * 3) / 20)


def contrastive(output, label):
    """Cross entropy of finding the own row of `label` among all rows of the batch."""
    scores = output @ label.T
    return -jnp.diagonal(jax.nn.log_softmax(scores))


# ------------------------------------------------------------------------------------------------ inputs
class Words(NamedTuple):
    ids: Any
    mask: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    ids: Any
    mask: Any


MASK = (R.random(ROWS) < 0.5).astype("float32")


def masked(params, ids, mask):
    return (ids @ params["w"]) * mask[:, None]


def of_two(params, ids, mask):
    return masked(params, ids, mask)


ARGUMENTS = {  # function, the argument x of the data
    "list": (of_two, [X, MASK]),
    "tuple": (of_two, (X, MASK)),
    "by name": (of_two, {"mask": MASK, "ids": X}),
    "dict": (lambda p, x: masked(p, x["ids"], x["mask"]), {"ids": X, "mask": MASK}),
    "nested": (lambda p, x: masked(p, *x["a"]["b"]), {"a": {"b": (X, MASK)}}),
    "pair": (lambda p, x: masked(p, *x), (X, MASK)),
    "namedtuple": (lambda p, x: masked(p, x.ids, x.mask), Words(X, MASK)),
    "dataclass": (lambda p, x: masked(p, x.ids, x.mask), Record(X, MASK)),
    "trees": (lambda p, x, y: masked(p, x["ids"], y[1]), [{"ids": X}, (X, MASK)]),
    "frame": (lambda p, x: masked(p, x["ids"], x["mask"]), {"ids": pd.DataFrame(X), "mask": MASK.tolist()}),
}


def rows_of(tree, low, high):
    return jax.tree.map(lambda v: v[low:high], tree, is_leaf=lambda v: isinstance(v, list) and not hasattr(v[0], "shape"))


@pytest.mark.repetitions(1, slow=7)
@pytest.mark.parametrize("form", ARGUMENTS)
@pytest.mark.parametrize("source", ["arrays", "stream", "devices"])
def test_arguments_are_arrays_or_pytrees(form, source):
    apply, x = ARGUMENTS[form]
    y = X[:, :3]
    x = list(x) if form == "list" else x

    def cut(low, high):
        return [rows_of(v, low, high) for v in x] if form in ("list", "trees") else rows_of(x, low, high)

    data = [(cut(i, i + BATCH), y[i : i + BATCH]) for i in range(0, ROWS, BATCH)] if source == "stream" else (x, y)
    run = fit(apply, data, data, loss=squared, **({"devices": 2} if source == "devices" else {}))
    expected = by_hand(lambda p, b: (squared(masked(p, b[0], b[1]), b[2]).mean(), {}), slices(X, MASK, y))
    agree(run, expected)
    output = masked(run.params, X, MASK)
    np.testing.assert_allclose(run.predict((x, y)), output, 1e-5, 1e-6)
    assert run.score(data)["loss"] == pytest.approx(float(squared(output, y).mean()), rel=1e-5)
    if form in ("dict", "nested", "namedtuple", "dataclass", "by name", "list"):
        np.testing.assert_allclose(run.predict(x), output, 1e-5, 1e-6)


def trees():
    leaf = st.sampled_from([X, MASK, Y["a"]])
    keys = st.sampled_from(["a", "b", "ids", "0", "x y"])
    return st.recursive(
        leaf,
        lambda each: (
            st.dictionaries(keys, each, min_size=1, max_size=3)
            | st.lists(each, min_size=1, max_size=3)
            | st.lists(each, min_size=2, max_size=3).map(tuple)
            | st.tuples(each, each).map(lambda pair: Words(*pair))
            | st.tuples(each, each).map(lambda pair: Record(*pair))
        ),
        max_leaves=5,
    )


@settings(max_examples=50, deadline=None)
@given(trees(), trees())
def test_any_pytree_of_inputs_reaches_the_function_and_any_pytree_of_outputs_comes_back(x, y):
    def apply(params, x, other):
        return {"x": x, "sum": (sum(leaf.sum() for leaf in jax.tree.leaves(other)),)}

    model = jfit.Model.from_function(apply, loss=lambda outputs: 0.0, params={"w": 0.0})
    arrays = named_arrays(model.structure, [{"top": x}, y], "x")
    outputs, _ = model.apply({"w": jnp.zeros(())}, {}, arrays)
    found = jax.tree.unflatten(model.structure.outputs.treedef, outputs)
    assert jax.tree.structure(found) == jax.tree.structure(apply({}, {"top": x}, y))
    jax.tree.map(np.testing.assert_array_equal, found["x"], {"top": x})
    assert float(found["sum"][0]) == pytest.approx(sum(float(leaf.sum()) for leaf in jax.tree.leaves(y)), rel=1e-4, abs=1e-3)


def test_leaves_of_arguments_are_named_by_path(tmp_path):
    run = fit(ARGUMENTS["nested"][0], (ARGUMENTS["nested"][1], X[:, :3]), loss=squared)
    assert run.settings.inputs.keys() == {"x/a/b/0", "x/a/b/1", "label"}
    flat = {"x/a/b/0": X, "x/a/b/1": MASK, "label": X[:, :3]}
    assert run.score(flat) == run.score((ARGUMENTS["nested"][1], X[:, :3]))
    run.save(tmp_path)
    loaded = jfit.Run.load(tmp_path, jfit.Model.from_function(ARGUMENTS["nested"][0], loss=squared, params=W))
    np.testing.assert_array_equal(loaded.predict(ARGUMENTS["nested"][1]), run.predict(ARGUMENTS["nested"][1]))
    with pytest.raises(ValueError, match=r"'x' has the arrays \['a/b'\], expected \['a/b/0', 'a/b/1'\] as in the first batch"):
        run.predict({"a": {"b": X}})
    with pytest.raises(ValueError, match="input 'ids' is missing"):
        fit(of_two, {"mask": MASK, "label": X[:, :3]}, loss=squared)


def test_steps_take_pytrees_of_inputs():
    example = {"x": Words(0, 0)}
    model = jfit.Model.from_function(ARGUMENTS["namedtuple"][0], loss=squared, params=W, inputs=example)
    batch = {"x": Words(X, MASK), "label": X[:, :3]}
    state, out = jax.jit(jfit.train_step(model, optax.sgd(RATE)))(jfit.init_state(model, optax.sgd(RATE), batch), batch)
    expected = squared(masked(W, X, MASK), X[:, :3]).mean()
    assert float(out.loss) == pytest.approx(float(expected), rel=1e-5)
    parallel = jfit.data_parallel(jfit.train_step(model, optax.sgd(RATE)), devices=2)
    other, _ = parallel(parallel.place(jfit.init_state(model, optax.sgd(RATE), batch)), batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), other.params, state.params)
    assert jfit.predict_step(model)(W, {}, {"x": {"ids": X, "mask": MASK}})[0].shape == (ROWS, 3)

    def init(key, x):
        return {"w": jnp.zeros((x["ids"].shape[1], 3))}

    model = jfit.Model.from_function(ARGUMENTS["dict"][0], loss=squared, init=init)
    assert fit(model, (ARGUMENTS["dict"][1], X[:, :3])).params["w"].shape == (4, 3)


# ------------------------------------------------------------------------------------------------ weights of tokens
TOKENS, CLASSES = 5, 3
TEXT = R.normal(size=(ROWS, TOKENS, 4)).astype("float32")
NEXT = R.integers(0, CLASSES, (ROWS, TOKENS))
EACH = (R.random((ROWS, TOKENS)) * (R.random((ROWS, TOKENS)) < 0.7)).astype("float32")


def tokens(params, x):
    return x @ params["w"]


def weighted_mean(params, batch, ignored=None):
    x, y, each = batch
    each = each if ignored is None else each * (y != ignored)
    losses = optax.softmax_cross_entropy_with_integer_labels(tokens(params, x), y)
    return (losses * each).sum() / each.sum(), {}


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("ignored", [None, 0])
@pytest.mark.parametrize("options", [{}, {"devices": 2, "micro_batches": 2}, {"data_on_device": False, "steps_per_call": 2}])
def test_tokens_are_weighted_in_loss_and_metrics(options, ignored):
    metrics = [jfit.metrics.get("acc", weighted=True)[0], jfit.metrics.accuracy(name="counted")]
    loss = jfit.losses.get("cross_entropy", **({} if ignored is None else {"ignore_index": ignored}))
    run = fit(tokens, (TEXT, NEXT, EACH), (TEXT, NEXT, EACH), loss=loss, eval_metric=metrics, **options)
    params, _ = by_hand(lambda p, b: weighted_mean(p, b, ignored), slices(TEXT, NEXT, EACH))
    agree(run, (params, {}))
    each = EACH if ignored is None else EACH * (ignored != NEXT)
    correct = np.asarray(tokens(run.params, TEXT)).argmax(-1) == NEXT
    row = run.history.epochs[-1]
    expected = {
        "val_loss": float(weighted_mean(run.params, (TEXT, NEXT, EACH), ignored)[0]),
        "val_accuracy": np.average(correct, weights=each),
        "val_counted": correct[each > 0].mean(),
    }
    assert {k: row[k] for k in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_token_weights_in_streams_steps_and_predictions():
    data = (TEXT, NEXT, EACH)
    run = fit(tokens, [tuple(v[i : i + BATCH] for v in data) for i in range(0, ROWS, BATCH)], loss="cross_entropy")
    agree(run, (by_hand(weighted_mean, slices(*data))[0], {}))
    assert run.score(data)["loss"] == pytest.approx(float(weighted_mean(run.params, data)[0]), rel=1e-5)
    assert run.score(data[:2])["loss"] == pytest.approx(
        float(weighted_mean(run.params, (TEXT, NEXT, np.ones_like(EACH)))[0]), rel=1e-5
    )
    assert run.predict(data).shape == (ROWS, TOKENS, CLASSES)
    model = jfit.Model.from_function(tokens, loss="cross_entropy", params=W)
    batch = {"x": TEXT, "label": NEXT, "label_weight": EACH}
    state, out = jax.jit(jfit.train_step(model, optax.sgd(RATE)))(jfit.init_state(model, optax.sgd(RATE), batch), batch)
    params, means = by_hand(weighted_mean, [data])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), state.params, params)
    assert float(out.loss) == pytest.approx(means["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            (TEXT, NEXT, EACH),
            {"loss": lambda o, y: (o.mean(-1) - y).mean(1)},
            r"the shape of the losses \(8,\) must begin",
        ),
        ((TEXT, NEXT, EACH - 1), {}, r"weight of row 0, position \(\d,\) is -\d.*at least 0"),
        (
            (TEXT, NEXT, EACH),
            {"eval_metric": lambda y, o: 0.0},
            r"metrics on the host do not support weights \(rows, positions\)",
        ),
        ((X, Y, EACH), {"loss": LOSSES, "model": two_heads}, "of the positions of each row need one loss"),
        ((TEXT, NEXT, EACH[:4]), {}, "all inputs need the same number of rows"),
    ],
)
def test_token_weights_that_cannot_be_used_raise(data, options, message):
    options = {"loss": "cross_entropy", "model": tokens, **options}
    with pytest.raises(ValueError, match=message):
        fit(options.pop("model"), data, **options)


# ------------------------------------------------------------------------------------------------ several devices
FORMS = {
    "contrastive": {"loss": {"a": contrastive, "b": squared}},
    "single": {"loss": lambda o, y: contrastive(o["a"], y["a"])},
    "batch": {"loss": lambda o, batch: (contrastive(o["a"], batch["x"][:, :3]), {"first": batch["label"]["b"][:1].sum()})},
    "scalar": {"loss": lambda o, y: jnp.sqrt(contrastive(o["a"], y["a"]).mean()), "loss_per_batch": True},
}


@pytest.mark.slow
@pytest.mark.repetitions(1, slow=4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("devices", [2, 4])
def test_gathered_losses_are_those_of_one_device(form, devices, recwarn):
    labels = {"a": X[:, :3], "b": Y["b"]}
    options = {"eval_metric": None, "num_epoch": 2, **FORMS[form]}
    one = fit(two_heads, (X, labels), (X, labels), **options)
    many = fit(two_heads, (X, labels), (X, labels), devices=devices, gather_outputs=True, **options)
    assert not recwarn.list
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), many.params, one.params)
    for found, expected in zip(many.history.epochs, one.history.epochs, strict=True):
        names = {n for n in expected if n not in ("time", "compile_time", "data_time", "samples_per_second")}
        assert {n: found[n] for n in names} == pytest.approx({n: expected[n] for n in names}, rel=1e-5)


@pytest.mark.slow
def test_a_model_that_combines_rows_warns_although_outputs_are_gathered_which_needs_rows_on_axis_0():
    def centered(params, x):
        return (x - x.mean(axis=0, keepdims=True)) @ params["w"]

    options = {"devices": 2, "eval_metric": None, "gather_outputs": True}
    with pytest.warns(UserWarning, match="from its slice of each batch, so the results differ from those of one device$"):
        fit(centered, (X, X[:, :3]), loss=contrastive, **options)
    with pytest.raises(ValueError, match="gather_outputs=True gathers rows along axis 0, but the output has them on axis 1"):
        fit(lambda p, x: (x @ p["w"]).T, (X, X[:, :3]), loss=lambda o, y: (o.T * y).sum(1), **options)


# ------------------------------------------------------------------------------------------------ errors
def wide(output, label):
    return (output[:, :1] - label[None]) ** 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": {"c": squared}}, r"loss has a term for 'c', which the function does not return; the names are 'a', 'b'"),
        ({"loss_weights": {"c": 1.0}}, r"loss_weights has 'c', but loss has the outputs \['a', 'b'\]"),
        ({"loss_weights": {"a": float("nan")}}, r"loss_weights\['a'\] is nan; expected a finite number"),
        ({"loss": squared, "loss_weights": {}}, "loss_weights= needs a dict of losses by output name"),
        ({"loss": {}}, "loss is empty"),
        (
            {"loss": {**LOSSES, "a": jfit.losses.get("cross_entropy", ignore_index=0)}, "micro_batches": 2},
            "micro_batches is 2, but several losses, one with an ignore_index",
        ),
        (
            {"loss": {"a": lambda o, y: wide(o, y), "b": squared}},
            r"loss returned shape \(8, 8\) for an output of shape \(8, 3\)",
        ),
        ({"loss": {"b": lambda o, y: squared(o, y).mean()}}, r"pass loss_per_batch=True for a loss that is one scalar"),
        ({"loss": {"b": squared}, "loss_per_batch": True}, r"loss returned shape \(8,\), but with loss_per_batch=True it must"),
        ({"loss": lambda o, batch: (o["a"], o["b"])}, r"loss returned a tuple, expected an array .*, or \(losses, dict"),
        ({"loss": lambda o, batch: (o["b"], {"k": o["b"][:3]})}, r"the value 'k' to log with shape \(3, 2\); expected"),
        ({"eval_metric": {"c": "acc"}}, r"eval_metric has 'c', which is no output with a label; the names are 'a', 'b'"),
        (
            {"loss": lambda o, batch: o["b"].mean(), "loss_per_batch": True, "micro_batches": 2},
            "micro_batches is 2, but with loss_per_batch=True",
        ),
    ],
)
def test_invalid_losses_raise(options, message):
    options = {"loss": LOSSES, "model": two_heads, **options}
    with pytest.raises(ValueError, match=message):
        fit(options.pop("model"), (X, Y), **options)


def test_invalid_data_raise():
    with pytest.raises(ValueError, match="the loss of the output 'b' needs a label of this name"):
        fit(two_heads, (X, {"a": Y["a"]}), loss=LOSSES)
    model = jfit.Model.from_function(two_heads, loss=lambda o, y: squared(o["b"], y), params=W)
    with pytest.raises(ValueError, match=r"the loss needs the labels \['label'\], but the batch has \['x'\]"):
        jfit.train_step(model, "sgd")(jfit.init_state(model, "sgd"), {"x": X})
    with pytest.raises(ValueError, match="row weights cannot be applied"):
        fit(two_heads, (X, Y, np.ones(ROWS)), loss=lambda o, batch: o["b"].mean(), loss_per_batch=True)
    run = fit(two_heads, (X, Y), loss=LOSSES)
    with pytest.raises(ValueError, match=r"'x' has the arrays \['ids'\], expected of one array as in the first batch"):
        run.predict({"ids": X})

    def differs(params, x, train):
        return {"a": x @ params["w"], **({"b": x @ params["v"]} if train else {})}

    with pytest.raises(ValueError, match=r"apply returned the outputs \['a', 'b'\] with train=True, and \['a'\] before"):
        fit(differs, (X, {"a": Y["a"]}), loss={"a": "cross_entropy"})


@pytest.mark.parametrize(
    "options", [{"loss_weights": {"a": 1.0}}, {"loss_per_batch": True}, {"gather_outputs": True}, {"eval_metric": {"a": "acc"}}]
)
def test_a_symbol_with_arguments_of_functions_raises(options):
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3), name="softmax")
    with pytest.raises(
        ValueError, match=r"would be ignored: the model is a Symbol|the model is a graph|metrics of a graph are"
    ):
        jfit.fit(net, (X, Y["a"]), progress=False, **options)
