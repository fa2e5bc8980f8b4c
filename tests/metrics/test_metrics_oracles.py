"""Metrics against scikit-learn and NumPy in float64: row weights, merged parts of a batch, large counts; the table in docs."""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import sklearn.metrics as oracle
from cases import metric_updates as recorded
from docs_scripts import docs_script
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

import jfit
import jfit.mx as mx
from jfit import counters, metrics
from jfit.metrics import core as sums
from jfit.step import totals

ROOT = Path(__file__).parents[2]
ROWS, CLASSES = 16, 4
SIZES = (16, 11, 1)  # rows that count in each batch; the others hold nan
RNG = np.random.default_rng(7)


def sample(n, classes):
    """(labels, probabilities, weights), with ties between the probabilities of different rows."""
    scores = np.round(RNG.uniform(0.1, 1, (n, classes)), 1)
    return RNG.integers(0, classes, n), (scores / scores.sum(1, keepdims=True)).astype("float32"), RNG.uniform(0.1, 3, n)


MANY, TWO = sample(sum(SIZES), CLASSES), sample(sum(SIZES), 2)
REAL = (RNG.normal(size=28) + 100, RNG.normal(size=28).astype("float32") + 100, RNG.uniform(0.1, 3, 28))
REAL = (REAL[0].astype("float32"), (REAL[1] + REAL[0]).astype("float32") / 2, REAL[2])


def correlation(y, p, w=None):
    c = np.cov(np.float64(p), np.float64(y), aweights=w)
    return c[0, 1] / np.sqrt(c[0, 0] * c[1, 1])


def best(p):
    return p.argmax(1)


def wide(y, p, w):
    return oracle.log_loss(y, np.float64(p) / np.float64(p).sum(1, keepdims=True), sample_weight=w, labels=range(p.shape[1]))


def score(name, average):
    fn = getattr(oracle, f"{name}_score")
    return lambda y, p, w: fn(y, best(p), average=average, sample_weight=w, zero_division=0)


# name -> metric made with weighted=..., data, oracle of (labels, outputs, weights or None)
TABLE = {
    "acc": ("acc", {}, MANY, lambda y, p, w: oracle.accuracy_score(y, best(p), sample_weight=w)),
    "top_k": (
        "top_k_acc",
        {"top_k": 2},
        # ties between classes of a row: the rule is MXNet's, so none here
        (MANY[0], (MANY[1] + 1e-3 * np.arange(4)).astype("float32"), MANY[2]),
        lambda y, p, w: oracle.top_k_accuracy_score(y, p, k=2, sample_weight=w, labels=range(4)),
    ),
    "f1": ("f1", {"average": "micro"}, TWO, lambda y, p, w: oracle.f1_score(y, best(p), sample_weight=w)),
    "mcc": ("mcc", {"average": "micro"}, TWO, lambda y, p, w: oracle.matthews_corrcoef(y, best(p), sample_weight=w)),
    "pcc": ("pcc", {}, MANY, lambda y, p, w: oracle.matthews_corrcoef(y, best(p), sample_weight=w)),
    "ce": ("ce", {}, MANY, wide),
    "nll": ("nll_loss", {}, MANY, wide),
    "perplexity": ("perplexity", {}, MANY, lambda y, p, w: np.exp(wide(y, p, w))),
    "precision": ("precision", {}, TWO, score("precision", "binary")),
    "precision_macro": ("precision", {"average": "macro"}, MANY, score("precision", "macro")),
    "precision_micro": ("precision", {"average": "micro"}, MANY, score("precision", "micro")),
    "recall": ("recall", {}, TWO, score("recall", "binary")),
    "recall_macro": ("recall", {"average": "macro"}, MANY, score("recall", "macro")),
    "recall_each": ("recall", {"average": None}, MANY, score("recall", None)),
    "confusion": (
        "confusion_matrix",
        {},
        MANY,
        lambda y, p, w: oracle.confusion_matrix(y, best(p), sample_weight=w),
    ),
    "confusion_true": (
        "confusion_matrix",
        {"normalize": "true"},
        MANY,
        lambda y, p, w: oracle.confusion_matrix(y, best(p), sample_weight=w, normalize="true"),
    ),
    "roc_auc": ("roc_auc", {}, TWO, lambda y, p, w: oracle.roc_auc_score(y, p[:, 1], sample_weight=w)),
    "roc_auc_many": (
        "roc_auc",
        {},
        MANY,
        lambda y, p, w: np.mean([oracle.roc_auc_score(y == k, p[:, k], sample_weight=w) for k in range(4)]),
    ),
    "pearsonr": ("pearsonr", {"average": "micro"}, REAL, correlation),
}
WEIGHTED_ONLY = {
    "mae": ("mae", {}, REAL, lambda y, p, w: oracle.mean_absolute_error(y, p, sample_weight=w)),
    "mse": ("mse", {}, REAL, lambda y, p, w: oracle.mean_squared_error(y, p, sample_weight=w)),
    "rmse": ("rmse", {}, REAL, lambda y, p, w: oracle.root_mean_squared_error(y, p, sample_weight=w)),
    "loss": ("loss", {}, REAL, lambda y, p, w: np.average(p, weights=w)),
}


def batches_of(data):
    """Batches of ROWS rows; those beyond their size hold nan and weigh 0."""
    label, output, weight = data
    at, found = 0, []
    for size in SIZES:
        rows = [np.full((ROWS, *x.shape[1:]), np.nan, np.float32) for x in (label, output)]
        for into, x in zip(rows, (label, output), strict=True):
            into[:size] = x[at : at + size]
        own = np.zeros(ROWS, np.float32)
        own[:size] = weight[at : at + size]
        found.append((*rows, own))
        at += size
    return found


@functools.cache
def all_values(weighted):
    """Every metric of the tables over all batches, in one program: name -> value."""
    made = {}
    for name, (kind, given_, data, _) in (TABLE | WEIGHTED_ONLY if weighted else TABLE).items():
        (metric,) = metrics.get(kind, **given_, weighted=weighted)
        made[name] = (*metrics.sized([metric], [data[0].shape], [data[1].shape]), batches_of(data))

    @jax.jit
    def fold(running, batch):
        return {k: m.update(running[k], m.stats((batch[k][0],), (batch[k][1],), (batch[k][2],))) for k, (m, _) in made.items()}

    running = {k: m.init() for k, (m, _) in made.items()}
    for number in range(len(SIZES)):
        running = fold(running, {k: b[number] for k, (_, b) in made.items()})
    running = jax.device_get(running)
    return {k: next(iter(m.compute(running[k]).values())) for k, (m, _) in made.items()}


CHECKED = [pytest.param(name, False, marks=pytest.mark.slow) for name in TABLE] + [(n, True) for n in TABLE | WEIGHTED_ONLY]


@pytest.mark.parametrize(("name", "weighted"), CHECKED)
def test_values_are_those_of_scikit_learn(name, weighted):
    _, _, (label, output, weight), ask = (TABLE | WEIGHTED_ONLY)[name]
    wanted = ask(label, output, np.float32(weight) if weighted else None)
    np.testing.assert_allclose(all_values(weighted)[name], wanted, rtol=2e-6, atol=1e-7)


def one(metric, label, output, weight=None):
    (metric,) = metrics.sized([metric], [label.shape], [output.shape])
    fold = jax.jit(lambda label, output: metric.update(metric.init(), metric.stats((label,), (output,), (weight,))))
    return {k: np.asarray(v) for k, v in metric.compute(jax.device_get(fold(label, output))).items()}


# ------------------------------------------------------------------------------------------------ parts and large numbers
PARTED = [
    metrics.sized([metrics.create(n, **s)], [(ROWS,)], [(ROWS, CLASSES)])[0]
    for n, s in (("acc", {}), ("ce", {"weighted": True}), ("pcc", {}), ("roc_auc", {}), ("confusion_matrix", {}))
]
MOMENTS = metrics.pearsonr("micro", weighted=True)


@jax.jit
def parted(label, output, real, weight):
    """Stats of the rows with weight."""
    return [m.stats((label,), (output,), (weight,)) for m in PARTED], MOMENTS.stats((real[0],), (real[1],), (weight,))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), st.integers(0, 2**16), st.sampled_from([0.0, 1e3, -1e5]))
def test_merged_parts_of_a_batch_equal_the_whole_batch(kept, seed, offset):
    draw = np.random.default_rng(seed)
    label = draw.integers(0, CLASSES, ROWS)
    output = draw.dirichlet(np.ones(CLASSES), ROWS).astype("float32")
    real = (draw.normal(size=(2, ROWS)) + offset).astype("float32")
    ways = (np.asarray(kept, np.float32), 1 - np.asarray(kept, np.float32), np.ones(ROWS, np.float32))
    (one_, m1), (other, m2), (whole, m) = (parted(label, output, real, weight) for weight in ways)
    for a, b, c in zip(one_, other, whole, strict=True):
        for x, y, z in zip(*(jax.tree.leaves(jax.device_get(part)) for part in (a, b, c)), strict=True):
            np.testing.assert_allclose(x + y, z, rtol=1e-6, atol=1e-7)
    apart, together = (MOMENTS.compute(jax.device_get(part[0]))["pearsonr"] for part in (MERGE(m1, m2), m))
    wanted = np.corrcoef(real.astype(np.float64))[0, 1]
    assert apart == pytest.approx(wanted, abs=2e-6) and together == pytest.approx(wanted, abs=2e-6)


MERGE = jax.jit(MOMENTS.merge)


def test_correlation_is_accurate_over_many_batches_with_a_large_mean():
    metric = metrics.pearsonr("micro")
    draw = np.random.default_rng(3)
    x = (draw.normal(size=(200, 16)) + 5000).astype("float32")
    y = (x + 3 * draw.normal(size=x.shape)).astype("float32")

    @jax.jit
    def fold(x, y):
        body = lambda sums, xy: (metric.update(sums, metric.stats((xy[1],), (xy[0],), None)), None)  # noqa: E731
        return jax.lax.scan(body, metric.init(), (x, y))[0]

    got = metric.compute(jax.device_get(fold(x, y)))["pearsonr"]
    assert got == pytest.approx(np.corrcoef(np.float64(x).ravel(), np.float64(y).ravel())[0, 1], abs=1e-7)


def test_counts_and_weights_stay_exact_beyond_float32_integers():
    start = jnp.array([[2.0**24], [0.0]])
    grown = jax.jit(lambda s: jax.lax.fori_loop(0, 1001, lambda i, s: sums.added(s, jnp.ones(1)), s))(start)
    assert sums.exact(np.asarray(grown)).tolist() == [2**24 + 1001]
    metric = metrics.f1("micro")
    cells = metric.update(jnp.array([2**24, 3, 2**24, 2**30], jnp.int32), jnp.array([1, 0, 1, 1], jnp.int32))
    assert cells.tolist() == [2**24 + 1, 3, 2**24 + 1, 2**30 + 1]
    tp, fp, fn, _ = cells.tolist()
    assert float(metric.compute(np.asarray(cells))["f1"]) == pytest.approx(2 * tp / (2 * tp + fp + fn), rel=1e-12)


# ------------------------------------------------------------------------------------------------ area under the curve
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("scale", [0.3, 3.0, 12.0])
def test_the_error_of_the_auc_is_within_its_bound(scale):
    draw = np.random.default_rng(1)
    label = draw.integers(0, 2, 400)
    logit = (scale * (draw.normal(size=400) + label - 0.5)).astype("float32")
    p = (1 / (1 + np.exp(-logit))).astype("float32")
    for bins in (16, 4096):
        place = np.clip((logit + 16) * (bins / 32), 0, bins - 1).astype(int)
        negatives, positives = (np.bincount(place[label == k], minlength=bins) for k in (0, 1))
        bound = (positives * negatives).sum() / (2 * positives.sum() * negatives.sum()) + 1e-3  # scores at the edge of a bin
        got = one(metrics.roc_auc(2, bins), label, p)["roc_auc"]
        assert abs(got - oracle.roc_auc_score(label, p)) <= bound
        raw = one(metrics.roc_auc(2, bins, logits=True), label, np.stack([0 * logit, logit], 1))["roc_auc"]
        assert abs(raw - oracle.roc_auc_score(label, np.clip(logit, -16, 16))) <= bound
    assert abs(got - oracle.roc_auc_score(label, p)) < 1e-3


def test_the_auc_of_one_class_or_nan_is_nan():
    label, p = np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.4, 0.2], "float32")
    assert np.isnan(one(metrics.roc_auc(), label * 0, p)["roc_auc"])
    assert np.isnan(one(metrics.roc_auc(), label, np.where(p > 0.8, np.nan, p).astype("float32"))["roc_auc"])
    three = one(metrics.roc_auc(average=None), np.array([0, 1, 1, 0]), np.eye(4, 3, dtype="float32"))["roc_auc"]
    assert three.shape == (3,) and np.isnan(three[2])


# ------------------------------------------------------------------------------------------------ edges
def test_one_class_or_equal_values_have_no_correlation():
    same, label = np.ones((4, 2), "float32") / 2, np.zeros(4)
    assert np.isnan(one(metrics.pcc(), label, same)["pcc"])
    assert one(metrics.mcc("micro"), label, same)["mcc"] == 0
    third = np.full(5, 1 / 3, "float32")
    assert np.isnan(one(metrics.pearsonr(), np.arange(5.0, dtype="float32"), third)["pearsonr"])
    assert np.isnan(one(metrics.pearsonr("micro"), third, np.arange(5.0, dtype="float32"))["pearsonr"])


def test_labels_out_of_range_of_the_classes():
    label, output = np.array([0, 1, 7, -1]), np.eye(4, 3, dtype="float32")
    assert one(metrics.confusion_matrix(), label, output)["confusion_matrix"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert one(metrics.precision("micro"), label, output)["precision"] == 0.5
    assert -1 <= one(metrics.pcc(), label, output)["pcc"] <= 1


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, pytest.param(np.float16, marks=pytest.mark.slow)])
def test_half_precision_outputs_are_summed_in_float32(dtype):
    label, output = MANY[0][:8], MANY[1][:8].astype(dtype)
    for name in ("ce", "pcc", "roc_auc", "loss"):
        got, wanted = (next(iter(one(metrics.create(name), label, x).values())) for x in (output, output.astype("float32")))
        assert got == pytest.approx(wanted, rel=1e-6)


test_errors_describe_the_problem = refused(
    (lambda: metrics.pcc().init(), "metric pcc: the number of classes, .* is unknown"),
    (lambda: metrics.mcc("weighted"), "metric mcc: average is 'weighted'"),
    (lambda: metrics.pearsonr("weighted"), "metric pearsonr: average is 'weighted'"),
    (lambda: metrics.precision("binary", 3), "average='binary' needs two classes, but there are 3"),
    (lambda: metrics.recall("samples"), "metric recall: average is 'samples'"),
    (lambda: metrics.confusion_matrix(2, "rows"), "normalize is 'rows'"),
    (lambda: metrics.roc_auc(bins=1), "bins is 1; it must be a whole number"),
    (lambda: metrics.roc_auc(bins=None), "bins is None; it must be a whole number"),
    (lambda: metrics.roc_auc(average="micro"), "metric roc_auc: average is 'micro'"),
    (lambda: one(metrics.roc_auc(3), np.zeros(4), np.ones((4, 2), "float32")), r"expected \(rows, 3\)"),
    (lambda: one(metrics.pcc(2), np.zeros(4), np.ones((4, 3), "float32")), "has 3 classes, but num_classes is 2"),
)


# ------------------------------------------------------------------------------------------------ in a run
@pytest.mark.parametrize("devices", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_metrics_of_a_run_are_equal_on_any_number_of_devices(devices):
    draw = np.random.default_rng(5)
    x, y = draw.normal(size=(21, 3)).astype("float32"), draw.integers(0, 3, 21)
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")
    params = {"fc_weight": np.eye(3, dtype="float32"), "fc_bias": np.zeros(3, "float32")}
    p = np.exp(x - x.max(1, keepdims=True))
    asked = ["pcc", "confusion_matrix", metrics.roc_auc(bins=64), metrics.pearsonr("micro", name="r")]
    spread = jfit.metrics.Metric(*asked[3])._replace(stats=lambda ls, os, ws: asked[3].stats(ls, [os[0][:, 0]], ws))
    got = jfit.score(net, (x, y), [*asked[:3], spread], params=params, batch_size=8, devices=devices)
    p /= p.sum(1, keepdims=True)
    assert got["pcc"] == pytest.approx(oracle.matthews_corrcoef(y, best(p)), rel=1e-6)
    assert got["confusion_matrix"].tolist() == oracle.confusion_matrix(y, best(p)).tolist()
    assert got["r"] == pytest.approx(correlation(y, p[:, 0]), abs=1e-6)
    assert got["roc_auc"] == pytest.approx(oracle.roc_auc_score(y, p, multi_class="ovr"), abs=0.05)


def test_micro_batches_and_totals_merge_parts_in_order():
    metric = metrics.pearsonr("micro")
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(2, 3, 4)).astype("float32")

    @jax.jit
    def fold(x, y):
        parts = [totals.metric_stats([metric], (y[i],), (x[i],), (None,), i, 3)[0] for i in range(3)]
        return metric.update(metric.init(), totals.merged(metric, jax.tree.map(lambda *a: sum(a), *parts)))

    got = metric.compute(counters.read(fold(x, y)))["pearsonr"]
    assert got == pytest.approx(np.corrcoef(x.ravel(), y.ravel())[0, 1], abs=1e-6)


def test_docs_page_is_up_to_date():
    page = ROOT / "docs" / "metrics.md"
    if not page.parent.exists():
        pytest.skip("an installed package has no docs folder")
    assert page.read_text().endswith(docs_script("tables").metrics()), "run python docs/tables.py metrics"


# ------------------------------------------------------------------------------------------------ as MXNet recorded it
QUICK = ("pcc_numbers",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in recorded.CASES])
def test_updates_and_resets_are_mxnets(name):
    wanted = json.loads((Path(__file__).parents[1] / "golden" / "metric_updates.json").read_text())[name]
    got = recorded.run(mx.metric, lambda x: mx.nd.array(x, dtype=x.dtype), name)
    for said, expected in zip(got, wanted, strict=True):
        if name.startswith("pearsonr") and recorded.CASES[name][1]:  # MXNet's global value and sums stay 0
            said[1], said[2], expected[1], expected[2] = 0, 0, 0, 0
        if name.startswith("pcc") and not expected[-1]:  # 0 times nan
            said[2] = expected[2]
        np.testing.assert_allclose(np.hstack(said), np.hstack(expected), rtol=2e-6, atol=2e-7)
