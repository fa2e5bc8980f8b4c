"""Streams whose batches have ever-changing numbers of rows: few programs, the results of unpadded batches, one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fit_support import bits, blobs, mlp, rowmixer, train
from hypothesis import given, settings
from hypothesis import strategies as st

import jfit
from jfit import counters, sym
from jfit.data import Batch
from jfit.feed.batch_sizes import FEW, SPREAD, BatchSizes, depends_on_parts
from jfit.feed.batches import data_of
from jfit.feed.host_batches import HostBatches

SIZES = [9, 5, 12, 6, 13, 7, 14, 8, 15, 10, 16, 11, 17, 1, 18, 2, 19, 3, 20, 4]
X, Y = blobs(sum(SIZES))
LINE = "compiles a program for each number of rows"


def batches(sizes=SIZES, convert=np.asarray):
    start = 0
    for size in sizes:
        yield convert(X[start : start + size]), convert(Y[start : start + size])
        start += size


def loader(**options):
    return lambda: batches(**options)


def lines(caplog):
    return [record.getMessage() for record in caplog.records if LINE in record.getMessage()]


def linear():
    return sym.LinearRegressionOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=1, name="fc"), name="lro")


# ------------------------------------------------------------------------------------------------ training
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_twenty_sizes_train_like_a_hand_written_loop_with_few_programs(caplog, convert):
    weights = {"fc_weight": np.full((1, 4), 0.1, np.float32), "fc_bias": np.zeros(1, np.float32)}
    options = {"eval_metric": None, "optimizer_params": {"learning_rate": 0.05, "wd": 0.0}, "params": weights}
    data = [{"data": convert(x), "lro_label": convert(y[:, None])} for x, y in batches()]
    with counters.counted() as counts:
        run = train(linear(), data, **options)
    assert counts["traces:train"] + counts["traces:train_tail"] <= FEW + 4
    assert counts["compiles"] <= 2 * (FEW + 4) + 4  # also of initial values, and of the padding of the first JAX arrays
    assert len(lines(caplog)) == 1 and "padded with rows of weight 0" in caplog.text
    assert "training: batches of 9, 5, 12 and 6 rows" in caplog.text and "drop_last=True" in caplog.text
    w, b, losses = weights["fc_weight"].astype(np.float64), np.zeros(1), []
    for _ in range(2):
        for x, y in batches():
            error = x @ w.T + b - y[:, None]
            losses.append((error**2).sum() / 2)
            w, b = w - 0.05 * error.T @ x / len(error), b - 0.05 * error.mean(0)
    np.testing.assert_allclose(run.params["fc_weight"], w, rtol=2e-5)
    np.testing.assert_allclose(run.params["fc_bias"], b, rtol=2e-5)
    np.testing.assert_allclose(run.history.epochs[-1]["loss"], sum(losses[20:]) / sum(SIZES), rtol=2e-5)


def padded_by_hand(sizes, to):
    """Batches of equal size whose last rows have weight 0."""
    for x, y in batches(sizes):
        weight = np.arange(to) < len(x)
        x, y = (np.concatenate([v, np.zeros((to - len(v), *v.shape[1:]), v.dtype)]) for v in (x, y))
        yield Batch({"data": x, "softmax_label": y}, weight.astype(np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "options"),
    [
        (mlp(dropout=0.5), {}),
        (mlp(dropout=0.5), {"devices": 3, "micro_batches": 2}),
        (mlp(batch_norm=True), {}),
    ],
    ids=["dropout", "micro-batches of three devices", "batch_norm"],
)
def test_padding_to_few_sizes_changes_neither_random_numbers_nor_batch_statistics(net, options):
    options = {"num_epoch": 2, "steps_per_call": 1, "eval_metric": ["accuracy", "cross-entropy"], **options}
    sizes = SIZES[:8]
    few, one = (train(net, data, **options) for data in (list(batches(sizes)), list(padded_by_hand(sizes, 24))))
    for a, b in zip(jax.tree.leaves((few.params, few.aux)), jax.tree.leaves((one.params, one.aux)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    for name in ("loss", "accuracy", "cross-entropy"):
        np.testing.assert_allclose(few.history.epochs[-1][name], one.history.epochs[-1][name], rtol=2e-5)


@pytest.mark.parametrize("step", [1, 11])  # after step 1, batches of other sizes have been prepared ahead
def test_a_run_resumed_between_batches_of_ever_changing_size_has_the_bits_of_one_that_was_not_stopped(tmp_path, step):
    options = {"steps_per_call": 1, "shuffle": False, "checkpoint": tmp_path, "checkpoint_every": 1}
    whole = train(data=loader(), num_epoch=2)
    stop = jfit.callbacks.lambda_callback(every=1, step=lambda e: e.run.stop() if e.step == step else None)
    train(data=loader(), **options, callbacks=[stop])
    before = sorted(set(SIZES[:step]), key=SIZES.index)[: FEW + 1]
    assert jfit.checkpoint.load_meta(tmp_path)["batch_sizes"][0] == before
    assert bits(train(data=loader(), **options, resume=True).state) == bits(whole.state)


# ------------------------------------------------------------------------------------------------ scores and predictions
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("devices", [1, 3])
def test_scores_and_predictions_of_twenty_sizes_are_those_of_whole_arrays(caplog, devices):
    run = train(num_epoch=1, devices=devices)
    expected, score = run.predict(X), run.score((X, Y))
    with counters.counted() as counts:
        np.testing.assert_allclose(run.predict(x for x, _ in batches()), expected, rtol=2e-6, atol=1e-6)
        assert run.score(loader()) == pytest.approx(score, rel=1e-5)
    assert counts["traces:predict"] + counts["traces:eval"] <= 2 * (FEW + 3)
    assert [line.split(":")[0] for line in lines(caplog)] == ["prediction", "scoring"]
    with counters.counted() as counts:  # each call another size
        for size in (13, 5, 20, 2, 7, 16):
            np.testing.assert_allclose(run.predict(iter([X[:size]])), expected[:size], rtol=2e-6, atol=1e-6)
            run.score(iter([(X[:size], Y[:size])]))
    assert counts["compiles"] == 0
    assert len(lines(caplog)) == 2


# ------------------------------------------------------------------------------------------------ rows that affect each other
@pytest.mark.slow
def test_batches_whose_rows_affect_each_other_keep_their_size_and_one_line_says_what_to_do(caplog):
    run = train(rowmixer(), list(batches(SIZES[:6])), num_epoch=2, eval_metric=None)
    assert len(lines(caplog)) == 1 and "they are not padded, because the network mixes the rows" in caplog.text
    w, b = (np.asarray(run.params[k]) for k in ("fc_weight", "fc_bias"))
    mixed = [x @ w.T + b - (x @ w.T + b).mean(0) for x, _ in batches(SIZES[:6])]
    right = np.concatenate([z.argmax(1) for z in mixed]) == Y[: sum(SIZES[:6])]
    assert run.score(list(batches(SIZES[:6])), "accuracy")["accuracy"] == pytest.approx(right.mean())
    assert [line.split(":")[0] for line in lines(caplog)] == ["training", "scoring"]


# ------------------------------------------------------------------------------------------------ the sizes
@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=80), st.integers(1, 12))
def test_every_sequence_of_batches_is_padded_to_few_sizes_that_are_not_much_larger(counts, first):
    sizes = BatchSizes()
    for count in [first, first + 1, first + 2, *counts]:
        sizes = sizes.add(count)
        if not sizes.varies:
            assert sizes.sizes == () and len(sizes.counts) <= FEW
            continue
        size, largest = sizes.size_of(count), max(sizes.sizes)
        assert size in sizes.sizes and count <= size < max(2 * count, 2 * -(-largest // SPREAD))
        assert largest < 2 * max(first + 2, *counts)
        assert sum(size >= largest / SPREAD for size in sizes.sizes) <= 5
        assert len(sizes.sizes) <= 4 + np.log2(largest / min(sizes.sizes))


def test_full_batches_among_changing_ones_keep_their_program_without_row_weights():
    sizes = BatchSizes()
    for count in (64, 64, 50, 61, 7, 64, 60):
        sizes = sizes.add(count)
    assert sizes.sizes == (64, 16) and sizes.ran_without_weights(64) and not sizes.ran_without_weights(16)


def test_steps_that_depend_on_the_parts_of_a_batch_keep_the_padding_that_fixes_the_parts():
    valid = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=3), normalization="valid", name="softmax")
    nets = {"dense": mlp(), "dropout": mlp(dropout=0.5), "statistics": mlp(batch_norm=True), "valid": valid}
    models = {name: jfit.lower(net) for name, net in nets.items()}
    assert [name for name, model in models.items() if depends_on_parts(model, 2, "")] == ["statistics", "valid"]
    assert not any(depends_on_parts(model, 1, "") for model in models.values())
    data = data_of(models["statistics"], list(batches([4, 9, 3, 5, 7])), 8)
    source, rows = HostBatches(models["statistics"], data, 2, 8, paddable=True), []
    for epoch in range(2):
        with source.read(epoch) as stream:
            rows.append([2 * batch.inputs["data"].shape[1] for batch, _ in stream])
    assert rows == [[4, 10, 10, 10, 10], [10] * 5]
