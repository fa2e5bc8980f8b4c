"""What the log shows of each step: norms of gradients and updates, values of the loss, and learning rates of optax optimizers,
compared with the same training by hand in JAX and optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_nets import batch_of, mlp
from fit_support import blobs, train
from test_step_rows import stepped as table_steps

import jfit
from jfit import counters
from jfit.step.reduce import unreduced

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0]) + 1).astype("float32")
START = {"w": jnp.full(4, 0.5), "b": jnp.zeros(())}
BOTH = ("grad_norm", "update_norm")
COSINE = optax.cosine_decay_schedule(0.1, 6)


def linear(params, x):
    return x @ params["w"] + params["b"]


def fitted(optimizer: Any, **more: Any) -> jfit.Run:
    given = {"params": START, "loss": optax.l2_loss, "batch_size": 8, "num_epoch": 2, "shuffle": False, "progress": False}
    return jfit.fit(linear, (X, Y), optimizer=optimizer, eval_metric=None, **(given | more))


def by_hand(optimizer: Any, penalty: float = 0.0) -> list[tuple[float, float]]:
    """(gradient norm, update norm) of each step of `fitted`."""

    @jax.jit
    def step(params, state, x, y):
        def mean_loss(p):
            return jnp.mean(optax.l2_loss(linear(p, x), y)) + penalty * jnp.sum(p["w"] ** 2)

        gradients = jax.grad(mean_loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, optax.global_norm(gradients), optax.global_norm(updates)

    params, state, rows = START, optimizer.init(START), []
    for low in [0, 8, 16] * 2:
        params, state, *norms = step(params, state, X[low : low + 8], Y[low : low + 8])
        rows.append(tuple(map(float, norms)))
    return rows


# ------------------------------------------------------------------------------------------------ norms
@pytest.mark.repetitions(3)
@pytest.mark.parametrize("more", [{}, {"devices": 2}, {"steps_per_call": 3}, {"micro_batches": 2, "data_on_device": False}])
def test_norms_of_steps_and_epochs_are_those_of_a_loop_in_optax(more):
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.1, weight_decay=0.1))
    regularizers = {"w": lambda w: 0.01 * jnp.sum(w**2)}
    run = fitted(optimizer, log=("lr", *BOTH), log_every=1, regularizers=regularizers, **more)
    expected = by_hand(optimizer, 0.01)
    rows = [(row["grad_norm"], row["update_norm"]) for row in run.history.steps]
    np.testing.assert_allclose(rows, expected, rtol=1e-5)
    means = [(row["grad_norm"], row["update_norm"]) for row in run.history.epochs]
    np.testing.assert_allclose(means, [np.mean(expected[:3], axis=0), np.mean(expected[3:], axis=0)], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{"reduce": "ordered"}, {"reduce": "sharded"}, {"reduce": "sharded_parameters"}, "mesh"])
def test_norms_are_global_however_the_state_is_split(more):
    split = (
        {"shard": {"fc1_weight": ("model", None)}, "mesh": {"data": 1, "model": 2}}
        if more == "mesh"
        else {**more, "devices": 2}
    )
    given = {"log": BOTH, "log_every": 1, "data": blobs(48), "clip_norm": 0.1}
    runs = [train(**given), train(**given, **split)]
    one, other = ([(row["grad_norm"], row["update_norm"]) for row in run.history.steps] for run in runs)
    np.testing.assert_allclose(one, other, rtol=2e-5)


@pytest.mark.parametrize("optimizer", [jfit.optim.sgd(0.5), optax.sgd(0.5)], ids=["by rows", "dense"])
def test_norms_of_a_table_with_row_sparse_gradients_are_those_of_the_whole_table(optimizer):
    (_, out), (_, whole) = (table_steps(sparse, optimizer, log=BOTH, clip_norm=0.05) for sparse in (True, False))
    for name in BOTH:
        np.testing.assert_allclose(out.metrics[name], whole.metrics[name], rtol=1e-6)


def test_a_skipped_step_has_a_norm_of_the_update_of_0_and_is_not_in_the_mean():
    bad = X.copy()
    bad[9] = np.inf
    with pytest.warns(UserWarning, match="changed nothing"):
        run = jfit.fit(
            linear, (bad, Y), optimizer="sgd", params=START, loss=optax.l2_loss, batch_size=8, num_epoch=1, shuffle=False,
            progress=False, eval_metric=None, nan="skip", log=BOTH, log_every=1,
        )  # fmt: skip
    rows = run.history.steps
    assert rows[1]["update_norm"] == 0 and not np.isfinite(rows[1]["grad_norm"])
    assert run.history.epochs[0]["grad_norm"] == pytest.approx((rows[0]["grad_norm"] + rows[2]["grad_norm"]) / 2, rel=1e-6)


def test_log_events_have_the_means_of_the_epoch_so_far(monkeypatch):
    monkeypatch.setattr("jfit.loop.pace.LOG_SECONDS", 0.0)
    seen = []
    callback = jfit.callbacks.lambda_callback(log=lambda event: seen.append(event.logs["grad_norm"]))
    run = fitted("sgd", log="grad_norm", log_every=1, steps_per_call=1, batch_size=1, num_epoch=1, callbacks=[callback])
    norms = run.history.column("grad_norm", "steps")
    assert seen == run.history.column("grad_norm", "points")
    for row in run.history.points:
        assert row["grad_norm"] == pytest.approx(np.mean(norms[: row["batch"]]), rel=1e-5)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_norms_change_no_bits_and_cost_no_wait(optimizer):
    given = {"optimizer": optimizer, "optimizer_params": {"learning_rate": 0.01}, "log_every": 2, "num_epoch": 1}
    runs, counts = [], []
    for names in ((), BOTH):
        jax.clear_caches()  # what earlier tests have compiled must not count for one of the two only
        jfit.clear_programs()
        with counters.counted() as count:
            runs.append(train(log=names, **given))
        counts.append((count["host_syncs"], count["compiles"]))
    (expected, run), (plain, with_norms) = runs, counts
    assert with_norms == plain
    for name, value in expected.params.items():
        np.testing.assert_array_equal(run.params[name], value)


def test_a_step_without_norms_has_the_program_that_it_had():
    batch, plain = batch_of(8), jfit.train_step(mlp(), "sgd")
    state = jfit.init_state(mlp(), "sgd", batch)
    assert jfit.train_step(mlp(), "sgd", log="lr") == plain != jfit.train_step(mlp(), "sgd", log=BOTH)
    assert "sqrt" not in str(jax.make_jaxpr(plain)(state, batch))
    assert jax.eval_shape(plain, state, batch)[1].metrics is None


def test_unknown_names_clashes_and_gradients_of_each_device_are_refused():
    with pytest.raises(ValueError, match="log is 'gradient'; expected one of 'lr', 'grad_norm', 'update_norm'"):
        fitted("sgd", log=("gradient",))
    with pytest.raises(ValueError, match="log has 'grad_norm', but with this reduce= every device has its own gradients"):
        jfit.train_step(mlp(), "sgd", log="grad_norm", reduce=unreduced())
    with pytest.raises(ValueError, match="log has 'grad_norm', but the loss returns a value to log with the same name"):
        fitted("sgd", log="grad_norm", loss=lambda output, label: (optax.l2_loss(output, label), {"grad_norm": output}))


# ------------------------------------------------------------------------------------------------ values of the loss
def test_values_that_the_loss_returns_are_in_the_rows_of_steps():
    def loss(output, label):
        return optax.l2_loss(output, label), {"gap": jnp.abs(output - label)}

    run = fitted("sgd", loss=loss, log_every=1, num_epoch=1)
    gaps = run.history.column("gap", "steps")
    assert gaps[0] == pytest.approx(np.mean(np.abs(linear(START, X[:8]) - Y[:8])), rel=1e-5)
    assert run.history.column("gap")[0] == pytest.approx(np.mean(gaps), rel=1e-5)


# ------------------------------------------------------------------------------------------------ learning rates of optax
def injected(rate: Any = COSINE) -> optax.GradientTransformation:
    return optax.inject_hyperparams(optax.adam)(learning_rate=rate)


WITH_RATE: dict[str, Any] = {
    "alone": lambda: injected(),
    "in a chain": lambda: optax.chain(optax.clip_by_global_norm(1.0), injected(), optax.add_decayed_weights(1e-4)),
    "masked": lambda: optax.masked(injected(), {"w": True, "b": False}),
    "of one label": lambda: optax.partition({"a": injected(), "b": optax.set_to_zero()}, {"w": "a", "b": "b"}),
    "averaged": lambda: jfit.optim.ema(injected(), 0.9),
    "finite": lambda: optax.apply_if_finite(injected(), 3),
}
WITHOUT: dict[str, Any] = {
    "a schedule": lambda: optax.adam(COSINE),
    "two rates": lambda: optax.partition({"a": injected(), "b": injected(0.1)}, {"w": "a", "b": "b"}),
}


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("which", WITH_RATE)
def test_the_rate_of_inject_hyperparams_is_that_of_the_update_wherever_it_is_in_the_state(which):
    run = fitted(WITH_RATE[which](), log="lr", log_every=1)
    np.testing.assert_allclose(run.history.column("lr", "steps"), [COSINE(i) for i in range(6)], rtol=1e-6)
    assert run.lr == run.history.column("lr")[-1] == run.history.column("lr", "steps")[-1]


@pytest.mark.parametrize("which", WITHOUT)
def test_a_rate_that_is_not_in_the_state_or_one_of_several_is_not_reported(which):
    run = fitted(WITHOUT[which](), log="lr", log_every=1, num_epoch=1)
    assert run.lr is None and "lr" not in run.history.steps[0]
