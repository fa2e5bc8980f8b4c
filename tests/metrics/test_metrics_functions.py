"""Metrics of models of functions, against scikit-learn and NumPy: which metric `eval_metric="auto"` chooses, logits and
probabilities, one-hot, binary, multi-label and sequence labels, ignored labels, row weights and incomplete batches."""

import io
from contextlib import redirect_stdout

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics as sk
from scipy.special import expit, softmax

import jfit

RNG = np.random.default_rng(7)
ROWS = 40  # with batches of 16 rows, the last has 8
FINE = 1 << 18  # bins of an area close to the exact one
LOGITS = RNG.normal(size=(ROWS, 5)).astype("float32") * 2
CLASSES = np.where(RNG.random(ROWS) < 0.6, LOGITS.argmax(1), RNG.integers(0, 5, ROWS)).astype("int32")
ONE_HOT = np.eye(5, dtype="float32")[CLASSES]
SCORES = RNG.normal(size=ROWS).astype("float32")
BINARY = ((SCORES + RNG.normal(size=ROWS)) > 0).astype("float32")
MANY = (LOGITS + RNG.normal(size=LOGITS.shape) > 0.5).astype("float32")
TIMES = VOCABULARY = 6  # the axes of times and classes have the same length
TOKEN_LOGITS = RNG.normal(size=(ROWS, TIMES, VOCABULARY)).astype("float32") * 2
TOKENS = np.where(RNG.random((ROWS, TIMES)) < 0.7, TOKEN_LOGITS.argmax(-1), RNG.integers(0, 6, (ROWS, TIMES))).astype("int32")
SOFTMAX, SIGMOID = optax.softmax_cross_entropy, optax.sigmoid_binary_cross_entropy
INTEGER = optax.softmax_cross_entropy_with_integer_labels


def outputs_are_inputs(params, x):
    """A model whose outputs are its inputs, so that the predictions of a test are the ones it chose."""
    return x * params["one"]


def of_probabilities(output, label):
    return -jnp.log(jnp.take_along_axis(output, label[..., None], -1)[..., 0])


def binary_probabilities(output, label):
    return -(label * jnp.log(output) + (1 - label) * jnp.log(1 - output))


def score(x, y, loss, metric="auto", weight=None, **options):
    data = (x, y) if weight is None else (x, y, weight)
    settings = {"loss": loss, "params": {"one": np.ones((), "float32")}, "batch_size": 16, **options}
    return jfit.score(outputs_are_inputs, data, metric, **settings)


def fitted(x, y, loss, metric="auto", **options):
    """Train with learning rate 0; returns the `Run`."""
    settings = {"loss": loss, "params": {"one": np.ones((), "float32")}, "batch_size": 16, "num_epoch": 1, "progress": False}
    rate = {"learning_rate": 0.0}
    return jfit.fit(outputs_are_inputs, (x, y), (x, y), eval_metric=metric, optimizer_params=rate, **settings | options)


def as_float(loss, dtype="float32"):
    return lambda output, label: loss(output, label.astype(dtype))


RIGHT, BINARY_RIGHT, TOKENS_RIGHT = LOGITS.argmax(1) == CLASSES, (SCORES > 0) == BINARY, TOKEN_LOGITS.argmax(-1) == TOKENS
LATE = TOKENS > 2
FORMS = {
    "integer labels": (LOGITS, CLASSES, INTEGER, RIGHT),
    "float class labels": (LOGITS, CLASSES.astype("float32"), as_float(INTEGER, "int32"), RIGHT),
    "one-hot": (LOGITS, ONE_HOT, SOFTMAX, RIGHT),
    "one-hot, loss by hand": (LOGITS, ONE_HOT, lambda o, y: -(y * jax.nn.log_softmax(o)).sum(-1), RIGHT),
    "smoothed one-hot": (LOGITS, 0.9 * ONE_HOT + 0.02, SOFTMAX, RIGHT),
    "class probabilities": (softmax(LOGITS, 1), CLASSES, of_probabilities, RIGHT),
    "binary logits": (SCORES, BINARY, SIGMOID, BINARY_RIGHT),
    "binary logits (n, 1)": (SCORES[:, None], BINARY[:, None], SIGMOID, BINARY_RIGHT),
    "binary logits, integer labels": (SCORES, BINARY.astype("int32"), as_float(SIGMOID), BINARY_RIGHT),
    "binary logits (n, 1), labels (n,)": (SCORES[:, None], BINARY, lambda o, y: SIGMOID(o[:, 0], y), BINARY_RIGHT),
    "binary probabilities": (expit(SCORES), BINARY, binary_probabilities, BINARY_RIGHT),
    "multi-label logits": (LOGITS, MANY, SIGMOID, (LOGITS > 0) == MANY),
    "multi-label probabilities": (expit(LOGITS), MANY, binary_probabilities, (LOGITS > 0) == MANY),
    "language model": (TOKEN_LOGITS, TOKENS, INTEGER, TOKENS_RIGHT),
    "language model, one-hot": (TOKEN_LOGITS, np.eye(6, dtype="float32")[TOKENS], SOFTMAX, TOKENS_RIGHT),
    "labels of tokens": (TOKEN_LOGITS[..., 0], LATE.astype("float32"), SIGMOID, (TOKEN_LOGITS[..., 0] > 0) == LATE),
}


@pytest.mark.repetitions(3, slow=16)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("metric", ["auto", "acc"])
def test_accuracy_fits_the_labels(form, metric):
    x, y, loss, correct = FORMS[form]
    assert score(x, y, loss, metric)["accuracy"] == pytest.approx(correct.mean(), rel=1e-6)


@pytest.mark.parametrize("form", ["one-hot", "binary logits", "multi-label logits", "language model"])
def test_accuracy_of_weighted_rows(form):
    x, y, loss, correct = FORMS[form]
    weight = RNG.integers(0, 3, ROWS).astype("float32")
    per_row = correct.reshape(ROWS, -1).mean(1)
    assert score(x, y, loss, weight=weight)["accuracy"] == pytest.approx(per_row[weight > 0].mean(), rel=1e-6)
    weighted = score(x, y, loss, jfit.metrics.get("acc", weighted=True), weight=weight)
    assert weighted["accuracy"] == pytest.approx(np.average(per_row, weights=weight), rel=1e-6)


def log_loss(label, logits):
    """Mean cross-entropy of class labels and logits whose last axis is that of the classes, by scikit-learn."""
    p = softmax(logits.astype("float64"), -1).reshape(-1, logits.shape[-1])
    return sk.log_loss(label.reshape(-1), p, labels=range(p.shape[1]))


CROSS_ENTROPY = {
    **dict.fromkeys(("integer labels", "one-hot", "class probabilities"), log_loss(CLASSES, LOGITS)),
    **dict.fromkeys(("binary logits", "binary probabilities"), sk.log_loss(BINARY, expit(SCORES.astype("float64")))),
    "multi-label logits": sk.log_loss(MANY.reshape(-1), expit(LOGITS.astype("float64").reshape(-1))),
    "language model": log_loss(TOKENS, TOKEN_LOGITS),
}


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("form", CROSS_ENTROPY)
def test_cross_entropy_of_logits_and_probabilities(form):
    x, y, loss, _ = FORMS[form]
    result = score(x, y, loss, ["ce", "nll_loss"])
    assert result == pytest.approx(dict.fromkeys(("cross-entropy", "nll-loss", "loss"), CROSS_ENTROPY[form]), rel=1e-5)


def test_cross_entropy_of_very_wrong_logits_is_exact():
    x, y = np.array([[60.0, 0.0]], "float32"), np.array([1])
    assert score(x, y, INTEGER, "ce")["cross-entropy"] == pytest.approx(60.0)


def test_binary_scores_of_logits_match_scikit_learn():
    metrics = [jfit.metrics.get(n, average="micro")[0] for n in ("f1", "mcc")]
    metrics += [
        *jfit.metrics.get(["precision", "recall", "confusion_matrix", "roc_auc"]),
        jfit.metrics.roc_auc(bins=FINE, name="fine"),
    ]
    for x, loss in (
        (SCORES, SIGMOID),
        (SCORES[:, None], lambda o, y: SIGMOID(o[:, 0], y)),
        (expit(SCORES), binary_probabilities),
    ):
        result = score(x, BINARY, loss, metrics)
        hard = SCORES > 0
        assert result["f1"] == pytest.approx(sk.f1_score(BINARY, hard), rel=1e-6)
        assert result["mcc"] == pytest.approx(sk.matthews_corrcoef(BINARY, hard), rel=1e-5)
        assert result["precision"] == pytest.approx(sk.precision_score(BINARY, hard), rel=1e-6)
        assert result["recall"] == pytest.approx(sk.recall_score(BINARY, hard), rel=1e-6)
        assert result["confusion_matrix"].tolist() == sk.confusion_matrix(BINARY, hard).tolist()
        assert result["roc_auc"] == pytest.approx(sk.roc_auc_score(BINARY, SCORES), abs=2e-3)
        assert result["fine"] == pytest.approx(sk.roc_auc_score(BINARY, SCORES), rel=1e-6)


@pytest.mark.parametrize("label", [CLASSES, ONE_HOT], ids=["integer", "one-hot"])
def test_scores_of_several_classes_match_scikit_learn(label):
    loss = INTEGER if label.ndim == 1 else SOFTMAX
    auc = [jfit.metrics.roc_auc(), jfit.metrics.roc_auc(bins=FINE, name="fine")]
    macro = jfit.metrics.get(["precision", "recall"], average="macro")
    result = score(LOGITS, label, loss, [*macro, "confusion_matrix", "pcc", "top_k_acc_2", *auc])
    predicted = LOGITS.argmax(1)
    assert result["precision"] == pytest.approx(sk.precision_score(CLASSES, predicted, average="macro"), rel=1e-6)
    assert result["recall"] == pytest.approx(sk.recall_score(CLASSES, predicted, average="macro"), rel=1e-6)
    assert result["confusion_matrix"].tolist() == sk.confusion_matrix(CLASSES, predicted).tolist()
    assert result["pcc"] == pytest.approx(sk.matthews_corrcoef(CLASSES, predicted), rel=1e-5)
    assert result["top_k_accuracy_2"] == pytest.approx(sk.top_k_accuracy_score(CLASSES, LOGITS, k=2), rel=1e-6)
    area = sk.roc_auc_score(CLASSES, softmax(LOGITS.astype("float64"), 1), multi_class="ovr")
    assert result["roc_auc"] == pytest.approx(area, abs=2e-3)
    assert result["fine"] == pytest.approx(area, rel=1e-5)


def test_token_scores_of_equal_axes():
    result = score(TOKEN_LOGITS, TOKENS, INTEGER, ["confusion_matrix", "top_k_acc_3"])
    flat, logits = TOKENS.reshape(-1), TOKEN_LOGITS.reshape(-1, 6)
    assert result["confusion_matrix"].tolist() == sk.confusion_matrix(flat, logits.argmax(1)).tolist()
    assert result["top_k_accuracy_3"] == pytest.approx(sk.top_k_accuracy_score(flat, logits, k=3), rel=1e-6)


# ------------------------------------------------------------------------------------------------ ignored labels
def masked(ignored, mean_of_row=False):
    def loss(output, label):
        counts = label != ignored
        losses = jnp.where(counts, INTEGER(output, jnp.where(counts, label, 0)), 0.0)
        return losses.sum(-1) / jnp.maximum(counts.sum(-1), 1) if mean_of_row else losses

    return loss


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("ignored", [-1, -100, 0])
@pytest.mark.parametrize("mean_of_row", [False, True])
def test_labels_that_the_loss_ignores_are_not_counted(ignored, mean_of_row):
    counts = RNG.random(TOKENS.shape) < 0.7 if ignored else TOKENS != 0
    labels = np.where(counts, TOKENS, ignored)
    expected = log_loss(TOKENS[counts], TOKEN_LOGITS[counts])
    result = score(TOKEN_LOGITS, labels, masked(ignored, mean_of_row), ["acc", "ce", "perplexity", "confusion_matrix"])
    assert result["accuracy"] == pytest.approx(TOKENS_RIGHT[counts].mean(), rel=1e-6)
    assert result["cross-entropy"] == pytest.approx(expected, rel=1e-5)
    assert result["perplexity"] == pytest.approx(np.exp(expected), rel=1e-5)
    assert result["confusion_matrix"].sum() == counts.sum()


@pytest.mark.parametrize("ignored", [-1, -100])
def test_binary_labels_that_the_loss_ignores_are_not_counted(ignored):
    counts = RNG.random(MANY.shape) < 0.7

    def loss(output, label):
        return jnp.where(label == ignored, 0.0, SIGMOID(output, label))

    result = score(LOGITS, np.where(counts, MANY, ignored).astype("float32"), loss, ["auto", "ce"])
    assert result["accuracy"] == pytest.approx(((LOGITS > 0) == MANY)[counts].mean(), rel=1e-6)
    assert result["cross-entropy"] == pytest.approx(
        sk.log_loss(MANY[counts], expit(LOGITS.astype("float64"))[counts]), rel=1e-5
    )


def test_one_hot_labels_of_zeros_are_not_counted():
    counts = RNG.random(ROWS) < 0.7
    result = score(LOGITS, ONE_HOT * counts[:, None].astype("float32"), SOFTMAX, ["acc", "ce"])
    assert result["accuracy"] == pytest.approx(RIGHT[counts].mean(), rel=1e-6)
    assert result["cross-entropy"] == pytest.approx(log_loss(CLASSES[counts], LOGITS[counts]), rel=1e-5)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", ["acc", "ce", "nll_loss", "perplexity"])
def test_ignore_index_of_a_metric(name):
    counts = RNG.random(TOKENS.shape) < 0.7
    labels = np.where(counts, TOKENS, -7)
    (metric,) = jfit.metrics.get(name, ignore_index=-7)
    entropy = log_loss(TOKENS[counts], TOKEN_LOGITS[counts])
    expected = {"acc": TOKENS_RIGHT[counts].mean(), "perplexity": np.exp(entropy)}
    (value,) = (v for k, v in score(TOKEN_LOGITS, labels, masked(-7), metric).items() if k != "loss")
    assert value == pytest.approx(expected.get(name, entropy), rel=1e-5)


# ------------------------------------------------------------------------------------------------ regression
@pytest.mark.parametrize("loss", [optax.l2_loss, optax.squared_error, optax.huber_loss, lambda o, y: jnp.abs(o - y)])
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1), (ROWS, 3)])
def test_regression_chooses_the_mean_squared_error_over_all_rows(loss, shape):
    x, y = (RNG.normal(size=shape).astype("float32") for _ in range(2))
    result = score(x, y, loss)
    assert set(result) == {"loss", "mse"}
    assert result["mse"] == pytest.approx(sk.mean_squared_error(y.reshape(ROWS, -1), x.reshape(ROWS, -1)), rel=1e-5)


# ------------------------------------------------------------------------------------------------ what was chosen
@pytest.mark.slow
def test_the_choice_is_readable_and_printed_with_progress():
    chosen = fitted(LOGITS, ONE_HOT, SOFTMAX).settings.metric_choice
    assert chosen.startswith("eval_metric='auto': accuracy") and "one-hot" in chosen and "logits" in chosen
    printed = io.StringIO()
    with redirect_stdout(printed):
        fitted(LOGITS, ONE_HOT, SOFTMAX, progress=True)
    assert chosen in printed.getvalue()
    assert fitted(LOGITS, ONE_HOT, SOFTMAX, "acc").settings.metric_choice == ""


def test_no_metric_is_chosen_if_the_loss_does_not_say_what_the_outputs_are():
    def contrastive(output, label):
        return jnp.square(output).sum(-1) * (1 + label)

    run = fitted(LOGITS, CLASSES, contrastive)
    assert set(run.score((LOGITS, CLASSES))) == {"loss"}
    assert "none" in run.settings.metric_choice


@pytest.mark.parametrize("name", ["hinge", "poisson"])
def test_a_loss_with_other_outputs_chooses_no_metric(name):
    label = (2 * BINARY - 1) if name == "hinge" else RNG.poisson(2.0, ROWS).astype("float32")
    assert set(score(SCORES, label, name)) == {"loss"}


def test_a_training_step_of_a_function_counts_like_fit():
    model = jfit.Model.from_function(outputs_are_inputs, loss=SOFTMAX, params={"one": np.ones((), "float32")})
    acc, batch = jfit.metrics.get(["acc", "ce"]), {"x": LOGITS, "label": ONE_HOT}
    state, _ = jax.jit(jfit.train_step(model, "sgd", metrics=acc))(jfit.init_state(model, "sgd", batch, metrics=acc), batch)
    result = jfit.totals.values(acc, jax.device_get(state.metrics))
    assert result["accuracy"] == pytest.approx(RIGHT.mean(), rel=1e-6)
    assert result["cross-entropy"] == pytest.approx(CROSS_ENTROPY["one-hot"], rel=1e-5)


# ------------------------------------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    ("x", "y", "loss", "message"),
    [
        (SCORES, SCORES[::-1], optax.l2_loss, "are real numbers.* not classes; pass integer"),
        (LOGITS, CLASSES + np.float32(0.5), as_float(INTEGER, "int32"), "are not whole numbers .*; pass"),
        (SCORES, BINARY + 1, SIGMOID, r"are not 0 or 1 \(such as 2\); pass"),
        (LOGITS, LOGITS[:, :4], lambda o, y: jnp.square(o).sum(-1) + y.sum(-1), "have another shape; pass"),
    ],
)
def test_labels_that_do_not_fit_accuracy_are_refused(x, y, loss, message):
    with pytest.raises(ValueError, match=r"metric accuracy: labels \(rows,.*\) for outputs \(rows,.*\) .*" + message):
        score(x, y, loss, "acc")


@pytest.mark.parametrize("name", ["ce", "perplexity"])
def test_cross_entropy_of_an_unknown_loss_needs_from_logits(name):
    def hinge(output, label):
        true = jnp.take_along_axis(output, label[:, None], -1)
        return jnp.maximum(0, 1 + output - true).sum(-1)

    with pytest.raises(ValueError, match="pass from_logits=True"):
        score(LOGITS, CLASSES, hinge, name)
    (metric,) = jfit.metrics.get(name, from_logits=True)
    (value,) = (v for k, v in score(LOGITS, CLASSES, hinge, metric).items() if k != "loss")
    expected = CROSS_ENTROPY["integer labels"]
    assert value == pytest.approx(np.exp(expected) if name == "perplexity" else expected, rel=1e-5)
    assert score(LOGITS, CLASSES, hinge, "auto")["accuracy"] == pytest.approx(RIGHT.mean(), rel=1e-6)


def test_a_threshold_of_an_unknown_loss_needs_from_logits():
    def own(output, label):
        return jnp.exp(-(2 * label - 1) * output)

    with pytest.raises(ValueError, match="pass from_logits=True"):
        score(SCORES, BINARY, own, "acc")
    result = score(SCORES, BINARY, own, jfit.metrics.get("acc", from_logits=True))
    assert result["accuracy"] == pytest.approx(BINARY_RIGHT.mean(), rel=1e-6)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("batch_size", [7, 1, 64])
def test_batches_never_change_the_counts(batch_size):
    counts = RNG.random(TOKENS.shape) < 0.7
    labels, weight = np.where(counts, TOKENS, -1), RNG.integers(0, 2, ROWS).astype("float32")
    metrics = [*jfit.metrics.get(["acc", "ce", "confusion_matrix"]), jfit.metrics.roc_auc(bins=FINE)]
    result = score(TOKEN_LOGITS, labels, masked(-1), metrics, weight, batch_size=batch_size)
    counts &= (weight > 0)[:, None]
    p = softmax(TOKEN_LOGITS.astype("float64"), -1)[counts]
    assert result["accuracy"] == pytest.approx((p.argmax(-1) == TOKENS[counts]).mean(), rel=1e-6)
    assert result["cross-entropy"] == pytest.approx(sk.log_loss(TOKENS[counts], p, labels=range(6)), rel=1e-5)
    assert result["confusion_matrix"].tolist() == sk.confusion_matrix(TOKENS[counts], p.argmax(-1)).tolist()
    assert result["roc_auc"] == pytest.approx(sk.roc_auc_score(TOKENS[counts], p, multi_class="ovr"), rel=1e-5)


# ------------------------------------------------------------------------------------------------ losses by name
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("cross_entropy", "integer labels"),
        ("cross_entropy", "one-hot"),
        ("binary_cross_entropy", "binary logits"),
        ("binary_cross_entropy", "multi-label logits"),
    ],
)
def test_losses_by_name_are_recognized(name, form):
    x, y, _, correct = FORMS[form]
    assert score(x, y, name)["accuracy"] == pytest.approx(correct.mean(), rel=1e-6)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", ["mse", "mae", "huber", "l2", "log_cosh"])
def test_losses_of_values_by_name_choose_mse(name):
    y = RNG.normal(size=ROWS).astype("float32")
    assert score(SCORES, y, name)["mse"] == pytest.approx(sk.mean_squared_error(y, SCORES), rel=1e-5)
