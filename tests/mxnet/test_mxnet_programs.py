"""Programs of MXNet's classes are kept for the process: the same work again traces and compiles nothing."""

import gc
import weakref
from typing import Any

import jax
import numpy as np
import pytest

import jfit
import jfit.mx as mx
from jfit import counters

X = np.random.default_rng(0).normal(size=(20, 5)).astype("float32")
Y = (np.arange(20) % 3).astype("float32")


def network(frozen=False):
    """Built anew at each call; a NameManager gives equal names."""
    with mx.name.NameManager():
        hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8)
        hidden = mx.sym.BatchNorm(mx.sym.Activation(hidden, act_type="relu"), fix_gamma=frozen)
        return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Dropout(hidden, p=0.2), num_hidden=3), name="softmax")


def data():
    return mx.io.NDArrayIter(X, Y, batch_size=5)


def fit(contexts=1, rate=0.1, **options):
    mx.random.seed(1)
    mod = mx.mod.Module(network(), context=[mx.cpu(i) for i in range(contexts)])
    mod.fit(
        data(),
        eval_data=data(),
        num_epoch=2,
        **{
            "optimizer": "sgd",
            "optimizer_params": {"learning_rate": rate, "momentum": 0.9},
            "initializer": mx.init.Xavier(),
            **options,
        },
    )
    return mod


def batch_by_batch():
    mod, metric = mx.mod.Module(network()), mx.metric.create("acc")
    mod.bind(data().provide_data, data().provide_label)
    mod.init_params(mx.init.Xavier())
    mod.init_optimizer(optimizer="adam")
    for batch in data():
        mod.forward_backward(batch)
        mod.update()
        mod.update_metric(metric, batch.label)
    for batch in data():
        mod.forward(batch, is_train=True)
        mod.get_outputs()
        mod.backward()
        mod.update()
    mod.reshape([("data", (4, 5))], [("softmax_label", (4,))])
    mod.predict(data())


def feedforward():
    model = mx.model.FeedForward(network(), num_epoch=1, learning_rate=0.1, initializer=mx.init.Xavier())
    model.fit(X, Y)
    model.predict(X)
    model.score(data())


def executor():
    bound = network().simple_bind(mx.cpu(), data=(5, 5), softmax_label=(5,))
    bound.forward(is_train=True)[0].asnumpy()
    bound.backward()
    smaller = bound.reshape(data=(4, 5), softmax_label=(4,))
    smaller.forward()[0].asnumpy()


def trainer():
    parameter = mx.gluon.Parameter("w", shape=(3, 4))
    parameter.initialize(mx.init.Xavier(), ctx=mx.cpu())
    updates = mx.gluon.Trainer([parameter], "adam", {"learning_rate": 0.1})
    for _ in range(2):
        parameter.grad()[:] = 1
        updates.step(4, ignore_stale_grad=True)
    parameter.data().asnumpy()


def updates():
    updater, weight = mx.optimizer.get_updater(mx.optimizer.create("nag", momentum=0.9)), mx.nd.ones((3, 3))
    store: Any = mx.kv.create("local")
    result = mx.nd.zeros((2, 3))
    updater(0, mx.nd.ones((3, 3)), weight)
    store.init(3, mx.nd.ones((2, 3)))
    store.set_optimizer(mx.optimizer.create("sgd"))
    store.push(3, [mx.nd.ones((2, 3))] * 2)
    store.pull(3, out=result)


def variance_reduced():
    mod = mx.contrib.svrg_optimization.svrg_module.SVRGModule(network(), update_freq=1)
    mod.fit(data(), num_epoch=1, optimizer_params={"learning_rate": 0.1})


CASES = {
    "Module": fit,
    "Module on two devices": lambda: fit(2),
    "Module with callbacks": lambda: fit(batch_end_callback=[mx.callback.Speedometer(5, 2), lambda param: None]),
    "Module with a monitor": lambda: fit(monitor=mx.mon.Monitor(2, pattern=".*output")),
    "batch by batch": batch_by_batch,
    "FeedForward": feedforward,
    "Executor": executor,
    "Trainer": trainer,
    "SVRGModule": variance_reduced,
}


@pytest.mark.repetitions(2, slow=6)
@pytest.mark.parametrize("case", CASES)
def test_the_same_work_again_traces_and_compiles_nothing(case):
    CASES[case]()
    with counters.counted() as counts:
        CASES[case]()
    assert (counts["traces"], counts["compiles"]) == (0, 0), dict(counts)


def test_learning_rates_and_batch_scales_are_data():
    fit()
    with counters.counted() as counts:
        fit(rate=0.03, optimizer_params={"learning_rate": 0.03, "momentum": 0.9, "rescale_grad": 0.5})
    assert (counts["traces"], counts["compiles"]) == (0, 0), dict(counts)


def multiplied(lr_mult, wd_mult):
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, wd=0.1, rescale_grad=0.2)
    optimizer.set_lr_mult(lr_mult)
    optimizer.set_wd_mult(wd_mult)
    return fit(optimizer=optimizer).get_params()[0]["fullyconnected0_weight"].asnumpy()


def test_multipliers_of_learning_rates_and_weight_decay_are_data():
    """The first ones compile: the programs of parameters with equal learning rates, or equal weight decays, are smaller."""
    values = [multiplied({0: 0.5}, {0: 2.0})]
    with counters.counted() as counts:
        values += [multiplied({0: 0.25}, {0: 2.0}), multiplied({0: 0.25}, {0: 3.0, 2: 0.5}), multiplied({2: 3.0}, {1: 0.5})]
    assert (counts["traces"], counts["compiles"]) == (0, 0), dict(counts)
    assert len({value.tobytes() for value in values}) == 4


# Modules that share some of their programs, and must not share others.
CONFIGS = {
    "sgd": {},
    "rate": {"rate": 0.02},
    "momentum": {"optimizer_params": {"learning_rate": 0.1, "momentum": 0.5}},
    "clip": {"optimizer_params": {"learning_rate": 0.1, "momentum": 0.9, "clip_gradient": 0.01}},
    "adam": {"optimizer": "adam", "optimizer_params": {"learning_rate": 0.01}},
    "no kvstore": {"kvstore": None},
    "two devices": {"contexts": 2},
    "two separate devices": {"contexts": 2, "kvstore": None},
    "metric": {"eval_metric": "ce"},
    "callback": {"batch_end_callback": mx.callback.Speedometer(5, 2)},
    "monitor": {"monitor": mx.mon.Monitor(2, pattern=".*output")},
}


def trained(config):
    args, aux = fit(**CONFIGS[config]).get_params()
    return {name: value.asnumpy() for name, value in {**args, **aux}.items()}


@pytest.mark.slow
@pytest.mark.repetitions(slow=3)
@pytest.mark.parametrize("config", CONFIGS)
def test_a_module_trains_after_others_as_it_does_with_new_programs(config):
    trained("sgd" if config != "sgd" else "momentum")
    expected = trained(config)
    jfit.clear_programs()
    jax.tree.map(np.testing.assert_array_equal, expected, trained(config))


@pytest.mark.repetitions(slow=2)
@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fixed", [("fullyconnected0_weight", "fullyconnected0_bias"), ()])
def test_modules_with_other_frozen_parameters_do_not_share_their_steps(fixed, frozen):
    """Frozen first layers also keep their moving statistics."""

    def run():
        mx.random.seed(1)
        mod = mx.mod.Module(network(frozen), fixed_param_names=list(fixed))
        mod.fit(data(), num_epoch=1, optimizer_params={"learning_rate": 0.1}, initializer=mx.init.Xavier())
        args, aux = mod.get_params()
        return {name: value.asnumpy() for name, value in {**args, **aux}.items()}

    fit()
    shared = run()
    jfit.clear_programs()
    jax.tree.map(np.testing.assert_array_equal, shared, run())


@pytest.mark.slow
def test_programs_keep_neither_modules_nor_their_data_alive():
    mod, values = mx.mod.Module(network()), data()
    mod.fit(values, num_epoch=1, eval_metric="acc", initializer=mx.init.Xavier())
    mod.predict(values)
    bound = network().simple_bind(mx.cpu(), data=(5, 5), softmax_label=(5,))
    bound.forward(is_train=True)[0].asnumpy()
    bound.backward()
    arrays = [array.value for array in (*bound.arg_arrays, *mod.get_params()[0].values())]
    references = [weakref.ref(thing) for thing in (mod, values, bound, *arrays)]
    del mod, values, bound, arrays
    gc.collect()
    assert [r() for r in references if r() is not None] == []
