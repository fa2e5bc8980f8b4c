"""What a loss gets besides outputs and labels: arrays that the model does not take, and the number of updates."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import jfit
from jfit.data import ArrayData, Batch

RNG = np.random.default_rng(0)
OPTIONS: Any = {"progress": False, "shuffle": False, "eval_metric": None, "optimizer": optax.adam(0.05), "batch_size": 8}


def by_hand(loss, params, batches, epochs=1):
    """Parameters after training with optax: `loss(params, batch, step)` is a scalar."""
    optimizer = optax.adam(0.05)
    state, step, gradient_of = optimizer.init(params), 0, jax.jit(jax.grad(loss))
    for batch in batches * epochs:
        updates, state = optimizer.update(gradient_of(params, batch, jnp.int32(step)), state, params)
        params, step = optax.apply_updates(params, updates), step + 1
    return params


def batches_of(data, size=8):
    return [{k: v[low : low + size] for k, v in data.items()} for low in range(0, len(data["obs"]), size)]


def assert_close(tree, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), tree, other)


# ------------------------------------------------------------------------------------------------ arrays only the loss takes
ROWS = 20
REPLAY = {
    "obs": RNG.normal(size=(ROWS, 4)).astype("float32"),
    "action": RNG.integers(0, 3, ROWS),
    "reward": RNG.normal(size=ROWS).astype("float32"),
    "next_obs": RNG.normal(size=(ROWS, 4)).astype("float32"),
    "done": RNG.integers(0, 2, ROWS).astype(bool),
}
Q = {"w": RNG.normal(size=(4, 3)).astype("float32"), "b": np.zeros((1, 3), "float32")}


def q_values(params, obs):
    return obs @ params["w"] + params["b"]


def dqn(q, batch, params):
    ahead = jax.lax.stop_gradient(q_values(params, batch["next_obs"]).max(1))
    target = batch["reward"] + 0.9 * jnp.where(batch["done"], 0.0, ahead)
    return optax.huber_loss(jnp.take_along_axis(q, batch["action"][:, None], 1)[:, 0], target)


def dqn_by_hand(params, batch, step):
    return dqn(q_values(params, batch["obs"]), batch, params).mean()


@pytest.mark.parametrize("loss", [dqn, jax.jit(dqn)])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("form", ["arrays", "host", "batches"])
def test_a_loss_reads_arrays_that_the_model_does_not_take(form, devices, loss):
    data = batches_of(REPLAY) if form == "batches" else REPLAY
    options = {**OPTIONS, "data_on_device": form == "arrays"}
    run = jfit.fit(q_values, data, data, params=Q, loss=loss, num_epoch=2, devices=devices, **options)
    params = by_hand(dqn_by_hand, Q, batches_of(REPLAY), 2)
    assert_close(run.params, params)
    expected = jax.jit(dqn_by_hand)(params, REPLAY, 0)
    np.testing.assert_allclose([run.score(data)["loss"], run.history.epochs[-1]["val_loss"]], expected, rtol=1e-5)
    np.testing.assert_allclose(run.predict({"obs": REPLAY["obs"]}), q_values(params, REPLAY["obs"]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run.predict(data), q_values(params, REPLAY["obs"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_batches", [False, True])
def test_arrays_that_the_loss_does_not_read_are_not_used(in_batches, caplog):
    more = {**REPLAY, "episode": np.arange(ROWS), "name": np.array(["a"] * ROWS), "info": {"lives": np.ones(ROWS)}}
    data = batches_of(REPLAY)
    if in_batches:
        data = [{**b, "episode": np.arange(len(b["obs"])), "name": ["a"] * len(b["obs"]), "epoch": 3} for b in data]
    run = jfit.fit(q_values, data if in_batches else more, params=Q, loss=dqn, num_epoch=1, **OPTIONS)
    assert_close(run.params, by_hand(dqn_by_hand, Q, batches_of(REPLAY)))
    assert sorted(run.settings.inputs) == sorted(REPLAY)
    assert "the data has 'episode'" in caplog.text and "not used" in caplog.text


def test_a_number_without_rows():
    def loss(outputs, batch):
        return batch["scale"] * (outputs**2).mean(1)

    data = [{"obs": REPLAY["obs"][low : low + 8], "scale": 0.5} for low in (0, 8)]
    run = jfit.fit(q_values, data, params=Q, loss=loss, row_axes={"scale": None}, num_epoch=1, **OPTIONS)
    scalar = lambda p, batch, _: 0.5 * (q_values(p, batch["obs"]) ** 2).mean()  # noqa: E731
    assert_close(run.params, by_hand(scalar, Q, batches_of({"obs": REPLAY["obs"][:16]})))


def test_rows_that_are_dicts():
    class Replay:
        def __len__(self):
            return ROWS

        def __getitem__(self, row):
            return {**{k: v[row] for k, v in REPLAY.items()}, "name": "a"}

    run = jfit.fit(q_values, jfit.data.Rows(Replay()), params=Q, loss=dqn, num_epoch=1, **OPTIONS)
    assert_close(run.params, by_hand(dqn_by_hand, Q, batches_of(REPLAY)))


def test_the_loss_reads_a_pytree_and_the_label():
    def loss(outputs, batch):
        return ((outputs - batch["label"]) ** 2).mean(1) * batch["extra"]["scale"]["row"]

    data = {"obs": REPLAY["obs"], "label": REPLAY["next_obs"][:, :3], "extra": {"scale": {"row": REPLAY["reward"] ** 2}}}
    run = jfit.fit(q_values, data, params=Q, loss=loss, num_epoch=1, **OPTIONS)

    def scalar(params, batch, step):
        return (((q_values(params, batch["obs"]) - batch["label"]) ** 2).mean(1) * batch["scale"]).mean()

    flat = {"obs": REPLAY["obs"], "label": REPLAY["next_obs"][:, :3], "scale": REPLAY["reward"] ** 2}
    assert_close(run.params, by_hand(scalar, Q, batches_of(flat)))


@pytest.mark.parametrize("form", ["frame", "dict", "batches"])
def test_a_loss_of_the_batch_gets_the_column_of_label(form):
    x, y = REPLAY["obs"], REPLAY["reward"]
    data = {"x": x[:, :2], "y": y}
    if form == "frame":
        data = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
    elif form == "batches":
        data = [{name: array[:10] for name, array in data.items()}] * 2
    options = OPTIONS | {"params": {"w": jnp.ones(2)}, "label": "y", "batch_size": 10}

    def linear(params, x):
        return x @ params["w"]

    run = jfit.fit(linear, data, loss=lambda out, batch: (out - batch["label"]) ** 2, **options)
    same = jfit.fit(linear, data, loss=lambda out, label: (out - label) ** 2, **options)
    np.testing.assert_array_equal(run.params["w"], same.params["w"])
    assert run.predict({"x": x[:, :2]}).shape == (ROWS,)


def test_arrays_of_the_loss_that_are_missing():
    few = {k: v for k, v in REPLAY.items() if k != "done"}
    with pytest.raises(KeyError) as caught:
        jfit.fit(q_values, few, params=Q, loss=dqn, num_epoch=1, **OPTIONS)
    assert "its batch has the arrays ['obs', 'action', 'next_obs', 'reward']" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="input 'done' is missing"):
        jfit.fit(q_values, REPLAY, few, params=Q, loss=dqn, num_epoch=1, **OPTIONS)


def test_a_step_and_array_data_of_the_user():
    model = jfit.Model.from_function(q_values, loss=dqn, params=Q)
    batches = batches_of(REPLAY)
    state, step = jfit.init_state(model, optax.adam(0.05), batches[0]), jax.jit(jfit.train_step(model, optax.adam(0.05)))
    for batch in batches:
        state, _ = step(state, batch)
    expected = by_hand(dqn_by_hand, Q, batches)
    assert_close(state.params, expected)
    for data in (ArrayData(REPLAY, shuffle=False), [Batch(batch) for batch in batches]):
        run = jfit.fit(q_values, data, params=Q, loss=dqn, num_epoch=1, **OPTIONS)
        assert_close(run.params, expected)


# ------------------------------------------------------------------------------------------------ the number of updates
X = RNG.normal(size=(20, 6)).astype("float32")
VAE = {n: RNG.normal(size=s).astype("float32") / 3 for n, s in {"mean": (6, 2), "log_var": (6, 2), "decode": (2, 6)}.items()}


def vae(params, x):
    mean, log_var = x @ params["mean"], x @ params["log_var"]
    return {"x": (mean + 0.1 * jnp.exp(0.5 * log_var)) @ params["decode"], "mean": mean, "log_var": log_var}


def elbo(outputs, batch, step):
    kl = 0.5 * (jnp.exp(outputs["log_var"]) + outputs["mean"] ** 2 - 1 - outputs["log_var"]).sum(1)
    return ((outputs["x"] - batch["x"]) ** 2).sum(1) + jnp.minimum(1.0, step / 10) * kl


def elbo_by_hand(params, batch, step):
    return elbo(vae(params, batch["obs"]), {"x": batch["obs"]}, step).mean()


VAE_OPTIONS: Any = {"params": VAE, "loss": elbo, "num_epoch": 4, **OPTIONS}


def test_a_loss_takes_the_number_of_updates():
    run = jfit.fit(vae, X, X, **VAE_OPTIONS)
    params = by_hand(elbo_by_hand, VAE, batches_of({"obs": X}), 4)
    assert_close(run.params, params)
    expected = [jax.jit(elbo_by_hand)(params, {"obs": X}, step) for step in (12, 0)]
    assert abs(expected[0] - expected[1]) > 0.1
    assert run.score(X)["loss"] == pytest.approx(float(expected[0]), rel=1e-5)
    assert run.history.epochs[-1]["val_loss"] == pytest.approx(float(expected[0]), rel=1e-5)
    streamed = jfit.fit(vae, [(X[:8],), (X[8:16],), (X[16:],)], [(X,)], **VAE_OPTIONS)
    assert_close(streamed.params, params)
    assert streamed.history.epochs[-1]["val_loss"] == pytest.approx(float(expected[0]), rel=1e-5)


@pytest.mark.parametrize(
    "more", [{"micro_batches": 2}, {"devices": 2}, {"reduce": "ordered"}, {"devices": 2, "reduce": "sharded"}], ids=str
)
def test_the_number_of_updates_in_other_steps(more):
    run = jfit.fit(vae, X, **VAE_OPTIONS, **more)
    assert_close(run.params, by_hand(elbo_by_hand, VAE, batches_of({"obs": X}), 4))


def test_equal_bits_of_a_loss_with_the_number_of_updates(tmp_path):
    """For any number of steps of a dispatch, and after an interruption."""
    one = jfit.fit(vae, X, steps_per_call=1, **VAE_OPTIONS)
    many = jfit.fit(vae, X, **VAE_OPTIONS)
    jfit.fit(vae, X, checkpoint=tmp_path, **{**VAE_OPTIONS, "num_epoch": 2})
    resumed = jfit.fit(vae, X, checkpoint=tmp_path, resume=True, **VAE_OPTIONS)
    for run in (many, resumed):
        jax.tree.map(np.testing.assert_array_equal, run.params, one.params)


def test_a_fixed_number_is_not_replaced():
    def loss(output, label, step=3):
        return ((output - label) ** 2).mean(1) * step

    run = jfit.fit(q_values, (X[:, :4], X[:, 3:]), params=Q, loss=functools.partial(loss, step=2), num_epoch=1, **OPTIONS)
    scalar = lambda p, b, _: ((q_values(p, b["obs"]) - b["y"]) ** 2).mean() * 2  # noqa: E731
    assert_close(run.params, by_hand(scalar, Q, batches_of({"obs": X[:, :4], "y": X[:, 3:]})))
