"""reduce="ordered": the same bits on any number of devices."""

import hashlib

import jax
import numpy as np
import optax
import pytest

import jfit
from jfit import sym
from jfit.step.reduce import ordered

ROWS = 24


@pytest.fixture(autouse=True)
def every_device_computes(monkeypatch):
    monkeypatch.setattr(jfit.parallel.ordered, "cores", lambda: 8)


def digest(state):
    result = hashlib.sha256()
    for leaf in jax.tree.leaves((state.step, state.params, state.aux, state.opt_state)):
        result.update(np.asarray(leaf).tobytes())
    return result.hexdigest()


def mlp():
    net = sym.Activation(sym.FullyConnected(sym.Variable("data"), num_hidden=12, name="fc1"), act_type="relu")
    net = sym.FullyConnected(sym.Dropout(net, p=0.3, name="drop"), num_hidden=4, name="fc2")
    return sym.SoftmaxOutput(net, name="softmax"), (ROWS, 6)


def resnet():
    net = sym.Convolution(sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv0")
    branch = sym.Activation(sym.BatchNorm(net, fix_gamma=False, name="bn"), act_type="relu")
    net = net + sym.Convolution(branch, kernel=(3, 3), pad=(1, 1), num_filter=4, name="conv1")
    net = sym.Flatten(sym.Pooling(net, global_pool=True, pool_type="avg", kernel=(2, 2)))
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=4, name="fc"), name="softmax"), (ROWS, 3, 6, 6)


def lstm():
    net = sym.transpose(sym.Reshape(sym.Variable("data"), shape=(0, 4, 3)), axes=(1, 0, 2))
    net = sym.RNN(net, state_size=5, num_layers=1, mode="lstm", name="lstm")
    net = sym.SequenceLast(net)
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=4, name="fc"), name="softmax"), (ROWS, 12)


def table():
    net = sym.Embedding(sym.Variable("data"), input_dim=50, output_dim=5, sparse_grad=True, name="table")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.Flatten(net), num_hidden=4, name="fc"), name="softmax"), (ROWS, 3)


def attention():
    net = sym.LayerNorm(sym.Reshape(sym.Variable("data"), shape=(0, 4, 6)), name="ln")
    query, key = (sym.FullyConnected(net, num_hidden=6, flatten=False, name=name) for name in ("query", "key"))
    net = net + sym.batch_dot(sym.softmax(sym.batch_dot(query, key, transpose_b=True)), net)
    net = sym.BatchNorm(sym.FullyConnected(net, num_hidden=8, name="fc1"), fix_gamma=False, name="bn")
    return sym.SoftmaxOutput(sym.FullyConnected(sym.relu(net), num_hidden=4, name="fc2"), name="softmax"), (ROWS, 24)


def batches(shape, count, rows=ROWS):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 50, (count, rows, *shape[1:])) if shape == (ROWS, 3) else rng.normal(size=(count, rows, *shape[1:]))
    y = rng.integers(0, 4, (count, rows))
    return [{"data": a.astype("float32"), "softmax_label": b.astype("float32")} for a, b in zip(x, y, strict=True)]


def trained(make, optimizer, devices, rule=None, steps=4, rows=ROWS, **options):
    net, shape = make()
    model = jfit.lower(net)
    step = jfit.data_parallel(jfit.train_step(model, optimizer, **options), devices, reduce=rule or ordered(4))
    data = batches(shape, steps, rows)
    state = step.place(jfit.init_state(model, optimizer, data[0], seed=3))
    for batch in data:
        state, _ = step(state, batch)
    return state


CASES = {
    "mlp_adam": (mlp, "adam", {"clip_norm": 0.5, "schedule": jfit.optim.schedules.cosine(max_update=4, base_lr=0.01)}),
    "resnet_sgd": (resnet, jfit.optim.sgd(momentum=0.9), {}),
    "lstm_rmsprop": (lstm, "rmsprop", {"micro_batches": 3}),
    "attention_adam": (attention, "adam", {"clip_norm": 1.0}),
    "table_sgd": (table, "sgd", {}),
    "table_adam": (table, "adam", {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.repetitions(1)
def test_any_number_of_devices_has_the_same_bits(case):
    make, optimizer, options = CASES[case]
    assert len({digest(trained(make, optimizer, devices, **options)) for devices in (1, 4)}) == 1


def test_devices_that_share_few_cores_have_the_same_bits(monkeypatch):
    expected = digest(trained(mlp, "adam", 4))
    monkeypatch.setattr(jfit.parallel.ordered, "cores", lambda: 2)
    with jfit.counters.counted() as counts:
        assert digest(trained(mlp, "adam", 4)) == expected
    assert counts["traces:train_slice"] <= 1


@pytest.mark.slow
@pytest.mark.optimized
def test_remat_lowers_the_bytes_of_the_slices_and_keeps_the_bits():
    rng, sizes = np.random.default_rng(0), []
    batch = {"data": rng.normal(size=(1024, 16)).astype("float32"), "softmax_label": np.zeros(1024, "float32")}
    net = sym.Variable("data")
    for i in range(5):
        net = sym.tanh(sym.BatchNorm(sym.FullyConnected(net, num_hidden=16, name=f"fc{i}"), name=f"bn{i}"))
    model = jfit.lower(sym.SoftmaxOutput(net, name="softmax"))
    for remat in ("none", "full"):
        step = jfit.train_step(model, "sgd", remat=remat, reduce=ordered(4))
        one, three, state = (jfit.init_state(model, "sgd", batch, seed=3) for _ in range(3))  # steps donate their states
        results = jfit.data_parallel(step, 1)(one, batch), jfit.data_parallel(step, 3)(three, batch)
        assert len({digest(trained) for trained, _ in results}) == 1
        steps = jfit.parallel.ordered.OrderedSteps(step, jax.devices()[:1])
        slices = jfit.parallel.split_batch(jfit.data.Batch(batch), 4)
        program = steps._slices.lower(state, slices, np.array([0, 4], "int32")).compile()
        sizes.append(program.memory_analysis().temp_size_in_bytes)
    assert sizes[1] < 0.6 * sizes[0]


@pytest.mark.slow
@pytest.mark.parametrize("make", [mlp, attention])
def test_uneven_devices_and_padded_batches_have_the_same_bits(make):
    assert len({digest(trained(make, "sgd", devices, rows=22)) for devices in (1, 3)}) == 1


@pytest.mark.slow
def test_fit_and_steps_have_the_same_bits():
    net, shape = mlp()
    rows = batches(shape, 3)
    whole = {k: np.concatenate([b[k] for b in rows]) for k in rows[0]}
    run = jfit.fit(net, whole, batch_size=ROWS, num_epoch=1, shuffle=False, devices=2, reduce="ordered", seed=3, progress=False)
    model = jfit.lower(net)
    step = jfit.data_parallel(jfit.train_step(model, "sgd"), 3, reduce="ordered")
    state = step.place(jfit.init_state(model, "sgd", rows[0], seed=3))
    for batch in rows:
        state, _ = step(state, batch)
    assert digest(state) == digest(run.state)


@pytest.mark.slow
def test_a_run_resumed_on_other_devices_has_the_same_bits(tmp_path):
    net, shape = mlp()
    rows = batches(shape, 3, 20)
    options = {"batch_size": 16, "optimizer": "adam", "reduce": "ordered", "progress": False}
    whole = {k: np.concatenate([b[k] for b in rows]) for k in rows[0]}
    straight = jfit.fit(net, whole, num_epoch=2, devices=1, **options)
    jfit.fit(net, whole, num_epoch=1, devices=4, checkpoint=tmp_path, **options)
    resumed = jfit.fit(net, whole, num_epoch=2, devices=2, checkpoint=tmp_path, resume=True, **options)
    assert digest(straight.state) == digest(resumed.state)


def linear():
    x = np.random.default_rng(0).normal(size=(8, 8, 3)).astype("float32")
    net = sym.FullyConnected(sym.mean(sym.Variable("data"), axis=0), num_hidden=2, no_bias=True, name="f")
    return sym.SoftmaxOutput(net, name="softmax"), {"data": x, "softmax_label": np.arange(8.0, dtype="float32") % 2}


def test_batch_axes_of_data_parallel_are_those_of_the_slices():
    (net, batch), results = linear(), []  # data: (time, batch, features)
    for rule in ("psum", ordered(2)):
        step = jfit.data_parallel(jfit.train_step(jfit.lower(net), "sgd"), 2, batch_axes={"data": 1}, reduce=rule)
        state = step.place(jfit.init_state(jfit.lower(net), "sgd", batch))
        results.append(step(state, batch)[0].params["f_weight"])
    np.testing.assert_allclose(*results, rtol=1e-5)


@pytest.mark.parametrize("rule", ["sharded", "sharded_parameters"])
def test_a_state_that_another_rule_split_is_placed_by_the_first_step(rule):
    model = jfit.Model.from_function(lambda p, x: x @ p["w"], loss=lambda z, label: (z - label) ** 2, params={"w": np.ones(4)})
    batch = {"x": np.eye(4, dtype="float32"), "label": np.zeros(4, "float32")}
    step = jfit.train_step(model, "adam")
    state = jfit.data_parallel(step, 2, reduce=rule).place(jfit.init_state(model, "adam"))
    assert not state.opt_state.inner[0].mu["w"].is_fully_replicated
    state, _ = jfit.data_parallel(step, 2, reduce=ordered(2))(state, batch)
    assert int(state.step) == 1 and state.opt_state.inner[0].mu["w"].is_fully_replicated


def test_the_warning_for_rows_that_affect_each_other_is_about_slices():
    def centered(p, x):
        return (x - x.mean(0, keepdims=True)) @ p["w"]

    model = jfit.Model.from_function(centered, loss=lambda z, label: (z - label) ** 2, params={"w": np.ones(3, "float32")})
    step = jfit.data_parallel(jfit.train_step(model), 1, reduce=ordered(2))
    batch = {"x": np.eye(4, 3, dtype="float32"), "label": np.zeros(4, "float32")}
    with pytest.warns(UserWarning, match="with reduce='ordered' this is computed for each of the 2 slices of a batch, on any"):
        step(jfit.init_state(model, "sgd"), batch)


@pytest.mark.slow
def test_functions_use_keys_of_slices_bits():
    def apply(params, x, key=None, train=False):
        noise = jax.random.normal(key, x.shape) if train else 0
        return (x + noise) @ params["w"]

    x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
    y = np.arange(32) % 2
    runs = [
        jfit.fit(apply, (x, y), loss=optax.softmax_cross_entropy_with_integer_labels, params={"w": np.ones((3, 2), "float32")},
                 batch_size=16, num_epoch=1, devices=n, reduce="ordered", progress=False, eval_metric=None)
        for n in (1, 4)
    ]  # fmt: skip
    assert digest(runs[0].state) == digest(runs[1].state)


def test_batch_statistics_of_all_devices_are_refused():
    net = sym.FullyConnected(sym._contrib_SyncBatchNorm(sym.Variable("data"), key="bn", name="bn"), num_hidden=4, name="fc")
    model, batch = jfit.lower(sym.SoftmaxOutput(net, name="softmax")), batches((ROWS, 6), 1)[0]
    step = jfit.data_parallel(jfit.train_step(model), 2, reduce="ordered")
    with pytest.raises(ValueError, match="bn: batch normalization over all devices needs values of the whole batch"):
        step(jfit.init_state(model, "sgd", batch), batch)


def test_refusals_say_why():
    model = jfit.lower(mlp()[0])
    with pytest.raises(ValueError, match="expected a power of 2"):
        ordered(6)
    with pytest.raises(ValueError, match=r"the 2 slices of a batch alone, .* at most 2 devices \(there are 4\)"):
        jfit.data_parallel(jfit.train_step(model), 4, reduce=ordered(2))
    with pytest.raises(ValueError, match=r"alone, .* leave out sync_batch_stats=True"):
        jfit.data_parallel(jfit.train_step(model, sync_batch_stats=True), 2, reduce="ordered")
    with pytest.raises(ValueError, match=r"leave out .* gradients=True"):
        jfit.data_parallel(jfit.train_step(model, gradients=True), 2, reduce="ordered")
    with pytest.raises(ValueError, match="reduce is 'mean'; expected one of 'psum'"):
        jfit.train_step(model, reduce="mean")
    batch = batches((ROWS, 6), 1)[0]
    with pytest.raises(ValueError, match="consists of several programs"):
        jax.eval_shape(jfit.train_step(model, reduce="ordered"), jfit.init_state(model, "sgd", batch), batch)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mlp_adam", "resnet_sgd"])
def test_eight_slices_on_2_and_8_devices_have_the_same_bits(case):
    make, optimizer, options = CASES[case]
    assert len({digest(trained(make, optimizer, devices, ordered(), **options)) for devices in (2, 8)}) == 1
