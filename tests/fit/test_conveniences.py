"""Conveniences of training: averaged parameters, best checkpoints, schedules, values per step, regularizers."""

from __future__ import annotations

import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fit_support import bits, blobs, mlp, same, train

import jfit
from jfit.history.plots import is_score


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


@pytest.mark.slow
@pytest.mark.repetitions(1)
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_resumed_run_has_the_same_average_and_run_load_reads_it(tmp_path):
    whole = train(ema=0.9, num_epoch=3)
    train(ema=0.9, num_epoch=1, checkpoint=tmp_path, checkpoint_every=3)
    resumed = train(ema=0.9, num_epoch=3, checkpoint=tmp_path, resume=True)
    assert same(whole, resumed)
    assert bits(jfit.Run.load(tmp_path).params) == bits(resumed.params)
    with pytest.raises(ValueError, match="a run with ema=, but this one has none"):
        train(num_epoch=4, resume=tmp_path)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_decay_is_checked_and_may_be_a_function():
    for decay in (1.0, -0.1, True, "0.9", {"decay": None}):
        with pytest.raises(ValueError, match="from 0 to below 1"):
            train(ema=decay)
    with pytest.raises(ValueError, match="ema has 'dekay'; expected a dict with 'decay' and 'debias'"):
        train(ema={"dekay": 0.9})
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


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(
    "given", [{"steps_per_call": 5}, {"steps_per_call": 1}, {"data_on_device": False, "steps_per_call": 3}]
)
def test_log_every_records_loss_rate_and_metrics_of_steps_and_changes_no_bits(given):
    expected, run = rows_by_hand(), train(shuffle=False, log_every=1, **given)
    assert same(train(shuffle=False), run)
    steps = run.history.steps
    assert [(row["epoch"], row["batch"], row["step"]) for row in steps] == [(i // 7, i % 7 + 1, i + 1) for i in range(14)]
    np.testing.assert_allclose([row["loss"] for row in steps], [loss for loss, _ in expected], rtol=1e-5)
    np.testing.assert_allclose([row["accuracy"] for row in steps], [acc for _, acc in expected], rtol=1e-6)
    assert {row["lr"] for row in steps} == {np.float32(0.1).item()}


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_recorded_steps_leave_out_host_metrics_and_arrays_and_a_metric_that_jax_cannot_trace_is_refused():
    metrics = ["acc", jfit.metrics.confusion_matrix(), lambda label, output: 1.0]
    run = train(eval_metric=metrics, log_every=1, num_epoch=1)
    assert set(run.history.steps[0]) == {"epoch", "batch", "step", "lr", "loss", "accuracy"} and len(run.history.steps) == 7
    accuracy = jfit.metrics.accuracy()
    untraced = accuracy._replace(name="own", compute=lambda sums: {"own": float(sums[0])})
    with pytest.raises(ValueError, match="metric 'own' cannot be computed for single steps"):
        train(eval_metric=[untraced], log_every=1)


# ------------------------------------------------------------------------------------------------ best checkpoints
def saved(folder: Any) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


class Replayed:
    """Replaces the logged value "val_loss" of each epoch by one of a list, before the other callbacks get the event."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __call__(self, event: Any) -> None:
        event.logs["val_loss"] = self.values[event.epoch]


def test_the_best_checkpoints_are_kept_with_the_newest_and_survive_a_resume(tmp_path):
    losses = [0.5, 0.3, 0.9, float("nan"), 0.4, 0.8, 0.7]
    settings: dict[str, Any] = {"data": blobs(16), "checkpoint": None}

    def best(folder: Any, **given: Any) -> list[Any]:
        return [Replayed(losses), jfit.callbacks.checkpointing(folder, keep=1, keep_best=2, **given)]

    first = train(num_epoch=2, callbacks=best(tmp_path / "a"), **settings)
    assert saved(tmp_path / "a") == [2, 4]  # two steps per epoch: the best are epochs 1 and 0
    train(num_epoch=7, callbacks=best(tmp_path / "a"), resume=tmp_path / "a", **settings)
    assert saved(tmp_path / "a") == [4, 10, 14]
    record = jfit.checkpoint.load_meta(tmp_path / "a")["best"]
    assert record == {"monitor": "val_loss", "mode": "min", "checkpoints": [[0.3, 4], [0.4, 10]]}
    loaded = jfit.Run.load(tmp_path / "a", which="best")
    assert loaded.position["step"] == 4 and jfit.checkpoint.best(tmp_path / "a").name == "step-00000004"
    assert bits(loaded.params) == bits(first.params)

    train(num_epoch=7, callbacks=best(tmp_path / "b", every=3, mode="max"), **settings)
    assert saved(tmp_path / "b") == [6, 12, 14]  # the values 0.9 and 0.8, and the end


def test_fit_keeps_the_best_checkpoint_by_name_and_refuses_what_it_cannot_monitor(tmp_path):
    data = blobs(16)
    run = train(data=data, eval_data=data, num_epoch=5, checkpoint=tmp_path / "a", checkpoint_best="val_accuracy")
    accuracy = run.history.column("val_accuracy")
    assert jfit.checkpoint.best(tmp_path / "a").name == f"step-{2 * accuracy.index(max(accuracy)) + 2:08d}"
    with pytest.raises(ValueError, match="checkpoint_best='val_loss' needs checkpoint="):
        train(checkpoint_best="val_loss")
    with pytest.raises(ValueError, match=r"monitor='val_loss' is not logged.*Pass eval_data="):
        train(data=data, checkpoint=tmp_path / "b", checkpoint_best="val_loss")
    train(data=data, num_epoch=1, checkpoint=tmp_path / "c")
    with pytest.raises(ValueError, match="did not keep its best checkpoints; pass checkpoint_best"):
        jfit.Run.load(tmp_path / "c", which="best")
    with pytest.raises(ValueError, match='which is \'first\'; expected "newest" or "best"'):
        jfit.Run.load(tmp_path / "c", which="first")
    with pytest.raises(ValueError, match="keep_best is -1"):
        jfit.callbacks.checkpointing("a", keep_best=-1)


def test_the_loss_of_an_output_is_minimized_whatever_the_name_of_the_output():
    for name in ("acc_loss", "val_acc_loss", "auc_mse", "r2_rmse", "val_f1_perplexity", "acc_cross-entropy", "recall_nll-loss"):
        assert not is_score(name)
    for name in ("acc", "val_accuracy", "loss_accuracy", "a_top_k_accuracy_3", "mse_roc_auc", "acc_r2", "err_f1"):
        assert is_score(name)


def test_a_run_resumed_into_another_folder_copies_the_best_checkpoints(tmp_path, caplog, monkeypatch):
    a, b = tmp_path / "a", tmp_path / "b"
    settings: dict[str, Any] = {"data": blobs(8), "checkpoint_best": "val_loss", "callbacks": [Replayed([0.3, 0.5, 0.4, 0.6])]}
    train(num_epoch=2, checkpoint=a, **settings)
    train(num_epoch=4, checkpoint=b, resume=a, **settings)
    assert saved(b) == [1, 3, 4] and saved(a) == [1, 2]
    assert jfit.Run.load(b, which="best").position["step"] == 1
    assert bits(jfit.checkpoint.load_arrays(jfit.checkpoint.best(b))) == bits(jfit.checkpoint.load_arrays(a / "step-00000001"))
    train(num_epoch=4, checkpoint=tmp_path / "d", resume=b, **settings)  # nothing is left to train
    assert saved(tmp_path / "d") == [1, 4] and jfit.Run.load(tmp_path / "d", which="best").position["step"] == 1
    shutil.rmtree(a / "step-00000001")
    train(num_epoch=4, checkpoint=tmp_path / "c", resume=a, **settings)
    assert jfit.checkpoint.best(tmp_path / "c").name == "step-00000003"
    assert "one of the best checkpoints of this run, was deleted" in caplog.text
    monkeypatch.chdir(tmp_path)
    train(num_epoch=3, checkpoint="a", resume=a, **settings)  # the same folder: its checkpoints are of this run
    assert saved(a) == [2, 3] and not (a / "earlier-1").exists()


# ------------------------------------------------------------------------------------------------ schedules
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("steps", [10, 137])
def test_one_cycle_is_that_of_optax(steps):
    cosine = optax.cosine_onecycle_schedule(steps, 0.5, 0.25, 10.0, 100.0)
    linear = optax.linear_onecycle_schedule(steps, 0.5, 0.25, 0.8, 10.0, 100.0)
    numbers = np.arange(steps + 3)
    for expected, anneal in ((cosine, "cosine"), (linear, "linear")):
        cycle = jfit.optim.one_cycle(steps, 0.5, 0.25, 10.0, 100.0, anneal=anneal, pct_final=0.8)
        np.testing.assert_allclose(
            jax.jit(jax.vmap(cycle))(numbers + 1), jax.jit(jax.vmap(expected))(numbers), rtol=2e-5, atol=1e-7
        )
    assert float(cycle(1, base=5.0)) == pytest.approx(10 * float(cycle(1)))


def test_arguments_of_one_cycle_are_checked():
    with pytest.raises(ValueError, match="anneal is 'exp'"):
        jfit.optim.one_cycle(10, anneal="exp")
    with pytest.raises(ValueError, match="changes direction at the updates"):
        jfit.optim.one_cycle(3)


class FakeRun:
    """What `reduce_on_plateau` uses of a run."""

    def __init__(self) -> None:
        self.base_lr, self.settings = 1.0, type("Settings", (), {"ignores_base_lr": False})

    def set_base_lr(self, rate: float) -> None:
        self.base_lr = rate


@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("patience", "cooldown"), [(1, 0), (2, 3), (3, 1)])
def test_reduce_on_plateau_has_the_rates_of_optax(patience, cooldown):
    values = np.random.default_rng(patience).choice([0.5, 0.5005, 0.49, 0.4, 0.7, np.nan], 60)
    values[0] = 0.6
    options: dict[str, Any] = {"factor": 0.5, "patience": patience, "cooldown": cooldown}
    reference = optax.contrib.reduce_on_plateau(rtol=0.0, atol=1e-3, min_scale=1e-3, **options)
    state, run = reference.init({}), FakeRun()
    callback = jfit.callbacks.reduce_on_plateau(min_delta=1e-3, min_lr=1e-3, **options)
    own = callback.init()
    update = jax.jit(lambda state, value: reference.update({}, state, value=value)[1])
    for epoch, value in enumerate(values):
        own = callback.on(jfit.callbacks.Event("epoch_end", epoch, 0, 0, None, {"val_loss": float(value)}, run), own)
        state = update(state, jnp.float32(value))
        assert run.base_lr == pytest.approx(float(state.scale)), epoch
    assert run.base_lr < 0.3


@pytest.mark.slow
def test_reduce_on_plateau_reduces_the_rate_of_a_run_and_is_resumed(tmp_path):
    def settings(epochs: int) -> dict[str, Any]:
        plateau = jfit.callbacks.reduce_on_plateau("loss", min_delta=10.0, patience=2, factor=0.5)
        return {"data": blobs(16), "callbacks": [plateau], "num_epoch": epochs}

    whole = train(**settings(6))
    assert np.allclose(whole.history.column("lr"), [0.1, 0.1, 0.1, 0.05, 0.05, 0.025])
    train(**settings(4), checkpoint=tmp_path)
    assert same(train(**settings(6), checkpoint=tmp_path, resume=True), whole)
    with pytest.raises(ValueError, match="the learning rate of an optax instance cannot be reduced"):
        train(**settings(1), optimizer=optax.sgd(0.1), optimizer_params=None)
    with pytest.raises(ValueError, match="number of updates alone; pass a function"):
        train(**settings(1), schedule=optax.constant_schedule(0.1))
    with pytest.raises(ValueError, match=r"factor is 1\.0; expected a number from 0 to below 1"):
        jfit.callbacks.reduce_on_plateau(factor=1.0)


# ------------------------------------------------------------------------------------------------ regularizers
def regularized_by_hand(epochs: int, clip: float) -> tuple[dict[str, Any], list[float]]:
    """SGD on mean loss + 0.1 |w|_1 + 0.2 |w|_2^2, with clipping by norm: (parameters, mean loss of each epoch)."""
    x, y = linear_data()

    def objective(p: dict[str, Any], x: Any, y: Any) -> Any:
        loss = jnp.mean(0.5 * (x @ p["w"] + p["b"] - y) ** 2)
        return loss + 0.1 * jnp.sum(jnp.abs(p["w"])) + 0.2 * jnp.sum(p["w"] ** 2)

    params: Any = {"w": jnp.full((4,), 0.5), "b": jnp.zeros(())}
    optimizer = optax.chain(optax.clip_by_global_norm(clip), optax.sgd(0.1))
    state, losses = optimizer.init(params), []
    step = jax.jit(jax.value_and_grad(objective))
    for _ in range(epochs):
        values = []
        for low in range(0, 48, 8):
            loss, gradients = step(params, x[low : low + 8], y[low : low + 8])
            updates, state = optimizer.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
            values.append(float(loss))
        losses.append(float(np.mean(values)))
    return params, [*losses, float(objective(params, x, y))]


@pytest.mark.slow
def test_regularizers_are_added_to_the_gradient_and_to_the_reported_losses_as_in_a_hand_loop():
    params, losses = regularized_by_hand(2, clip=0.7)
    settings: dict[str, Any] = {
        "batch_size": 8,
        "num_epoch": 2,
        "shuffle": False,
        "optimizer_params": {"learning_rate": 0.1},
        "clip_norm": 0.7,
        "regularizers": {"w*": jfit.regularizers.l1(0.1), "w": jfit.regularizers.l2(0.2)},
        "eval_data": linear_data(),
        "progress": False,
    }
    for extra in ({"eval_batch_size": 20, "data_on_device": False}, {"micro_batches": 2, "devices": 2}):
        run = jfit.fit(linear_model(), linear_data(), **settings | extra)
        for name, value in run.params.items():
            np.testing.assert_allclose(value, params[name], rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose([*run.history.column("loss"), run.score(linear_data())["loss"]], losses, rtol=1e-5)
        assert run.history.column("val_loss")[-1] == pytest.approx(losses[-1], rel=1e-5)


@pytest.mark.slow
def test_regularizers_leave_frozen_parameters_out_and_wrong_ones_are_refused():
    l2 = jfit.regularizers.l2
    run = train(num_epoch=1, regularizers={"*_weight": l2(0.1)}, frozen=["fc1_*"])
    data = blobs()
    plain = jfit.score(run.model, data, params=run.params)["loss"]
    assert run.score(data)["loss"] == pytest.approx(plain + float(l2(0.1)(run.params["fc2_weight"])), rel=1e-5)
    for patterns, message in (
        ({"*kernel": l2(0.1)}, "regularizers has '.kernel', which matches no trainable parameter"),
        ({"fc1_*": l2(0.1)}, "regularizers has 'fc1_.', which matches no trainable parameter"),
        ({"fc2_weight": lambda w: w}, "returned an array of shape .3, 8. .*expected a scalar"),
    ):
        with pytest.raises(ValueError, match=message):
            train(regularizers=patterns, frozen=["fc1_*"])
    with pytest.raises(TypeError, match="expected a function of one parameter"):
        train(regularizers={"fc1_*": 1e-4})
    table = jfit.sym.Embedding(jfit.sym.Variable("data"), input_dim=6, output_dim=3, sparse_grad=True, name="table")
    data = {"data": np.arange(12, dtype="float32") % 5, "softmax_label": np.arange(12, dtype="float32") % 3}
    with pytest.raises(ValueError, match="embedding table table_weight: its gradients are row-sparse"):
        train(jfit.sym.SoftmaxOutput(table, name="softmax"), data, regularizers={"*": l2(0.1)})
