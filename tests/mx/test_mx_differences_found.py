"""Regression tests: cases in which jfit.mx once differed from MXNet 1.9.1."""

import numpy as np
import pytest

import jfit.mx as mx

FROZEN_STEM = ["fc1_weight", "fc1_bias", "bn_gamma", "bn_beta"]


def wave(shape, phase=0.0):
    """Numbers that need no file."""
    return np.sin(np.arange(np.prod(shape)) * 0.7 + phase).reshape(shape).astype("float32")


def network(norm=True):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc1")
    if norm:
        net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=2, name="fc2"), name="softmax")


def module(norm=True, fixed=None, **bind):
    net = network(norm)
    made = mx.mod.Module(net, fixed_param_names=fixed)
    made.bind([("data", (4, 3))], [("softmax_label", (4,))], **bind)
    shapes, _, aux = net.infer_shape(data=(4, 3))
    fed = ("data", "softmax_label")
    args = {n: mx.nd.array(wave(s, len(n))) for n, s in zip(net.list_arguments(), shapes, strict=True) if n not in fed}
    statistics = {n: mx.nd.ones(s) for n, s in zip(net.list_auxiliary_states(), aux, strict=True)}
    made.init_params(arg_params=args, aux_params=statistics)
    made.init_optimizer(optimizer_params={"learning_rate": 0.5})
    return made


def batch(phase=0.0):
    return mx.io.DataBatch([mx.nd.array(wave((4, 3), phase))], [mx.nd.array([0, 1, 1, 0])])


def step(made):
    made.forward(batch())
    made.backward()
    made.update()
    args, aux = made.get_params()
    return {n: v.asnumpy() for n, v in {**args, **aux}.items()}


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found).ravel(), expected, atol=2e-5)


def test_statistics_are_unchanged_if_no_parameter_below_needs_a_gradient():
    found = step(module(fixed=FROZEN_STEM))
    close(found["bn_moving_mean"], [1, 1, 1])
    close(found["bn_moving_var"], [1, 1, 1])
    close(found["fc2_bias"], [1.18834, 0.46399])


def test_statistics_of_a_frozen_norm_are_updated_if_a_layer_below_is_trained():
    found = step(module(fixed=["bn_gamma", "bn_beta"]))
    close(found["bn_moving_mean"], [0.9604, 0.98991, 0.91717])
    close(found["bn_moving_var"], [1.10774, 0.95032, 1.01127])


def test_statistics_of_frozen_first_layers_are_unchanged_in_fit_too():
    made = module(fixed=FROZEN_STEM)
    made.fit(mx.io.NDArrayIter(wave((8, 3)), np.arange(8) % 2, batch_size=4), num_epoch=2)
    _, aux = made.get_params()
    close(aux["bn_moving_mean"].asnumpy(), [1, 1, 1])


def test_statistics_of_an_executor_are_unchanged_if_no_argument_below_needs_a_gradient():
    net = network()
    wanted = {n: "write" if n.startswith("fc2") else "null" for n in net.list_arguments()}
    executor = net.simple_bind(mx.cpu(), grad_req=wanted, data=(4, 3))
    executor.arg_dict["data"][:] = wave((4, 3))
    executor.arg_dict["fc1_weight"][:] = wave((3, 3))
    executor.forward(is_train=True)
    executor.backward()
    close(executor.aux_dict["bn_moving_mean"].asnumpy(), [0, 0, 0])


@pytest.mark.parametrize("devices", [1, 2])
def test_update_of_a_module_without_trainable_parameters_does_nothing(devices):
    net = network(norm=False)
    made = mx.mod.Module(net, context=[mx.cpu(i) for i in range(devices)])
    made.bind([("data", (4, 3))], [("softmax_label", (4,))], grad_req="null", inputs_need_grad=True)
    made.init_params(mx.init.One())
    made.init_optimizer()
    found = step(made)
    close(found["fc1_weight"], [1] * 9)


def test_every_backward_adds_to_the_gradient_with_grad_req_add():
    made = module(False, grad_req="add")
    made.forward(batch())
    made.backward()
    made.backward()
    made.update()
    args, _ = made.get_params()
    close(args["fc2_bias"].asnumpy(), [1.18462, 0.46771])
    close(args["fc1_bias"].asnumpy(), [0.97093, 0.43097, -0.31168])


def test_outputs_are_those_of_the_parameters_at_forward():
    made = module(False)
    made.forward(batch())
    args, aux = made.get_params()
    made.set_params({n: v * 0 for n, v in args.items()}, aux)
    close(made.get_outputs()[0].asnumpy(), [0.07193, 0.92807, 0.15633, 0.84367, 0.92141, 0.07859, 0.06929, 0.93071])


def test_an_update_does_not_change_the_outputs_of_the_last_forward():
    made = module(False)
    made.forward(batch())
    made.backward()
    made.forward(batch(1.0))
    made.update()
    close(made.get_outputs()[0].asnumpy(), [0.02455, 0.97545, 0.77918, 0.22082, 0.64817, 0.35183, 0.0247, 0.9753])


def test_the_mean_of_a_loss_over_a_padded_batch_is_that_of_mxnet():
    difference = mx.sym.Reshape(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="fc"), shape=(-1,))
    net = mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(difference - mx.sym.Variable("label"))))
    data = mx.io.NDArrayIter(wave((6, 3)), wave((6,)), batch_size=4, label_name="label")
    made, metric = mx.mod.Module(net, label_names=["label"]), mx.metric.Loss()
    made.bind(data.provide_data, data.provide_label)
    made.init_params(mx.init.Constant(0.5))
    for one in data:
        made.forward(one)
        made.update_metric(metric, one.label)
    close(metric.get()[1], [0.89792])


def test_set_params_is_kept_where_the_store_updates():
    """In MXNet the next update brings the old ones back (decided.set_params_on_store)."""
    net = network(norm=False)
    made = mx.mod.Module(net, context=[mx.cpu(0), mx.cpu(1)])
    made.bind([("data", (4, 3))], [("softmax_label", (4,))])
    made.init_params(mx.init.Zero())
    made.init_optimizer(optimizer_params={"learning_rate": 1e-6})
    args, aux = made.get_params()
    made.set_params({n: v + 1 for n, v in args.items()}, aux)
    close(step(made)["fc1_weight"], [1] * 9)


def test_a_backward_after_the_update_computes_the_gradient_at_the_new_parameters():
    """MXNet mixes old activations with new weights (decided.late_backward)."""
    late, fresh = module(False), module(False)
    step(late)
    step(fresh)
    before = late.get_outputs()[0].asnumpy()
    late.backward()
    np.testing.assert_array_equal(late.get_outputs()[0].asnumpy(), before)
    late.update()
    found = step(fresh)
    close(late.get_params()[0]["fc1_weight"].asnumpy(), found["fc1_weight"].ravel())


def test_npx_reshape_refuses_the_code_for_axes_of_size_1_which_has_another_meaning_in_the_operator_reshape():
    with pytest.raises(mx.MXNetError, match="squeeze"):
        mx.npx.reshape(mx.np.ones((1, 4, 1)), (-3, -2, -1))


def test_a_missing_file_is_an_mxnet_error():
    load_params = module().load_params
    for load in (mx.mod.Module.load, mx.model.FeedForward.load, mx.model.load_checkpoint, mx.model.load_params):
        with pytest.raises(mx.MXNetError, match="none"):
            load("none", 1)
    for load in (load_params, mx.gluon.ParameterDict().load):
        with pytest.raises(mx.MXNetError, match="none"):
            load("none.params")
