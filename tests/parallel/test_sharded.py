"""reduce="sharded" and "sharded_parameters": state split over the devices, with the numbers of "psum"."""

from typing import Any, cast

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings

import jfit
from jfit import optim, sym
from jfit.parallel import spmd
from jfit.step import gathered, update_step
from jfit.step.elementwise import split_leaves
from jfit.step.sharded import Shard, is_sharded, sharded_like, sharded_state, whole_state

ROWS = 24
REFUSED = {"sgld": "random_bits", "adafactor": "reduce_sum", "noisy_sgd": "random_bits", "muon": "not elementwise"}
ELEMENTWISE = [n for n in optim.OPTIMIZERS if n not in {"sgld", "groupadagrad", "group_adagrad", "ccsgd", "test"}]
ELEMENTWISE += ["ademamix", "cocob", "schedule_free_adamw"]  # of optax


@pytest.fixture(autouse=True)
def small_parameters_are_those_of_less_than_100_bytes(monkeypatch):
    monkeypatch.setattr(gathered, "SMALL", 100)


def mlp():
    net = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=13, name="fc1"), act_type="relu")
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
    assert is_sharded(state) == bool(rule != "psum" and state.local)
    return whole_state(jax.device_get(state)), out


def assert_close(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def compare(optimizer, rule="sharded", **options):
    (a, _), (b, _) = (trained(optimizer, each, **options) for each in ("psum", rule))
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert_close(a, b)


@pytest.mark.parametrize("name", ELEMENTWISE)
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
def test_equals_a_loop_written_by_hand(monkeypatch, rule):
    monkeypatch.setattr(spmd, "SPMD", "shard_map")
    rng, transform = np.random.default_rng(1), optax.adam(0.05)
    params = {"w": rng.normal(size=(6, 5)).astype("float32"), "b": np.zeros(5, "float32"), "scale": np.float32(1.5)}
    x, y = rng.normal(size=(16, 6)).astype("float32"), rng.normal(size=(16, 5)).astype("float32")

    def apply(p, x):
        return p["scale"] * jnp.tanh(x @ p["w"] + p["b"][None])

    def loss(out, y):
        return jnp.sum((out - y) ** 2, axis=-1)

    expected, opt_state = params, transform.init(params)
    for _ in range(3):
        grads = jax.grad(lambda p: loss(apply(p, x), y).mean())(expected)
        updates, opt_state = transform.update(grads, opt_state, expected)
        expected = optax.apply_updates(expected, updates)
    run = jfit.fit(
        apply, (x, y), loss=loss, params=params, batch_size=16, num_epoch=3, optimizer=transform, devices=4, reduce=rule,
        progress=False,
    )  # fmt: skip
    jax.tree.map(lambda x: x.sharding.is_fully_replicated or pytest.fail("not replicated"), run.params)
    assert_close(run.params, expected)
    assert_close(run.raw_params, expected)
    assert_close(run.predict(x), apply(expected, x))
    assert "36 parameters" in repr(run)
    assert isinstance(run.state.params["w"], Shard) == (rule == "sharded_parameters")
    mean = run.state.opt_state[0].mu
    assert isinstance(mean["w"], Shard)
    assert mean["scale"].shape == ()  # a scalar is updated on every device


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


@pytest.mark.slow
def test_half_precision_parameters_have_split_master_copies():
    params = {"w": jnp.ones((6, 5), jnp.bfloat16), "v": jnp.ones((5, 3), jnp.float32)}
    x, y = np.eye(8, 6, dtype="float32"), np.ones((8, 3), "float32")

    def run(rule):
        return jfit.fit(
            lambda p, x: x.astype("bfloat16") @ p["w"] @ p["v"], (x, y), loss="mse", params=params, num_epoch=3, batch_size=8,
            optimizer=optim.adam(0.1, multi_precision=True), devices=4, reduce=rule, progress=False,
        )  # fmt: skip

    psum, sharded = run("psum").snapshot(), run("sharded").snapshot()
    assert sharded.opt_state.slots["master"]["w"].shape == (6, 5)
    assert_close(psum, sharded, rtol=1e-2)


def program_of(rule, devices=4):
    model, batch = jfit.lower(mlp()), batches(1)[0]
    step = jfit.data_parallel(jfit.train_step(model, "adam"), devices, reduce=rule)
    state = step.place(jfit.init_state(model, "adam", batch))
    return step._program.lower(state, jfit.parallel.split_batch(jfit.data.Batch(batch), devices)).compile(), state


@pytest.mark.parametrize("rule", ["sharded", "sharded_parameters"])
def test_memory_per_device_falls_by_the_number_of_devices(rule):
    (psum, whole), (sharded, split) = program_of("psum"), program_of(rule)
    arrays = (whole.opt_state.slots, whole.params) if rule == "sharded_parameters" else whole.opt_state.slots
    slots = sum(x.nbytes for x in jax.tree.leaves(arrays))
    on_device = sum(x.addressable_shards[0].data.nbytes for x in split.local)
    padding = 4 * len(split.local) * 3  # fewer than 4 elements of 4 bytes for each array
    assert slots / 4 <= on_device <= slots / 4 + padding
    saved = psum.memory_analysis().argument_size_in_bytes - sharded.memory_analysis().argument_size_in_bytes
    assert saved == slots - on_device
    sent, one = jfit.parallel.collectives(sharded), jfit.parallel.collectives(psum).all_reduce
    if rule == "sharded_parameters":
        # Gathers: both weights and the group of both biases, and fc2_weight again in the backward pass.
        assert [traffic.count for traffic in sent] == [1, 4, 3, 0, 0]
        assert sent.all_gather.operand_bytes == sent.reduce_scatter.operand_bytes / 4 + 4 * 4 * 13 / 4
        return
    assert [traffic.count for traffic in sent] == [1, 1, 1, 0, 0]  # sums of losses, parameters, gradients
    assert sent.all_gather.operand_bytes == sent.reduce_scatter.operand_bytes / 4
    assert one.wire_bytes <= sent.total.wire_bytes <= one.wire_bytes + 6 * padding  # 2 * 3 elements for each one of padding


LAYERS, WIDTH = 6, 32


def deep(form):
    """A perceptron of 6 layers of 32 x 32, and a batch of 4 rows."""
    x, y = np.ones((4, WIDTH), "float32"), np.zeros(4, "float32")
    if form == "graph":
        net = sym.Variable("data")
        for i in range(LAYERS):
            net = sym.Activation(sym.FullyConnected(net, num_hidden=WIDTH, name=f"fc{i}"), act_type="tanh")
        return jfit.lower(sym.SoftmaxOutput(net, name="softmax")), {"data": x, "softmax_label": y}

    def apply(params, x):
        for layer in params:
            x = jnp.tanh(x @ layer["w"] + layer["b"][None])
        return x

    params = [{"w": np.eye(WIDTH, dtype="float32"), "b": np.zeros(WIDTH, "float32")} for _ in range(LAYERS)]
    return jfit.Model.from_function(apply, loss="cross_entropy", params=params), {"x": x, "label": y.astype("int32")}


@pytest.mark.parametrize("form", ["graph", "function"])
@pytest.mark.repetitions(1)
def test_parameters_are_in_memory_only_while_they_are_used(form, monkeypatch):
    monkeypatch.setattr(gathered, "SMALL", 4 * WIDTH**2)
    model, batch = deep(form)
    parallel = jfit.data_parallel(jfit.train_step(model, "adam"), 4, reduce="sharded_parameters")
    program = parallel.lower(parallel.place(jfit.init_state(model, "adam", batch)), batch).compile()
    layer, biases = 4 * WIDTH**2, 4 * WIDTH * LAYERS
    # two layers in use (a parameter and a gradient), and the biases; whole parameters and gradients are 2 * LAYERS layers
    assert program.memory_analysis().temp_size_in_bytes < 3 * layer + 4 * biases
    sent = jfit.parallel.collectives(program)
    # Each weight in both passes, but the first only in the forward pass: the gradient of the batch is not needed.
    assert sent.all_gather[:2] == (2 * LAYERS, ((2 * LAYERS - 1) * layer + biases) / 4)
    assert sent.reduce_scatter[:2] == (LAYERS + 1, LAYERS * layer + biases)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(1, 5), max_size=3), min_size=1),
    st.integers(2, 9),
    st.integers(2, 9),
)
@settings(max_examples=25, deadline=None)
def test_state_is_the_same_after_any_number_of_splits(shapes, count, other):
    rng = np.random.default_rng(0)
    params = {k: rng.normal(size=shape).astype("float32") for k, shape in shapes.items()}
    opt_state = optim.OptState(jnp.int32(3), {"mean": params, "var": {k: 2 * x for k, x in params.items()}})
    state = jfit.TrainState(
        cast(Any, np.int32(1)), cast(Any, params), {}, opt_state, (), None, cast(Any, np.zeros(2, "uint32"))
    )
    leaves = [x.ndim > 0 for x in jax.tree.leaves(opt_state)]
    split = sharded_state(state, leaves, count)
    again = sharded_like(whole_state(split), sharded_state(state, leaves, other, {k for k, s in shapes.items() if s}))
    for each in (split, again):
        jax.tree.map(np.testing.assert_array_equal, whole_state(each), state)
    assert [len(x) for x in again.local or ()] == [other] * (sum(leaves) // 2 * 3)


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
    assert is_sharded(resumed.state)
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
    assert is_sharded(sharded.state)
    sharded.train(1)
    loaded = jfit.Run.load(tmp_path / rule)
    assert_close(loaded.params, whole_state(sharded.state).opt_state.ema_params, rtol=1e-2, atol=1)


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_mix_elements_raise(name):
    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    optimizer = optim.get(name) if name != "noisy_sgd" else optim.get(optax.noisy_sgd(0.1, key=0))
    with pytest.raises(ValueError, match=f"(?s)reduce='sharded'.*{REFUSED[name]}"):
        split_leaves(optimizer, params, optimizer.init(params), frozenset())


def test_optimizers_that_depend_on_shapes_raise():
    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}
    large = optax.add_decayed_weights(0.1, mask=lambda p: jax.tree.map(lambda x: x.shape[0] > 3, p))
    mean = optim.get(optax.stateless(lambda g, p: jax.tree.map(lambda x: x / x.size, g)))
    rows = optim.get("group_adagrad")
    nested = optim.get(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)))
    for optimizer, message in ((optim.get(large), "on the shapes"), (mean, "on the shapes"), (nested, "clip_norm=")):
        with pytest.raises(ValueError, match=message):
            split_leaves(optimizer, params, optimizer.init(params), frozenset())
    with pytest.raises(ValueError, match="that of no parameter"):
        split_leaves(rows, {"w": params["w"]}, rows.init({"w": params["w"]}), frozenset())


def test_one_device_and_separate_updates_have_no_split_state():
    state, _ = trained("adam", "sharded", 1)
    assert_close(state, trained("adam", "psum", 1)[0], rtol=0, atol=0)
    with pytest.raises(ValueError, match="needs a whole training step"):
        update_step("sgd", reduce="sharded")


@pytest.mark.parametrize("columns", [4, 6])
def test_states_of_another_rule_raise_until_they_are_placed(columns):
    net = sym.SoftmaxOutput(sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc"), name="softmax")
    model, batch = jfit.lower(net), batches(1)[0]
    batch["data"] = batch["data"][:, :columns]
    optimizer = optim.sgd(momentum=0.9)  # its momentum (4, 4) and a chunk (1, 4) of the gradient would broadcast
    psum, sharded = (jfit.data_parallel(jfit.train_step(model, optimizer), 4, reduce=r) for r in ("psum", "sharded"))
    state = psum.place(jfit.init_state(model, optimizer, batch))
    with pytest.raises(ValueError, match="is whole, but"):
        sharded(state, batch)
    state, _ = sharded(sharded.place(state), batch)
    with pytest.raises(ValueError, match="is split over devices"):
        psum(state, batch)
    assert not is_sharded(psum(psum.place(state), batch)[0])


def rare_function(params, x, ids, key):
    """Uses of parameters that are no product with a batch: casts, loops, equal weights, lookups, jit, remat, random numbers."""
    h = jnp.take(params["table"], ids, axis=0) + 0 * jax.random.normal(key, (1, 6))
    h = jnp.tanh(h @ params["tied"].T.astype("bfloat16").astype("float32")) @ params["tied"]
    h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, params["stacked"])
    for _ in range(3):
        h = jax.jit(lambda w, h: jax.nn.relu(h @ w) * 2.0)(params["often"], h)
    h = jax.checkpoint(lambda w, h: jnp.sin(h @ w))(params["saved"], h)
    scale = jnp.linalg.norm(params["normed"], axis=0, keepdims=True)
    return params["scale"] * (x @ (params["normed"] / scale)) + h


@pytest.mark.slow
def test_rare_uses_of_parameters_have_the_numbers_of_psum():
    rng, shapes = np.random.default_rng(2), dict.fromkeys(("tied", "often", "saved", "normed", "unused"), (6, 6))
    shapes |= {"table": (9, 6), "stacked": (2, 6, 6)}
    params = {k: rng.normal(size=s).astype("float32") / 2 for k, s in shapes.items()} | {"scale": np.float32(1.5)}
    data = {
        "x": rng.normal(size=(14, 6)).astype("float32"),
        "ids": rng.integers(0, 9, 14),
        "label": np.ones((14, 6), "float32"),
    }

    def loss(out, y, params):
        return jnp.sum((out - y) ** 2, axis=-1) + 0.1 * jnp.sum(params["saved"] ** 2)

    def run(rule):
        return jfit.fit(
            rare_function, data, loss=loss, params=params, batch_size=8, num_epoch=2,
            optimizer="adam", devices=4, reduce=rule, progress=False, micro_batches=2,
            regularizers={"often": jfit.regularizers.l2(0.1)},
        )  # fmt: skip

    assert_close(run("sharded_parameters").params, run("psum").params, rtol=1e-4, atol=1e-5)


def test_steps_of_other_settings_raise():
    model, batch = jfit.lower(mlp()), batches(1)[0]
    with pytest.raises(ValueError, match="gradients=True returns the gradients of each device before they are reduced"):
        jfit.train_step(model, "sgd", gradients=True, reduce="sharded_parameters")
    steps = {r: jfit.data_parallel(jfit.train_step(model, "sgd"), 4, reduce=r) for r in ("sharded", "sharded_parameters")}
    states = {r: step.place(jfit.init_state(model, "sgd", batch)) for r, step in steps.items()}
    with pytest.raises(ValueError, match="'fc1_bias' is split over devices in the state, but this step needs it whole; call"):
        steps["sharded"](states["sharded_parameters"], batch)
    with pytest.raises(ValueError, match="'fc1_bias' is whole in the state, but this step needs it split over devices; call"):
        steps["sharded_parameters"](states["sharded"], batch)
