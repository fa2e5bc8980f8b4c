"""Trainer: the choice of a store, stale gradients, rescaling, files, pytrees."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.mxnet.errors import MXNetError
from jfit.mxnet.gluon.parameter import Parameter
from jfit.mxnet.gluon.trainer import Trainer
from jfit.mxnet.kvstore.store import KVStore, KVStoreBase
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer import SGD, lr_scheduler

GOLDEN = Path(__file__).parents[1] / "golden" / "train" / "gluon"
TWO = [jfit.cpu(0), jfit.cpu(1)]


def one(shape=(2,), ctx=None, grad=1.0, name="w", **kwargs):
    param = Parameter(name, shape=shape, init="one", **kwargs)
    param.initialize(ctx=ctx)
    for each in param.list_ctx() if param.grad_req != "null" else ():
        param.set_grad(np.full(shape, grad, "float32"), each)
    return param


def test_one_dispatch_updates_all_parameters_and_later_steps_compile_nothing():
    params = [one((3,), name=f"p{i}") for i in range(5)]
    trainer = Trainer(params, "sgd", {"momentum": 0.9, "wd": 0.1})

    def step(batch_size):
        for p in params:
            p.set_grad(jnp.ones(3))
        trainer.step(batch_size)

    for _ in range(2):
        step(2)
    with jfit.counters.counted() as seen:
        trainer.set_learning_rate(0.3)
        params[0].lr_mult = 2.0
        step(3)
    assert seen["compiles"] == 0 and seen["host_syncs"] == 0


def test_dicts_are_sorted_by_name_and_lists_keep_their_order():
    b, a = one(name="b"), one(name="a")
    assert [p.name for p in Trainer({"b": b, "a": a}, "sgd").params] == ["a", "b"]
    assert [p.name for p in Trainer([b, a], "sgd").params] == ["b", "a"]


def test_weight_decay_applies_to_biases_too():
    bias = one(name="fc_bias", grad=0.0)
    Trainer([bias], "sgd", {"learning_rate": 0.1, "wd": 0.5}).step(1)
    assert bias.data().tolist() == pytest.approx([0.95, 0.95])


def test_rescale_grad_is_the_optimizers_scale_divided_by_the_batch_size():
    param = one()
    Trainer([param], SGD(learning_rate=1.0, rescale_grad=2.0)).step(4)
    assert param.data().tolist() == [0.5, 0.5]


def test_a_stale_gradient_raises_before_any_update():
    fresh, stale = one(name="a"), one(name="b")
    trainer = Trainer([fresh, stale], "sgd", {"learning_rate": 1.0})
    trainer.step(1)
    fresh.set_grad(np.ones(2, "float32"))
    with pytest.raises(UserWarning, match=r"gradient of parameter 'b' on cpu\(0\) is stale"):
        trainer.step(1)
    assert fresh.data().tolist() == [0.0, 0.0]
    trainer.step(1, ignore_stale_grad=True)
    assert fresh.data().tolist() == [-1.0, -1.0] and stale.data().tolist() == [0.0, 0.0]


def test_parameters_without_gradient_are_unchanged():
    fixed, learning = one(name="a", grad_req="null"), one(name="b")
    Trainer([fixed, learning], "sgd", {"learning_rate": 1.0}).step(1)
    assert fixed.data().tolist() == [1.0, 1.0] and learning.data().tolist() == [0.0, 0.0]


def test_gradients_may_be_clipped_between_allreduce_and_update():
    param = one(ctx=TWO)
    trainer = Trainer([param], "sgd", {"learning_rate": 1.0}, update_on_kvstore=False)
    trainer.allreduce_grads()
    assert [g.tolist() for g in param.list_grad()] == [[2.0, 2.0], [2.0, 2.0]]
    for ctx in TWO:
        param.set_grad(param.grad(ctx) / 4, ctx)
    trainer.update(1)
    assert [d.tolist() for d in param.list_data()] == [[0.5, 0.5], [0.5, 0.5]]


def test_separate_allreduce_and_update_raise_where_the_store_updates():
    trainer = Trainer([one(ctx=TWO)], "sgd")
    with pytest.raises(AssertionError, match=r"allreduce_grads\(\): the store updates"):
        trainer.allreduce_grads()
    with pytest.raises(AssertionError, match=r"update\(\): the store updates"):
        trainer.update(1)


def test_the_store_follows_the_number_of_contexts_and_the_arguments():
    def chosen(ctx=None, **kwargs):
        trainer = Trainer([one(ctx=ctx)], "sgd", **kwargs)
        trainer.step(1)
        return getattr(trainer._kvstore, "type", None), trainer._update_on_kvstore

    assert chosen() == (None, None)
    assert chosen(TWO) == ("device", True)
    assert chosen(TWO, kvstore="local", update_on_kvstore=False) == ("local", False)
    assert chosen(TWO, kvstore=None) == (None, None)
    assert chosen(kvstore="dist_sync") == ("dist_sync", True)
    assert chosen(kvstore="dist_sync", update_on_kvstore=False) == ("dist_sync", False)


def test_a_user_store_that_cannot_update_only_sums():
    class Adds(KVStoreBase):
        type = "adds"

        def broadcast(self, key, value, out, priority=0):
            for cell in out:
                cell[:] = jax.device_put(value.value, cell.value.sharding)

        def pushpull(self, key, value, out=None, priority=0):
            total = sum(np.asarray(v) for v in value)
            for cell in out or value:
                cell[:] = jax.device_put(total, cell.value.sharding)

    param = one(ctx=TWO)
    trainer = Trainer([param], "sgd", {"learning_rate": 1.0}, kvstore=Adds())
    trainer.step(2)
    assert trainer._update_on_kvstore is False and param.list_data()[1].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="the Adds does not support it"):
        Trainer([one(ctx=TWO)], "sgd", kvstore=Adds(), update_on_kvstore=True).step(1)


def test_a_changed_batch_size_raises_where_a_distributed_store_updates():
    param = one()
    trainer = Trainer([param], "sgd", kvstore="dist_sync")
    trainer.step(2)
    param.set_grad(np.ones(2, "float32"))
    with pytest.raises(UserWarning, match="Possible change in the `batch_size` from previous `step` detected"):
        trainer.step(4)


def test_set_data_also_writes_to_the_store():
    param = one(ctx=TWO, grad=0.0)
    trainer = Trainer([param], "sgd", {"learning_rate": 1.0})
    trainer.step(1)
    param.set_data(np.full(2, 7.0, "float32"))
    trainer.step(1)
    assert [d.tolist() for d in param.list_data()] == [[7.0, 7.0]] * 2


def test_set_data_raises_after_initialization_of_a_distributed_store():
    param = one(grad=0.0)
    Trainer([param], "sgd", kvstore="dist_sync").step(1)
    with pytest.raises(RuntimeError, match="distributed, so it cannot be recreated"):
        param.set_data(np.zeros(2, "float32"))


def test_compression_requires_a_device_store_and_sends_thresholds():
    param = one(ctx=TWO, grad=0.75)
    two_bit = {"type": "2bit", "threshold": 0.5}
    Trainer([param], "sgd", {"learning_rate": 1.0}, compression_params=two_bit).step(1)
    assert param.list_data()[0].tolist() == [0.0, 0.0]  # two devices send 0.5 each
    with pytest.raises(MXNetError, match="not supported for a 'local' kvstore"):
        Trainer([one(ctx=TWO)], "sgd", kvstore="local", compression_params=two_bit).step(1)


@pytest.mark.optimized  # bits of the two devices, one of whose programs is read from the compile cache
@pytest.mark.parametrize("ctx", [None, TWO], ids=["one", "two"])
@pytest.mark.parametrize("update_on_kvstore", [None, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_resuming_from_saved_states_equals_continuing(tmp_path, ctx, update_on_kvstore, optimizer):
    def steps(param, trainer, numbers):
        for t in numbers:
            for each in param.list_ctx():
                param.set_grad(np.float32([t, 1.0]), each)
            trainer.step(2)
        return np.asarray(param.list_data()[-1])

    def fresh():
        param = one(ctx=ctx)
        hyper = {"learning_rate": 0.1, "wd": 0.1, "lr_scheduler": lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)}
        hyper |= {"momentum": 0.9} if optimizer == "sgd" else {}
        return param, Trainer([param], optimizer, hyper, update_on_kvstore=update_on_kvstore)

    param, trainer = fresh()
    steps(param, trainer, range(3))
    trainer.save_states(tmp_path / "t.states")
    middle = np.asarray(param.list_data()[0])
    want = steps(param, trainer, range(3, 6))
    other, resumed = fresh()
    other.set_data(middle)
    resumed.load_states(tmp_path / "t.states")
    assert resumed.optimizer.num_update == 3
    assert np.array_equal(steps(other, resumed, range(3, 6)), want)
    assert resumed.learning_rate == trainer.learning_rate


def test_the_states_that_mxnets_trainer_wrote_are_read_with_their_counts():
    case = next(c for c in json.loads((GOLDEN / "manifest.json").read_text()) if c["name"] == "gluon_mlp_sgd")
    arrays = np.load(GOLDEN / "mlp_sgd.npz")
    params = [one(arrays[f"init/{name}"].shape, name=name) for name in case["trainer_param_order"]]
    trainer = Trainer(params, case["optimizer"], case["optimizer_params"])
    trainer.load_states(GOLDEN / "mlp_sgd.states")
    assert trainer.optimizer.num_update == 20 and trainer.learning_rate == 0.1
    assert {i: state.shape for i, state in trainer._updaters[0].states.items()} == {i: p.shape for i, p in enumerate(params)}


test_untrainable_arguments_raise = refused(
    (lambda: Trainer([one(), 1], "sgd"), ValueError, "found int in it"),
    (lambda: Trainer(3, "sgd"), ValueError, "found int in it"),
    (lambda: Trainer([one()], SGD(), {"wd": 1}), AssertionError, "given by name"),
    (lambda: Trainer([one(), one(ctx=jfit.cpu(1), name="b")], "sgd"), AssertionError, "use the same contexts"),
    (lambda: Trainer([Parameter("w", shape=(1,))], "sgd"), RuntimeError, "is not initialized"),
    (lambda: Trainer([one()], "sgd", update_on_kvstore=True).step(1), ValueError, "there is no store"),
    (lambda: Trainer({"w": jnp.ones(2)}, "sgd", kvstore=KVStore()), "a pytree is updated without a store"),
    (lambda: Trainer({"w": jnp.ones(2)}, "sgd", kvstore="dist_async"), "kvstore 'dist_async' is asynchronous"),
    (lambda: Trainer({"w": np.array([None])}, "sgd"), "an array of object"),
    (lambda: Trainer([one()], "sgd").step(1, grads={}), "only for a trainer over a pytree"),
    (lambda: Trainer([one()], "sgd").update(1, grads={}), "only for a trainer over a pytree; set the gradients"),
    (lambda: Trainer({"w": jnp.ones(2)}, "sgd").allreduce_grads({"w": jnp.ones(2)}), "a list with one pytree of gradients"),
    (lambda: Trainer({"w": jnp.ones(2)}, "sgd", None, "dist_sync", None, True), "update_on_kvstore=True needs Parameters"),
    (lambda: Trainer([one()], "sgd", kvstore=False).step(1), TypeError, "kvstore is False; expected a KVStore, the name"),
)


def by_rows(name="w"):
    param = Parameter(name, shape=(3, 2), init="one", stype="row_sparse", grad_stype="row_sparse")
    param.initialize()
    return param


def test_row_sparse_parameters_require_a_store_that_updates():
    with pytest.raises(ValueError, match=r"kvstore is None .* need a KVStore that updates them"):
        Trainer([by_rows()], "sgd", kvstore=None).step(1)
    with pytest.raises(ValueError, match=r"update_on_kvstore False; .* need a KVStore that updates them"):
        Trainer([by_rows()], "sgd", update_on_kvstore=False).step(1)


@pytest.mark.parametrize("stype", ["default", "row_sparse"])
@pytest.mark.parametrize("contexts", [TWO[:1], TWO])
def test_row_sparse_gradients_update_only_nonzero_rows(stype, contexts):
    param = Parameter("w", shape=(3, 2), init="one", stype=stype, grad_stype="row_sparse")
    param.initialize(ctx=contexts)
    trainer = Trainer([param], "sgd", {"learning_rate": 0.5, "wd": 0.5})
    for ctx in contexts:
        param.set_grad(np.array([[1, 1], [0, 0], [2, 2]], "float32"), ctx)
    trainer.step(len(contexts))
    found = param.list_data() if stype == "default" else param.list_row_sparse_data(np.arange(3))
    assert [each[:, 0].tolist() for each in found] == [[0.25, 1, -0.25]] * len(contexts)
    assert (param.stype, param.grad_stype) == (stype, "row_sparse")


def test_a_row_sparse_parameter_has_one_trainer_and_returns_rows():
    param = by_rows()
    Trainer([param], "sgd")
    assert param.row_sparse_data(np.array([2, 0, 2])).tolist() == [[1, 1], [0, 0], [1, 1]]
    with pytest.raises(RuntimeError, match="store of another trainer"):
        Trainer([param], "sgd")


def test_a_pytree_is_trained_like_parameters():
    tree = {"b": jnp.ones(2), "a": [jnp.ones((2, 2)), jnp.arange(3)]}
    grads = {"b": jnp.full(2, 2.0), "a": [jnp.full((2, 2), 4.0), None]}
    trainer = Trainer(tree, "adam", {"learning_rate": 0.1, "wd": 0.01})
    params = [one((2, 2), name="a0", grad=4.0), one((2,), name="b", grad=2.0)]
    twin = Trainer(params, "adam", {"learning_rate": 0.1, "wd": 0.01})
    for _ in range(2):
        new = trainer.step(2, grads=grads)
        params[0].set_grad(np.full((2, 2), 4.0, "float32"))
        params[1].set_grad(np.full(2, 2.0, "float32"))
        twin.step(2)
    assert jax.tree.structure(new) == jax.tree.structure(tree)
    assert np.array_equal(new["a"][0], params[0].data()) and np.array_equal(new["b"], params[1].data())
    assert new["a"][1].tolist() == [0, 1, 2] and tree["b"].tolist() == [1.0, 1.0]
    assert np.array_equal(trainer.params["b"], new["b"])


@pytest.mark.parametrize("params", [lambda: [one()], lambda: {"w": jnp.ones(2)}])
def test_a_subclass_may_have_a_constructor_of_its_own(params):
    class Plain(Trainer):
        def __init__(self, make, lr):
            super().__init__(make(), "sgd", {"learning_rate": lr})

    trainer = Plain(params, 0.5)
    trainer.step(1, grads=None if isinstance(trainer.params, list) else {"w": jnp.ones(2)})
    (new,) = jax.tree.leaves(trainer.params)
    assert type(trainer) is Plain and np.asarray(new.data() if isinstance(new, Parameter) else new).tolist() == [0.5, 0.5]


def test_gradients_of_a_pytree_on_several_devices_are_added_up():
    trainer = Trainer({"w": jnp.zeros(2)}, "sgd", {"learning_rate": 1.0})
    grads = [{"w": jax.device_put(jnp.full(2, float(i)), d)} for i, d in enumerate(jax.devices()[:3])]
    summed = trainer.allreduce_grads(grads)
    assert summed["w"].tolist() == [3.0, 3.0]
    assert trainer.step(3, grads=summed)["w"].tolist() == [-1.0, -1.0]
    squeezed = Trainer({"w": jnp.zeros(1)}, "sgd", compression_params={"type": "2bit", "threshold": 0.5})
    each = [{"w": jnp.full(1, 0.3)}, {"w": jnp.full(1, 0.6)}]
    assert [squeezed.allreduce_grads(each)["w"].item() for _ in range(2)] == [0.5, 1.0]


def test_a_pytree_resumes_and_missing_leaves_raise(tmp_path):
    hyper = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = Trainer({"w": jnp.ones(2)}, "sgd", hyper)
    half = trainer.step(1, grads={"w": jnp.ones(2)})
    trainer.save_states(tmp_path / "tree.states")
    want = trainer.step(1, grads={"w": jnp.ones(2)})
    resumed = Trainer(half, "sgd", hyper)
    resumed.load_states(tmp_path / "tree.states")
    assert np.array_equal(resumed.step(1, grads={"w": jnp.ones(2)})["w"], want["w"])
    with pytest.raises(ValueError, match="pass grads="):
        resumed.step(1)
    with pytest.raises(UserWarning, match="parameter 'w' has no gradient"):
        resumed.step(1, grads={"w": None})
    with pytest.raises(ValueError, match=r"'w' has shape \(3,\), expected \(2,\)"):
        resumed.step(1, grads={"w": jnp.ones(3)})
    with pytest.raises(ValueError, match="a pytree is updated without a store"):
        Trainer(half, "sgd", update_on_kvstore=True)


def test_a_given_store_is_used_and_receives_all_parameters_in_one_call(monkeypatch):
    store, calls = KVStore("device"), []
    monkeypatch.setattr(store, "broadcast", lambda key, *args: calls.append(key) or KVStore.broadcast(store, key, *args))
    Trainer([one(ctx=TWO, name=name) for name in "wb"], "sgd", {"learning_rate": 1.0}, kvstore=store).step(1)
    assert isinstance(store._stored[0], MutableArray) and store.pull(0).tolist() == [-1.0, -1.0] and calls == [[0, 1]]


def test_a_failed_update_keeps_the_gradients_fresh():
    param = one()
    trainer = Trainer([param], "sgd", {"learning_rate": 0.5, "momentum": 0.9}, kvstore=None)
    param.set_grad(np.ones(param.shape, "float32"))
    trainer._updaters[0].set_states({0: np.ones((7, 7), "float32")})
    with pytest.raises(ValueError, match="load the states of the same network"):
        trainer.step(1)
    trainer._updaters[0].set_states({})
    trainer.step(1)
    assert trainer.optimizer.num_update == 1 and param.data().ravel()[0] == 0.5


def test_the_leaves_of_a_pytree_are_copied_in_and_out():
    given = {"w": jnp.ones(2), "n": np.arange(2), "d": np.ones(2)}
    trainer = Trainer(given, "adam", {"learning_rate": 0.1})
    donate = jax.jit(lambda x: x + 1, donate_argnums=0)
    donate(given["w"])
    given["n"][:] = 9
    grads = {"w": jnp.ones(2), "n": None, "d": jnp.ones(2)}
    donate(trainer.step(1, grads=grads)["w"])
    new = trainer.step(1, grads=grads)
    assert new["w"].shape == (2,) and new["n"].tolist() == [0, 1] and new["d"].dtype == np.float32
