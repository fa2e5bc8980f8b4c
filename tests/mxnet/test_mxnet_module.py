"""Module: names, shapes, grad_req, parameters, single passes, sharing, and the errors for invalid use."""

import contextlib

import jax
import numpy as np
import pytest
from module_support import SYM, V, batch_of, bound, cpus, data_of, error_of, host, linear, normed, ready, steps

import jfit
from jfit.data import DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.states import export_states


# ------------------------------------------------------------------------------------------------ names
@pytest.mark.parametrize("kind", ["data_names", "state_names", "fixed_param_names"])
def test_an_unknown_data_name_raises_with_the_names_of_the_symbol(kind):
    with pytest.raises(ValueError, match=r"'nope' is not found.*softmax_label"):
        Module(linear(), **{kind: ["nope"]})


def test_an_unknown_label_name_only_warns(caplog):
    module = Module(SYM.FullyConnected(V("data"), num_hidden=2, name="fc"))
    assert "softmax_label" in caplog.text
    module.bind([("data", (2, 4))])
    module.init_params()
    module.forward(batch_of(2), is_train=False)
    assert module.get_outputs()[0].shape == (2, 2)


def test_properties_describe_the_bound_shapes():
    module = bound(rows=6)
    assert (module.data_names, module.label_names, module.output_names) == (["data"], ["softmax_label"], ["softmax_output"])
    assert [(d.name, d.shape) for d in module.data_shapes] == [("data", (6, 4))]
    assert [(d.name, d.shape) for d in module.label_shapes] == [("softmax_label", (6,))]
    assert module.output_shapes == [("softmax_output", (6, 3))]
    assert module.symbol.list_outputs() == module.output_names
    assert (module.binded, module.for_training, module.inputs_need_grad) == (True, True, False)
    assert (module.params_initialized, module.optimizer_initialized) == (True, False)


def test_a_context_may_be_a_context_a_device_or_a_list():
    for context in (jfit.cpu(1), jax.devices()[1], [jfit.cpu(1)]):
        module = Module(linear(), context=context, group2ctxs={"dev1": [jfit.cpu(2)]})
        module.bind([("data", (2, 4))], [("softmax_label", (2,))])
        module.init_params()
        module.forward(batch_of(2))
        assert module.get_outputs()[0].devices() == {jax.devices()[1]}


def test_the_number_of_work_loads_must_equal_that_of_devices():
    with pytest.raises(ValueError, match="work_load_list has 3 entries for 2 devices"):
        Module(linear(), context=cpus(2), work_load_list=[1, 2, 3])


# ------------------------------------------------------------------------------------------------ order
def test_reading_outputs_and_gradients_before_their_pass_raises():
    module = ready()
    with pytest.raises(RuntimeError, match=r"call forward\(batch\) first"):
        module.get_outputs()
    with pytest.raises(RuntimeError, match="no gradient of 'fc_"):
        module.update()
    module.forward(batch_of(6), is_train=False)
    with pytest.raises(RuntimeError, match="training mode"):
        module.backward()


# ------------------------------------------------------------------------------------------------ bind
def test_shapes_are_pairs_or_descriptions_for_exactly_the_data_names(caplog):
    for shapes in ([("data", (6, 4))], [DataDesc("data", (6, 4))], [("data", (6, 4), "float32")]):
        assert bound(shapes=shapes).data_shapes[0].shape == (6, 4)
    with pytest.raises(ValueError, match=r"data_names are \['data'\], the shapes are for \['x'\]"):
        Module(linear()).bind([("x", (6, 4))])
    Module(linear()).bind([("data", (6, 4))], [("other", (6,))])
    assert "label_shapes do not match" in caplog.text


def test_a_second_bind_is_ignored_and_force_rebind_keeps_the_parameters(caplog):
    module = steps(ready(), 2)
    before = host(module.get_params()[0])
    module.bind([("data", (3, 4))], [("softmax_label", (3,))])
    assert module.data_shapes[0].shape == (6, 4) and "Already bound, ignoring" in caplog.text
    module.bind([("data", (3, 4))], [("softmax_label", (3,))], force_rebind=True)
    assert module.data_shapes[0].shape == (3, 4)
    assert all(np.array_equal(before[k], v) for k, v in module.get_params()[0].items())
    steps(module, 1, rows=3)


def test_a_module_bound_for_prediction_has_no_gradients():
    module = bound(bind={"for_training": False})
    module.forward(batch_of(6))
    with pytest.raises(AssertionError, match="re-bind with for_training=True"):
        module.backward()
    with pytest.raises(AssertionError, match="requires for_training=True"):
        Module(linear()).bind([("data", (6, 4))], for_training=False, inputs_need_grad=True)


@pytest.mark.parametrize(
    "grad_req",
    ["add", ["null", "add", "add", "null"], {"fc_weight": "add", "fc_bias": "add"}],
    ids=["word", "list", "dict"],
)
def test_gradients_accumulate_with_grad_req_add(grad_req):
    module = ready(bind={"grad_req": grad_req})
    error, x = error_of(module)
    for times in (1, 2, 3):
        module.forward_backward(batch_of(6))
        assert np.allclose(module.gradients()["fc_weight"], times * error.T @ x, atol=1e-5)
        assert np.allclose(module.gradients()["fc_bias"], times * error.sum(0), atol=1e-5)


def test_invalid_grad_req_raises():
    for given, words in (
        ("most", "expected one of 'write', 'add', 'null'"),
        (["write"], "is shorter than argument 1"),
    ):
        with pytest.raises(ValueError, match=words):
            Module(linear()).bind([("data", (6, 4))], [("softmax_label", (6,))], grad_req=given)
    with pytest.warns(UserWarning, match="did you mean .*fc_weight"):
        Module(linear()).bind([("data", (6, 4))], [("softmax_label", (6,))], grad_req={"fc_weigth": "add"})


def test_fixed_parameters_are_unchanged_but_moving_statistics_are_updated(tmp_path):
    module = ready(normed(), fixed_param_names=["fc1_weight", "bn_gamma"], params={"learning_rate": 0.5, "momentum": 0.9})
    before, aux = (host(x) for x in module.get_params())
    after, aux2 = (host(x) for x in steps(module, 3).get_params())
    still = {name for name in before if np.array_equal(before[name], after[name])}
    assert still == {"fc1_weight", "bn_gamma"}
    assert not np.array_equal(aux["bn_moving_mean"], aux2["bn_moving_mean"])
    states, _ = export_states(module.parameters)
    assert {module._optimizer.idx2name[index] for index in states} == set(before) - still


def test_more_devices_than_rows_raise():
    with pytest.raises(ValueError, match=r"Too many slices\. Some splits are empty"):
        bound(rows=2, devices=3)


def test_uneven_slices_of_a_network_without_row_tracking_raise():
    mixed = SYM.MakeLoss(SYM.sum(SYM.dot(V("data"), V("data"), transpose_a=True)), name="loss")
    module = Module(mixed, label_names=None, context=cpus(3))
    module.bind([("data", (10, 4))])
    module.init_params()
    with pytest.raises(ValueError, match=r"slices of \[3, 3, 4\] rows must be padded"):
        module.forward(DataBatch([data_of(10)[0]]))


# ------------------------------------------------------------------------------------------------ reshape
def test_other_batch_sizes_reshape_and_compile_once_each():
    module = steps(ready(rows=6), 2)
    scale = module._optimizer.rescale_grad
    for rows in (4, 9):
        module.forward(batch_of(rows), is_train=False)
        assert module.get_outputs()[0].shape == (rows, 3) and module.data_shapes[0].shape == (rows, 4)
        steps(module, 1, rows)
    assert module._optimizer.rescale_grad == scale == 1 / 6
    with jfit.counters.counted() as seen:
        for rows in (6, 4, 9):
            steps(module, 2, rows)
    assert seen["compiles"] == 0 and seen["traces"] == 0


def test_reshape_by_hand_keeps_the_parameters():
    module = bound()
    before = host(module.get_params()[0])
    module.reshape([("data", (2, 4))], [("softmax_label", (2,))])
    assert module.output_shapes == [("softmax_output", (2, 3))]
    module.forward(batch_of(2))
    assert module.get_outputs()[0].shape == (2, 3)
    assert all(np.array_equal(before[k], v) for k, v in module.get_params()[0].items())
    with pytest.raises(ValueError, match="shapes are for"):
        module.reshape([("x", (2, 4))])


# ------------------------------------------------------------------------------------------------ parameters
def test_init_params_initializes_missing_parameters_only_if_allowed():
    module = Module(linear())
    module.bind([("data", (6, 4))], [("softmax_label", (6,))])
    given = {"fc_bias": np.ones(3, "float32")}
    with pytest.raises(RuntimeError, match="fc_weight is not presented"):
        module.init_params(arg_params=given)
    with pytest.raises(RuntimeError, match="fc_bias has no value, and initializer is None"):
        module.init_params(None)
    module.init_params(jfit.init.Constant(2.0), given, allow_missing=True)
    params = host(module.get_params()[0])
    assert (params["fc_weight"] == 2).all() and (params["fc_bias"] == 1).all()
    module.init_params(None, given, allow_missing=True, force_init=True)  # what is missing is 0 then, as in MXNet
    assert not np.asarray(module.get_params()[0]["fc_weight"]).any()


def test_existing_parameters_are_replaced_only_with_force_init():
    module = bound()
    before = host(module.get_params()[0])
    with pytest.warns(UserWarning, match="init_params call ignored"):
        module.init_params(jfit.init.One())
    assert np.array_equal(before["fc_weight"], module.get_params()[0]["fc_weight"])
    module.init_params(jfit.init.One(), force_init=True)
    assert (np.asarray(module.get_params()[0]["fc_weight"]) == 1).all()


def test_values_of_another_shape_raise_with_the_name():
    module = bound()
    with pytest.raises(ValueError, match=r"fc_bias: the value has shape \(5,\), but the network needs \(3,\)"):
        module.set_params({"fc_bias": np.zeros(5), "fc_weight": np.zeros((3, 4))}, {})


def test_set_params_replaces_all_parameters_or_the_given_ones_with_allow_missing():
    module = bound()
    before = host(module.get_params()[0])
    module.set_params({"fc_bias": np.full(3, 9.0)}, {}, allow_missing=True)
    after = host(module.get_params()[0])
    assert (after["fc_bias"] == 9).all() and np.array_equal(after["fc_weight"], before["fc_weight"])
    with pytest.raises(RuntimeError, match="fc_weight is not presented"):
        module.set_params({"fc_bias": np.full(3, 9.0)}, {})
    with pytest.warns(UserWarning, match="set_params call ignored"):
        module.set_params(before, {}, force_init=False)
    assert (np.asarray(module.get_params()[0]["fc_bias"]) == 9).all()


@pytest.mark.parametrize("allow_extra", [False, True])
def test_unknown_names_raise_only_in_set_params_with_allow_missing(allow_extra):
    """As in MXNet, which also takes names of inputs; a name that is missing is shown with the unknown one that resembles it."""
    module = bound()
    ones = {"fc_weight": np.ones((3, 4), "float32"), "fc_bias": np.ones(3, "float32")}
    extra, aux = {**ones, "fc_wieght": np.zeros(1)}, {"mean": np.zeros(1)}
    calls = [
        lambda: module.init_params(None, extra, aux, False, True, allow_extra),
        lambda: module.init_params(None, extra, aux, True, True, allow_extra),
        lambda: module.set_params(extra, aux, allow_extra=allow_extra),
        lambda: module.set_params({**ones, "softmax_label": np.zeros(6)}, {}, True, allow_extra=allow_extra),
    ]
    for call in calls:
        module.init_params(jfit.init.Zero(), force_init=True)
        call()
        assert all((np.asarray(value) == 1).all() for value in module.get_params()[0].values())
    for params, states, message in (
        (extra, {}, r"'fc_wieght' in arg_params.*not in the arguments.*did you mean 'fc_weight'"),
        (ones, aux, "'mean' in aux_params"),
    ):
        with contextlib.nullcontext() if allow_extra else pytest.raises(ValueError, match=message):
            module.set_params(params, states, allow_missing=True, allow_extra=allow_extra)
    with pytest.raises(RuntimeError, match=r"fc_weight is not presented.*but 'fc_wieght' was passed, which"):
        module.init_params(None, {"fc_wieght": np.zeros((3, 4)), "fc_bias": np.zeros(3)}, force_init=True)


def test_get_params_returns_copies_that_later_steps_do_not_change():
    module = ready(devices=2)
    params, _ = module.get_params()
    kept = host(params)
    steps(module, 3)
    assert all(np.array_equal(kept[name], params[name]) for name in kept)


def test_set_params_copies_the_arrays():
    module = bound()
    mine = host(module.get_params()[0])
    module.set_params(mine, {})
    before = {name: value.copy() for name, value in mine.items()}
    for value in mine.values():
        value[:] = 99
    assert all(np.array_equal(before[k], v) for k, v in module.get_params()[0].items())
    x, y = data_of(6)
    module.forward(DataBatch([x], [y]), is_train=False)
    want = error_of(module)[0] + np.eye(3)[y.astype(int)]
    x[:] = 99
    assert np.allclose(module.get_outputs()[0], want, atol=1e-6)


def test_moving_statistics_are_the_mean_over_the_devices_after_every_step():
    """MXNet's devices keep their own until get_params (decided.device_statistics)."""
    module = ready(normed(momentum=0.0), rows=10, devices=3)
    params, x = host(module.get_params()[0]), data_of(10)[0]
    hidden = x @ params["fc1_weight"].T + params["fc1_bias"]
    steps(module, 1, rows=10)
    want = np.mean([part.mean(0) for part in np.split(hidden, [3, 6])], axis=0)
    assert np.allclose(module.get_params()[1]["bn_moving_mean"], want, atol=1e-5)
    assert np.allclose(module.state.aux["bn_moving_mean"], want, atol=1e-5)
