"""One update as a pure function: value, accepted arguments, row weights, learning rates, micro-batches, freezing; for any rows,
weights and number of devices it equals that of one device on the unpadded batch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from engine_nets import assert_close, assert_equal, batch_norm_net, batch_of, mlp, on_host, weighted

import jfit
from jfit import counters, sym
from jfit.step.totals import values

RATE = 0.1


ACC, BOTH = jfit.metrics.get("acc"), jfit.metrics.get(["acc", "ce"])
_made: dict = {}


def once(make, *parts):
    """What was made of the same parts before: programs and first states are shared by the tests."""
    key = tuple(str(p) if isinstance(p, dict) else id(p) if isinstance(p, jfit.Model) else p for p in parts)
    if key not in _made:
        _made[key] = make(), parts  # the parts stay alive, so that no other object gets their ids
    return _made[key][0]


def stepped(model, batch, optimizer="sgd", *, seed=0, start=None, steps=1, **settings):
    """(state before on the host, state after, what the last step told)."""
    given = {k: settings.pop(k) for k in ("learning_rate", "params") if k in settings}
    shared = {k: settings[k] for k in ("frozen", "metrics") if k in settings}
    inputs = batch if isinstance(batch, dict) else batch.inputs
    shapes = str({k: (v.shape, v.dtype) for k, v in inputs.items()})
    made = lambda: jfit.init_state(model, optimizer, inputs, seed=seed, **given, **shared)  # noqa: E731
    state = once(made, model, optimizer, shapes, seed, given, shared) if start is None else start
    program = lambda: jax.jit(jfit.train_step(model, optimizer, **settings))  # noqa: E731
    before, step, out = on_host(state), once(program, model, optimizer, settings), None
    for _ in range(steps):
        state, out = step(state, batch)
    return before, state, out


def by_hand(params, batch, weight=None):
    """(mean loss, mean gradient) of the tanh network, written out in plain JAX."""
    weight = jnp.ones(len(batch["data"])) if weight is None else jnp.asarray(weight, jnp.float32)

    def mean_loss(p):
        hidden = jnp.tanh(batch["data"] @ p["fc1_weight"].T + p["fc1_bias"][None])
        logits = hidden @ p["fc2_weight"].T + p["fc2_bias"][None]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["softmax_label"].astype(np.int32))
        return jnp.sum(losses * weight) / jnp.sum(weight)

    return jax.jit(jax.value_and_grad(mean_loss))(params)


# ------------------------------------------------------------------------------------------ the update
def test_a_step_equals_a_hand_written_gradient_step():
    batch = batch_of(8)
    before, state, out = stepped(mlp(), batch, learning_rate=RATE)
    loss, gradient = by_hand(before.params, batch)
    assert_close(state.params, {k: v - RATE * gradient[k] for k, v in before.params.items()})
    assert_close(out.loss, loss)
    assert int(state.step) == 1 and int(out.first_bad_step) == -1 and out.outputs is None


def test_rescale_replaces_the_mean_by_a_factor():
    batch = batch_of(4)
    mean = stepped(mlp(), batch, learning_rate=RATE)[1]
    half = stepped(mlp(), batch, learning_rate=RATE, rescale=0.25)[1]
    assert_close(mean.params, half.params)


def test_metrics_and_loss_are_added_to_the_running_sums_of_the_state():
    batch, metrics = batch_of(8), ACC
    _, state, out = stepped(mlp(), batch, metrics=metrics, steps=2, learning_rate=0.0, outputs=True)
    found = values(metrics, counters.read(state.metrics))
    right = np.mean(np.argmax(out.outputs[0], axis=1) == batch["softmax_label"])
    assert found["accuracy"] == pytest.approx(right)
    assert found["loss"] == pytest.approx(float(out.loss), rel=1e-6)


def test_outputs_are_returned_only_on_request():
    _, _, out = stepped(mlp(), batch_of(8), outputs=True)
    assert out.outputs[0].shape == (8, 3)
    with pytest.raises(ValueError, match="outputs=True needs micro_batches=1"):
        stepped(mlp(), batch_of(8), outputs=True, micro_batches=2)


# ------------------------------------------------------------------------------------------ learning rate
def test_a_jfit_optimizer_instance_uses_the_learning_rate_of_the_state():
    batch = batch_of(4)
    made, named = jfit.optim.sgd(0.25, momentum=0.9), jfit.optim.get("sgd", learning_rate=0.25, momentum=0.9)
    _, first, out = stepped(mlp(), batch, made, steps=2)
    assert_equal(first, stepped(mlp(), batch, named, steps=2)[1])
    assert float(out.lr) == 0.25 == float(first.base_lr)
    frozen = stepped(mlp(), batch, made, learning_rate=0.0)
    assert_equal(frozen[0].params, frozen[1].params)
    assert float(stepped(mlp(), batch, made, schedule="constant")[2].lr) == 0.25


def test_the_learning_rate_of_an_optax_instance_is_reported_and_cannot_be_set():
    batch = batch_of(4)
    decaying = optax.inject_hyperparams(optax.sgd)(learning_rate=optax.exponential_decay(1.0, 1, 0.5))
    _, state, out = stepped(mlp(), batch, decaying, steps=3)
    assert state.base_lr is None and float(out.lr) == 0.25
    assert stepped(mlp(), batch, optax.sgd(0.1))[2].lr is None
    with pytest.raises(ValueError, match="optax instance, whose constructor takes it"):
        jfit.init_state(mlp(), optax.sgd(0.1), batch, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"schedule= needs an optimizer by name; an optax instance takes"):
        jfit.train_step(mlp(), optax.sgd(0.1), schedule="constant")


def test_clip_norm_and_clip_value_bound_the_mean_gradient():
    batch = batch_of(8)
    before, state, _ = stepped(mlp(), batch, learning_rate=1.0, clip_norm=0.01)
    moved = jax.tree.map(lambda a, b: a - b, before.params, on_host(state.params))
    assert np.sqrt(sum(np.sum(v**2) for v in moved.values())) == pytest.approx(0.01, rel=1e-4)
    gradient = by_hand(before.params, batch)[1]
    _, state, _ = stepped(mlp(), batch, learning_rate=1.0, clip_value=0.02)
    assert_close(state.params, {k: v - np.clip(gradient[k], -0.02, 0.02) for k, v in before.params.items()})


def test_rescaling_keeps_the_precision_of_a_16_bit_gradient():
    start = {"w": jnp.zeros(1, jnp.bfloat16)}
    model = jfit.Model.from_function(lambda params, x: x * params["w"], loss=optax.l2_loss, params=start)
    optimizer = jfit.optim.sgd(1.0, multi_precision=True)
    step = jfit.step.update_step(optimizer, rescale=1 / 3)
    state = step(jfit.init_state(model, optimizer), {"w": jnp.ones(1, jnp.bfloat16)})
    assert state.opt_state.slots["master"]["w"][0] == -np.float32(1 / 3)


def test_multi_steps_updates_every_second_call():
    batch, optimizer = batch_of(8), optax.MultiSteps(optax.sgd(RATE), every_k_schedule=2)
    before, once, _ = stepped(mlp(), batch, optimizer)
    assert_equal(before.params, once.params)
    twice = stepped(mlp(), batch, optimizer, steps=2)[1]
    assert_close(twice.params, stepped(mlp(), batch, learning_rate=RATE)[1].params)


def test_the_loss_is_passed_to_transformations_that_take_it():
    plateau = optax.chain(optax.sgd(RATE), optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=1.0, atol=0.0))
    _, state, _ = stepped(mlp(), batch_of(8), plateau, steps=4)
    assert float(state.opt_state[1].scale) < 1.0
    _, state, _ = stepped(mlp(), batch_of(8), optax.MultiSteps(plateau, 1), steps=4)
    assert float(state.opt_state.inner_opt_state[1].scale) < 1.0


@pytest.mark.parametrize("make", [optax.lbfgs, lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(3))])
def test_line_searches_raise(make):
    with pytest.raises(ValueError, match=r"has a line search .* which needs the loss function"):
        jfit.train_step(mlp(), make())


def test_no_optimizer_retraces_on_its_second_step():
    batch = batch_of(4)
    for optimizer in ("adam", jfit.optim.sgd(0.1, momentum=0.9), optax.MultiSteps(optax.adam(0.1), 2)):
        program = jfit.data_parallel(jfit.train_step(mlp(), optimizer))
        state, _ = program(program.place(jfit.init_state(mlp(), optimizer, batch)), batch)
        with counters.counted() as seen:
            program(state, batch)
        assert seen["traces"] == 0 and seen["compiles"] == 0


def test_the_state_of_an_optimizer_of_megabytes_compiles_nothing():
    model, batch = jfit.lower(sym.FullyConnected(sym.Variable("data"), num_hidden=700, name="fc")), {"data": np.zeros((2, 900))}
    params = {"fc_weight": np.ones((700, 900), np.float32), "fc_bias": np.ones(700, np.float32)}
    for optimizer in (jfit.optim.sgd(0.1, momentum=0.9), "adam"):
        with counters.counted() as seen:
            state = jfit.init_state(model, optimizer, batch, params=params)
        assert seen["compiles"] == 0
        assert all(not np.any(x) for x in jax.tree.leaves(state.opt_state) if np.ndim(x))


def test_only_graphs_that_draw_random_numbers_compute_keys():
    for net in (mlp(), jfit.lower(sym.SoftmaxOutput(sym.Dropout(sym.Variable("data")), name="softmax"))):
        batch = batch_of(4)
        state = jfit.init_state(net, "sgd", batch)
        text = jax.jit(jfit.train_step(net, "sgd")).lower(state, batch).as_text()
        assert ("threefry" in text) == ("draws" in net.traits)


# ------------------------------------------------------------------------------------------ micro-batches


def test_micro_batches_are_weighted_by_their_real_rows():
    batch = weighted(batch_of(8), [1, 1, 1, 0, 1, 0, 0, 0])
    whole, parts = stepped(mlp(), batch)[1], stepped(mlp(), batch, micro_batches=4)[1]
    assert_close(parts.params, whole.params)


def test_a_micro_batch_of_padding_keeps_the_statistics():
    batch = batch_of(8)
    full = stepped(batch_norm_net(), {k: v[:4] for k, v in batch.items()})[1]
    half = stepped(batch_norm_net(), weighted(batch, [1] * 4 + [0] * 4), micro_batches=2)[1]
    assert_close(half.aux, full.aux)
    assert_close(half.params, full.params)


def test_a_misspelt_factor_of_the_gradients_raises():
    with pytest.raises(ValueError, match="rescale is 'sum'; expected one of 'mean'"):
        jfit.train_step(mlp(), rescale="sum")


def test_what_is_no_batch_raises_when_the_step_is_traced():
    model, batch = mlp(), batch_of(8)
    step, state = jax.jit(jfit.train_step(model)), jfit.init_state(model, "sgd", batch)
    for passed, kind in ((None, "NoneType"), ([batch["data"]], "list")):
        for call in (step, jfit.data_parallel(jfit.train_step(model))):
            with pytest.raises(
                TypeError, match=f"the batch is {kind}; expected a jfit.Batch, or a dict of arrays by input name"
            ):
                call(state, passed)
    with pytest.raises(ValueError, match="the batch has no rows, so its mean loss and its gradient are undefined"):
        step(state, {name: array[:0] for name, array in batch.items()})


# ------------------------------------------------------------------------------------------ frozen
@pytest.mark.parametrize("frozen", ["fc1_*", ["fc1_weight", "fc1_bias"]])
def test_frozen_parameters_are_unchanged_and_have_no_optimizer_state(frozen):
    before, state, _ = stepped(mlp(), batch_of(8), "adam", frozen=frozen)
    moved = {k for k in state.params if not np.array_equal(before.params[k], state.params[k])}
    assert moved == {"fc2_weight", "fc2_bias"}
    assert set(state.opt_state.slots["mean"]) == moved


def test_statistics_of_frozen_layers_are_still_updated():
    before, state, _ = stepped(batch_norm_net(), batch_of(8), frozen="bn_*")
    assert_equal(
        {k: v for k, v in before.params.items() if k[:3] == "bn_"}, {k: state.params[k] for k in ("bn_gamma", "bn_beta")}
    )
    assert not np.array_equal(before.aux["bn_moving_mean"], state.aux["bn_moving_mean"])


def test_a_freeze_pattern_without_a_match_raises_with_the_nearest_names():
    with pytest.raises(ValueError, match=r"frozen='fc1_wieght' matches no parameter; did you mean 'fc1_weight'"):
        stepped(mlp(), batch_of(4), frozen=["fc1_wieght"])


def test_integer_parameters_are_not_trained():
    params = {"w": jnp.ones((2,)), "table": jnp.arange(2)}
    model = jfit.Model.from_function(
        lambda p, x: jnp.sum(x * p["w"][p["table"]][None], axis=1), loss=optax.l2_loss, params=params
    )
    before, state, _ = stepped(model, {"x": np.ones((4, 2), np.float32), "label": np.zeros(4, np.float32)}, "adam")
    trained = [name for name, x in state.opt_state.inner[0].mu.items() if hasattr(x, "dtype")]
    assert state.params["table"].dtype == jnp.int32 and trained == ["w"]
    assert not np.array_equal(before.params["w"], state.params["w"])


@pytest.mark.repetitions(1)
# ------------------------------------------------------------------------------------------ weights
@pytest.mark.parametrize("junk", [7.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("model", [mlp(), batch_norm_net()], ids=["mlp", "batch norm"])
def test_a_zero_weight_row_has_no_effect(model, junk):
    batch, metrics = batch_of(6), BOTH
    spoiled = {k: v.copy() for k, v in batch.items()}
    spoiled["data"][[1, 4]], spoiled["softmax_label"][[1, 4]] = junk, -1
    weight = [1, 0, 1, 1, 0, 1]
    rest = {k: np.delete(v, [1, 4], axis=0) for k, v in batch.items()}
    got = stepped(model, weighted(spoiled, weight), "adam", metrics=metrics)
    wanted = stepped(model, weighted(rest, [1] * 4), "adam", metrics=metrics)
    assert_close(got[1].params, wanted[1].params)
    assert_close(got[1].aux, wanted[1].aux)
    assert_close(got[1].metrics, wanted[1].metrics)


@pytest.mark.parametrize("junk", [0.0, np.nan])
def test_a_step_whose_weights_sum_to_zero_changes_nothing(junk):
    batch, metrics = batch_of(4), ACC
    batch["data"] = batch["data"] + np.float32(junk)
    before, state, out = stepped(batch_norm_net(), weighted(batch, [0] * 4), "adam", metrics=metrics)
    for part in ("params", "opt_state", "aux", "metrics"):
        assert_equal(getattr(before, part), getattr(state, part))
    assert int(state.step) == 1 and float(out.loss) == 0.0 and int(out.first_bad_step) == -1


def test_rows_may_be_trained_on_without_metric_weight():
    batch, metrics = batch_of(4), ACC
    _, state, _ = stepped(mlp(), weighted(batch, [1] * 4, [1, 1, 0, 0]), metrics=metrics)
    assert_close(state.params, stepped(mlp(), batch)[1].params)
    assert int(state.metrics.metrics[0][1]) == 2


def test_row_weights_must_have_one_number_per_row():
    with pytest.raises(ValueError, match=r"weight has shape \(3,\), but the batch has 4 rows; expected shape \(4,\)"):
        stepped(mlp(), weighted(batch_of(4), [1, 1, 1]))


def test_an_operator_that_mixes_rows_raises_for_row_weights():
    net = sym.sum(sym.Variable("data"), axis=0, keepdims=True, name="mixed")
    model = jfit.lower(sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=3, name="fc"), name="softmax"))
    batch = {"data": np.ones((4, 2), np.float32), "softmax_label": np.zeros(1, np.float32)}
    stepped(model, batch)
    with pytest.raises(ValueError, match="rows of the batch cannot be identified"):
        stepped(model, weighted(batch, [1, 1, 1, 0]))


# ------------------------------------------------------------------------------------------ precision
def test_bfloat16_compute_trains_float32_parameters():
    batch, policy = batch_of(8), jfit.Policy("bfloat16")
    _, full, _ = stepped(mlp(), batch, "adam", steps=3)
    _, half, out = stepped(mlp(), batch, "adam", steps=3, policy=policy)
    assert {v.dtype for v in half.params.values()} == {jnp.dtype("float32")} and out.loss.dtype == jnp.float32
    assert not np.array_equal(half.params["fc1_weight"], full.params["fc1_weight"])
    assert_close(half.params, full.params, 2e-2)
    assert_equal(half.params, stepped(mlp(), batch, "adam", steps=3, policy="bfloat16")[1].params)


# ------------------------------------------------------------------------------------------ the state
def test_initial_parameters_are_copied_and_tied_ones_get_separate_buffers():
    one = jnp.zeros((3,))
    model = jfit.Model.from_function(lambda p, x: x @ p["a"] + x @ p["b"], loss=optax.l2_loss, params={"a": one, "b": one})
    batch = {"x": np.ones((2, 3), np.float32), "label": np.ones(2, np.float32)}
    step = jax.jit(jfit.train_step(model, "sgd"), donate_argnums=0)
    state = jfit.init_state(model, "sgd", batch)
    for _ in range(2):
        state, _ = step(state, batch)
    assert not one.is_deleted() and float(one.sum()) == 0.0
    own = jnp.ones((5, 4))
    state = jfit.init_state(mlp(), "sgd", batch_of(4), params={"fc1_weight": own})
    jax.jit(jfit.train_step(mlp(), "sgd"), donate_argnums=0)(state, batch_of(4))
    assert not own.is_deleted() and state.params["fc1_weight"].is_deleted()


@pytest.mark.parametrize("kind", ["function", "graph"])
def test_initial_parameters_do_not_share_the_memory_of_aligned_numpy_arrays(kind):
    memory = np.ones(5 * 4 + 16, np.float32)
    own = memory[-memory.ctypes.data % 64 // 4 :][:20].reshape(5, 4)  # JAX uses memory at multiples of 64 bytes without a copy
    model = jfit.Model.from_function(lambda p, x: x @ p["w"].T, loss=optax.l2_loss, params={"w": own})
    state = jfit.init_state(model, "sgd") if kind == "function" else None
    state = state or jfit.init_state(mlp(), "sgd", batch_of(4), params={"fc1_weight": own})
    own[:] = 7
    assert float(state.params["w" if kind == "function" else "fc1_weight"].max()) == 1


def test_seeds_may_be_integers_or_keys():
    batch = batch_of(4)
    wanted = jfit.init_state(mlp(), "sgd", batch, seed=3)
    for seed in (np.int64(3), jax.random.key(3), jax.random.key_data(jax.random.key(3))):
        assert_equal(jfit.init_state(mlp(), "sgd", batch, seed=seed), wanted)
    typed = wanted._replace(key=jax.random.wrap_key_data(wanted.key))
    step = jax.jit(jfit.train_step(mlp(0.5), "sgd"))
    assert_equal(step(typed, batch)[0].params, step(wanted, batch)[0].params)


def test_a_batch_without_the_models_inputs_raises():
    state = jfit.init_state(mlp(), "sgd", batch_of(4))
    with pytest.raises(ValueError, match=r"the batch has the inputs \['x'\], but the model needs \['data', 'softmax_label'\]"):
        jfit.train_step(mlp())(state, {"x": np.ones((4, 4))})


# ------------------------------------------------------------------------------------------ eval and predict


def test_prediction_needs_no_labels():
    batch = batch_of(6)
    state = jfit.init_state(mlp(), "sgd", batch)
    (found,) = jax.jit(jfit.predict_step(mlp()))(state.params, state.aux, {"data": batch["data"]})
    assert_close(found, stepped(mlp(), batch, start=state, outputs=True)[2].outputs[0])


ACC = jfit.metrics.get("acc")
