"""Custom operators: Python code of the user inside compiled programs (MXNet's CustomOp), and user-registered operators."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
import jfit.mx as mx
from jfit.graph.nodes import GraphError
from jfit.mxnet.recording.tape import on_host
from jfit.ops import REGISTRY
from jfit.ops.attributes import number
from jfit.ops.custom import CustomError


class Softmax(mx.operator.CustomOp):
    """The head of MXNet's tutorial."""

    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1, keepdims=True))
        self.assign(out_data[0], req[0], mx.nd.array(y / y.sum(axis=1, keepdims=True)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        label = in_data[1].asnumpy().ravel().astype(int)
        y = out_data[0].asnumpy()
        y[np.arange(label.shape[0]), label] -= 1.0
        self.assign(in_grad[0], req[0], mx.nd.array(y))


@mx.operator.register("test_softmax")
class SoftmaxProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return Softmax()


@mx.operator.register("test_power")
class PowerProp(mx.operator.CustomOpProp):
    """y = x ** exponent * w, counting its training passes; forward leaves a note for backward."""

    def __init__(self, exponent="2"):
        super().__init__()
        self.exponent = float(exponent)

    def list_arguments(self):
        return ["data", "w"]

    def list_outputs(self):
        return ["output", "log"]

    def list_auxiliary_states(self):
        return ["passes"]

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0][1:]], [in_shape[0]] * 2, [(1,)]

    def create_operator(self, ctx, in_shapes, in_dtypes):
        assert (in_shapes[-1], in_dtypes[-1]) == ([1], in_dtypes[0])
        exponent = self.exponent

        class Power(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                self.note = in_data[0] ** exponent
                self.assign(out_data[0], req[0], self.note * in_data[1].expand_dims(0))
                self.assign(out_data[1], req[1], in_data[0].log())
                if is_train:
                    aux[0][:] = aux[0] + 1

            def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
                x, w = in_data
                own = out_grad[0] * exponent * x ** (exponent - 1) * w.expand_dims(0) + out_grad[1] / x
                self.assign(in_grad[0], req[0], own)
                self.assign(in_grad[1], req[1], mx.nd.sum(out_grad[0] * self.note, axis=0))

        return Power()


@mx.operator.register("test_failing")
class FailingProp(mx.operator.CustomOpProp):
    def __init__(self, where="forward"):
        super().__init__()
        self.where = where

    def create_operator(self, ctx, in_shapes, in_dtypes):
        where = self.where

        class Failing(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                if where == "forward":
                    raise KeyError("no such key")
                self.assign(out_data[0], req[0], in_data[0])

            def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
                raise ZeroDivisionError("in backward")

        return Failing()


def head(custom=True):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    if custom:
        return mx.sym.Custom(data=net, op_type="test_softmax", name="softmax")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def power(**kwargs):
    return mx.sym.Custom(mx.sym.Variable("data"), op_type="test_power", name="p", **kwargs)


def test_the_graph_uses_the_names_shapes_and_dtypes_of_the_class():
    net = power(exponent=3)
    assert net.list_arguments() == ["data", "p_w"]
    assert net.list_outputs() == ["p_output", "p_log"]
    assert net.list_auxiliary_states() == ["p_passes"]
    assert net.infer_shape(data=(2, 3)) == ([(2, 3), (3,)], [(2, 3), (2, 3)], [(1,)])
    assert net.infer_shape(p_w=(3,))[0] is None
    assert net.infer_type(data="float16")[1] == [np.float16] * 2
    again = mx.sym.load_json(net.tojson())
    assert again.tojson() == net.tojson()
    assert again.list_attr() == {"op_type": "test_power", "exponent": "3"}
    assert mx.sym.Custom(mx.sym.Variable("data"), op_type="test_softmax").list_arguments()[1].startswith("custom")


def test_numbers_gradients_and_states(rng):
    net, x, w = power(exponent=3), rng.uniform(1, 2, (2, 3)), rng.uniform(1, 2, 3)
    ex = net.simple_bind(mx.cpu(), data=(2, 3), grad_req={"data": "add", "p_w": "write"})
    ex.arg_dict["data"][:], ex.arg_dict["p_w"][:] = x, w
    ex.grad_dict["data"][:] = 1
    outs = ex.forward(is_train=True)
    np.testing.assert_allclose(outs[0].asnumpy(), x**3 * w, rtol=1e-5)
    ex.backward([mx.nd.ones((2, 3)) * 2, mx.nd.ones((2, 3))])
    np.testing.assert_allclose(ex.grad_dict["data"].asnumpy(), 1 + 6 * x**2 * w + 1 / x, rtol=1e-5)
    np.testing.assert_allclose(ex.grad_dict["p_w"].asnumpy(), 2 * (x**3).sum(axis=0), rtol=1e-5)
    assert ex.aux_dict["p_passes"].item() == 1
    ex.forward(is_train=False)[0].wait_to_read()
    assert ex.aux_dict["p_passes"].item() == 1
    module = mx.mod.Module(net, label_names=None)
    module.bind([("data", (2, 3))])
    module.init_params(mx.init.One(), arg_params={"p_w": w}, allow_missing=True)  # One has no rule for 'p_passes'
    assert module.get_params()[1]["p_passes"].item() == 0


def test_custom_operators_run_immediately_on_ndarrays():
    made, log = mx.nd.Custom(mx.nd.ones((2, 3)) * 2, mx.nd.ones(3), mx.nd.zeros(1), op_type="test_power")
    np.testing.assert_array_equal(made.asnumpy(), np.full((2, 3), 4))
    np.testing.assert_allclose(log.asnumpy(), np.log(np.full((2, 3), 2)), rtol=1e-6)


def test_half_precision(rng):
    net = power()
    model = jfit.lower(net, inputs=[])
    for dtype in ("float16", "bfloat16"):
        params = {"data": jnp.ones((2, 3), dtype), "p_w": jnp.ones(3, dtype)}
        outs, _ = model.apply(params, {"p_passes": jnp.zeros(1, dtype)}, {})
        assert {str(o.dtype) for o in outs} == {dtype}


def blobs(rng, rows=40):
    label = np.arange(rows) % 3
    return (rng.normal(size=(rows, 4)) + 3 * np.eye(3, 4)[label]).astype("float32"), label.astype("float32")


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("contexts", [[mx.cpu()], [mx.cpu(0), mx.cpu(1)]], ids=["one device", "two devices"])
def test_module_fit_is_that_of_the_built_in_head(rng, contexts):
    data, label = blobs(rng)
    found = []
    for custom in (True, False):
        module = mx.mod.Module(head(custom), context=contexts)
        module.fit(
            mx.io.NDArrayIter(data, label, 10),
            num_epoch=3,
            initializer=mx.init.One(),
            optimizer_params={"learning_rate": 0.1},
        )
        found.append(module.get_params()[0])
        assert module.score(mx.io.NDArrayIter(data, label, 10), "acc")[0][1] > 0.9
        assert module.predict(mx.io.NDArrayIter(data, None, 10)).shape == (40, 3)
    for name, value in found[0].items():
        np.testing.assert_allclose(value.asnumpy(), found[1][name].asnumpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("devices", [1, 2])
def test_jfit_fit_with_a_custom_operator_and_an_incomplete_batch(rng, devices):
    data, label = blobs(rng, 44)
    runs = [
        jfit.fit(
            head(custom),
            {"data": data, "softmax_label": label},
            batch_size=20,
            num_epoch=2,
            seed=3,
            progress=False,
            devices=[jfit.cpu(i) for i in range(devices)],
            optimizer_params={"learning_rate": 0.1},
        )
        for custom in (True, False)
    ]
    for name, value in runs[0].state.params.items():
        np.testing.assert_allclose(value, runs[1].state.params[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_an_exception_in_the_class_is_chained_and_names_the_node(rng):
    def net(where):
        return mx.sym.Custom(mx.sym.Variable("data"), op_type="test_failing", where=where, name="bad")

    with pytest.raises(CustomError, match=r"bad: forward of the custom operator 'test_failing' failed.*no such key") as caught:
        net("forward").bind(mx.cpu(), {"data": mx.nd.ones(2)}).forward()[0].asnumpy()
    assert isinstance(caught.value.__cause__, KeyError)
    ex = net("backward").bind(mx.cpu(), {"data": mx.nd.ones(2)}, {"data": mx.nd.zeros(2)})
    ex.forward(is_train=True)
    with pytest.raises(CustomError, match="bad: backward of the custom operator") as caught:
        ex.backward([mx.nd.ones(2)])
        ex.grad_dict["data"].asnumpy()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(CustomError, match="Custom: forward"):
        mx.nd.Custom(mx.nd.ones(2), op_type="test_failing").asnumpy()
    data, label = blobs(rng)
    for where in ("forward", "backward"):
        hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2)
        bad = mx.sym.Custom(hidden, op_type="test_failing", where=where, name="bad")
        loss = mx.sym.LinearRegressionOutput(mx.sym.sum(bad, axis=1), name="softmax")
        with pytest.raises(CustomError, match=f"bad: {where}"):
            jfit.fit(loss, {"data": data, "softmax_label": label}, num_epoch=1, progress=False)


def test_an_unregistered_operator_raises_with_the_nearest_name():
    with pytest.raises(mx.MXNetError, match=r"op_type is 'test_sofmax'.*did you mean 'test_softmax'"):
        mx.sym.Custom(mx.sym.Variable("data"), op_type="test_sofmax")
    text = head().tojson().replace("test_softmax", "elsewhere")
    with pytest.raises(GraphError, match="op_type is 'elsewhere'"):
        jfit.sym.load_json(text)
    with pytest.raises(ValueError, match="cannot be created with"):
        mx.sym.Custom(mx.sym.Variable("data"), op_type="test_softmax", unknown=1)


def test_the_class_receives_its_arguments_as_strings():
    seen = {}

    class Prop(mx.operator.CustomOpProp):
        def __init__(self, **kwargs):
            super().__init__()
            seen.update(kwargs)

    mx.operator.register("test_arguments")(Prop)
    mx.sym.Custom(mx.sym.Variable("x"), op_type="test_arguments", a=None, b=[1, 2], c=(1,), d=True, e=np.float32(2))
    assert seen == {"a": "None", "b": "[1, 2]", "c": "(1,)", "d": "True", "e": "2.0"}


def test_assign_follows_the_request_write_add_or_null():
    box, op = mx.nd.ones(2), mx.operator.CustomOp()
    for req, wanted in (("null", 1), ("add", 3), ("write", 2), ("inplace", 2)):
        op.assign(box, req, mx.nd.ones(2) * 2)
        assert box.asnumpy().tolist() == [wanted] * 2
    with pytest.raises(ValueError, match="expected one of 'null', 'write'"):
        op.assign(box, "later", 1)


def test_registered_operators_and_their_arguments_are_listed():
    assert "FullyConnected" in mx.operator.get_all_registered_operators()
    assert mx.operator.get_operator_arguments("clip").names == ["data", "a_min", "a_max"]


def test_a_user_registered_operator_behaves_as_a_built_in_one(rng):
    try:

        @jfit.ops.operator("test_swish", attrs={"beta": number(1.0)})
        def swish(ctx, attrs, data):
            """y = x / (1 + exp(-β x))."""
            return data / (1 + jnp.exp(-attrs.beta * data))

        net = mx.sym.test_swish(mx.sym.Variable("x"), beta=2)
        ex = net.bind(mx.cpu(), {"x": mx.nd.array([1.0])}, {"x": mx.nd.zeros(1)})
        ex.forward(is_train=True)
        ex.backward(mx.nd.ones(1))
        sigmoid = 1 / (1 + np.exp(-2))
        np.testing.assert_allclose(ex.grad_dict["x"].item(), sigmoid * (1 + 2 * (1 - sigmoid)), rtol=1e-5)
        assert mx.sym.load_json(net.tojson()).infer_shape(x=(2, 3))[1] == [(2, 3)]
        with pytest.raises(mx.MXNetError, match="no attribute or input 'bet'; did you mean 'beta'"):
            mx.sym.test_swish(mx.sym.Variable("x"), bet=2)
    finally:
        REGISTRY.pop("test_swish", None)
        jfit.ops.ALIASES.pop("test_swish", None)


@pytest.fixture
def double():
    """A user's operator y = 2x of which Python code computes output and gradient, with JAX."""

    def call(x):
        twice = lambda v: np.asarray(2 * jnp.asarray(v))  # noqa: E731
        return jax.pure_callback(twice, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")

    function = jax.custom_vjp(call)
    function.defvjp(lambda x: (call(x), None), lambda _, gradient: (call(gradient),))
    jfit.ops.operator("test_double")(lambda ctx, attrs, data: function(data))
    yield "test_double"
    REGISTRY.pop("test_double")
    jfit.ops.ALIASES.pop("test_double")


def pending(size=400):
    """A matrix of 1s that is not computed yet when this function returns, as XLA runs what is large in the background."""
    x = matrix = jnp.full((size, size), 1 / size)
    return mx.nd.NDArray(jax.lax.fori_loop(0, 50, lambda i, x: x @ matrix, x) * size)


def test_what_calls_python_has_run_before_anything_else_is_dispatched(double):
    """Else the JAX programs of that Python code wait for those that wait for it."""
    hidden, label = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3), mx.nd.zeros(400)
    softmax = mx.sym.SoftmaxOutput(mx.sym.test_double(hidden), name="softmax")
    for net in (mx.sym.Custom(hidden, op_type="test_softmax", name="softmax"), softmax):
        ex = net.simple_bind(mx.cpu(), data=(400, 400))
        ex.arg_dict["data"].value = pending().value
        assert ex.forward(is_train=True)[0].value.is_ready()
        module = mx.mod.Module(net)
        module.bind([("data", (400, 400))], [("softmax_label", (400,))])
        module.init_params()
        module.init_optimizer()
        module.forward_backward(mx.io.DataBatch([pending()], [label]))
        module.update()
        assert module.get_outputs()[0].value.is_ready()
    assert mx.nd.test_double(pending()).value.is_ready()
    with jfit.counters.counted() as counts:  # the name of a layer is no call of Python
        x, plain = np.zeros((64, 4), "float32"), mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="callback")
        jfit.fit(mx.sym.SoftmaxOutput(plain, name="softmax"), (x, np.zeros(64)), batch_size=2, num_epoch=1, steps_per_call=1)
    assert counts["host_syncs"] < 16
    assert mx.nd.Custom(pending(), label, op_type="test_softmax").value.is_ready()


def test_arithmetic_in_the_class_is_that_of_numpy_with_the_bits_of_jax(rng):
    def compute(x, w, row):
        made = mx.nd.array(row.asnumpy(), dtype=row.dtype)
        made[0] = 3
        made += mx.nd.full((3,), 2, dtype=row.dtype) + mx.nd.ones(3, dtype=row.dtype)
        results = [
            x + w,
            x - w,
            x * w,
            x / w,
            x * row,
            x / row,
            row / x,
            made - row,
            2 - x,
            0.1 / x,
            x / 3,
            -x,
            x[1] * 7,
            x.reshape((3, 4)) + 1,
        ]
        results += [x > w, x <= 0.5, x == x, x != w, x * 2**40, x / 0]
        return results

    arrays = [rng.normal(size=shape) for shape in ((4, 3), (4, 3), (3,))]
    for dtype in ("float32", "float16"):
        values = [a.astype(dtype) for a in arrays]
        with on_host():
            found = [r.value for r in compute(*map(mx.nd.NDArray, values))]
        assert {type(f) for f in found} == {np.ndarray}
        expected = compute(*(mx.nd.array(v, dtype=dtype) for v in values))
        for i, (f, e) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_array_equal(f, e.asnumpy(), strict=True, err_msg=str(i))


_ARRAYS_IN_FORWARD = """
import numpy as np, jfit.mx as mx
class Ones(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.dot(in_data[0], mx.nd.ones((3000, 3000)) * 1e-3))
@mx.operator.register("ones")
class OnesProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        return Ones()
net = mx.sym.Custom(mx.sym.Variable("data"), op_type="ones", name="o")
module = mx.mod.Module(net, label_names=None, context=[mx.cpu(0), mx.cpu(1)])
data = mx.io.NDArrayIter(np.ones((4, 3000), "float32"), batch_size=2)
module.bind(data.provide_data, for_training=False)
module.init_params()
print(round(float(module.predict(data).asnumpy()[0, 0]), 3))
"""


@pytest.mark.slow
def test_large_arrays_computed_with_jax_in_the_class_do_not_deadlock_two_devices():
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    env.pop("PJRT_NPROC", None)  # registering an operator sets it
    done = subprocess.run([sys.executable, "-c", _ARRAYS_IN_FORWARD], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[-1:] == ["3.0"], done.stderr
