"""Functions as models: wrong uses of losses, labels, metrics and parameters that would train or report something else."""

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
    w = dict(START)
    for at in range(0, 24, 8):
        g = jax.grad(lambda p, at=at: jnp.mean(loss(fn(p, X[at : at + 8]), labels[at : at + 8])))(w)
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
@pytest.mark.repetitions(2)
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
