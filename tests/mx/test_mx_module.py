"""mx.mod: modules whose inputs and results are NDArrays, and the non-public attributes that MXNet scripts use."""

import numpy as np
import pytest

import jfit
import jfit.mx as mx
from jfit import counters


def module(context=None, grad_req="write"):
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")
    mod = mx.mod.Module(net, context=context or mx.cpu())
    mod.bind([("data", (4, 3))], [("softmax_label", (4,))], grad_req=grad_req)
    mod.init_params(mx.init.One())
    mod.init_optimizer(optimizer_params={"learning_rate": 0.5})
    return mod


def batch(seed=0):
    rng = np.random.default_rng(seed)
    return mx.io.DataBatch([mx.nd.array(rng.normal(size=(4, 3)))], [mx.nd.array([0, 1, 0, 1])], pad=0)


def test_all_results_are_ndarrays():
    mod = module()
    mod.forward(batch())
    arg, aux = mod.get_params()
    iterator = mx.io.NDArrayIter(np.ones((4, 3)), batch_size=4)
    found = [*arg.values(), *aux.values(), *mod.get_outputs(), mod.predict(iterator), *next(mod.iter_predict(iterator))[0]]
    assert all(isinstance(a, mx.nd.NDArray) for a in found)


def test_an_epoch_over_arrays_in_memory_runs_as_one_program():
    mod = mx.mod.Module(module().symbol)
    train = mx.io.NDArrayIter(np.random.default_rng(0).normal(size=(32, 3)), np.arange(32) % 2, 4)
    jfit.clear_programs()
    with counters.counted() as seen:
        mod.fit(train, num_epoch=2)
    assert seen["traces:module_epoch"] == 1 and not seen["traces:module_step"]


def test_the_symbol_of_a_loaded_module_can_be_bound(tmp_path):
    module().save_checkpoint(str(tmp_path / "m"), 1, save_optimizer_states=True)
    loaded = mx.mod.Module.load(str(tmp_path / "m"), 1)
    assert type(loaded.symbol) is mx.sym.Symbol
    symbol, arg, _ = mx.model.load_checkpoint(str(tmp_path / "m"), 1)
    assert type(symbol) is mx.sym.Symbol and isinstance(arg["fc_weight"], mx.nd.NDArray)


@pytest.mark.parametrize("context", [[mx.cpu(0)], [mx.cpu(0), mx.cpu(1)]], ids=len)
def test_accumulated_gradients_are_cleared_through_the_executors(context):
    mod = module(context, grad_req="add")
    seen = []
    for _ in range(3):
        mod.forward(batch(), is_train=True)
        mod.backward()
        seen.append([[g.asnumpy() for g in per_device] for per_device in mod._exec_group.grad_arrays])
        if len(seen) == 2:
            for per_device in mod._exec_group.grad_arrays:
                for gradient in per_device:
                    gradient[:] = 0
    assert len(seen[0]) == 2 and len(seen[0][0]) == len(context)
    for once, twice, again in zip(*([g for per in s for g in per] for s in seen), strict=True):
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(again, once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("buckets", [False, True])
def test_an_initializer_function_receives_a_name_and_an_array(buckets):
    seen = {}

    def start(desc, arr):
        assert isinstance(desc, mx.init.InitDesc) and isinstance(arr, mx.nd.NDArray)
        seen[str(desc)] = desc.endswith("_bias") and isinstance(desc.attrs, dict)
        arr[:] = 3

    net = module().symbol
    mod = mx.mod.BucketingModule(lambda key: (net, ("data",), ("softmax_label",)), 1) if buckets else mx.mod.Module(net)
    mod.bind([("data", (4, 3))], [("softmax_label", (4,))])
    mod.init_params(start)
    assert seen == {"fc_bias": True, "fc_weight": False}
    assert set(mod.get_params()[0]["fc_weight"].asnumpy().reshape(-1)) == {3}


def test_a_user_optimizer_updates_ndarrays_in_place():
    class Halving(mx.optimizer.Optimizer):
        def create_state(self, index, weight):
            return mx.nd.zeros(weight.shape, ctx=weight.context)

        def update(self, index, weight, grad, state):
            assert isinstance(weight, mx.nd.NDArray) and isinstance(grad, mx.nd.NDArray)
            self._update_count(index)
            state += 1
            weight[:] = weight * 0.5

    mod = module()
    mod.init_optimizer(optimizer=Halving(rescale_grad=0.25), force_init=True)
    for _ in range(2):
        mod.forward_backward(batch())
        mod.update()
    assert mod.get_params()[0]["fc_weight"].asnumpy().tolist() == [[0.25] * 3] * 2
