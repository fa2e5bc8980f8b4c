"""The train step on 1, 2 and 8 devices: equal results, equal replicas, one compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_nets import assert_close, assert_equal, batch_norm_net, batch_of, mlp, on_host, weighted
from jax.sharding import Mesh

import jfit
from jfit import counters, sym
from jfit.data import Batch
from jfit.parallel.devices import place
from jfit.parallel.mesh import mesh_jit
from jfit.step import StepOut
from jfit.step.layout import WHOLE, on_each_device
from jfit.step.totals import values

ACC = jfit.metrics.get(["acc", "ce"])
_programs: dict = {}


def program(model, devices, optimizer="sgd", **settings):
    """One program per combination, shared by the tests."""
    key = (id(model), devices, optimizer, str(settings))
    if key not in _programs:
        step = jfit.train_step(model, optimizer, metrics=ACC, **settings)
        _programs[key] = jfit.data_parallel(step, devices), model
    return _programs[key][0]


def trained(model, batch, devices, optimizer="sgd", *, steps=2, **settings):
    parallel = program(model, devices, optimizer, **settings)
    inputs = batch if isinstance(batch, dict) else batch.inputs
    key = ("start", id(model), optimizer)  # no parameter's shape depends on the number of rows
    if key not in _programs:
        _programs[key] = jfit.init_state(model, optimizer, inputs, metrics=ACC), model
    state = parallel.place(_programs[key][0])
    out = None
    for _ in range(steps):
        state, out = parallel(state, batch)
    return state, out


def assert_replicas_equal(tree) -> None:
    for leaf in jax.tree.leaves(tree):
        first, *rest = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        for other in rest:
            np.testing.assert_array_equal(first, other)


@pytest.mark.repetitions(1)
# ------------------------------------------------------------------------------------------ any number of devices
@pytest.mark.parametrize("rows", [8, 7, 19])
def test_dropout_and_adam_agree_on_1_2_and_8_devices(rows):
    batch = batch_of(rows)
    wanted, told = trained(mlp(0.5), batch, 1, "adam", outputs=True)
    for devices in (2, 8):
        state, out = trained(mlp(0.5), batch, devices, "adam", outputs=True)
        assert_close(state.params, wanted.params, 1e-5)
        assert_close(state.opt_state, wanted.opt_state, 1e-5)
        assert_close((out.loss, out.outputs), (told.loss, told.outputs), 1e-5)
        assert values(ACC, counters.read(state.metrics)) == pytest.approx(values(ACC, counters.read(wanted.metrics)), rel=1e-5)
        assert len(state.params["fc1_weight"].sharding.device_set) == devices
        assert_replicas_equal(state)


# ------------------------------------------------------------------------------------------ batch statistics
def slices(rows: int, devices: int) -> list[np.ndarray]:
    per_device = -(-rows // devices)
    return [np.arange(rows)[k * per_device : (k + 1) * per_device] for k in range(devices)]


def normalised(params, data, label):
    """Mean-free loss sum of one device's slice of the batch-norm network, written out."""
    mean, var = data.mean(axis=0), data.var(axis=0)
    unit = (data - mean[None]) / jnp.sqrt(var + 1e-3)[None]
    logits = (unit * params["bn_gamma"][None] + params["bn_beta"][None]) @ params["fc2_weight"].T + params["fc2_bias"][None]
    return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, label.astype(np.int32)))


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("rows", "devices"), [(8, 2), (7, 2), (9, 8)])
def test_batch_norm_takes_its_statistics_per_device_without_padding(rows, devices):
    batch = batch_of(rows)
    start = on_host(jfit.init_state(batch_norm_net(), "sgd", batch, metrics=ACC))
    state, out = trained(batch_norm_net(), batch, devices, steps=1)
    parts = [part for part in slices(rows, devices) if len(part)]

    def whole(params):
        return sum(normalised(params, batch["data"][part], batch["softmax_label"][part]) for part in parts) / rows

    loss, gradient = jax.value_and_grad(whole)(start.params)
    assert_close(state.params, {k: v - 0.01 * gradient[k] for k, v in start.params.items()}, 1e-5)
    assert_close(out.loss, loss, 1e-5)
    # only devices that had rows count in the mean
    means = [0.5 * batch["data"][part].mean(axis=0) for part in parts]
    spreads = [0.5 + 0.5 * batch["data"][part].var(axis=0) for part in parts]
    assert_close(state.aux, {"bn_moving_mean": np.mean(means, axis=0), "bn_moving_var": np.mean(spreads, axis=0)}, 1e-5)
    assert_replicas_equal(state)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("rows", [8, 9])
def test_synchronized_statistics_are_those_of_the_whole_batch(rows):
    batch = batch_of(rows)
    wanted, told = trained(batch_norm_net(), batch, 1)
    state, out = trained(batch_norm_net(), batch, 8, sync_batch_stats=True)
    assert_close(state.params, wanted.params, 1e-5)
    assert_close(state.aux, wanted.aux, 1e-5)
    assert_close(out.loss, told.loss, 1e-5)
    assert_replicas_equal(state)


# ------------------------------------------------------------------------------------------ buffers and compiles
@pytest.mark.parametrize("devices", [1, 2])
def test_the_second_call_compiles_nothing_and_old_buffers_are_donated(devices):
    batch = batch_of(8)
    state = program(mlp(), devices, "adam").place(jfit.init_state(mlp(), "adam", batch, metrics=ACC))
    state, told = program(mlp(), devices, "adam")(state, batch)
    old = state
    with counters.counted() as seen:
        for _ in range(2):
            state, out = program(mlp(), devices, "adam")(state, batch)
    assert seen["compiles"] == 0 and seen["traces"] == 0 and seen["host_syncs"] == 0
    assert all(x.is_deleted() for x in jax.tree.leaves((old.params, old.opt_state, old.metrics)))
    assert not any(x.is_deleted() for x in jax.tree.leaves((told, out, state)))
    assert np.isfinite(float(told.loss)) and float(told.lr) == float(out.lr)


def aligned(size: int) -> np.ndarray:
    """Ones at an address that a CPU device would use as it is."""
    whole = np.ones(size + 16, np.float32)
    start = (-whole.ctypes.data // 4) % 16
    return whole[start : start + size]


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_placing_copies_the_state(devices):
    given = {"jax": jnp.ones(32), "numpy": np.ones(32, np.float32), "aligned": aligned(32), "one": 1.0}
    given |= {"tied": given["jax"], "tied too": given["aligned"], "placed": place(given["jax"], 2)}
    placed = place(given, devices)
    given["aligned"][0] = 7.0
    more = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)
    found = more(more(placed))
    assert placed["jax"].is_deleted() and placed["placed"].is_deleted()
    assert not given["jax"].is_deleted() and not given["placed"].is_deleted()
    for name, value in found.items():
        assert len(value.sharding.device_set) == devices
        for shard in value.addressable_shards:
            assert_equal(shard.data, np.full(np.shape(given[name]), 3.0))
    assert_equal([given["jax"], given["placed"], given["aligned"][1:]], [np.ones(32), np.ones(32), np.ones(31)])


def test_a_state_on_another_device_is_placed_first():
    batch = batch_of(8)
    state = jfit.init_state(mlp(), "adam", batch, metrics=ACC)
    wanted = program(mlp(), 2, "adam")(program(mlp(), 2, "adam").place(state), batch)[0]
    found, _ = program(mlp(), 2, "adam")(state, batch)
    assert not state.params["fc1_weight"].is_deleted()
    assert_equal(found.params, wanted.params)
    last = jfit.data_parallel(jfit.train_step(mlp(), "adam", metrics=ACC), [jfit.cpu(7)])
    assert last(state, batch)[0].params["fc1_weight"].devices() == {jax.devices()[7]}


@pytest.mark.parametrize("rows", [8, 7])
def test_devices_do_not_read_the_arrays_of_the_caller(rows, monkeypatch):
    """They read after the call, when the caller may have changed the arrays; the race itself cannot be tested."""
    parallel, batch, passed = jfit.data_parallel(jfit.train_step(mlp()), 2), batch_of(rows), []
    monkeypatch.setattr(parallel, "_program", lambda state, batch: (passed.append(batch), (state, None))[1])
    parallel(parallel.place(jfit.init_state(mlp(), "sgd", batch)), Batch(batch, weight := np.ones(rows, "float32")))
    arrays = [x for x in jax.tree.leaves(passed) if isinstance(x, np.ndarray)]
    assert len(arrays) >= len(batch)
    assert not any(np.shares_memory(x, y) for x in arrays for y in (*batch.values(), weight))


# ------------------------------------------------------------------------------------------ without pmap
def by_shard_map(fn, *, axis_name, devices, in_axes, out_axes, donate_argnums):
    specs = jax.tree.map(lambda a: WHOLE if a is None else a, out_axes, is_leaf=lambda a: a is None)
    on_each = on_each_device(lambda _, *args: fn(*args), axis_name, specs)
    return mesh_jit(on_each, Mesh(np.array(devices), (axis_name,)), in_axes, out_axes, donate_argnums)


def test_shard_map_in_place_of_pmap_gives_the_same_results(monkeypatch):
    batch = weighted(batch_of(7), [1, 1, 0, 1, 1, 1, 1])
    wanted, told = trained(batch_norm_net(), batch, 2, outputs=True)
    jfit.clear_programs()
    monkeypatch.setattr(jax, "pmap", by_shard_map)
    step = jfit.train_step(batch_norm_net(), "sgd", metrics=ACC, outputs=True)
    twin = jfit.data_parallel(step, 2)
    start = jfit.init_state(batch_norm_net(), "sgd", batch.inputs, metrics=ACC)
    state = twin.place(start._replace(local={"residual": np.float32([[1], [2]])}))
    state, out = twin(state, batch)
    old = state
    with counters.counted() as seen:
        state, out = twin(state, batch)
    assert seen["compiles"] == 0 and seen["traces"] == 0
    assert all(x.is_deleted() for x in jax.tree.leaves(old.params))
    assert_equal(state.local["residual"], np.float32([[1], [2]]))
    assert_close(state._replace(local=None), wanted, 1e-6)
    assert_close(out, told, 1e-6)
    assert_replicas_equal(state._replace(local=None))
    jfit.clear_programs()


# ------------------------------------------------------------------------------------------ outputs
@pytest.mark.slow
def test_outputs_of_any_layout_are_merged_and_unpadded():
    rows = 5  # on 2 devices: 3 slots each

    def model(symbol):
        return jfit.lower(sym.Group([symbol, sym.SoftmaxOutput(dense, name="softmax")]))

    dense = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    batch = batch_of(rows)
    for shown in (
        sym.transpose(dense, name="turned"),  # (3, rows)
        sym.Reshape(dense, shape=(-1,), name="flat"),  # (rows * 3,)
        sym.expand_dims(dense, axis=0, name="lead"),  # (1, rows, 3)
    ):
        net = model(shown)
        found = []
        for devices in (1, 2):
            parallel = jfit.data_parallel(jfit.train_step(net, outputs=True), devices)
            found.append(parallel(parallel.place(jfit.init_state(net, "sgd", batch)), batch)[1].outputs)
        assert_close(found[1], found[0], 1e-6)


# ------------------------------------------------------------------------------------------ calls in flight
def stepping(report):
    """A step that counts and reports what `report(state)` makes of it."""
    return lambda state, batch, *, axis_name=None: (state._replace(step=state.step + 1), report(state))


STEPS = {
    "a StepOut": (2, lambda state: StepOut(state.step + 0, jnp.float32(0), None, jnp.int32(-1), (jnp.zeros((4, 9)),))),
    "a dict": (1, lambda state: {"big": jnp.zeros((64, 64)), "small": state.step * 2}),
    "nothing": (1, lambda state: None),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_custom_loop_cannot_dispatch_far_ahead_of_the_devices(kind, monkeypatch):
    devices, report = STEPS[kind]
    waited: list = []
    monkeypatch.setattr(jax, "block_until_ready", lambda value: waited.append(value))
    parallel = jfit.data_parallel(stepping(report), devices)
    state, batch = parallel.place(jfit.init_state(mlp(), "sgd", batch_of(4))), batch_of(4)
    fences: list = []
    with counters.counted() as seen:
        for _ in range(40):
            state, out = parallel(state, batch)
            fences.append(out.fence if isinstance(out, StepOut) else None if out is None else out["small"])
    assert seen["host_syncs"] == len(waited) == 4  # at calls 16, 24, 32 and 40: never more than 16 in flight
    for value, at in zip(waited, (7, 15, 23, 31), strict=True):
        assert value is fences[at] if fences[at] is not None else int(value) == at + 1  # the call 8 back
