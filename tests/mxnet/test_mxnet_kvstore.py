"""Key-value store: sums over devices, keys, updaters, compression, optimizer states, and the store that a module selects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit.mx import kvstore as mxkv
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.kvstore.store import BIG, TYPES, KVStore, KVStoreBase, checked_type, create, select
from jfit.mxnet.mutable import MutableArray, MutableRowSparse
from jfit.mxnet.ndarray.array import NDArray
from jfit.mxnet.optimizer import SGD
from jfit.mxnet.optimizer import create as create_optimizer

DEVICES = jax.devices()


def full(value, shape=(2, 3), device=None):
    array = np.full(shape, value, "float32")
    return array if device is None else jax.device_put(array, DEVICES[device])


def store_with(*keys, name="device", value=0.0):
    store = KVStore(name)
    store.init(list(keys), [full(value) for _ in keys])
    return store


def first(value):
    return float(np.asarray(value).ravel()[0])


@pytest.mark.parametrize("name", ["local", "device", "nccl", "local_allreduce_cpu", "dist_sync"])
def test_a_push_sums_over_devices_on_the_first_device(name):
    store = store_with("w", name=name)
    store.push("w", [full(i + 1.0, device=i + 2) for i in range(3)])
    assert first(store.pull("w")) == 6.0
    assert store.pull("w").devices() == {DEVICES[2]}


def test_the_store_copies_pushed_values():
    store, mine = KVStore(), full(1.0)
    store.init(3, mine)
    mine[:] = 9
    assert first(store.pull(3)) == 1.0
    store.push(3, mine)
    mine[:] = 7
    assert first(store.pull(3)) == 9.0


def test_a_pull_writes_into_mutable_arrays_on_their_device():
    store = store_with("w", value=4.0)
    cells = [MutableArray(full(0.0, device=0)), MutableArray(full(0.0, device=5)), full(0.0)]
    assert store.pull("w", out=cells) is None
    assert [first(c) for c in cells] == [4.0] * 3
    assert [c.value.devices() for c in cells[:2]] == [{DEVICES[0]}, {DEVICES[5]}]


def test_a_jax_array_cannot_be_pulled_into():
    with pytest.raises(TypeError, match="immutable"):
        store_with("w").pull("w", out=jnp.zeros((2, 3)))


def test_pushpull_writes_the_sum_to_every_device():
    store = store_with(1)
    cells = [MutableArray(full(1.0, device=0)), MutableArray(full(2.0, device=1))]
    assert store.pushpull(1, cells) is None
    assert [first(c) for c in cells] == [3.0, 3.0] and cells[1].value.devices() == {DEVICES[1]}
    out = MutableArray(full(0.0))
    store.pushpull(1, cells, out=out)
    assert first(out) == 6.0 and first(cells[0]) == 3.0
    given = store.pushpull([1], [[full(1.0, device=2), full(1.0, device=3)]])
    assert [first(v) for v in given] == [2.0]
    assert first(store.pushpull(1, full(8.0, device=4))) == 8.0


def test_broadcast_initializes_and_writes_the_value_to_all():
    store, cells = KVStore(), [MutableArray(full(0.0, device=i)) for i in range(2)]
    store.broadcast("w", full(3.0), cells)
    assert [first(c) for c in cells] == [3.0, 3.0]
    with pytest.raises(MXNetError, match="'w' is already in the store"):
        store.broadcast("w", full(3.0), cells)


def test_rows_that_several_devices_pushed_are_pulled_to_each_device():
    store = KVStore("device")
    store.init("e", np.ones((4, 2), "float32"))
    store.set_optimizer(create_optimizer("sgd", learning_rate=1.0))
    pushed = [np.zeros((4, 2), "float32") for _ in range(2)]
    pushed[0][[0, 2]], pushed[1][2] = 1, 2
    store.push("e", [MutableRowSparse(jax.device_put(p, DEVICES[i])) for i, p in enumerate(pushed)])
    cells = [MutableArray(full(9.0, (4, 2), device=i)) for i in range(2)]
    store.row_sparse_pull("e", out=cells, row_ids=[np.array([2, 0, 2]), np.array([3])])
    assert cells[0].asnumpy()[:, 0].tolist() == [0, 0, -2, 0] and cells[1].asnumpy()[:, 0].tolist() == [0, 0, 0, 1]
    assert [c.value.devices() for c in cells] == [{DEVICES[0]}, {DEVICES[1]}]
    assert store.pull("e")[:, 0].tolist() == [0, 1, -2, 1]  # rows without a gradient are unchanged
    other = [MutableArray(full(9.0, (4, 2), device=i)) for i in range(2)]
    store.row_sparse_pull(["e", "e"], out=other, row_ids=[np.array([1]), np.array([], "int64")])
    assert other[0].asnumpy()[:, 0].tolist() == [0, 1, 0, 0] and not other[1].asnumpy().any()


def test_rows_are_pulled_in_any_order_and_the_others_are_zero():
    store = KVStore()
    store.init("e", np.arange(8, dtype="float32").reshape(4, 2))
    assert store.row_sparse_pull("e", row_ids=np.array([3, 1, 3])).tolist() == [[0, 0], [2, 3], [0, 0], [6, 7]]
    cells = [MutableArray(np.zeros((4, 2), "float32")) for _ in range(2)]
    store.row_sparse_pull("e", out=cells, row_ids=[np.array([0]), np.array([2.0])])
    assert [c.asnumpy().any(axis=1).tolist() for c in cells] == [[True, False, False, False], [False, False, True, False]]
    store.row_sparse_pull("e", out=cells, row_ids=np.array([2]))
    assert all(c.asnumpy().any(axis=1).tolist() == [False, False, True, False] for c in cells)
    with pytest.raises(AssertionError, match="needs row_ids"):
        store.row_sparse_pull("e")
    for outside in (4, -1):
        with pytest.raises(IndexError, match="has rows 0 to 3"):
            store.row_sparse_pull("e", row_ids=np.array([outside]))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.init(3, full(1)), MXNetError, "key 3 is already in the store"),
        (lambda s: s.init("a", full(1)), MXNetError, "'a' cannot be used with a kvstore whose keys are int"),
        (lambda s: s.init([5, "a"], [full(1), full(1)]), MXNetError, "keys are int"),
        (lambda s: s.init(7, [full(1), full(1)]), MXNetError, "key 7 has 2 values"),
        (lambda s: s.pull(99), MXNetError, "key 99 is not in the kvstore; call init"),
        (lambda s: s.push(99, full(1)), MXNetError, "key 99 is not in the kvstore"),
        (lambda s: s.push(3, full(1, (5,))), MXNetError, r"has shape \(2, 3\), but the pushed value has shape \(5,\)"),
        (lambda s: s.push([3], [full(1), full(1)]), ValueError, "got 1 keys and 2 values"),
        (lambda s: s.push(1.5, full(1)), TypeError, "'float' object cannot be interpreted as an integer"),
        (lambda s: s.is_capable("magic"), ValueError, "capability is 'magic'"),
        (lambda s: s.save_optimizer_states("x"), AssertionError, "it has no optimizer"),
        (lambda s: s.load_optimizer_states("x"), AssertionError, "it has no optimizer"),
    ],
)
def test_invalid_use_raises(call, error, message):
    with pytest.raises(error, match=message):
        call(store_with(3))


@pytest.mark.parametrize("count", [1, 2])
def test_an_unknown_name_raises_with_the_types(count):
    """For MXNet it is a local store, or none on one device (decided.kvstore_names)."""
    for call in (KVStore, create, lambda name: select(name, count, {})):
        with pytest.raises(
            ValueError, match=r"kvstore 'Locla' is unknown; did you mean 'local'.* The types are 'local', 'device'"
        ):
            call("Locla")
    assert [checked_type(name.upper()) for name in TYPES] == list(TYPES)


def test_an_updater_receives_key_sum_and_stored_value_in_mxnets_order():
    seen = []

    def updater(key, value, stored):
        seen.append((key, first(value), first(stored)))
        stored[:] = stored.value + value.value

    store = store_with("b", "a", "c", value=1.0)
    store.set_updater(updater)
    store.push(["a", "b", "a", "c"], [full(1.0), full(1.0), full(4.0), [full(1.0), full(1.0)]])
    assert seen == [("b", 1.0, 1.0), ("a", 5.0, 1.0), ("c", 2.0, 1.0)]
    assert first(store.pull("a")) == 6.0
    seen.clear()
    store = store_with(9, 2)
    store._set_updater(updater)
    store.push([9, 2], [full(1.0), full(1.0)])
    assert [key for key, *_ in seen] == [2, 9]


def test_an_optimizer_updates_in_the_store_and_its_object_is_shared():
    store = store_with("w", "v", value=1.0)
    optimizer = SGD(learning_rate=0.5)
    store.set_optimizer(optimizer)
    store.push(["w", "v"], [[full(1.0, device=1), full(1.0, device=2)], full(0.0)])
    assert [first(v) for v in store.pull(["w", "v"])] == [0.0, 1.0]
    optimizer.set_learning_rate(0.25)
    optimizer.rescale_grad = 2.0
    store.push("w", full(1.0))
    assert first(store.pull("w")) == -0.5
    assert optimizer.num_update == 2


@pytest.mark.parametrize("updates", [False, True])
def test_all_keys_of_a_push_share_a_dispatch_and_the_second_push_compiles_nothing(updates):
    store = store_with(*range(4), value=1.0)
    if updates:
        store.set_optimizer(SGD(momentum=0.9))
    values = [[full(1.0, device=0), full(2.0, device=1)] for _ in range(4)]
    store.push(list(range(4)), values)
    with jfit.counters.counted() as seen:
        store.push(list(range(4)), values)
    assert seen["compiles"] == 0 and seen["host_syncs"] == 0


def test_keys_on_several_devices_are_updated_where_they_are():
    store = KVStore("device")
    store.init(["a", "b"], [full(1.0, device=1), full(1.0, device=2)])
    store.set_optimizer(SGD(learning_rate=1.0, momentum=0.9))
    for _ in range(2):
        store.push(["a", "b"], [full(1.0, device=0), full(1.0, device=0)])
    assert [first(v) for v in store.pull(["a", "b"])] == pytest.approx([-1.9, -1.9])
    assert [v.devices() for v in store.pull(["a", "b"])] == [{DEVICES[1]}, {DEVICES[2]}]
    assert store._updater.optimizer.num_update == 2


@pytest.mark.parametrize("name", ["device", "dist_sync"])
def test_optimizer_states_in_a_file_continue_the_updates(tmp_path, name):
    def fresh(value=1.0):
        store = store_with("w", name=name, value=value)
        store.set_optimizer(create_optimizer("adam", learning_rate=0.1))
        return store

    store = fresh()
    store.push("w", full(1.0))
    store.save_optimizer_states(str(tmp_path / "w.states"))
    other = fresh(store.pull("w")[0, 0])
    other.load_optimizer_states(str(tmp_path / "w.states"))
    for each in (store, other):
        each.push("w", full(0.5))
    assert np.array_equal(store.pull("w"), other.pull("w"))


def test_two_bit_compression_sends_thresholds_and_keeps_the_residual():
    store = store_with(3)
    store.set_gradient_compression({"type": "2bit", "threshold": "0.5"})
    seen = []
    for _ in range(3):
        store.push(3, full(0.3))
        seen.append(first(store.pull(3)))
    assert seen == [0.0, 0.5, 0.0]


def test_every_device_compresses_its_own_gradient_and_a_process_its_sum():
    device, dist = store_with("w"), store_with("w", name="dist_sync")
    for store in (device, dist):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        store.push("w", [full(0.3, device=0), full(0.3, device=1), full(-0.7, device=2)])
    assert first(device.pull("w")) == -0.5 and first(dist.pull("w")) == 0.0
    device.push("w", [full(0.3, device=0), full(0.3, device=1), full(0.0, device=2)])
    assert first(device.pull("w")) == 1.0


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"type": "4bit"}, MXNetError, "'4bit'; the supported types are '2bit', 'bfloat16'"),
        ({"threshold": 1}, MXNetError, "None; the supported types are"),
        ({"type": "2bit", "threshold": -1}, ValueError, "threshold is -1.0; expected a number above 0"),
        ({"type": "2bit", "treshold": 1}, ValueError, "compression_params .* 'treshold'; the parameters are type, threshold"),
        ({"type": "bfloat16", "threshold": 1}, ValueError, "of type 'bfloat16' has 'threshold'; the parameters are type"),
    ],
)
def test_invalid_compression_parameters_raise(params, error, message):
    with pytest.raises(error, match=message):
        KVStore("device").set_gradient_compression(params)


def test_compression_requires_a_device_or_distributed_store():
    with pytest.raises(MXNetError, match="not supported for a 'local' kvstore"):
        KVStore("local").set_gradient_compression({"type": "2bit"})
    KVStore("local_allreduce_device").set_gradient_compression({"type": "2bit"})


@pytest.mark.parametrize("name", ["dist_async", "dist_device_async", "Dist_Async_Device"])
def test_an_asynchronous_store_names_the_synchronous_one(name):
    for make in (create, KVStore, mxkv.create):
        with pytest.raises(ValueError, match=rf"kvstore '{name}' is asynchronous.* use 'dist_sync'"):
            make(name)
    assert not hasattr(jfit, "fit_async")


def test_stores_are_created_by_name():
    assert create("Local_Update_CPU").type == "local_update_cpu"
    assert (create("dist").rank, create("dist").num_workers) == (0, 1)
    create("dist_sync").barrier()
    assert create().is_capable("optimizer")
    with pytest.raises(ValueError, match="'horovod' is unknown"):
        create("horovod")


def test_a_registered_store_is_created_by_its_class_name():
    @KVStoreBase.register
    class Mirror(KVStoreBase):
        type = "mirror"

    try:
        assert isinstance(create("MIRROR"), Mirror) and not create("mirror").is_capable("optimizer")
        with pytest.raises(NotImplementedError, match="Mirror defines no pushpull"):
            create("mirror").pushpull(1, [])
        assert select("mirror", 2, {})[1] is False
    finally:
        del KVStoreBase.kv_registry["mirror"]


class Sized:
    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize(
    ("kvstore", "devices", "size", "want"),
    [
        (None, 4, 1, (None, False)),
        ("local", 1, 1, (None, False)),
        ("device", 1, 1, (None, False)),
        ("dist_sync", 1, 1, ("dist_sync", True)),
        ("local", 2, BIG, ("local", True)),
        ("local", 2, BIG + 1, ("local", False)),
        ("device", 2, BIG + 1, ("device", True)),
        (KVStore("device"), 1, 1, ("device", True)),
    ],
)
def test_the_store_is_chosen_as_in_mxnets_python_interface(kvstore, devices, size, want):
    store, update = select(kvstore, devices, {"w": Sized(size), "b": Sized()})
    assert (getattr(store, "type", None), update) == want


def test_an_environment_variable_disables_updates_in_the_store(monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    assert select("device", 2, {})[1] is False


def test_mx_kv_works_with_ndarrays():
    store = mxkv.create("device")
    store.init("w", NDArray(full(1.0)))
    kinds = []

    def updater(key, value, stored):
        kinds.append((type(value), type(stored)))
        stored += value * 2

    store._set_updater(updater)
    value, out = NDArray(full(1.0, device=1)), NDArray(full(0.0, device=2))
    store.push("w", [value, value])
    store.pull("w", out=out)
    assert kinds == [(NDArray, NDArray)] and first(out) == 5.0 and out.context.device_id == 2
    assert isinstance(store.pull("w"), NDArray)
    assert isinstance(store, KVStore) and mxkv.KVStore.OPTIMIZER == "optimizer"


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_pull_returns_a_copy(dtype):
    store = KVStore()
    store.init("w", np.zeros(2, dtype))
    store.push("w", np.ones(2, dtype))
    pulled = store.pull("w")
    if isinstance(pulled, np.ndarray):
        pulled[:] = 99
    assert isinstance(pulled, np.ndarray) == (dtype == "int64")
    assert store.pull("w").tolist() == [1, 1]


def test_arrays_passed_to_a_store_may_be_donated_afterwards():
    store, first, second = KVStore(), jnp.zeros(2), jnp.ones(2)
    run = jax.jit(lambda x: x + 1, donate_argnums=0)
    store.init("w", first)
    run(first)
    assert store.pull("w").tolist() == [0, 0]
    store.push("w", second)
    run(second)
    assert store.pull("w").tolist() == [1, 1]
