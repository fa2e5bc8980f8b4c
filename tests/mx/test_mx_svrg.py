"""SVRGModule: MXNet's values, log lines and order of callbacks; deliberate differences; optimizers in a key-value store."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cases import svrg as cases
from jfit.mx.contrib.svrg_optimization.svrg_module import SVRGModule

import jfit.mx as mx

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "svrg.json").read_text())
SLOW = {"one", "padded", "two", "two_zeros"}
VALUE = re.compile(r"=(-?[\d.]+)$")


def linear(rows=12, name="fc1", **how):
    """(iterator, bound module with parameters)."""
    x = np.random.default_rng(0).integers(1, 5, (rows, 2)).astype("float32")
    train = mx.io.NDArrayIter(x, x @ np.array([1, 2], "float32"), batch_size=4, label_name="label")
    out = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name=name)
    net = mx.sym.LinearRegressionOutput(out, mx.sym.Variable("label"), name="lro")
    module = SVRGModule(net, data_names=["data"], label_names=["label"], **{"update_freq": 2, **how})
    module.bind(data_shapes=train.provide_data, label_shapes=train.provide_label)
    module.init_params(initializer=mx.init.One())
    return train, module


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in cases.CASES])
def test_a_training_is_that_of_mxnet_step_by_step_and_line_by_line(name):
    found, wanted = cases.train(mx, SVRGModule, name), GOLDEN[name]
    assert [VALUE.sub("", line) for line in found["order"]] == [VALUE.sub("", line) for line in wanted["order"]]
    if not cases.CASES[name]["rows"] % cases.BATCH:  # rows that the iterator wraps around do not count here: "padded_rows"
        values = [[float(m[1]) for m in map(VALUE.search, run["order"]) if m] for run in (found, wanted)]
        np.testing.assert_allclose(values[0], values[1], rtol=2e-5, atol=2e-6)
    for have, want in zip(found["params"] + found["full"], wanted["params"] + wanted["full"], strict=True):
        assert have.keys() == want.keys()
        for key in want:
            np.testing.assert_allclose(have[key], want[key], rtol=2e-5, atol=2e-6, err_msg=key)


def test_a_layer_with_full_in_its_name_is_trained():
    names = ("fc1", "fullyconnected0")
    found = []
    for name in names:
        train, module = linear(name=name)
        module.fit(train, num_epoch=1, eval_metric="mse", optimizer_params={"learning_rate": 0.01})
        found.append(module.get_params()[0][f"{name}_weight"].asnumpy())
    np.testing.assert_array_equal(found[0], found[1])


def test_the_first_gradient_is_taken_at_the_parameters_on_several_devices():
    runs = [linear(context=[mx.cpu(i) for i in range(n)]) for n in (1, 2)]
    for train, module in runs:
        module.fit(train, num_epoch=1, eval_metric="mse", optimizer_params={"learning_rate": 0.01})
    one, two = (module.get_params()[0]["fc1_weight"].asnumpy() for _, module in runs)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_a_fit_that_begins_between_full_gradients_computes_one_first():
    train, module = linear()
    for epoch in (1, 3):
        module.fit(train, begin_epoch=epoch, num_epoch=epoch + 1, eval_metric="mse", optimizer_params={"learning_rate": 0.01})
        assert np.abs(module._param_dict[0]["fc1_weight"].asnumpy()).min() > 0


def test_an_interrupted_full_gradient_is_computed_again():
    train, module = linear()
    module.fit(train, num_epoch=1, eval_metric="mse", optimizer_params={"learning_rate": 0.01})

    class Interrupted(type(train)):
        def next(self):
            raise KeyboardInterrupt

    broken = Interrupted(train.data[0][1], train.label[0][1], batch_size=4, label_name="label")
    before = module.get_params()[0]["fc1_weight"].asnumpy()
    with pytest.raises(KeyboardInterrupt):
        module.update_full_grads(broken)
    assert not module._up_to_date
    np.testing.assert_array_equal(module.get_params()[0]["fc1_weight"].asnumpy(), before)


def test_both_modules_draw_the_same_random_numbers_for_a_batch():
    """At the snapshot the two gradients are equal, dropout and all, so what remains is mu."""
    data = mx.sym.Dropout(mx.sym.Variable("data"), p=0.5)
    net = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(data, num_hidden=1, name="fc"), mx.sym.Variable("label"))
    x = np.ones((8, 6), "float32")
    train = mx.io.NDArrayIter(x, x[:, 0], batch_size=4, label_name="label")
    module = SVRGModule(net, label_names=["label"], update_freq=1)
    module.bind(train.provide_data, train.provide_label)
    module.init_params(mx.init.One())
    module.init_optimizer(optimizer_params={"learning_rate": 0.0})
    module.update_full_grads(train)
    train.reset()
    for batch in train:
        module.forward_backward(batch)
        module._update_svrg_gradients()
        mu = module._param_dict[0]["fc_weight"].asnumpy()
        np.testing.assert_allclose(module._exec_group.grad_arrays[0][0].asnumpy(), mu, rtol=1e-5)
        module.update()


@pytest.mark.slow
def test_states_and_parameters_are_restored_from_a_checkpoint(tmp_path):
    train, module = linear()
    how = {"optimizer": "sgd", "optimizer_params": {"learning_rate": 0.01, "momentum": 0.9}}
    module.fit(train, num_epoch=2, eval_metric="mse", **how)
    prefix = str(tmp_path / "svrg")
    module.save_checkpoint(prefix, 2, save_optimizer_states=True)
    again = SVRGModule.load(prefix, 2, load_optimizer_states=True, label_names=["label"], update_freq=2)
    train.reset()
    module.fit(train, begin_epoch=2, num_epoch=3, eval_metric="mse", **how)
    again.fit(train, begin_epoch=2, num_epoch=3, eval_metric="mse", **how)
    one, two = (m.get_params()[0]["fc1_weight"].asnumpy() for m in (module, again))
    np.testing.assert_array_equal(one, two)
    assert type(SVRGModule.load(prefix, 2, label_names=["label"])) is mx.mod.Module


@pytest.mark.slow
def test_reshape_predict_and_score_apply_to_both_modules():
    train, module = linear()
    module.fit(train, num_epoch=1, eval_metric="mse", optimizer_params={"learning_rate": 0.01})
    module.reshape([("data", (6, 2))], [("label", (6,))])
    batch = mx.io.DataBatch([mx.nd.ones((6, 2))], [mx.nd.ones((6,))])
    module.prepare(batch)
    module.forward_backward(batch)
    module.update()
    assert module.get_outputs()[0].shape == (6, 1)
    assert module._mod_aux.get_outputs()[0].shape == (6, 1)
    assert module.predict(train).shape == (12, 1)


def test_invalid_arguments_raise():
    net = mx.sym.LinearRegressionOutput(mx.sym.Variable("data"), mx.sym.Variable("label"))
    with pytest.raises(ValueError, match="update_freq is None"):
        SVRGModule(net, label_names=["label"])
    with mx.AttrScope(ctx_group="dev"):
        grouped = mx.sym.LinearRegressionOutput(mx.sym.Variable("data"), mx.sym.Variable("label"))
    with pytest.raises(NotImplementedError, match="does not support group2ctxs"):
        SVRGModule(grouped, label_names=["label"], group2ctxs={"dev": mx.cpu(1)}, update_freq=1)
    assert SVRGModule(net, ["data"], ["label"], *[None] * 7, 3).update_freq == 3  # MXNet's last positional argument
    train, module = linear()
    module.init_optimizer()
    with pytest.raises(AssertionError, match="call update_full_grads"):
        module.forward_backward(next(train))

    class Empty:
        batch_size = 4

        def reset(self):
            """Nothing to rewind."""

        def __iter__(self):
            return iter(())

    with pytest.raises(ValueError, match="no batches from train_data"):
        module.update_full_grads(Empty())
    with pytest.raises(AttributeError, match="tensorrt"):
        mx.contrib.tensorrt  # noqa: B018
