"""Injected faults on several devices: NaN, uneven slices, shared buffers, wrong leading axes, unequal replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_nets import assert_close, batch_of, mlp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jfit
from jfit import counters
from jfit.parallel import check_replicas, compile_spmd, place
from jfit.parallel.spmd import AXIS

DEVICES = 4


def steps(optimizer="adam", devices=DEVICES):
    return jfit.data_parallel(jfit.train_step(mlp(), optimizer), devices)


def start(batch, optimizer="adam"):
    return jfit.init_state(mlp(), optimizer, batch)


def test_a_nan_on_one_device_reaches_all_replicas_and_names_its_step():
    parallel, batch = steps(), batch_of(8)
    bad = {**batch, "data": batch["data"].copy()}
    bad["data"][5, 2] = np.nan  # a row of the third device
    state, first_bad = parallel.place(start(batch)), []
    for each in (batch, batch, bad, batch):
        state, out = parallel(state, each)
        first_bad.append(int(out.first_bad_step))
    assert first_bad == [-1, -1, 2, 2]
    check_replicas(state)
    for shard in state.params["fc1_weight"].addressable_shards:
        assert np.isnan(shard.data).any()
    assert len(state.params["fc1_weight"].addressable_shards) == DEVICES


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("rows", [1, 3, 6])  # 3 devices without rows; 1 without; the last two devices have 2 and 0 rows
def test_uneven_and_empty_slices_are_as_one_device(rows):
    batch, states = batch_of(rows), []
    for devices in (1, DEVICES):
        parallel = steps(devices=devices)
        state = parallel.place(start(batch))
        for _ in range(2):
            state, out = parallel(state, batch)
        states.append((state.params, state.opt_state, out.loss))
    check_replicas(state)
    assert_close(states[1], states[0], 1e-5)


@pytest.mark.parametrize("devices", [1, DEVICES])
@pytest.mark.parametrize("again", [lambda x: x, lambda x: jax.device_put(x, x.sharding)], ids=["same_array", "same_buffer"])
def test_a_state_whose_leaves_share_a_buffer_is_copied_before_it_is_donated(devices, again):
    weights = {"a": jnp.ones(3), "b": jnp.ones(3)}
    model = jfit.Model.from_function(lambda p, x: x @ p["a"] + x @ p["b"], loss=lambda t, o: (t - o) ** 2, params=weights)
    batch = {"x": np.ones((8, 3), np.float32), "label": np.ones(8, np.float32)}
    parallel = jfit.data_parallel(jfit.train_step(model, "sgd"), devices)
    states = [parallel.place(jfit.init_state(model, "sgd", batch)) for _ in range(2)]
    states[0] = states[0]._replace(params={"a": states[0].params["a"], "b": again(states[0].params["a"])})
    results = [parallel(state, batch)[0] for state in states]
    assert_close(results[0].params, results[1].params, 0)
    with counters.counted() as seen:  # a state of the last call is not copied
        state, _ = parallel(results[1], batch)
    assert seen["host_syncs"] == 0 and results[1].params["a"].is_deleted()
    tied = state._replace(params={"a": state.params["a"], "b": state.params["a"]})
    parallel(tied, batch)[1].loss.block_until_ready()


@pytest.mark.parametrize("size", [DEVICES - 1, 2 * DEVICES])
def test_a_leading_axis_of_another_size_than_the_devices_raises(size):
    total = compile_spmd(lambda x, *, axis_name: jax.lax.psum(x.sum(), axis_name), jax.devices()[:DEVICES], (0,), None)
    with pytest.raises(ValueError) as raised:
        total(np.ones((size, 2), np.float32))
    is_silent = size < DEVICES  # pmap would run on some of the devices
    assert not is_silent or f"has {size} slices along its leading device axis, but the program runs on 4" in str(raised.value)
    batch = batch_of(4)
    with pytest.raises(ValueError, match=r"state.local\['r'\] has shape \(3, 2\), expected \(4, ...\): one slice per device"):
        place(start(batch)._replace(local={"r": np.zeros((3, 2), np.float32)}), DEVICES)


def test_replicas_that_differ_are_named():
    mesh = Mesh(np.array(jax.devices()[:3]), (AXIS,))
    values = [np.float32([[1, 2]]), np.float32([[1, 2]]), np.float32([[1, 3]])]
    pieces = [jax.device_put(v, d) for v, d in zip(values, mesh.devices, strict=True)]
    bad = jax.make_array_from_single_device_arrays((1, 2), NamedSharding(mesh, PartitionSpec()), pieces)
    with pytest.raises(
        ValueError, match=r"replicas of \['w'\] \(1, 2\) differ: 1 of 2 .* on .*0 and .*2, first at \(0, 1\): 2.0 and 3.0"
    ):
        check_replicas({"a": place(np.ones(2), 3), "w": bad})
    split = jax.make_array_from_single_device_arrays((3, 2), NamedSharding(mesh, PartitionSpec(AXIS)), pieces)
    nan = place({"x": np.float32([np.nan]), "key": jax.random.key(0)}, 3)
    check_replicas({"split": split, "nan": nan, "host": np.ones(2), "one": jnp.ones(2), "none": None})


def test_values_of_one_device_that_are_returned_as_replicated_are_found():
    each = compile_spmd(lambda x, *, axis_name: x + 1, jax.devices()[:2], (0,), None)
    with pytest.raises(ValueError, match="returned values of one device as replicated"):
        check_replicas(each(np.float32([1, 2])))


def test_hundreds_of_unwaited_steps_end():
    parallel, batch = steps("sgd"), batch_of(8)
    state = parallel.place(start(batch, "sgd"))
    for _ in range(300):
        state, _ = parallel(state, batch)
    assert int(state.step) == 300
    check_replicas(state)
