"""PythonModule and PythonLossModule: checks of their arguments, values, and use as the last module of a chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.data import DataBatch
from jfit.mxnet import metric as metrics
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.python import PythonLossModule, PythonModule
from jfit.mxnet.module.sequential import SequentialModule

sym = jfit.sym
SHAPES = [("data", (2, 3))], [("softmax_label", (2,))]


@jax.jit
def softmax_gradient(scores, labels):
    return jax.nn.softmax(scores) - jax.nn.one_hot(labels.astype(jnp.int32), scores.shape[1])


def bound(**kwargs):
    loss = PythonLossModule(**kwargs)
    loss.bind(*SHAPES)
    return loss


class Scale(PythonModule):
    """Twice its data; gradients come back doubled."""

    def __init__(self):
        super().__init__(("data",), None, ("scale_output",))

    def _compute_output_shapes(self):
        return [("scale_output", self.data_shapes[0][1])]

    def forward(self, data_batch, is_train=None):
        self.found = data_batch.data[0] * 2

    def get_outputs(self, merge_multi_context=True):
        return [self.found]

    def backward(self, out_grads=None):
        self.gradient = out_grads[0] * 2

    def get_input_grads(self, merge_multi_context=True):
        return [self.gradient]


def test_a_loss_module_outputs_its_data_and_the_functions_gradient():
    loss = bound(name="mine", grad_func=softmax_gradient)
    assert loss.output_names == ["mine_output"] and loss.output_shapes == [("mine_output", (2, 3))]
    loss.init_params()
    loss.init_optimizer()
    scores = np.array([[1, 2, 3], [3, 2, 1]], "float32")
    loss.forward(DataBatch([scores], [np.array([0.0, 2.0], "float32")]))
    loss.backward()
    loss.update()
    assert loss.get_outputs()[0] is scores
    (found,) = loss.get_input_grads()
    np.testing.assert_allclose(np.asarray(found), softmax_gradient(scores, np.array([0.0, 2.0])), rtol=1e-6)
    assert found.dtype == jnp.float32


def test_a_numpy_gradient_is_converted_to_a_float32_device_array():
    loss = bound(grad_func=lambda scores, labels: np.asarray(scores, "float64"))
    loss.forward(DataBatch([np.ones((2, 3), "float32")], [np.zeros(2)]))
    loss.backward()
    assert isinstance(loss.get_input_grads()[0], jax.Array) and loss.get_input_grads()[0].dtype == jnp.float32


def test_without_training_labels_are_not_needed():
    loss = bound()
    loss.forward(DataBatch([np.ones((2, 3))]), is_train=False)
    assert loss.get_outputs()[0].shape == (2, 3)


def test_padding_rows_are_excluded_from_its_metric():
    loss, metric = bound(), metrics.create("acc")
    batch = DataBatch([np.eye(2, 3, dtype="float32")], [np.array([0.0, 0.0], "float32")], pad=1)
    loss.forward(batch)
    loss.update_metric(metric, batch.label)
    assert metric.get() == ("accuracy", 1.0)


def test_a_module_without_labels_updates_no_metric():
    module, metric = Scale(), metrics.create("acc")
    module.bind(SHAPES[0])
    module.update_metric(metric, [np.zeros(2)])
    assert np.isnan(metric.get()[1])
    assert module.get_params() == ({}, {})


test_invalid_use_raises = refused(
    (lambda: PythonLossModule(data_names=("a", "b")), AssertionError, "one data name"),
    (lambda: PythonLossModule(grad_func=3), AssertionError, "grad_func is 3, expected a function"),
    (lambda: bound().bind([("x", (2, 3))], force_rebind=True), AssertionError, r"data_names are \['data'\]"),
    (lambda: bound().bind(SHAPES[0], [("y", (2,))], force_rebind=True), AssertionError, "label_names are"),
    (lambda: bound().bind(*SHAPES, force_rebind=True, grad_req="add"), AssertionError, "only support write"),
    (lambda: bound().backward([1]), AssertionError, "out_grads should be None"),
    (lambda: PythonModule(["data"], None, ["out"]).bind(SHAPES[0]), NotImplementedError, "_compute_output_shapes"),
)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_chain_with_a_python_loss_trains_as_the_operator_does(devices):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype("float32"), rng.integers(0, 3, 30).astype("float32")
    scores = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    context = [jfit.cpu(i) for i in range(devices)]
    whole = Module(sym.SoftmaxOutput(scores, name="softmax"), context=context)
    chain = SequentialModule()
    chain.add(Module(scores, label_names=None, context=context))
    chain.add(Scale(), auto_wiring=True)
    half = PythonLossModule(grad_func=lambda s, labels: softmax_gradient(s / 2, labels) / 2)
    chain.add(half, take_labels=True, auto_wiring=True)
    params = {"fc_weight": rng.normal(size=(3, 4)).astype("float32"), "fc_bias": np.zeros(3, "float32")}
    for module in (whole, chain):
        data = jfit.NDArrayIter(x, y, batch_size=8)
        module.fit(data, arg_params=params, num_epoch=3, optimizer_params={"learning_rate": 0.3, "momentum": 0.9})
    found, want = chain.get_params()[0], whole.get_params()[0]
    for name in want:
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(want[name]), rtol=1e-5, atol=1e-6)
    data = jfit.NDArrayIter(x, y, batch_size=8)
    assert chain.score(data, "acc") == whole.score(data, "acc")
    np.testing.assert_array_equal(np.asarray(chain.predict(data)).argmax(1), np.asarray(whole.predict(data)).argmax(1))
