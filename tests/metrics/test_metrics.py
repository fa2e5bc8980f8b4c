"""Metrics against scikit-learn, independent of padding and of the number of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as oracle
from refusals import refused

from jfit import metrics

RNG = np.random.default_rng(0)
LABEL = RNG.integers(0, 5, 24).astype(np.float32)
PROB = RNG.dirichlet(np.ones(5), 24).astype(np.float32)
NAMES = ["acc", "top_k_accuracy_2", "ce", "nll_loss", "perplexity", "loss"]


def value(metric, batches):
    """batches of (labels, outputs, weights)"""
    sums, fold = metric.init(), jax.jit(lambda sums, batch: metric.update(sums, metric.stats(*batch)))
    for batch in batches:
        sums = fold(sums, batch)
    return {k: float(v) for k, v in metric.compute(jax.device_get(sums)).items()}


def single(name, label, output, weight=None, **params):
    (metric,) = metrics.get(name, **params)
    return next(iter(value(metric, [((jnp.asarray(label),), (jnp.asarray(output),), (weight,))]).values()))


@pytest.mark.parametrize("shape", [(24, 1), (4, 6)])
def test_labels_of_other_shapes_are_matched_with_their_rows(shape):
    for name in ("acc", "ce", "perplexity"):
        assert single(name, LABEL.reshape(shape), PROB) == pytest.approx(single(name, LABEL, PROB))


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("name", [*NAMES, "mse", "rmse", "f1"])
def test_an_empty_metric_is_nan_and_a_batch_of_zero_weights_changes_nothing(name):
    metric = metrics.create(name)
    assert all(np.isnan(v) for v in value(metric, []).values())
    label, output = (LABEL, PROB) if name in NAMES else (LABEL > 2, PROB[:, :2]) if name == "f1" else (PROB, 1 - PROB)
    batch = ((jnp.asarray(label),), (jnp.asarray(output),))
    got = value(metric, [(*batch, None), (*batch, (jnp.zeros(24),))])
    assert got == pytest.approx(value(metric, [(*batch, None)]))


def test_several_outputs_are_matched_with_labels_in_order():
    pair = ((jnp.asarray(LABEL), jnp.asarray(LABEL)), (jnp.asarray(PROB), jnp.eye(5)[LABEL.astype(int)]), (None, None))
    (got,) = value(metrics.create("acc"), [pair]).values()
    assert got == pytest.approx((np.mean(PROB.argmax(1) == LABEL) + 1) / 2)


def test_float_sums_do_not_drift():
    metric = metrics.create("loss")
    fold = jax.jit(lambda s: jax.lax.fori_loop(0, 100_000, lambda i, s: metric.update(s, (jnp.float32(0.1), jnp.int32(1))), s))
    got = metric.compute(jax.device_get(fold(metric.init())))["loss"]
    assert float(got) == pytest.approx(float(np.float32(0.1)), rel=1e-7)


def test_infinite_sums_are_infinite():
    for weighted in (False, True):
        metric = metrics.loss(weighted=weighted)
        batches = [(None, (jnp.array([x, 1.0]),), None) for x in (1.0, jnp.inf, 1.0)]
        assert value(metric, batches) == {"loss": np.inf}


def test_mcc_is_invariant_to_the_scale_of_row_weights():
    metric = metrics.mcc(weighted=True)
    label, p = np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.2], "float32")
    fold = jax.jit(lambda weight: metric.update(metric.init(), metric.stats((label,), (jnp.asarray(p),), (weight,))))
    for scale in (1.0, 1e-12, 1e12):
        found = metric.compute(jax.device_get(fold(np.full(4, scale, "float32"))))["mcc"]
        assert found == pytest.approx(oracle.matthews_corrcoef(label, p > 0.5), rel=1e-6)


def test_a_function_becomes_a_host_metric():
    def bias(label, output):
        return float((output - label).sum()), len(label)

    (metric,) = metrics.get(bias)
    assert metric.host
    assert metric.compute(metric.update(metric.init(), [np.zeros(4)], [np.ones(4)])) == {"bias": 1.0}
    assert metrics.get(lambda label, output: 0.0)[0].name == "custom(<lambda>)"
    assert np.isnan(metric.compute(metric.init())["bias"])
    share = metrics.HostMetric("share", lambda label, output: (1.0, 0.5))  # a sum of weights is a fraction
    assert share.compute(share.update(share.init(), [np.zeros(4)], [np.ones(4)])) == {"share": 2.0}


test_errors_describe_the_problem = refused(
    (lambda: metrics.get("acuracy"), ValueError, "unknown metric 'acuracy'; did you mean 'accuracy'"),
    (lambda: metrics.get("ce", epz=1), ValueError, "no parameter 'epz'; did you mean 'eps'"),
    (lambda: metrics.get(3), TypeError, "a metric must be a name"),
    (lambda: metrics.get([metrics.accuracy]), TypeError, "accuracy is a factory, not a metric: pass 'accuracy'"),
    (lambda: single("acc", LABEL[:3], PROB), ValueError, r"metric accuracy: the label has shape \(3,\)"),
    (lambda: single("f1", LABEL, PROB), ValueError, "metric f1 is binary"),
    (lambda: single("mse", LABEL, PROB), ValueError, "one label per prediction"),
    (lambda: metrics.create("acc").stats((), (jnp.ones(2),), None), ValueError, "0 labels and 1 outputs"),
)
