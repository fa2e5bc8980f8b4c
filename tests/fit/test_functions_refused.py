"""Functions as models: wrong uses of losses, labels, metrics and parameters that would train or report something else."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit

RNG = np.random.default_rng(3)
X = RNG.normal(size=(24, 5)).astype("float32")
Y = RNG.integers(0, 3, 24).astype("int32")
ONE_HOT = np.eye(3, dtype="float32")[Y]
START = {"w": RNG.normal(size=(5, 3)).astype("float32")}
INTEGER = optax.softmax_cross_entropy_with_integer_labels


def linear(p, x):
    return x @ p["w"]


def probabilities(p, x):
    return jax.nn.softmax(x @ p["w"])


def fit(labels=Y, fn=linear, *, data=None, **options):
    settings = {"loss": INTEGER, "params": START, "num_epoch": 1, "batch_size": 8, "progress": False, "shuffle": False}
    return jfit.fit(fn, (X, labels) if data is None else data, **(settings | options))


def trained(loss, labels, fn=linear):
    """Weights after the steps of `fit` with SGD of rate 0.1, written in JAX."""
    w, grad = dict(START), jax.jit(jax.grad(lambda p, x, y: jnp.mean(loss(fn(p, x), y))))
    for at in range(0, 24, 8):
        g = grad(w, X[at : at + 8], labels[at : at + 8])
        w = jax.tree.map(lambda a, b: a - 0.1 * b, w, g)
    return np.asarray(w["w"])


# ------------------------------------------------------------------------------------------------ order of arguments
def categorical_crossentropy(y_true, y_pred):
    return -jnp.sum(y_true * jnp.log(y_pred), axis=-1)


class Loss:  # as keras.losses.Loss, whose call returns the losses of the rows
    reduction = "sum_over_batch_size"

    def __call__(self, y_true, y_pred, sample_weight=None):
        return jnp.mean(self.call(y_true, y_pred))

    def call(self, y_true, y_pred):
        return categorical_crossentropy(y_true, y_pred)


Loss.__module__ = "keras.src.losses.loss"


class Summed(Loss):
    reduction = "sum"


@pytest.mark.parametrize("loss", [categorical_crossentropy, Loss()], ids=["function", "object"])
def test_losses_as_those_of_keras_get_the_label_first(loss):
    run = fit(ONE_HOT, probabilities, loss=loss, optimizer=optax.sgd(0.1))
    expected = trained(lambda o, y: categorical_crossentropy(y, o), ONE_HOT, probabilities)
    np.testing.assert_allclose(run.params["w"], expected, rtol=1e-5, atol=1e-6)
    assert run.settings.metric_choice.startswith("eval_metric='auto': accuracy (labels (rows, 3): one-hot")


def test_a_keras_loss_that_is_a_sum_is_an_error():
    with pytest.raises(ValueError, match="Keras Summed with reduction='sum', but fit minimizes the mean"):
        fit(ONE_HOT, probabilities, loss=Summed())


# ------------------------------------------------------------------------------------------------ labels outside of the classes
def lambda_integer(o, y):
    return INTEGER(o, y)


def indexed(o, y):
    return -jax.nn.log_softmax(o)[jnp.arange(len(y)), y]


def one_hot(o, y):
    return -jnp.sum(jax.nn.one_hot(y, 3) * jax.nn.log_softmax(o), axis=-1)


def filled(o, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(o), y[:, None], axis=-1)[:, 0]


@pytest.mark.parametrize("loss", [lambda_integer, indexed, one_hot, filled])
@pytest.mark.parametrize("metric", ["auto", None])
@pytest.mark.repetitions(4)
def test_labels_that_are_no_class_of_a_user_written_loss_are_an_error(loss, metric):
    with pytest.raises(ValueError, match=r"label 'label': row 11 is 3, expected classes 0..2"):
        fit(np.where(np.arange(24) == 11, 3, Y), loss=loss, eval_metric=metric)


def test_labels_in_batches_of_a_stream_are_checked_too():
    batches = [(X[:8], Y[:8]), (X[8:16], Y[8:16] + 1)]
    with pytest.raises(ValueError, match=r"batch 1 of epoch 0: label 'label': row \d is 3, expected classes 0..2"):
        fit(data=batches, loss=indexed, batch_size=8)


@pytest.mark.parametrize("value", [-1, -100, 7, 255])
@pytest.mark.repetitions(1)
def test_label_values_that_a_user_written_loss_ignores_are_valid_and_not_counted(value):
    labels = np.where(np.arange(24) % 3 == 0, value, Y)

    def loss(o, y):
        return jnp.where(y == value, 0.0, INTEGER(o, jnp.where(y == value, 0, y)))

    run = fit(labels, loss=loss, optimizer=optax.sgd(0.1))
    np.testing.assert_allclose(run.params["w"], trained(loss, labels), rtol=1e-5, atol=1e-6)
    frozen = jfit.score(run, (X, labels), "acc")["accuracy"]
    at = labels != value
    assert frozen == pytest.approx(np.mean((X @ run.params["w"]).argmax(1)[at] == labels[at]))


def test_values_of_regressions_with_two_outputs_are_not_taken_for_classes():
    def gaussian(o, y):
        return 0.5 * (o[:, 1] + (y - o[:, 0]) ** 2 * jnp.exp(-o[:, 1]))

    fit(RNG.normal(size=24).astype("float32"), lambda p, x: (x @ p["w"])[:, :2], loss=gaussian, optimizer=optax.sgd(1e-3))


@pytest.mark.parametrize("value", [-1, -100])
def test_reading_outside_of_the_classes_is_not_taken_for_ignoring(value):
    with pytest.raises(ValueError, match=f"row 0 is {value}, expected classes 0..2"):
        fit(np.where(np.arange(24) == 0, value, Y), loss=filled)


# ------------------------------------------------------------------------------------------------ losses and their arguments
def logging(name):
    return lambda o, y: (INTEGER(o, y), {name: o[:, 0]})


def two_outputs(p, x):
    return {"a": x @ p["w"], "b": x[:, :2] @ p["w"][:2]}


def logits_and_features(p, x):
    return {"logits": x @ p["w"], "features": x}


def of_logits(o, y):
    return INTEGER(o["logits"], y)


TWO = {"a": INTEGER, "b": INTEGER}
AUX = {"n": np.zeros(3, "float32")}
REFUSED = {
    "no label": (
        {"data": X, "loss": lambda o: o[:, 0] ** 2, "eval_metric": "mse"},
        "metric 'mse' needs labels, and no output has one",
    ),
    "column": ({"loss": logging("lr")}, "the value 'lr' to log, but the history has another column"),
    "metric": ({"loss": logging("accuracy")}, "the value 'accuracy' to log, which is also the name of a metric"),
    "misspelled": ({"fn": two_outputs, "labels": {"a": Y, "bb": Y}, "loss": {"a": INTEGER}}, "label 'bb'.*did you mean 'b'"),
    "one label": ({"fn": two_outputs, "loss": TWO}, r"pass a dict of labels by output name, y=\{'a': ..., 'b': ...\}"),
    "a list": ({"loss": ["ce"]}, "loss has a term for '0', which the function does not return; the names are 'output'"),
    "aux": ({"aux": AUX}, "aux= is passed, but the function has no parameter aux"),
    "integers": ({"fn": lambda p, x: x[:, :3] * p["w"], "params": {"w": np.ones((1, 3), "int32")}}, "nothing to train"),
    "column of indices": ({"labels": Y[:, None]}, r"the label \(8, 1\); expected class indices of shape \(8,\) or probab"),
    "partial": (
        {"labels": Y[:, None], "loss": functools.partial(optax.softmax_cross_entropy)},
        r"the label \(8, 1\); expected class indices",
    ),
    "loss None": ({"loss": lambda o, y: None}, "loss returned None"),
    "function None": ({"fn": lambda p, x: None}, "the function returned None"),
    "inputs": ({"fn": lambda p, x, z: x}, "the model has 2 data inputs"),
    "by name": ({"fn": lambda p, x, z: x, "data": {"x": X, "label": Y}}, "The model needs 'x', 'z', 'label'"),
    "ambiguous": (
        {"fn": logits_and_features, "loss": of_logits, "eval_metric": "acc"},
        r"which matches \['features', 'logits'\]; pass eval_metric=\{",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.repetitions(16)
def test_a_wrong_use_of_a_function_is_an_error_with_a_sentence(case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        fit(**({"eval_metric": "acc"} | options))


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"fn": two_outputs, "labels": {"a": Y}, "loss": {"a": INTEGER}}, "the outputs ['b'] have no loss and no label"),
        ({"fn": two_outputs, "labels": {"a": Y, "b": Y}, "loss": {"a": INTEGER}}, ""),
        ({"fn": two_outputs, "labels": {"a": Y, "b": Y, "other": Y}, "loss": TWO}, "the label 'other' is not used"),
        ({"loss": lambda o: o[:, 0] ** 2}, "the loss has no parameter for the labels"),
    ],
    ids=["output", "output for a metric", "label", "no label"],
)
def test_outputs_and_labels_that_no_loss_uses_are_logged(options, line, caplog):
    fit(**options, eval_metric=None)
    assert (line in caplog.text) if line else not caplog.text


def test_an_array_that_only_the_loss_looks_up_is_passed_with_the_inputs_or_the_labels():
    def loss(outputs, batch):
        return INTEGER(outputs, batch["label"]) * batch["scale"]

    def from_labels(outputs, batch):
        return INTEGER(outputs, batch["label"]["class"]) * batch["label"]["scale"]

    def lookup_of_its_own(outputs, batch):
        return outputs[:, 0] * {}["x"]

    options, scale = {"optimizer": optax.sgd(0.0), "eval_metric": None}, 2 * np.ones(24, "float32")
    by_name = fit(data={"x": X, "label": Y, "scale": scale}, loss=loss, **options)
    for run in (by_name, fit({"class": Y, "scale": scale}, loss=from_labels, **options)):
        assert run.history.epochs[-1]["loss"] == pytest.approx(2 * float(INTEGER(X @ START["w"], Y).mean()), rel=1e-5)
    with pytest.raises(KeyError, match="'x'"):
        fit(loss=lookup_of_its_own)


# ------------------------------------------------------------------------------------------------ metrics
@pytest.mark.parametrize("metric", ["mse", {"output": "mse"}, ["rmse", "mae", "pearsonr"]], ids=str)
@pytest.mark.repetitions(2)
def test_metrics_of_regressions_by_name_are_over_all_rows(metric):
    target = RNG.normal(size=(24, 3)).astype("float32")
    run = fit(target, loss="mse", optimizer=optax.sgd(0.0), eval_metric=metric, batch_size=16)
    d = X @ START["w"] - target
    expected = {"mse": np.mean(d**2), "output_mse": np.mean(d**2), "rmse": np.sqrt(np.mean(d**2)), "mae": np.mean(abs(d))}
    expected["pearsonr"] = np.corrcoef((X @ START["w"]).ravel(), target.ravel())[0, 1]
    scored = jfit.score(run, (X, target), metric, batch_size=16)
    for results in (run.history.epochs[-1], scored):
        names = set(results) & set(expected)
        assert names
        for name in names:
            assert results[name] == pytest.approx(expected[name], rel=1e-5)


def logits_and_other(p, x):
    return {"logits": x @ p["w"], "other": x[:, None, :]}


@pytest.mark.parametrize(
    ("fn", "metric", "name"),
    [(logits_and_features, {"logits": "acc"}, "logits_accuracy"), (logits_and_other, "acc", "accuracy")],
    ids=["by name", "by shape"],
)
def test_the_only_label_belongs_to_the_output_of_the_metric(fn, metric, name):
    run = fit(fn=fn, loss=of_logits, optimizer=optax.sgd(0.0), eval_metric=metric, eval_data=(X[:13], Y[:13]))
    hits = (X @ START["w"]).argmax(1) == Y
    assert run.history.epochs[-1][name] == pytest.approx(hits.mean())
    assert run.history.epochs[-1][f"val_{name}"] == pytest.approx(hits[:13].mean())
    assert jfit.score(run, (X[:13], Y[:13]), metric)[name] == pytest.approx(hits[:13].mean())
