"""Module under changes and failures: changed gradient settings, shared networks, failing steps, interrupts."""

import gc
import os
import signal
import weakref

import numpy as np
import pytest

import jfit
from jfit.data import DataBatch
from jfit.mxnet.module.epochs import EpochRunner
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.parameters import Parameters

SYM = jfit.sym
X = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
Y = (np.arange(40) % 3).astype("float32")


def network():
    net = SYM.FullyConnected(SYM.FullyConnected(SYM.Variable("data"), num_hidden=4, name="fc1"), num_hidden=3, name="fc2")
    return SYM.SoftmaxOutput(net, name="softmax")


def batch(rows=8):
    return DataBatch([X[:rows]], [Y[:rows]])


def ready(devices=1, kvstore="local", optimizer="sgd", **settings):
    module = Module(network(), context=[jfit.cpu(i) for i in range(devices)])
    module.bind([("data", (8, 5))], [("softmax_label", (8,))])
    module.init_params()
    module.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1, **settings})
    return module


def one_step(module, rows=8):
    module.forward_backward(batch(rows))
    module.update()
    return module


def params(module):
    return {k: np.asarray(v) for k, v in module.get_params()[0].items()}


def test_devices_with_separate_parameters_may_share_them_again():
    module = one_step(ready(2, None))
    mean = params(module)
    module.init_optimizer("device", force_init=True)
    assert all(np.array_equal(mean[k], v) for k, v in params(module).items())
    one_step(module)


def test_networks_with_shared_parameters_may_train_different_ones():
    first = one_step(ready(momentum=0.9))
    frozen = Module(network(), fixed_param_names=["fc1_weight", "fc1_bias"])
    frozen.bind([("data", (8, 5))], [("softmax_label", (8,))], shared_module=first)
    before = params(first)
    one_step(frozen)
    after = params(first)
    assert np.array_equal(before["fc1_weight"], after["fc1_weight"]) and (before["fc2_weight"] != after["fc2_weight"]).any()
    one_step(first)
    first.bind([("data", (8, 5))], [("softmax_label", (8,))], force_rebind=True, grad_req={"fc1_bias": "null"})
    before = params(first)["fc1_bias"]
    assert np.array_equal(params(one_step(first))["fc1_bias"], before)


def test_outputs_use_the_parameters_at_forward_even_if_a_sharing_module_updates():
    first = one_step(ready())
    second = Module(network())
    second.bind([("data", (8, 5))], [("softmax_label", (8,))], shared_module=first)
    second.forward(batch(), is_train=False)
    expected = np.asarray(second.get_outputs()[0])
    second.forward(batch(), is_train=False)
    one_step(first)
    assert np.array_equal(np.asarray(second.get_outputs()[0]), expected)
    assert not np.array_equal(np.asarray(second.predict(X[:8])), expected)


@pytest.mark.parametrize("train_first", [True, False])
def test_moving_statistics_of_shared_parameters_follow_the_order_of_calls(train_first):
    net = SYM.BatchNorm(SYM.Variable("data"), name="bn", fix_gamma=False, momentum=0.5)
    net = SYM.SoftmaxOutput(SYM.FullyConnected(net, num_hidden=3, name="fc"), name="softmax")

    def outputs(read):
        first, second = Module(net), Module(net)
        first.bind([("data", (8, 5))], [("softmax_label", (8,))])
        shapes = {"bn_gamma": 5, "bn_beta": 5, "fc_weight": (3, 5), "fc_bias": 3}
        weights = {name: np.arange(np.prod(shape)).reshape(shape) / 10 for name, shape in shapes.items()}
        first.set_params(weights, {"bn_moving_mean": Y[:5], "bn_moving_var": X[0] ** 2})
        second.bind([("data", (8, 5))], [("softmax_label", (8,))], shared_module=first)
        calls = [lambda: second.forward_backward(batch()), lambda: first.forward(batch(), is_train=False)]
        for call in calls if train_first else calls[::-1]:
            call()
            read(first, second)
        return np.asarray(first.get_outputs()[0])

    def compute(*modules):
        for module in modules:
            module.passes._deferred.materialize()

    expected = outputs(compute)
    for read in (lambda *_: None, lambda first, _: first.get_params(), lambda _, second: second.get_params()):
        np.testing.assert_array_equal(outputs(read), expected)


def test_binding_a_mismatched_network_to_shared_parameters_raises():
    other = Module(network())
    with pytest.raises(ValueError, match=r"'fc1_weight' has shape \(4, 9\) here, but the shared module has it with"):
        other.bind([("data", (8, 9))], [("softmax_label", (8,))], shared_module=ready())
    assert not other.params_initialized and not other.binded
    other.bind([("data", (8, 9))], [("softmax_label", (8,))])
    other.init_params()


def test_borrowing_an_optimizer_requires_its_parameters():
    second = Module(network())
    second.bind([("data", (8, 5))], [("softmax_label", (8,))])
    second.init_params()
    with pytest.raises(ValueError, match="bind this one with shared_module="):
        second.borrow_optimizer(ready())


def test_a_failed_step_changes_nothing_and_is_not_retried(monkeypatch):
    module = one_step(ready(optimizer="adam"))
    before = params(module)

    def fails():
        def run(*_):
            raise RuntimeError("RESOURCE_EXHAUSTED")

        return run

    with monkeypatch.context() as patch:
        patch.setattr(module.passes.programs, "step", fails)
        with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
            one_step(module)
    assert all(np.array_equal(before[k], v) for k, v in params(module).items())
    one_step(module, rows=4)
    assert module._optimizer.num_update == 2 == int(module.state.opt_state.count) == int(module.state.step)


def test_an_interrupt_between_dispatch_and_result_waits_for_the_result(monkeypatch):
    module = one_step(ready())
    commit = Parameters.commit

    def interrupted(self, *given):
        os.kill(os.getpid(), signal.SIGINT)
        commit(self, *given)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores the signal
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Parameters, "commit", interrupted)
            one_step(module)
    finally:
        signal.signal(signal.SIGINT, before)
    assert int(module.state.step) == 2 and np.isfinite(params(module)["fc1_weight"]).all()
    one_step(module)


def test_updating_twice_uses_the_gradients_twice():
    twice, by_hand = one_step(ready()), one_step(ready())
    twice.set_params(*by_hand.get_params())
    start = params(twice)
    twice.forward_backward(batch())
    gradients = {k: np.asarray(v) for k, v in twice.gradients().items()}
    twice.update()
    twice.update()
    for name, value in params(twice).items():
        assert np.allclose(value, start[name] - 2 * 0.1 * gradients[name] / 8, atol=1e-6)


def test_compression_without_a_store_is_ignored():
    compressed = Module(network(), compression_params={"type": "2bit", "threshold": 0.5})
    compressed.bind([("data", (8, 5))], [("softmax_label", (8,))])
    plain = ready()
    compressed.init_params(None, *plain.get_params())
    compressed.init_optimizer("local", "sgd", {"learning_rate": 0.1})  # one device needs no store
    found, wanted = params(one_step(compressed)), params(one_step(plain))
    assert all(np.array_equal(found[k], wanted[k]) for k in wanted)


def test_unused_data_is_freed_from_the_devices():
    module, data = Module(network()), jfit.NDArrayIter(X, Y, 8)
    module.fit(data, num_epoch=1)
    held, gone = module._runner, weakref.ref(data)
    assert held.arrays
    del data
    gc.collect()
    assert gone() is None and not held.arrays


def test_ctrl_c_stops_between_two_batches_of_a_validation():
    seen = []

    def interrupt(param):
        seen.append(param.nbatch)
        os.kill(os.getpid(), signal.SIGINT)

    module = Module(network())
    with pytest.raises(KeyboardInterrupt):
        module.fit(jfit.NDArrayIter(X, Y, 8), jfit.NDArrayIter(X, Y, 8), eval_batch_end_callback=interrupt, num_epoch=3)
    assert seen == [0]


def test_a_method_assigned_to_the_instance_is_called_for_every_batch():
    module, calls = Module(network()), []
    update = module.update
    module.update = lambda: (calls.append(1), update())
    module.fit(jfit.NDArrayIter(X, Y, 8), num_epoch=1)
    assert len(calls) == 5


def test_batches_are_numbered_from_zero_even_if_one_was_read_before():
    data, seen = jfit.NDArrayIter(X, Y, 8), []
    data.next()
    Module(network()).fit(data, num_epoch=1, batch_end_callback=lambda param: seen.append(param.nbatch))
    assert seen == [0, 1, 2, 3]


def test_random_operators_draw_new_numbers_in_every_evaluation():
    module = Module(SYM.Dropout(SYM.Variable("data"), p=0.5, mode="always"), label_names=None)
    module.bind([("data", (8, 5))], for_training=False)
    module.init_params()
    assert not np.array_equal(np.asarray(module.predict(X[:8])), np.asarray(module.predict(X[:8])))


# ------------------------------------------------------------------------------------------ in what order
def modules():
    net = network()
    sequence = jfit.SequentialModule()
    sequence.add(jfit.Module(net), take_labels=True)
    return [jfit.Module(net), jfit.BucketingModule(lambda key: (net, ["data"], ["softmax_label"]), 4), sequence]


UNBOUND = {
    "forward": lambda m: m.forward(None),
    "backward": lambda m: m.backward(),
    "update": lambda m: m.update(),
    "get_outputs": lambda m: m.get_outputs(),
    "get_input_grads": lambda m: m.get_input_grads(),
    "update_metric": lambda m: m.update_metric(None, None),
    "score": lambda m: m.score(None, "acc"),
    "predict": lambda m: m.predict(None),
    "iter_predict": lambda m: next(m.iter_predict(None)),
    "data_shapes": lambda m: m.data_shapes,
    "label_shapes": lambda m: m.label_shapes,
    "output_shapes": lambda m: m.output_shapes,
    "install_monitor": lambda m: m.install_monitor(None),
}


@pytest.mark.parametrize("module", modules(), ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("method", UNBOUND)
def test_a_method_called_too_early_raises_with_the_missing_call(module, method):
    with pytest.raises(AssertionError, match=rf"Module\.{method}: call bind\(.*\).* first\.$"):
        UNBOUND[method](module)


def test_missing_optimizer_parameters_or_gradients_raise_with_the_call_to_make():
    module = modules()[0]
    for early in (module.init_params, module.init_optimizer):
        with pytest.raises(AssertionError, match=r"^call bind "):
            early()
    with pytest.raises(AssertionError, match=r"^Module\.save_optimizer_states: call init_optimizer\(\) first"):
        module.save_optimizer_states("never.states")
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    with pytest.raises(AssertionError, match=r"^Module\.get_params: call init_params\(\) first"):
        module.get_params()
    module.init_params()
    with pytest.raises(AssertionError, match=r"get_input_grads: call bind\(..., inputs_need_grad"):
        module.get_input_grads()
    other = modules()[0]
    with pytest.raises(AssertionError, match=r"^Module\.borrow_optimizer: call init_optimizer"):
        module.borrow_optimizer(other)


@pytest.mark.parametrize("at", ["_store_sums", "_load_sums"])
def test_two_ctrl_c_while_sums_of_metrics_are_exchanged_leave_a_module_that_goes_on(at, monkeypatch):
    exchange = getattr(EpochRunner, at)

    def interrupted(self, *args, **kwargs):
        if at == "_load_sums":
            exchange(self, *args, **kwargs)
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        exchange(self, *args, **kwargs)

    module = Module(network())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores the signal
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(EpochRunner, at, interrupted)
            module.fit(jfit.NDArrayIter(X, Y, 8), num_epoch=1)
    finally:
        signal.signal(signal.SIGINT, before)
    done = int(module.state.step)
    one_step(module)
    assert int(module.state.step) == done + 1 == module._optimizer.num_update
