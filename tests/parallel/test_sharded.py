"""reduce="sharded" and "sharded_parameters": state split over the devices, with the numbers of "psum"."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jfit
from jfit import optim, sym
from jfit.metrics.core import exact
from jfit.parallel import check_replicas

ROWS = 24
NAMES = [n for n in optim.OPTIMIZERS if n not in {"sgld", "groupadagrad", "group_adagrad", "ccsgd", "test"}]
NAMES += ["adafactor", "ademamix", "cocob", "muon", "schedule_free_adamw"]  # of optax


def is_split(state):
    """Whether an array of the optimizer state or of the parameters is split over devices."""
    return not all(x.is_fully_replicated for x in jax.tree.leaves((state.params, state.opt_state)))


def mlp():
    net = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=12, name="fc1"), act_type="relu")
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=4, name="fc2"), name="softmax")


def table():
    net = sym.Embedding(sym.Variable("data"), input_dim=50, output_dim=5, sparse_grad=True, name="table")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(net), num_hidden=4, name="fc"), name="softmax")


def batches(count=3, rows=ROWS, seed=0, ids=False):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 50, (count, rows, 6)) if ids else rng.normal(size=(count, rows, 6))
    y = rng.integers(0, 4, (count, rows))
    return [{"data": a.astype("float32"), "softmax_label": b.astype("float32")} for a, b in zip(x, y, strict=True)]


def trained(optimizer, rule, devices: Any = 4, net=None, data=None, **options):
    """(state with natural shapes on the host, last result)."""
    model, data = jfit.lower(mlp() if net is None else net), data or batches()
    step = jfit.data_parallel(jfit.train_step(model, optimizer, **options), devices, reduce=rule)
    state = step.place(jfit.init_state(model, optimizer, data[0], seed=3, frozen=options.get("frozen", ())))
    out: Any = None
    for batch in data:
        state, out = step(state, batch)
    check_replicas(state)
    return jax.device_get(state), out


def assert_close(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def compare(optimizer, rule="sharded", **options):
    (a, _), (b, _) = (trained(optimizer, each, **options) for each in ("psum", rule))
    # The loss is stored as (sum, rounding error); sums that are equal to rounding may differ in how they are split.
    a, b = (s._replace(metrics=s.metrics._replace(loss=exact(s.metrics.loss))) for s in (a, b))
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert_close(a, b)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.repetitions(2, slow=9)
def test_optimizers_have_the_numbers_of_psum(name):
    compare(optim.get(name, **({"momentum": 0.9} if name in ("sgd", "nag", "lars", "lbsgd") else {})))


OTHERS = {
    "optax": (optax.adam(0.01), {}),
    "mask": (optax.adamw(0.01, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)), {}),
    "lion": ("lion", {}),
    "lbsgd_norms": (optim.lbsgd(0.1, momentum=0.9, warmup_strategy="lars", warmup_epochs=0), {}),
    "lamb_without_epsilon": (optim.lamb(0.01, epsilon=0.0), {}),
    "lamb_clipped": ("lamb", {"clip_norm": 0.1, "clip_value": 0.05}),
    "clipped_by_optax": (optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, momentum=0.9)), {}),
    "skips": ("adam", {"skip_nonfinite": True}),
    "averages": (optim.ema("adam", 0.9), {"regularizers": {"*_weight": jfit.regularizers.l2(1e-2)}}),
    "parts": (optim.sgd(momentum=0.9), {"micro_batches": 3, "frozen": ["fc1_bias"]}),
}


@pytest.mark.parametrize("rule", ["sharded_parameters", "sharded"])
@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.repetitions(2, slow=7)
def test_optax_norms_and_settings_have_the_numbers_of_psum(case, rule):
    optimizer, options = OTHERS[case]
    compare(optimizer, rule, **options)


@pytest.mark.parametrize("rule", ["sharded", "sharded_parameters"])
@pytest.mark.repetitions(1)
def test_equals_a_loop_written_by_hand(rule):
    rng, transform = np.random.default_rng(1), optax.adam(0.05)
    params = {"w": rng.normal(size=(6, 8)).astype("float32"), "b": np.zeros(5, "float32"), "scale": np.float32(1.5)}
    x, y = rng.normal(size=(16, 6)).astype("float32"), rng.normal(size=(16, 5)).astype("float32")

    def apply(p, x):
        return p["scale"] * jnp.tanh((x @ p["w"])[:, :5] + p["b"][None])

    def loss(out, y):
        return jnp.sum((out - y) ** 2, axis=-1)

    expected, opt_state = params, transform.init(params)

    @jax.jit
    def step(params, opt_state):
        grads = jax.grad(lambda p: loss(apply(p, x), y).mean())(params)
        updates, opt_state = transform.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for _ in range(3):
        expected, opt_state = step(expected, opt_state)
    run = jfit.fit(
        apply, (x, y), loss=loss, params=params, batch_size=16, num_epoch=3, optimizer=transform, devices=4, reduce=rule,
        progress=False,
    )  # fmt: skip
    jax.tree.map(lambda x: x.sharding.is_fully_replicated or pytest.fail("not replicated"), run.params)
    assert_close(run.params, expected)
    assert_close(run.raw_params, expected)
    assert_close(run.predict(x), apply(expected, x))
    assert "54 parameters" in repr(run)
    assert run.state.params["w"].is_fully_replicated == (rule == "sharded")
    mean = run.state.opt_state[0].mu
    assert mean["w"].addressable_shards[0].data.shape == (6, 2)  # 4 divides 8, the second axis
    assert mean["b"].is_fully_replicated
    assert mean["scale"].is_fully_replicated  # 4 divides no axis: updated on every device


@pytest.mark.parametrize("rule", ["sharded_parameters", "sharded"])
@pytest.mark.parametrize("name", ["sgd", "adam", "lamb"])
@pytest.mark.repetitions(1)
def test_tables_by_rows_are_updated_on_all_devices(name, rule):
    optimizer = optim.get(name, **({"momentum": 0.9} if name == "sgd" else {}))
    (a, _), (b, _) = (trained(optimizer, each, 4, table(), batches(ids=True), clip_norm=0.5) for each in ("psum", rule))
    assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sharded", "sharded_parameters"])
def test_padded_empty_and_bad_batches_are_those_of_psum(rule):
    full, (short,) = batches(1), batches(1, rows=3)
    empty = jfit.data.Batch(full[0], np.zeros(ROWS, "float32"))
    bad = {**full[0], "data": np.where(np.arange(ROWS)[:, None] == 20, np.nan, full[0]["data"])}  # a row of the last device
    for last in (short, empty, bad):
        (a, out), (b, other) = (trained("adam", each, data=[*full, last]) for each in ("psum", rule))
        assert_close(a, b)
        assert_close(out.loss, other.loss)


def program_of(rule, devices=4):
    model, batch = jfit.lower(mlp()), batches(1)[0]
    step = jfit.data_parallel(jfit.train_step(model, "adam"), devices, reduce=rule)
    state = step.place(jfit.init_state(model, "adam", batch))
    return step.lower(state, batch).compile(), state


@pytest.mark.parametrize("rule", ["sharded", "sharded_parameters"])
def test_memory_per_device_falls_by_the_number_of_devices(rule):
    (psum, whole), (sharded, split) = program_of("psum"), program_of(rule)
    keys = ("slots", "params") if rule == "sharded_parameters" else ("slots",)
    arrays = [{"slots": state.opt_state.slots, "params": state.params} for state in (whole, split)]
    total, own = (
        sum(x.addressable_shards[0].data.nbytes for key in keys for x in jax.tree.leaves(each[key])) for each in arrays
    )
    assert own == total / 4
    saved = psum.memory_analysis().argument_size_in_bytes - sharded.memory_analysis().argument_size_in_bytes
    assert saved == total - own
    sent, one = jfit.parallel.collectives(sharded), jfit.parallel.collectives(psum).all_reduce
    # sums of losses, each of 4 parameters, gradients
    assert [traffic.count for traffic in sent] == [1, 4, 1, 0, 0]
    assert sent.all_gather.operand_bytes == sent.reduce_scatter.operand_bytes / 4
    assert sent.total.wire_bytes == one.wire_bytes


def test_update_and_batches_of_fit_stay_on_their_devices():
    x, y = np.ones((64, 6), "float32"), np.zeros(64, "float32")
    run = jfit.fit(mlp(), (x, y), batch_size=16, num_epoch=1, devices=4, reduce="sharded", steps_per_call=2, progress=False)
    loop = run._loop
    assert loop is not None
    program, arguments = loop.dispatcher._full_program(loop.dispatcher.batches.epoch_data(np.arange(64, dtype="int32")), 2)
    lowered = program.lower(run.state, *arguments)
    text = lowered.compile().as_text()
    assert text.count(" all-gather(") == 4  # the parameters; neither rows nor the optimizer state
    assert text.count(" reduce-scatter(") == 1


def checkpointed(folder, rule, devices, epochs, **options):
    rows = batches(1, rows=64)[0]
    return jfit.fit(
        mlp(), rows, batch_size=16, num_epoch=epochs, optimizer="adam", devices=devices, reduce=rule, checkpoint=folder,
        progress=False, eval_data=rows, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_checkpoints_are_those_of_psum_and_resume_on_other_devices_and_rules(tmp_path):
    straight = checkpointed(tmp_path / "a", "psum", 2, 3)
    checkpointed(tmp_path / "b", "sharded", 4, 1)
    names = [{k: v.shape for k, v in jfit.checkpoint.load_arrays(tmp_path / f).items()} for f in "ab"]
    assert names[0] == names[1]
    checkpointed(tmp_path / "b", "psum", 1, 2, resume=True)
    resumed = checkpointed(tmp_path / "b", "sharded_parameters", 3, 3, resume=True)
    assert is_split(resumed.state)
    # without the running sums, which have the rounding error of a sum: a difference of two close numbers
    assert_close(resumed.snapshot()._replace(metrics=()), straight.snapshot()._replace(metrics=()))
    assert resumed.history.epochs[-1]["val_loss"] == pytest.approx(straight.history.epochs[-1]["val_loss"], rel=1e-5)
    restored = jfit.checkpoint.restore(jfit.checkpoint.save(tmp_path / "c", resumed.state), resumed.state)
    jax.tree.map(np.testing.assert_array_equal, restored, resumed.snapshot())


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["sharded", "sharded_parameters"])
def test_averages_are_evaluated_and_the_best_state_is_restored(tmp_path, rule):
    stop = jfit.callbacks.early_stopping("val_loss", patience=1, restore_best=True)
    psum, sharded = (
        checkpointed(tmp_path / each, each, 4, 4, ema=0.5, callbacks=[stop], optimizer_params={"learning_rate": 0.5})
        for each in ("psum", rule)
    )
    assert_close(sharded.params, psum.params, rtol=1e-4)
    assert_close(sharded.snapshot(), psum.snapshot(), rtol=1e-4, atol=1e-5)
    assert is_split(sharded.state)
    sharded.train(1)
    loaded = jfit.Run.load(tmp_path / rule)
    assert_close(loaded.params, sharded.snapshot().opt_state.ema_params, rtol=1e-2, atol=1)


def test_one_device_has_no_split_state():
    state, _ = trained("adam", "sharded", 1)
    assert_close(state, trained("adam", "psum", 1)[0], rtol=0, atol=0)


def test_states_of_another_rule_are_placed_by_the_first_call():
    model, batch = jfit.lower(mlp()), batches(1)[0]
    steps = [
        jfit.data_parallel(jfit.train_step(model, "adam"), 4, reduce=rule) for rule in ("psum", "sharded", "sharded_parameters")
    ]
    state, expected = (steps[0].place(jfit.init_state(model, "adam", batch)) for _ in range(2))
    for step in (*steps, *reversed(steps)):
        state, _ = step(state, batch)
        assert is_split(state) == (step is not steps[0])
    for _ in range(6):
        expected, _ = steps[0](expected, batch)
    assert_close(state, expected)


def test_gradients_of_each_device_are_those_of_psum():
    model, batch = jfit.lower(mlp()), batches(1)[0]
    outs = []
    for rule in ("psum", "sharded_parameters"):
        step = jfit.data_parallel(jfit.train_step(model, "sgd", gradients=True), 4, reduce=rule)
        outs.append(step(step.place(jfit.init_state(model, "sgd", batch, seed=3)), batch)[1])
    assert outs[0].gradients["fc1_weight"].shape == (4, 12, 6)
    assert_close(outs[1].gradients, outs[0].gradients)
