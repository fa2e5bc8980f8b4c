"""Mixed precision: float16 with a loss scale, and bfloat16, compared with the same trainings by hand in JAX and optax."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_nets import batch_norm_net, batch_of, mlp
from fit_support import blobs, train

import jfit
from jfit.lowering.model import Policy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = np.tanh(X @ RNG.normal(size=(6, 3))).astype("float32")
SIZE, EPOCHS = 16, 4


def start() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"in": rng.normal(size=(6, 16)).astype("float32") / 3, "out": rng.normal(size=(16, 3)).astype("float32") / 4}


def net(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


def attention_start() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    shapes = {"embed": (6, 8), "q": (8, 8), "k": (8, 8), "v": (8, 8), "up": (8, 16), "down": (16, 8), "out": (8, 3)}
    return {name: (rng.normal(size=shape) / np.sqrt(shape[0])).astype("float32") for name, shape in shapes.items()}


def attention(params, x):
    """A transformer block over 6 tokens, each a scaled row of an embedding; the mean of the tokens is projected."""

    def normed(h):
        return (h - h.mean(-1, keepdims=True)) * jax.lax.rsqrt(h.var(-1, keepdims=True) + 1e-3)

    h = x[:, :, None] * params["embed"][None]
    q, k, v = (normed(h) @ params[name] for name in "qkv")
    h = h + jax.nn.softmax(q @ k.transpose(0, 2, 1) / 3, axis=-1) @ v
    h = h + jax.nn.gelu(normed(h) @ params["up"]) @ params["down"]
    return normed(h).mean(1) @ params["out"]


def by_hand(dtype: Any, optimizer: Any, scaling: tuple[float, int] | None = None, *, apply=net, params=None) -> Any:
    """(parameters, scales before the steps) of a training in plain JAX, with the loss scale of the literature."""

    @jax.jit
    def step(params, state, scale, count, x, y):
        def scaled_loss(params):
            output = apply(jax.tree.map(lambda w: w.astype(dtype), params), x.astype(dtype)).astype(jnp.float32)
            return jnp.mean(jnp.mean(optax.l2_loss(output, y), axis=1)) * scale

        gradients = jax.tree.map(lambda g: g / scale, jax.grad(scaled_loss)(params))
        good = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradients)]).all()
        updates, new = optimizer.update(gradients, state, params)
        after = jax.tree.map(lambda a, b: jnp.where(good, a, b), (optax.apply_updates(params, updates), new), (params, state))
        if scaling is None:
            return *after, scale, count
        grows = good & (count + 1 == scaling[1])
        scale = jnp.where(good, jnp.where(grows, 2 * scale, scale), jnp.maximum(scale / 2, 1))
        return *after, scale, jnp.where(good & ~grows, count + 1, 0)

    params = start() if params is None else params
    state, scale, count, scales = optimizer.init(params), jnp.float32(scaling[0] if scaling else 1), jnp.int32(0), []
    for low in [*range(0, len(X), SIZE)] * EPOCHS:
        scales.append(float(scale))
        params, state, scale, count = step(params, state, scale, count, X[low : low + SIZE], Y[low : low + SIZE])
    return params, [*scales, float(scale)]


def fitted(policy: Any, optimizer: Any = None, *, apply=net, params=None, data=(X, Y), **more: Any) -> jfit.Run:
    given = {"batch_size": SIZE, "num_epoch": EPOCHS, "shuffle": False, "progress": False, "eval_metric": None}
    given |= {"optimizer": optax.adam(0.01) if optimizer is None else optimizer, "policy": policy}
    given |= {"loss": lambda output, label: jnp.mean(optax.l2_loss(output, label), axis=1)}
    return jfit.fit(apply, data, params=start() if params is None else params, **(given | more))


def difference(a: Any, b: Any) -> float:
    return float(optax.global_norm(jax.tree.map(lambda x, y: np.asarray(x) - np.asarray(y), a, b)))


# ------------------------------------------------------------------------------------------------ float16
@pytest.mark.parametrize("scaling", [(2.0**15, 2000), (2.0**21, 3), (2.0**10, 4)], ids=["default", "overflow", "growth"])
def test_float16_is_a_loop_by_hand_with_a_dynamic_loss_scale(scaling):
    expected, scales = by_hand(jnp.float16, optax.adam(0.01), scaling)
    run = fitted("float16" if scaling[1] == 2000 else Policy("float16", scaling))
    found = run.state.loss_scale
    assert float(found.scale) == scales[-1] and int(run.state.step) == 16
    assert int(found.skipped) == sum(b < a for a, b in itertools.pairwise(scales))
    assert (int(found.skipped) > 0) == (scaling[0] == 2.0**21) and (max(scales) > scaling[0]) == (scaling[0] == 2.0**10)
    assert difference(run.params, expected) < 1e-5
    assert all(w.dtype == np.float32 for w in jax.tree.leaves(run.params))


def test_small_gradients_are_0_in_float16_without_a_loss_scale_and_a_fixed_one_stays():
    tiny = lambda output, label: 1e-6 * jnp.mean(optax.l2_loss(output, label), axis=1)  # noqa: E731
    sgd = optax.sgd(1e5)
    exact = fitted(None, sgd, loss=tiny, num_epoch=1).params
    runs = {scale: fitted(Policy("float16", scale), sgd, loss=tiny, num_epoch=1) for scale in (1.0, 4096.0)}
    lost, kept = (difference(run.params, exact) for run in runs.values())
    assert kept < 0.1 * lost and float(runs[4096.0].state.loss_scale.scale) == 4096.0
    with pytest.raises(ValueError, match="loss_scale is 0; expected a number above 0"):
        fitted(Policy("float16", 0))


def test_a_step_with_an_overflow_changes_nothing_but_the_scale_and_is_no_fault_of_the_data():
    run = fitted(Policy("float16", (2.0**30, 2000)), num_epoch=1, nan="stop", log=("grad_norm", "update_norm"), log_every=1)
    before = {name: np.asarray(x) for name, x in start().items()}
    for name, value in run.params.items():
        np.testing.assert_array_equal(value, before[name])
    state, rows = run.state, run.history.steps
    assert float(state.loss_scale.scale) == 2.0**26 and int(state.loss_scale.skipped) == int(state.step) == 4
    assert int(state.opt_state[0].count) == 0 and int(state.metrics.first_bad_step) == -1
    assert all(not np.isfinite(row["grad_norm"]) and row["update_norm"] == 0 and np.isfinite(row["loss"]) for row in rows)
    assert np.isfinite(run.history.epochs[0]["loss"]) and "grad_norm" not in run.history.epochs[0]


def test_schedules_count_updates_as_a_schedule_in_an_optax_optimizer_does():
    schedule, policy = optax.exponential_decay(0.1, 1, 0.5), Policy("float16", (2.0**21, 2000))
    inside = fitted(policy, optax.sgd(schedule))
    outside = fitted(policy, "sgd", schedule=schedule)
    assert int(inside.state.loss_scale.skipped) == int(outside.state.loss_scale.skipped) > 0
    assert difference(inside.params, outside.params) < 1e-6


WAYS: dict[str, dict[str, Any]] = {
    "devices": {"devices": 2},
    "micro-batches": {"micro_batches": 2},
    "stream": {"steps_per_call": 1, "data_on_device": False},
    "sharded": {"reduce": "sharded", "devices": 2},
    "sharded parameters": {"reduce": "sharded_parameters", "devices": 2},
    "ordered": {"reduce": "ordered", "devices": 2},
    "skip": {"nan": "skip"},
}


@pytest.mark.repetitions(3)
@pytest.mark.parametrize("way", WAYS)
def test_devices_and_parts_agree_on_an_overflow_that_one_of_them_has(way):
    labels = Y.copy()
    labels[9] = 1e4  # in the second half of the first batch
    one, other = (fitted("float16", data=(X, labels), **more) for more in ({}, WAYS[way]))
    assert [float(x) for x in one.state.loss_scale] == [float(x) for x in other.state.loss_scale] == [2.0**11, 3, 4]
    assert difference(one.params, other.params) < 1e-3
    for shards in (x.addressable_shards for x in jax.tree.leaves(other.state.params) if x.is_fully_replicated):
        np.testing.assert_array_equal(shards[0].data, shards[-1].data)


def test_a_resumed_run_continues_with_its_scale(tmp_path):
    policy = Policy("float16", (2.0**21, 3))
    whole = fitted(policy)
    fitted(policy, num_epoch=2, checkpoint=tmp_path)
    resumed = fitted(policy, checkpoint=tmp_path, resume=True)
    for a, b in zip(jax.tree.leaves(whole.snapshot()), jax.tree.leaves(resumed.snapshot()), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_graph_with_a_head_trains_in_float16_as_in_float32_whatever_the_scale():
    exact = train(data=blobs(48))
    runs = [train(data=blobs(48), policy=policy) for policy in ("float16", Policy("float16", 1024.0))]
    for run in runs:
        assert int(run.state.loss_scale.skipped) == 0
        assert difference(run.params, exact.params) < 0.01 * difference(
            exact.params, jax.tree.map(jnp.zeros_like, exact.params)
        )
    overflown = train(data=blobs(48), policy=Policy("float16", 2.0**24), num_epoch=1)
    assert int(overflown.state.loss_scale.skipped) == int(overflown.state.step) == 6


def test_the_gradients_of_heads_are_those_without_a_scale():
    batch = batch_of(8)
    for model in (mlp(), batch_norm_net()):
        moved = []
        for policy in (None, Policy("float32", 1024.0)):
            state = jfit.init_state(model, "sgd", batch, policy=policy, learning_rate=0.1)
            moved.append(jax.jit(jfit.train_step(model, "sgd", policy=policy))(state, batch)[0])
        for name, value in moved[0].params.items():
            np.testing.assert_allclose(moved[1].params[name], value, rtol=1e-5, atol=1e-7)


def test_a_penalty_of_the_graph_is_scaled_with_the_loss():
    data = jfit.sym.sigmoid(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=4, name="fc"))
    data = jfit.sym.IdentityAttachKLSparseReg(data, penalty=0.1, name="reg")
    model, batch = jfit.lower(jfit.sym.LinearRegressionOutput(data, name="out")), batch_of(8)
    batch = {"data": batch["data"], "out_label": np.zeros((8, 4), "float32")}
    moved = []
    for policy in (None, Policy("float32", 1024.0)):
        state = jfit.init_state(model, "sgd", batch, policy=policy, learning_rate=0.1)
        moved.append(jax.jit(jfit.train_step(model, "sgd", policy=policy))(state, batch)[0].params["fc_weight"])
    np.testing.assert_allclose(*moved, rtol=1e-6)


def test_a_state_without_a_loss_scale_is_refused():
    batch = batch_of(8)
    step = jfit.train_step(mlp(), "sgd", policy="float16")
    with pytest.raises(ValueError, match=r"policy 'float16' needs a loss scale, .* pass policy= to jfit.init_state"):
        step(jfit.init_state(mlp(), "sgd", batch), batch)
    assert jfit.init_state(mlp(), "sgd", batch, policy="bfloat16").loss_scale is None


# ------------------------------------------------------------------------------------------------ both, and tools
NETS: dict[str, Any] = {"mlp": (net, start), "transformer": (attention, attention_start)}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_half_precision_differs_from_a_loop_by_hand_by_less_than_that_loop_rounds(name):
    apply, params = NETS[name]
    exact = by_hand(jnp.float32, optax.adam(0.01), apply=apply, params=params())[0]
    for policy, dtype, scaling in (("bfloat16", jnp.bfloat16, None), ("float16", jnp.float16, (2.0**15, 2000))):
        hand = by_hand(dtype, optax.adam(0.01), scaling, apply=apply, params=params())[0]
        run = fitted(policy, apply=apply, params=params())
        assert difference(run.params, hand) <= min(difference(hand, exact), 1e-5)


@pytest.mark.slow
def test_replay_and_verify_have_the_gradients_of_the_loss_without_its_scale(tmp_path):
    given = {"data": blobs(48), "checkpoint_every": 2}
    exact = train(**given, checkpoint=tmp_path / "float32").replay(10)
    run = train(**given, checkpoint=tmp_path / "float16", policy="float16", log="grad_norm")
    half = run.replay(10)
    for a, b in zip(half.parameters, exact.parameters, strict=True):
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=0.02)
    pairs = [(a.gradient_norm, b.gradient_norm) for a, b in zip(half.nodes, exact.nodes, strict=True)]
    for a, b in [pair for pair in pairs if pair[1]]:
        assert a == pytest.approx(b, rel=0.02)
    assert jfit.verify(tmp_path / "float16", given["data"]).same


@pytest.mark.slow
def test_members_of_a_sweep_have_their_own_scales():
    policy, values = Policy("float16", (2.0**21, 3)), [0.01, 0.1]
    given = {"policy": policy, "num_epoch": 2, "batch_size": 8, "log": "grad_norm"}
    swept = jfit.sweep(mlp().symbol, blobs(48), over={"learning_rate": values}, **given)
    for rate, row in zip(values, swept.table, strict=True):
        alone = jfit.fit(mlp().symbol, blobs(48), optimizer_params={"learning_rate": rate}, progress=False, **given)
        assert row["loss"] == pytest.approx(alone.history.epochs[-1]["loss"], rel=1e-3)
