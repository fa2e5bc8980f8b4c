"""Losses by name: their values, ignored positions, and the losses and labels for which `fit` raises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import refused
from scipy import special
from sklearn.metrics import hinge_loss, log_loss

import jfit
from jfit import losses


def fit(apply, data, **options):
    options = {"eval_metric": None, "progress": False, "num_epoch": 1, "batch_size": 8, **options}
    return jfit.fit(apply, data, **options)


def linear(params, x):
    return x @ params["w"]


@pytest.fixture
def line(rng):
    x = rng.normal(size=(24, 3)).astype("float32")
    return x, (x @ np.array([1.0, -2.0, 0.5], "float32")).astype("float32")


@pytest.fixture
def classes(rng):
    return rng.normal(size=(24, 3)).astype("float32"), rng.integers(0, 4, 24)


START = {"w": np.zeros((3, 4), "float32")}
OTHER = {"w": np.random.default_rng(7).normal(size=(3, 4)).astype("float32")}


# ------------------------------------------------------------------------------------------------ values
FORMULAS = {
    "mse": lambda o, y: (o - y) ** 2,
    "l2": lambda o, y: (o - y) ** 2 / 2,
    "mae": lambda o, y: abs(o - y),
    "huber": lambda o, y: np.where(abs(o - y) <= 1, (o - y) ** 2 / 2, abs(o - y) - 0.5),
    "log_cosh": lambda o, y: np.log(np.cosh(o - y)),
    "hinge": lambda o, y: np.maximum(0, 1 - np.where(y > 0, 1, -1) * o),
    "poisson": lambda o, y: np.exp(o) - y * o,
    "binary_cross_entropy": lambda o, y: -y * np.log(special.expit(o)) - (1 - y) * np.log(special.expit(-o)),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2, 3)])
def test_elementwise_losses_have_the_values_of_their_formulas(name, shape, rng):
    output = rng.normal(size=shape).astype("float32") * 2
    label = (rng.random(shape) > 0.5).astype("float32") if name not in ("mse", "l2", "mae", "huber") else output * 0 + 0.7
    np.testing.assert_allclose(losses.get(name)(output, label), FORMULAS[name](output, label), rtol=1e-5, atol=1e-6)
    assert losses.get(name)(output, label.astype("int32")).shape == shape


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("shape", [(9,), (9, 2)])
@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_cross_entropy_equals_the_log_loss_of_scikit_learn(shape, dtype, rng):
    logits, label = rng.normal(size=(*shape, 4)).astype("float32"), rng.integers(0, 4, shape)
    one_hot, probabilities = np.eye(4, dtype="float32")[label], special.softmax(logits, -1)
    expected = log_loss(label.ravel(), probabilities.reshape(-1, 4), labels=range(4))
    for values in (
        losses.cross_entropy(logits, label.astype(dtype)),
        losses.cross_entropy(logits, one_hot.astype(dtype)),
        losses.nll(np.log(probabilities), label.astype(dtype)),
    ):
        assert values.shape == shape and float(values.mean()) == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_is_that_of_optax(rng):
    logits, label = rng.normal(size=(5, 4)).astype("float32"), rng.integers(0, 4, 5)
    expected = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(label, 4), 0.2))
    np.testing.assert_allclose(losses.get("ce", label_smoothing=0.2)(logits, label), expected, rtol=1e-6)


def test_hinge_takes_zero_one_labels_and_signs(rng):
    output, label = rng.normal(size=12).astype("float32"), rng.integers(0, 2, 12)
    expected = hinge_loss(label, output)
    assert float(losses.hinge(output, label).mean()) == pytest.approx(expected, rel=1e-5)
    assert float(losses.hinge(output, label * 2 - 1).mean()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["mse", "huber", "binary_cross_entropy", "hinge"])
def test_a_column_of_outputs_matches_a_vector_of_labels(name, rng):
    output, label = rng.normal(size=(7, 1)).astype("float32"), rng.integers(0, 2, 7)
    np.testing.assert_array_equal(losses.get(name)(output, label)[:, 0], losses.get(name)(output[:, 0], label))
    np.testing.assert_array_equal(losses.get(name)(output[:, 0], label[:, None]), losses.get(name)(output[:, 0], label))


test_wrong_names_options_and_shapes_raise = refused(
    (lambda: losses.get("cross_entrpy"), "loss 'cross_entrpy' is unknown; did you mean 'cross_entropy'"),
    (lambda: losses.get("mse", delta=2), "loss 'mse' has no option 'delta'; its options are ignore_index"),
    (lambda: losses.mse(np.zeros((3, 2)), np.zeros(3)), r"output has shape \(3, 2\) and the label \(3,\); expected equal"),
    (lambda: losses.cross_entropy(np.zeros((3, 2)), np.zeros((3, 1))), r"class indices of shape \(3,\) or probabilities"),
    (lambda: losses.nll(np.zeros((3, 2)), np.zeros((3, 2))), r"expected class indices of shape \(3,\)"),
    (
        lambda: losses.get("ce", ignore_index=-1)(np.zeros((3, 2)), np.zeros((3, 2))),
        r"with ignore_index= needs class indices \(3,\), not labels \(3, 2\)",
    ),
)


# ------------------------------------------------------------------------------------------------ training


def by_hand(x, label, batch_size, rate=0.5):
    """Sequence model: gradient of the mean cross-entropy over the labels that are not -100, in each batch."""
    w = jnp.zeros((3, 4))

    def mean(w, x, label):
        used = label != -100
        each = optax.softmax_cross_entropy_with_integer_labels(x @ w, jnp.where(used, label, 0))
        return jnp.sum(each * used) / jnp.sum(used)

    for low in range(0, len(x), batch_size):
        w = w - rate * jax.grad(mean)(w, x[low : low + batch_size], label[low : low + batch_size])
    return w, mean(w, x, label)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_ignored_positions_do_not_depend_on_devices_and_micro_batches(devices, micro_batches, rng):
    x, label = rng.normal(size=(20, 5, 3)).astype("float32"), rng.integers(0, 4, (20, 5))
    label[rng.random(label.shape) < 0.5] = -100
    expected, _ = by_hand(x, label, 8)
    loss = losses.get("cross_entropy", ignore_index=-100)
    options = {"devices": devices, "micro_batches": micro_batches, "shuffle": False, "optimizer_params": {"learning_rate": 0.5}}
    run = fit(linear, (x, label), params=START, loss=loss, **options)
    np.testing.assert_allclose(run.params["w"], expected, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------------------------------------ rows of different length
def of_lengths(kind, rows=(4, 4, 4)):
    """Batches of length 5, 9 and 17, and the weight of each position in the loss."""
    rng, batches, each = np.random.default_rng(0), [], []
    for count, length in zip(rows, (5, 9, 17), strict=True):
        x, y = rng.normal(size=(count, length, 3)).astype("float32"), rng.integers(0, 4, (count, length))
        weight = (rng.random(y.shape) * length).astype("float32")
        if kind == "ignored":
            y = np.where(weight < length / 3, -100, y)
        batches.append((x, y, weight) if kind == "weights" else (x, y))
        each.append({"weights": weight, "ignored": y != -100, "plain": np.ones(y.shape)}[kind])
    return batches, each


def mean_over_positions(batches, each, w):
    total = 0.0
    for (x, y, *_), weight in zip(batches, each, strict=True):
        logits = x.astype("float64") @ np.asarray(w, "float64")
        picked = np.take_along_axis(logits, np.maximum(y, 0)[..., None], -1)[..., 0]
        total += (weight * (np.log(np.exp(logits).sum(-1)) - picked)).sum()
    return total / sum(weight.sum() for weight in each)


LENGTHS = {"shuffle": False, "optimizer_params": {"learning_rate": 0.0}}


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("kind", ["weights", "ignored", "plain"])
def test_the_loss_of_an_epoch_is_over_all_positions_of_batches_of_different_length(kind):
    batches, each = of_lengths(kind)
    loss = losses.get("cross_entropy", ignore_index=-100 if kind == "ignored" else None)
    run = fit(linear, batches, params=OTHER, loss=loss, **LENGTHS)
    expected = pytest.approx(mean_over_positions(batches, each, OTHER["w"]), rel=1e-6)
    assert run.history.column("loss") == [expected] and run.score(batches)["loss"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"devices": 2, "micro_batches": 2}, {"steps_per_call": 3}, {"reduce": "ordered"}])
def test_batches_of_different_length_on_devices_and_in_parts(options):
    batches, each = of_lengths("ignored", rows=(4, 4, 3))
    loss = losses.get("cross_entropy", ignore_index=-100)
    run = fit(linear, batches, params=OTHER, loss=loss, **LENGTHS, **options)
    expected = pytest.approx(mean_over_positions(batches, each, OTHER["w"]), rel=1e-6)
    assert run.history.column("loss") == [expected] and run.score(batches)["loss"] == expected


@pytest.mark.slow
def test_several_losses_are_each_over_all_of_their_positions():
    """Each has its own denominator; the loss of a row without positions counts by rows."""
    batches, each = of_lengths("ignored")
    data = [({"x": x}, {"words": y, "row": x[:, 0, 0]}) for x, y in batches]
    both = {"words": losses.get("cross_entropy", ignore_index=-100), "row": "mse"}
    model = lambda params, x: {"words": x @ params["w"], "row": x[:, 0, 1]}  # noqa: E731
    run = fit(model, data, params=OTHER, loss=both, loss_weights={"row": 2.0}, **LENGTHS)
    words = mean_over_positions(batches, each, OTHER["w"])
    row = np.mean([(x[:, 0, 0].astype("float64") - x[:, 0, 1]) ** 2 for x, _ in batches])
    expected = pytest.approx({"loss": words + 2 * row, "words_loss": words, "row_loss": row}, rel=1e-6)
    assert {k: run.history.column(k)[0] for k in ("loss", "words_loss", "row_loss")} == expected
    score = run.score(data)
    assert {k: score[k] for k in ("loss", "words_loss", "row_loss")} == expected
    inputs, labels = data[0]
    data.append((inputs, labels | {"words": np.full_like(labels["words"], -100)}))  # no words count in this batch
    penalized = {"w": lambda w: 0 * w.sum() + 1.0}
    plain, more = (fit(model, data, params=OTHER, loss=both, **LENGTHS, **p) for p in ({}, {"regularizers": penalized}))
    assert more.history.column("loss")[0] - plain.history.column("loss")[0] == pytest.approx(1.0, rel=1e-6)


@pytest.mark.slow
def test_the_loss_of_a_graph_is_over_all_positions_of_batches_of_different_length():
    batches, each = of_lengths("ignored")
    scores = jfit.sym.dot(jfit.sym.Variable("data"), jfit.sym.Variable("w", shape=(3, 4)))
    net = jfit.sym.SoftmaxOutput(scores, preserve_shape=True, use_ignore=True, ignore_label=-100, name="softmax")
    data = [{"data": x, "softmax_label": y.astype("float32")} for x, y in batches]
    score = jfit.score(net, data, params=OTHER, eval_metric=None)
    assert score["loss"] == pytest.approx(mean_over_positions(batches, each, OTHER["w"]), rel=1e-6)


# ------------------------------------------------------------------------------------------------ x64
def test_losses_are_float64_where_the_computation_is(rng):
    """Three steps on batches of 8, 8 and 4 rows, as NumPy computes them."""
    x, y = (rng.normal(size=shape).astype("float32").astype("float64") for shape in ((20, 3), 20))  # data are 32-bit
    start, seen, rate = rng.normal(size=3), [], 0.125
    w = start.copy()
    for low in range(0, 20, 8):
        error = x[low : low + 8] @ w - y[low : low + 8]
        seen.append(error**2)
        w = w - rate * 2 * x[low : low + 8].T @ error / len(error)
    with jax.enable_x64(True):
        options = {"batch_size": 8, "shuffle": False, "optimizer_params": {"learning_rate": rate}, "log_every": 1}
        run = fit(lambda p, x: x @ p["w"], (x, y), params={"w": start}, loss="mse", eval_metric="mse", **options)
        score = run.score((x, y))
    final = ((x @ w - y) ** 2).mean()
    assert run.history.column("loss") == [pytest.approx(np.concatenate(seen).mean(), rel=1e-12)]
    assert run.history.column("loss", "steps") == pytest.approx([s.mean() for s in seen], rel=1e-12)
    assert score == pytest.approx({"loss": final, "mse": final}, rel=1e-12)


# ------------------------------------------------------------------------------------------------ refused losses
@pytest.fixture
def broadcasting():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize(
    ("output", "label"),
    [
        ((8, 1), (8,)),
        ((8,), (8, 1)),
        ((8, 1, 3), (8, 3)),
        ((8, 8), (8,)),
        ((1, 1), (1,)),
        ((8, 5, 1), (8, 1, 5)),
        ((5, 5), (5,)),
    ],
)
def test_a_loss_that_compares_rows_with_labels_of_other_rows_is_refused(output, label, broadcasting):
    model = jfit.Model.from_function(lambda p, x: x * p["s"], loss=lambda o, y: (o - y) ** 2, params={"s": jnp.ones(())})
    with pytest.raises(ValueError, match=r"Output and label are probably broadcast against each other.* label\[:, None\]"):
        model.outputs[0].loss(jnp.ones(output), {"label": jnp.ones(label)})


REDUCED = {
    "mean over the last axis": {"loss": lambda o, y: jnp.mean((o - y) ** 2, axis=-1)},
    "sum over the last axis": {"loss": lambda o, y: jnp.abs(o - y).sum(1)},
    "by output name": {"loss": {"output": lambda o, y: jnp.mean((o - y) ** 2, axis=-1)}},
    "of the batch": {"loss": lambda o, batch: jnp.mean((o - batch["label"]) ** 2, axis=-1)},
    "one scalar": {"loss": lambda o, y: jnp.mean((o - y) ** 2), "loss_per_batch": True},
}


@pytest.mark.parametrize("form", REDUCED)
def test_a_loss_that_reduces_what_it_broadcasts_is_refused(form, line, broadcasting):
    x, y = line
    model = jfit.Model.from_function(lambda p, x: x @ p["w"], params={"w": jnp.zeros((3, 1))}, **REDUCED[form])
    batch = {"x": x[:8], "label": y[:8]}
    with pytest.raises(ValueError, match=r"compared with its own label\. Output and label are probably broadcast against"):
        jfit.train_step(model)(jfit.init_state(model, "sgd", batch), batch)
    batch["label"] = y[:8, None]
    jax.eval_shape(jfit.train_step(model), jfit.init_state(model, "sgd", batch), batch)


def test_losses_that_combine_rows_on_purpose_are_not_taken_for_broadcasting():
    losses = [
        lambda o, y: -jnp.diag(jax.nn.log_softmax(o @ o.T)) * y,
        lambda o, y: jnp.where(y[None] > y[:, None], jax.nn.relu(o - o.T), 0).mean(1),
        lambda o, y: (o[:, 0] - y) ** 2 / y.sum(),
    ]
    for loss in losses:
        model = jfit.Model.from_function(lambda p, x: x, loss=loss, params={"s": jnp.ones(())})
        model.outputs[0].loss(jnp.ones((8, 1)), {"label": jnp.ones(8)})


def test_an_assertion_about_the_number_of_rows_in_a_function_or_its_loss_is_no_error():
    def loss(o, y):
        assert o.shape == (8, 2)
        return (o - y) ** 2

    def apply(p, x):
        assert len(x) == 8
        return x @ p["w"]

    options = {"params": {"w": np.ones((3, 2), "float32")}, "num_epoch": 1, "batch_size": 8, "eval_metric": None}
    data = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    runs = [jfit.fit(f, data, loss=loss, **options) for f in (lambda p, x: x @ p["w"], apply)]
    assert runs[0].history.epochs[0]["loss"] == runs[1].history.epochs[0]["loss"] == 4.0


def symbol():
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=4, name="fc")
    return jfit.sym.SoftmaxOutput(net, name="softmax")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (symbol, "loss= would be ignored: the model is a Symbol, and its output operators determine its loss; leave out loss="),
        (lambda: jfit.lower(symbol()), r"the model already has a loss, in its outputs \['softmax_output'\]; leave out loss="),
        (lambda: jfit.Model.from_function(linear, loss="mse", params=START), r"pass loss= to jfit.Model.from_function"),
    ],
)
def test_a_loss_for_a_model_with_its_own_loss_is_refused(model, message, classes):
    with pytest.raises(ValueError, match=message):
        fit(model(), classes, loss=optax.l2_loss)
    with pytest.raises(ValueError, match=message):
        jfit.lr_find(model(), classes, loss="mse", steps=4)
    with pytest.raises(ValueError, match=message):
        jfit.score(model(), classes, loss="mse", params=START)


def test_a_loss_that_is_no_function_and_no_name_is_refused(classes):
    with pytest.raises(TypeError, match=r"loss is 3; expected a function loss\(output, label\), or one of 'cross_entr"):
        fit(linear, classes, params=START, loss=3)
    with pytest.raises(ValueError, match="loss 'entropy' is unknown"):
        fit(linear, classes, params=START, loss="entropy")


# ------------------------------------------------------------------------------------------------ labels out of range


def test_labels_out_of_range_are_refused_in_score(classes):
    x, y = classes
    run = fit(linear, (x, y), params=START, loss="cross_entropy")
    for data in [(x, y * 0 + 7), [(x, y * 0 + 7)]]:
        with pytest.raises(ValueError, match=r"batch 0 of epoch 0: label 'label': row 0 is 7, expected classes 0..3"):
            run.score(data)
    assert run.predict((x, y * 0 + 7)).shape == (24, 4)


def test_ignored_labels_and_rows_without_weight_are_valid(classes):
    x, y = classes
    y[21] = -100
    ignoring = losses.get("cross_entropy", ignore_index=-100)
    fit(linear, (x, y), params=START, loss=ignoring)
    fit(linear, [(x, y)], params=START, loss=ignoring)
    weight = (y >= 0).astype("float32")
    fit(linear, [(x, y, weight)], params=START, loss="cross_entropy")
    y[22] = 8
    with pytest.raises(ValueError, match=r"row 22 is 8, expected classes 0..3"):
        fit(linear, [(x, y, weight)], params=START, loss="cross_entropy")
    with pytest.raises(ValueError, match=r"row 22 is 8, expected classes 0..3 and -100 \(ignored\)"):
        fit(linear, (x, y), params=START, loss=ignoring)


def test_one_hot_labels_and_sequences_are_valid(rng):
    x, y = rng.normal(size=(8, 4, 3)).astype("float32"), rng.integers(0, 4, (8, 4))  # as many positions as classes
    fit(linear, (x, y), params=START, loss="cross_entropy")
    fit(linear, (x, np.eye(4, dtype="float32")[y]), params=START, loss="cross_entropy")
    y[3, 2] = 4
    with pytest.raises(ValueError, match=r"row 3, position \(2,\) is 4, expected classes 0..3"):
        fit(linear, (x, y), params=START, loss="cross_entropy")


def test_labels_of_a_binary_loss_are_probabilities(line):
    x, y = line
    start = {"w": np.zeros(3, "float32")}
    fit(linear, (x, (y > 0).astype("int32")), params=start, loss="binary_cross_entropy")
    with pytest.raises(
        ValueError, match=r"label 'label': row 0 is 2, expected values from 0 to 1; rescale the labels, or choose"
    ):
        fit(linear, (x, np.full(24, 2)), params=start, loss="binary_cross_entropy")
