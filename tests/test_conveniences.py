"""Conveniences of training: averaged parameters, best checkpoints, schedules, values per step, profiles, regularizers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fit_support import bits, blobs, mlp, same, train

import jfit


def linear_model(params: dict[str, Any] | None = None) -> jfit.Model:
    start = {"w": jnp.full((4,), 0.5), "b": jnp.zeros(())} if params is None else params
    return jfit.Model.from_function(lambda p, x: x @ p["w"] + p["b"], loss=optax.l2_loss, params=start)


def linear_data(rows: int = 48) -> tuple[np.ndarray, np.ndarray]:
    x, _ = blobs(rows)
    return x, (x @ np.array([1.0, -2.0, 0.5, 0.0]) + 1).astype(np.float32)


# ------------------------------------------------------------------------------------------------ averaged parameters
def weights_by_step(steps: int, **given: Any) -> list[dict[str, np.ndarray]]:
    """Parameters after each step of `train`, from a run of one step per dispatch."""
    seen: list[dict[str, np.ndarray]] = []
    look = jfit.callbacks.lambda_callback(
        every=1, step=lambda e: seen.append({k: np.array(v) for k, v in e.run.state.params.items()})
    )
    train(callbacks=[look], steps_per_call=1, **given)
    return seen[:steps]


@pytest.mark.parametrize("debias", [True, False])
def test_the_average_is_that_of_a_hand_loop_with_optax(debias):
    trained = weights_by_step(14, shuffle=False)
    run = train(shuffle=False, ema={"decay": 0.8, "debias": debias})
    start = train(shuffle=False, num_epoch=1, optimizer_params={"learning_rate": 0.0}).params
    average = optax.ema(0.8, debias=debias)
    state: Any = average.init(start)
    state = state if debias else state._replace(ema={k: jnp.asarray(v) for k, v in start.items()})
    expected = start
    for weights in trained:
        expected, state = average.update(weights, state)
    for name, value in run.params.items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=1e-7)
        assert not np.allclose(value, run.raw_params[name], rtol=1e-4)


def test_averaging_does_not_change_the_training_and_steps_per_call_do_not_change_the_average():
    plain, one, many = train(), train(ema=0.9, steps_per_call=1), train(ema=0.9, steps_per_call=5)
    assert bits(plain.state.params) == bits(one.state.params)
    assert same(one, many)


def test_evaluation_score_and_predict_use_the_average():
    data = blobs()
    run = train(data=data, eval_data=data, ema=0.9)
    by_hand = jfit.score(run.model, data, params=run.params)
    assert run.history.epochs[-1]["val_loss"] == pytest.approx(by_hand["loss"], rel=1e-6)
    assert run.score(data)["loss"] == pytest.approx(by_hand["loss"], rel=1e-6)
    assert abs(jfit.score(run.model, data, params=run.raw_params)["loss"] - by_hand["loss"]) > 1e-3
    np.testing.assert_array_equal(run.predict(data[0]), jfit.predict(run.model, data[0], params=run.named_params, batch_size=8))


def test_a_resumed_run_has_the_same_average_and_run_load_reads_it(tmp_path):
    whole = train(ema=0.9, num_epoch=3)
    train(ema=0.9, num_epoch=1, checkpoint=tmp_path, checkpoint_every=3)
    resumed = train(ema=0.9, num_epoch=3, checkpoint=tmp_path, resume=True)
    assert same(whole, resumed)
    assert bits(jfit.Run.load(tmp_path).params) == bits(resumed.params)
    with pytest.raises(ValueError, match="a run with ema=, but this one has none"):
        train(num_epoch=4, resume=tmp_path)


def test_devices_micro_batches_and_frozen_parameters_work_with_an_average():
    expected = train(ema=0.9, frozen=["fc1_*"])
    run = train(ema=0.9, frozen=["fc1_*"], devices=2, micro_batches=2)
    for name, value in run.params.items():
        np.testing.assert_allclose(value, expected.params[name], rtol=1e-5, atol=1e-6)
    assert bits(run.params["fc1_weight"]) == bits(run.raw_params["fc1_weight"])
    assert set(run.state.opt_state.ema_params) == {"fc2_weight", "fc2_bias"}


def test_the_average_of_a_function_has_its_tree_with_optax_and_in_half_precision():
    start = {"layers": [{"w": np.full(4, 0.5, "float16")}, {"b": np.zeros((), "float16")}]}
    apply = lambda p, x: x @ p["layers"][0]["w"] + p["layers"][1]["b"]  # noqa: E731
    loss = lambda output, label: (output - label) ** 2  # noqa: E731
    settings: dict[str, Any] = {"num_epoch": 2, "batch_size": 8, "progress": False}
    run = jfit.fit(
        apply, linear_data(), params=start, loss=loss, optimizer=optax.adam(0.01), frozen=["layers/1/*"], ema=0.5, **settings
    )
    assert jax.tree.structure(run.params) == jax.tree.structure(start)
    assert run.params["layers"][0]["w"].dtype == np.float16 and float(run.params["layers"][1]["b"]) == 0
    assert run.state.opt_state.ema_params["layers/0/w"].dtype == np.float32


def test_the_average_of_a_sparse_table_is_that_of_a_dense_one_and_batches_of_weight_0_leave_it():
    def net(sparse: bool) -> jfit.Symbol:
        table = jfit.sym.Variable("table_weight", stype="row_sparse") if sparse else jfit.sym.Variable("table_weight")
        vectors = jfit.sym.Embedding(
            jfit.sym.Variable("data"), table, input_dim=6, output_dim=3, sparse_grad=sparse, name="table"
        )
        return jfit.sym.SoftmaxOutput(vectors, name="softmax")

    data = {"data": np.arange(12, dtype="float32") % 5, "softmax_label": np.arange(12, dtype="float32") % 3}
    dense, sparse = (train(net(s), data, batch_size=4, optimizer_params={"learning_rate": 0.5}, ema=0.7) for s in (False, True))
    np.testing.assert_allclose(sparse.params["table_weight"], dense.params["table_weight"], rtol=1e-6)
    model, optimizer = jfit.lower(net(True)), jfit.optim.ema("sgd", 0.7)
    assert "table_weight" in model.tables
    batch = {k: v[:4] for k, v in data.items()}
    step = jax.jit(jfit.train_step(model, optimizer))
    state, _ = step(jfit.init_state(model, optimizer, batch, learning_rate=1.0), batch)
    after, _ = step(state, jfit.Batch(batch, np.zeros(4, "float32"), np.zeros(4, "float32")))
    assert bits(after.opt_state) == bits(state.opt_state)


def test_decay_is_checked_and_may_be_a_function():
    for decay in (1.0, -0.1, True):
        with pytest.raises(ValueError, match="from 0 to below 1"):
            train(ema=decay)
    with pytest.raises(ValueError, match="wrap it once"):
        train(optimizer=jfit.optim.ema("sgd"), optimizer_params=None, ema=0.9)
    run = train(ema=lambda t: jnp.where(t == 14, 0.0, 0.9))  # the last of 14 updates forgets all others
    assert bits(run.params) == bits(run.raw_params)
    scheduled = jfit.optim.ema(jfit.optim.sgd(jfit.optim.cosine(20, base_lr=0.1)))
    assert "lr" in train(optimizer=scheduled, optimizer_params=None).history.epochs[-1]


# ------------------------------------------------------------------------------------------------ values of single steps
def rows_by_hand(epochs: int = 2, size: int = 8) -> list[tuple[float, float]]:
    """(loss, accuracy) of the batches of `train(shuffle=False)`, one step after the other."""
    x, y = blobs()
    model, optimizer = jfit.lower(mlp()), jfit.optim.sgd(0.1, momentum=0.9)
    acc = jfit.metrics.get("acc")
    step = jax.jit(jfit.train_step(model, optimizer, metrics=acc, outputs=True))
    state = jfit.init_state(model, optimizer, {"data": x[:size], "softmax_label": y[:size]}, metrics=acc)
    rows = []
    for low in [*range(0, len(x), size)] * epochs:
        batch = {"data": x[low : low + size], "softmax_label": y[low : low + size]}
        state, out = step(state, batch)
        rows.append((float(out.loss), float(np.mean(np.argmax(out.outputs[0], 1) == batch["softmax_label"]))))
    return rows


def test_log_every_records_loss_rate_and_metrics_of_steps_and_changes_no_bits():
    expected, plain = rows_by_hand(), train(shuffle=False)
    for given in ({"steps_per_call": 1}, {"steps_per_call": 5}, {"data_on_device": False, "steps_per_call": 3}):
        run = train(shuffle=False, log_every=1, **given)
        assert same(plain, run)
        steps = run.history.steps
        assert [(row["epoch"], row["batch"], row["step"]) for row in steps] == [(i // 7, i % 7 + 1, i + 1) for i in range(14)]
        np.testing.assert_allclose([row["loss"] for row in steps], [loss for loss, _ in expected], rtol=1e-5)
        np.testing.assert_allclose([row["accuracy"] for row in steps], [acc for _, acc in expected], rtol=1e-6)
        assert {row["lr"] for row in steps} == {np.float32(0.1).item()}
    third = train(shuffle=False, log_every=3, steps_per_call=5).history
    assert third.steps == [row for row in steps if row["step"] % 3 == 0]
    assert jfit.train.history.History.from_json(third.to_json()) == third
    assert third.columns("steps") == ["epoch", "batch", "step", "lr", "loss", "accuracy"]


def test_step_log_events_come_in_order_before_the_end_of_the_epoch_and_leave_many_steps_in_a_dispatch():
    seen: list[Any] = []
    watch = jfit.callbacks.lambda_callback(
        every=2, step_log=lambda e: seen.append((e.step, e.logs["loss"])), epoch_end=lambda e: seen.append("end")
    )
    with jfit.counters.counted() as counts:
        run = train(callbacks=[watch], log_every=2, steps_per_call=4)
    losses = [(row["step"], row["loss"]) for row in run.history.steps]
    assert seen == [*losses[:3], "end", *losses[3:], "end"]
    with jfit.counters.counted() as plain:
        train(steps_per_call=4)
    assert counts["host_syncs"] == plain["host_syncs"]
    with pytest.raises(ValueError, match="'step_log' events need every=N"):
        train(callbacks=[jfit.callbacks.lambda_callback(step_log=seen.append)])
    with pytest.raises(ValueError, match="log_every is 0"):
        train(log_every=0)


def test_recorded_steps_survive_checkpoints_within_an_epoch_interruptions_and_devices(tmp_path):
    whole = train(log_every=1, steps_per_call=2)

    def stop(event: Any) -> None:
        if event.step == 10:
            event.run.stop()

    first = train(
        log_every=1,
        steps_per_call=2,
        checkpoint=tmp_path,
        checkpoint_every=2,
        callbacks=[jfit.callbacks.lambda_callback(every=10, step=stop)],
    )
    assert first.history.steps == whole.history.steps[:10]
    resumed = train(log_every=1, steps_per_call=2, checkpoint=tmp_path, checkpoint_every=2, resume=True)
    assert resumed.history.steps == whole.history.steps
    split = train(log_every=1, steps_per_call=2, devices=2, micro_batches=2).history
    np.testing.assert_allclose(split.column("loss", "steps"), whole.history.column("loss", "steps"), rtol=1e-5)


def test_recorded_steps_leave_out_host_metrics_and_arrays_and_a_metric_that_jax_cannot_trace_is_refused():
    metrics = ["acc", jfit.metrics.confusion_matrix(), lambda label, output: 1.0]
    run = train(eval_metric=metrics, log_every=1, num_epoch=1)
    assert set(run.history.steps[0]) == {"epoch", "batch", "step", "lr", "loss", "accuracy"} and len(run.history.steps) == 7
    accuracy = jfit.metrics.accuracy()
    untraced = accuracy._replace(name="own", compute=lambda sums: {"own": float(sums[0])})
    with pytest.raises(ValueError, match="metric 'own' cannot be computed for single steps"):
        train(eval_metric=[untraced], log_every=1)
