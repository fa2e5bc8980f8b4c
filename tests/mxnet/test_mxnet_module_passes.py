"""Forward, backward and update of Module: outputs and gradients per device, head gradients, states, sharing, optimizers."""

import jax
import numpy as np
import pytest
from module_support import SYM, V, batch_of, bound, cpus, data_of, error_of, host, linear, ready, steps, values_for

import jfit
from jfit.data import DataBatch, DataDesc
from jfit.mxnet.module.module import Module

EACH = pytest.mark.parametrize("devices", [1, 2, 3])


# ------------------------------------------------------------------------------------------------ outputs, gradients
def test_outputs_are_merged_or_per_device():
    module = bound(rows=10, devices=3)
    module.forward(batch_of(10), is_train=False)
    (whole,), (parts,) = module.get_outputs(), module.get_outputs(merge_multi_context=False)
    assert [part.shape for part in parts] == [(3, 3), (3, 3), (4, 3)]
    assert [part.devices() for part in parts] == [{device} for device in jax.devices()[:3]]
    assert np.array_equal(np.concatenate([np.asarray(p) for p in parts]), whole)


@EACH
def test_input_gradients_are_those_of_the_rows(devices):
    module = bound(rows=10, devices=devices, bind={"inputs_need_grad": True})
    error, _ = error_of(module, rows=10)
    module.forward_backward(batch_of(10))
    (whole,), (parts,) = module.get_input_grads(), module.get_input_grads(merge_multi_context=False)
    assert np.allclose(whole, error @ np.asarray(module.get_params()[0]["fc_weight"]), atol=1e-5)
    assert [p.shape[0] for p in parts] == {1: [10], 2: [5, 5], 3: [3, 3, 4]}[devices]
    assert [p.devices() for p in parts] == [{device} for device in jax.devices()[:devices]]
    assert np.allclose(np.concatenate([np.asarray(p) for p in parts]), whole)


def test_input_gradients_are_available_after_an_update():
    module = ready(bind={"inputs_need_grad": True})
    for _ in range(2):
        error, _ = error_of(module)
        weight = host(module.get_params()[0])["fc_weight"]
        module.forward_backward(batch_of(6))
        module.update()
        assert np.allclose(module.get_input_grads()[0], error @ weight, atol=1e-5)


def test_the_gradients_of_a_step_that_ran_as_one_program_can_be_read_after_it():
    module = steps(ready(), 1)
    error, x = error_of(module)
    steps(module, 1)
    assert np.allclose(module.gradients()["fc_weight"], error.T @ x, atol=1e-5)


@EACH
def test_an_output_without_a_loss_uses_the_callers_gradient(devices):
    net = SYM.FullyConnected(V("data"), num_hidden=3, name="fc")
    module = Module(net, label_names=None, context=cpus(devices))
    module.bind([("data", (10, 4))])
    module.init_params(None, *values_for(module))
    x, head = data_of(10)[0], np.random.default_rng(3).normal(size=(10, 3)).astype("float32")
    module.forward(DataBatch([x]), is_train=True)
    with pytest.raises(ValueError, match=r"'fc_output' is not a loss.*pass out_grads"):
        module.backward()
    with pytest.raises(ValueError, match="out_grads has 2 arrays"):
        module.backward([head, head])
    for given in (head, [head]):
        module.forward(DataBatch([x]), is_train=True)
        module.backward(given)
        assert np.allclose(module.gradients()["fc_weight"], head.T @ x, atol=1e-5)
        assert np.allclose(module.gradients()["fc_bias"], head.sum(0), atol=1e-5)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("counts", [(5, 5), (3, 7)])
def test_batches_already_split_per_device_are_accepted(counts):
    whole, apart = ready(rows=10, devices=2), ready(rows=10, devices=2)
    x, y = data_of(10)
    cut = counts[0]
    parts = [DataBatch([x[:cut]], [y[:cut]]), DataBatch([x[cut:]], [y[cut:]])]
    metrics = [jfit.mxnet.metric.create("acc") for _ in range(2)]
    for module, batch in ((whole, batch_of(10)), (apart, parts)):
        module.forward_backward(batch)
        module.update()
    assert [p.shape[0] for p in apart.get_outputs(merge_multi_context=False)[0]] == list(counts)
    assert np.allclose(whole.get_outputs()[0], apart.get_outputs()[0], atol=1e-6)
    assert np.allclose(whole.get_params()[0]["fc_weight"], apart.get_params()[0]["fc_weight"], atol=1e-6)
    whole.update_metric(metrics[0], [y])
    apart.update_metric(metrics[1], [[y[:cut]], [y[cut:]]], pre_sliced=True)
    assert metrics[0].get() == metrics[1].get()
    with pytest.raises(ValueError, match="3 pre-sliced batches for 2 devices"):
        apart.forward([*parts, parts[0]])


@pytest.mark.parametrize("devices", [1, 2])
def test_the_layout_determines_the_batch_axis(devices):
    module = Module(SYM.MakeLoss(SYM.square(V("data")), name="loss"), label_names=None, context=cpus(devices))
    module.bind([DataDesc("data", (5, 6), layout="TN")], inputs_need_grad=True)
    module.init_params()
    x = np.arange(30, dtype="float32").reshape(5, 6)
    module.forward_backward(DataBatch([x], provide_data=[DataDesc("data", (5, 6), layout="TN")]))
    assert np.array_equal(module.get_outputs()[0], x**2) and np.allclose(module.get_input_grads()[0], 2 * x)
    assert [p.shape for p in module.get_outputs(merge_multi_context=False)[0]] == [(5, 6 // devices)] * devices


def test_a_batch_may_describe_its_own_shapes():
    module, x = bound(rows=6), data_of(4)
    told = {"provide_data": [DataDesc("data", (4, 4))], "provide_label": [DataDesc("softmax_label", (4,))]}
    module.forward(DataBatch([x[0]], [x[1]], **told), is_train=True)
    assert module.get_outputs()[0].shape == (4, 3) and module.label_shapes[0].shape == (4,)
    with pytest.raises(ValueError, match=r"has 2 data arrays, but the module was bound with \['data'\]"):
        module.forward(DataBatch([x[0], x[0]]))


def test_forward_uses_the_mode_of_bind_by_default():
    net = SYM.SoftmaxOutput(SYM.Dropout(SYM.FullyConnected(V("data"), num_hidden=3, name="fc"), p=0.9), name="softmax")
    module = bound(net)
    outputs = []
    for mode in (None, True, False, False):
        module.forward(batch_of(6), is_train=mode)
        outputs.append(np.asarray(module.get_outputs()[0]))
    assert not np.allclose(outputs[0], outputs[2]) and np.array_equal(outputs[2], outputs[3])
    scoring = bound(net, bind={"for_training": False})
    scoring.forward(batch_of(6))
    assert np.array_equal(scoring.get_outputs()[0], outputs[2])


def test_outputs_read_before_the_step_use_its_random_numbers():
    net = SYM.MakeLoss(SYM.Dropout(SYM.broadcast_mul(V("data"), V("scale", shape=(1, 4))), p=0.5), name="loss")
    module = Module(net, label_names=None)
    module.bind([("data", (6, 4))])
    module.init_params(jfit.init.One(), {"scale": np.ones((1, 4))})
    module.forward(DataBatch([np.ones((6, 4), "float32")]), is_train=True)
    kept = np.asarray(module.get_outputs()[0]).sum(0, keepdims=True)
    module.backward()
    assert np.allclose(module.gradients()["scale"], kept)


# ------------------------------------------------------------------------------------------------ states
def stateful(devices=1):
    net = SYM.FullyConnected(V("data") + V("h"), num_hidden=2, no_bias=True, name="fc")
    module = Module(SYM.SoftmaxOutput(net, name="softmax"), state_names=["h"], context=cpus(devices))
    module.bind([("data", (6, 4))], [("softmax_label", (6,))])
    module.init_params()
    return module


def test_states_are_initially_zero_and_settable_from_arrays_or_a_number():
    module, h = stateful(), np.arange(24, dtype="float32").reshape(6, 4)
    assert "h" not in module.get_params()[0]
    assert not np.asarray(module.get_states()[0]).any()
    module.forward(batch_of(6), is_train=False)
    without = np.asarray(module.get_outputs()[0])
    module.set_states(states=[h])
    assert np.array_equal(module.get_states()[0], h)
    module.forward(batch_of(6), is_train=False)
    assert not np.allclose(without, module.get_outputs()[0])
    module.set_states(value=0)
    module.forward(batch_of(6), is_train=False)
    assert np.array_equal(without, module.get_outputs()[0])


def test_states_of_several_devices_are_read_and_set_per_device():
    module, h = stateful(2), np.arange(24, dtype="float32").reshape(6, 4)
    module.set_states(states=[h])
    (parts,) = module.get_states(merge_multi_context=False)
    assert [np.asarray(p).tolist() for p in parts] == [h[:3].tolist(), h[3:].tolist()]
    module.set_states(states=[[parts[1], parts[0]]])
    assert np.array_equal(module.get_states()[0], np.concatenate([h[3:], h[:3]]))


def test_invalid_states_raise():
    module = stateful()
    for given in ({}, {"states": [np.zeros((6, 4))], "value": 0}):
        with pytest.raises(ValueError, match=r"either states= .* or value="):
            module.set_states(**given)
    with pytest.raises(ValueError, match=r"'h' has shape \(2, 2\), but the graph needs \(6, 4\)"):
        module.set_states(states=[np.zeros((2, 2))])


# ------------------------------------------------------------------------------------------------ sharing
def test_modules_with_shared_parameters_use_each_others_updates():
    first = ready(rows=6, params={"learning_rate": 0.5, "momentum": 0.9})
    second = Module(linear())
    second.bind([("data", (3, 4))], [("softmax_label", (3,))], shared_module=first)
    assert second.params_initialized and second.optimizer_initialized
    alone = ready(rows=6, params={"learning_rate": 0.5, "momentum": 0.9})
    for seed, rows in enumerate((6, 3, 6, 3)):
        for module in ({6: first, 3: second}[rows], alone):
            steps(module, 1, rows, seed)
    assert int(first.state.step) == 4
    for name, value in alone.get_params()[0].items():
        assert np.allclose(value, first.get_params()[0][name], atol=1e-6)
        assert np.array_equal(first.get_params()[0][name], second.get_params()[0][name])


def test_sharing_requires_a_bound_module_with_parameters():
    with pytest.raises(AssertionError, match=r"call bind\(data_shapes, label_shapes\), init_params\(\) first"):
        Module(linear()).bind([("data", (3, 4))], [("softmax_label", (3,))], shared_module=Module(linear()))


def test_a_borrowed_optimizer_shares_its_state():
    first = steps(ready(params={"learning_rate": 0.5, "momentum": 0.9}), 2)
    second = Module(linear())
    second.bind([("data", (6, 4))], [("softmax_label", (6,))], shared_module=first)
    second.borrow_optimizer(first)
    assert second._optimizer is first._optimizer and second.optimizer_initialized
    steps(second, 1)
    assert int(first.state.step) == 3
    with pytest.raises(AssertionError):
        second.borrow_optimizer(Module(linear()))


# ------------------------------------------------------------------------------------------------ optimizer
@pytest.mark.parametrize("params", [(("learning_rate", 0.25), ("momentum", 0.9)), {"learning_rate": 0.25, "momentum": 0.9}])
def test_optimizer_parameters_are_pairs_or_a_dict(params):
    optimizer = ready(params=params)._optimizer
    assert (optimizer.learning_rate, optimizer.momentum, optimizer.rescale_grad) == (0.25, 0.9, 1 / 6)
    assert ready(params={"rescale_grad": 0.5})._optimizer.rescale_grad == 0.5


def test_a_second_optimizer_is_ignored_unless_forced(caplog):
    module = steps(ready(params={"learning_rate": 0.5, "momentum": 0.9}), 2)
    module.init_optimizer(optimizer="adam")
    assert "optimizer already initialized, ignoring" in caplog.text and type(module._optimizer).__name__ == "SGD"
    module.init_optimizer(optimizer="adam", force_init=True)
    assert type(module._optimizer).__name__ == "Adam" and module._optimizer.num_update == 0
    steps(module, 1)


def test_an_invalid_optimizer_raises():
    with pytest.raises(TypeError, match="expected a name or an Optimizer"):
        bound().init_optimizer(optimizer=3)
    with pytest.raises(ValueError, match="Cannot find optimizer sdg"):
        bound().init_optimizer(optimizer="sdg")


def test_rate_and_multipliers_may_change_between_steps():
    module = ready(params={"learning_rate": 0.5})
    module._optimizer.set_learning_rate(0.0)
    before = host(module.get_params()[0])
    steps(module, 1)
    assert all(np.array_equal(before[k], v) for k, v in module.get_params()[0].items())
    module._optimizer.set_learning_rate(1.0)
    module._optimizer.set_lr_mult({"fc_bias": 0.0})
    steps(module, 1)
    after = host(module.get_params()[0])
    assert np.array_equal(before["fc_bias"], after["fc_bias"]) and not np.array_equal(before["fc_weight"], after["fc_weight"])
