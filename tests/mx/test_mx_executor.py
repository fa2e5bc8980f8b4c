"""Executor: forward and backward as one program, arrays updated in place, monitors."""

import gc
import weakref

import numpy as np
import pytest

import jfit.mx as mx
from jfit import counters

V = mx.sym.Variable


def softmax(batch=4, hidden=3, req="write"):
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(V("data"), num_hidden=hidden, name="fc"), name="softmax")
    ex = net.simple_bind(mx.cpu(), grad_req=req, data=(batch, 5))
    rng = np.random.default_rng(0)
    for array in ex.arg_arrays:
        array[:] = rng.normal(size=array.shape)
    ex.arg_dict["softmax_label"][:] = np.arange(batch) % hidden
    return ex


def test_forward_and_backward_are_one_program():
    ex = softmax()
    assert ex.forward(is_train=True)[0].shape == (4, 3)
    ex.backward()
    with counters.counted() as seen:
        outputs = ex.forward(is_train=True)
        assert outputs[0].shape == (4, 3)
        ex.backward()
        outputs[0].asnumpy()
    assert seen["compiles"] == 0 and seen["traces"] == 0


def test_the_shape_of_an_output_is_known_before_its_value():
    ex = softmax()
    ex.forward(is_train=True)
    with counters.counted() as seen:
        assert ex.outputs[0].shape == (4, 3) and ex.outputs[0].dtype is np.float32 and ex.outputs[0].ndim == 2
    assert seen["compiles"] == 0 and seen["host_syncs"] == 0


def test_outputs_are_those_of_the_arrays_at_forward():
    ex = softmax()
    want = ex.forward()[0].asnumpy()
    late = ex.forward()
    ex.arg_dict["fc_weight"][:] = 0
    np.testing.assert_array_equal(late[0].asnumpy(), want)
    assert np.ptp(ex.forward()[0].asnumpy()) < np.ptp(want)


def test_random_numbers_are_fixed_at_forward():
    data = mx.nd.ones((64, 4))
    ex = mx.sym.Dropout(V("x"), p=0.5).bind(mx.cpu(), [data], [mx.nd.zeros((64, 4))])
    early = ex.forward(is_train=True)[0].asnumpy()
    ex.backward(mx.nd.ones((64, 4)))
    np.testing.assert_array_equal(ex.outputs[0].asnumpy(), early)
    np.testing.assert_array_equal(ex.grad_arrays[0].asnumpy(), early)
    assert not np.array_equal(ex.forward(is_train=True)[0].asnumpy(), early)


def test_gradients_are_written_added_or_ignored_by_grad_req():
    written, added = softmax(), softmax(req={"fc_weight": "add", "fc_bias": "write"})
    for ex in (written, added):
        ex.grad_dict["fc_weight"][:] = 1
        for _ in range(2):
            ex.forward(is_train=True)
            ex.backward()
    once = written.grad_dict["fc_weight"].asnumpy()
    np.testing.assert_allclose(added.grad_dict["fc_weight"].asnumpy(), 1 + 2 * once, rtol=1e-5)
    assert added.grad_dict["data"] is None


def test_the_gradient_array_of_a_label_is_unchanged():
    ex = softmax()
    ex.grad_dict["softmax_label"][:] = 7
    ex.forward(is_train=True)
    ex.backward()
    assert ex.grad_dict["softmax_label"].asnumpy().tolist() == [7] * 4


def test_an_output_that_is_not_a_loss_needs_a_head_gradient():
    ex = mx.sym.square(V("x"), name="sq").bind(mx.cpu(), [mx.nd.ones(2)], [mx.nd.zeros(2)])
    ex.forward(is_train=True)
    with pytest.raises(mx.MXNetError, match="'sq_output' is not a loss, so backward needs its head gradient"):
        ex.backward()
    ex.backward({"sq_output": mx.nd.ones(2)})
    assert ex.grad_arrays[0].asnumpy().tolist() == [2, 2]


def test_an_output_behind_block_grad_needs_no_head_gradient():
    x = V("x")
    pair = mx.sym.Group([mx.sym.make_loss(x * 3), mx.sym.BlockGrad(x)])
    ex = pair.bind(mx.cpu(), [mx.nd.ones(2)], [mx.nd.zeros(2)])
    ex.forward(is_train=True)
    ex.backward()
    assert ex.grad_arrays[0].asnumpy().tolist() == [3, 3]


def test_backward_without_forward_runs_the_forward_pass():
    ex = (V("x") * 3).simple_bind(mx.cpu(), x=(2,))
    ex.backward(mx.nd.ones(2))
    assert ex.grad_arrays[0].asnumpy().tolist() == [3, 3]


def test_moving_statistics_change_only_in_backward_and_fixed_gamma_becomes_one():
    net = mx.sym.make_loss(mx.sym.BatchNorm(V("x"), name="bn"))
    ex = net.simple_bind(mx.cpu(), x=(8, 3))
    ex.arg_dict["x"][:] = np.random.default_rng(0).normal(5, 1, (8, 3))
    ex.aux_dict["bn_moving_var"][:] = 1
    ex.arg_dict["bn_gamma"][:] = 3
    ex.forward(is_train=True)[0].asnumpy()
    assert ex.aux_dict["bn_moving_mean"].asnumpy().tolist() == [0, 0, 0]
    assert ex.arg_dict["bn_gamma"].asnumpy().tolist() == [1, 1, 1]
    ex.backward()
    assert (ex.aux_dict["bn_moving_mean"].asnumpy() > 0.3).all()
    moved = ex.aux_dict["bn_moving_mean"].asnumpy()
    ex.forward()[0].asnumpy()
    np.testing.assert_array_equal(ex.aux_dict["bn_moving_mean"].asnumpy(), moved)


def test_integer_inputs_have_gradient_zero():
    net = mx.sym.sum(mx.sym.Embedding(V("ids"), V("w"), input_dim=3, output_dim=2))
    ids, w = mx.nd.array([0, 2], dtype="int32"), mx.nd.ones((3, 2))
    ex = net.bind(mx.cpu(), {"ids": ids, "w": w}, {"ids": mx.nd.ones(2, dtype="int32"), "w": mx.nd.zeros((3, 2))})
    ex.forward(is_train=True)
    ex.backward(mx.nd.ones(1))
    assert ex.grad_dict["w"].asnumpy().tolist() == [[1, 1], [0, 0], [1, 1]]
    assert ex.grad_dict["ids"].asnumpy().tolist() == [0, 0]


def test_new_inputs_are_passed_by_name_and_validated():
    ex = softmax()
    ex.forward(data=mx.nd.zeros((4, 5)))
    assert ex.arg_dict["data"].asnumpy().max() == 0
    with pytest.raises(TypeError, match="Unknown argument 'dat'"):
        ex.forward(dat=mx.nd.zeros((4, 5)))
    with pytest.raises(ValueError, match=r"'data' is bound with shape \(4, 5\), but the value has \(3, 5\)"):
        ex.forward(data=mx.nd.zeros((3, 5)))


def test_an_executor_computes_on_its_device():
    ex = mx.sym.square(V("x")).bind(mx.cpu(2), [mx.nd.ones(2)], [mx.nd.zeros(2, ctx=mx.cpu(2))])
    assert ex.forward(is_train=True)[0].context == mx.cpu(2)
    ex.backward(mx.nd.ones(2))
    assert ex.grad_arrays[0].context == mx.cpu(2)


def test_reshape_shares_arrays_of_unchanged_shape():
    ex = softmax(batch=4)
    with pytest.raises(mx.MXNetError, match="'data' would grow"):
        ex.reshape(data=(6, 5), softmax_label=(6,))
    small = ex.reshape(data=(2, 5), softmax_label=(2,))
    assert small.arg_dict["fc_weight"] is ex.arg_dict["fc_weight"]
    assert small.forward(data=mx.nd.ones((2, 5)))[0].shape == (2, 3)
    with pytest.raises(AssertionError, match="'fc_weight' would change"):
        ex.reshape(data=(4, 3))


def test_copy_params_from_raises_for_unknown_names():
    ex = softmax()
    ex.copy_params_from({"fc_bias": mx.nd.ones(3)})
    assert ex.arg_dict["fc_bias"].asnumpy().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="'fc_bia'"):
        ex.copy_params_from({"fc_bia": mx.nd.ones(3)})
    ex.copy_params_from({"fc_bia": mx.nd.ones(3)}, allow_extra_params=True)


def test_a_monitor_sees_every_operator_of_a_pass():
    ex, seen = softmax(), {}
    ex.set_monitor_callback(lambda name, array: seen.update({name: array.asnumpy()}))
    out = ex.forward(is_train=True)[0].asnumpy()
    assert list(seen) == ["fc_output", "softmax_output"]
    np.testing.assert_array_equal(seen["softmax_output"], out)
    seen.clear()
    ex.backward()
    assert list(seen) == ["softmax_backward_output0", *(f"fc_backward_output{i}" for i in range(3))]
    np.testing.assert_allclose(seen["fc_backward_output1"], ex.grad_dict["fc_weight"].asnumpy(), rtol=1e-6)
    seen.clear()
    ex.set_monitor_callback(lambda name, array: seen.update({name: array.asnumpy()}), monitor_all=True)
    ex.forward()
    inputs = ["data", "fc_data", "fc_weight", "fc_bias"]  # a variable has two names, as in MXNet
    assert list(seen) == [*inputs, "fc_output", "softmax_data", "softmax_label", "softmax_output"]
    ex.set_monitor_callback(None)
    seen.clear()
    ex.forward(is_train=True)
    ex.backward()
    assert not seen


def test_a_monitor_sees_the_random_numbers_and_head_gradients_of_the_pass():
    ex = mx.sym.Dropout(V("x"), p=0.5, name="d").bind(mx.cpu(), [mx.nd.ones((8, 8))], [mx.nd.zeros((8, 8))])
    mon = mx.mon.Monitor(1, stat_func=lambda x: x.sum())
    mon.install(ex)
    mon.tic()
    total = ex.forward(is_train=True)[0].asnumpy().sum()
    ex.backward(mx.nd.full((8, 8), 3))
    found = {name: float(text) for _, name, text in mon.toc()}
    assert found == {"d_output": total, "d_backward_output": 3 * total, "x": 64}


def test_dropout_in_mode_always_draws_a_new_mask_in_every_forward():
    ex = mx.sym.Dropout(V("x"), p=0.5, mode="always").bind(mx.cpu(), [mx.nd.ones((8, 8))])
    draws = []
    for seed in (1, None, 1):
        if seed is not None:
            mx.random.seed(seed)
        draws.append(ex.forward()[0].asnumpy())
    assert not np.array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[0], draws[2])


def test_old_arrays_are_freed():
    ex = softmax()
    ex.forward(is_train=True)
    ex.backward()
    old = [weakref.ref(box.value) for box in (ex.arg_dict["fc_weight"], ex.arg_dict["data"])]
    for name in ("fc_weight", "data"):
        ex.arg_dict[name][:] = np.full(ex.arg_dict[name].shape, 0.5, "float32")
    gc.collect()
    assert [ref() for ref in old] == [None, None]
    first = ex.grad_dict["fc_bias"].asnumpy()
    ex.backward()  # once more, over the arrays of now
    assert not np.array_equal(ex.grad_dict["fc_bias"].asnumpy(), first)
    ex.forward(is_train=True)[0].asnumpy()
    late = ex.outputs[0].asnumpy()
    ex.backward()
    np.testing.assert_array_equal(ex.outputs[0].asnumpy(), late)


@pytest.mark.parametrize("between", [(), ("float32",)], ids=["integers", "and back"])
def test_head_gradients_pass_through_casts_to_integers(between):
    y = mx.sym.Cast(mx.sym.square(mx.sym.Variable("x")), dtype="int32")
    for dtype in between:
        y = mx.sym.Cast(y, dtype=dtype)
    grad = mx.nd.zeros(2)
    ex = y.bind(mx.cpu(), {"x": mx.nd.array([1.5, -2.5])}, args_grad={"x": grad})
    assert ex.forward(is_train=True)[0].asnumpy().tolist() == [2, 6]
    ex.backward([mx.nd.array([1, 2], dtype=between[-1] if between else "int32")])
    assert grad.asnumpy().tolist() == [3, -10]
