"""`group2ctxs` with several contexts: the numbers of the same contexts without groups, and of one device."""

import jax
import numpy as np
import pytest
from test_mxnet_groups import GROUPS, HalfStep, perceptron

import jfit.mx as mx
from jfit import counters

TWO = [mx.cpu(0), mx.cpu(1)]
PAIRS = {"dev1": [mx.cpu(1), mx.cpu(2)], "dev2": [mx.cpu(2), mx.cpu(3)]}  # cpu(2) is in both groups
ONE_FOR_ALL = {"dev1": mx.cpu(1), "dev2": [mx.cpu(0)]}
DICTS = [{"dev1": mx.cpu(1), "dev2": mx.cpu(2)}, {"dev1": mx.cpu(0)}]


def dense(norm=False):
    """Two layers in two groups; without BatchNorm, slices have the numbers of the whole batch."""
    with mx.AttrScope(ctx_group="dev1"):
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=6, name="fc1")
        net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn") if norm else net
    with mx.AttrScope(ctx_group="dev2"):
        net = mx.sym.FullyConnected(mx.sym.Dropout(mx.sym.relu(net), p=0.3, name="drop"), num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def data(rows):
    rng = np.random.default_rng(1)
    return rng.standard_normal((rows, 5)).astype("float32"), np.resize([0.0, 1.0, 2.0], rows)


def numbers(module):
    return [{n: v.asnumpy() for n, v in part.items()} for part in module.get_params()]


def fitted(net, groups, context, work=None, compression=None, **options):
    mx.random.seed(5)
    train = mx.io.NDArrayIter(*data(40), batch_size=8)
    module = mx.mod.Module(net(), context=context, work_load_list=work, group2ctxs=groups, compression_params=compression)
    settings = {"optimizer": "sgd", "num_epoch": 4, "optimizer_params": {"learning_rate": 0.1, "momentum": 0.9}}
    module.fit(train, initializer=mx.init.Xavier(), **{**settings, **options})
    return module


def results(module):
    """Parameters, auxiliary states, scores of 11 rows and predictions."""
    several = mx.io.NDArrayIter(*data(11), batch_size=8)
    return [numbers(module), dict(module.score(several, ["acc", "ce"])), module.predict(several).asnumpy()]


def equal(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.slow
def test_twenty_updates_have_the_numbers_of_the_contexts_without_groups_and_later_ones_compile_nothing():
    module = fitted(perceptron, PAIRS, TWO)
    equal(results(module), results(fitted(perceptron, None, TWO)))
    batch = mx.io.DataBatch(*([mx.nd.array(v)] for v in data(8)))
    for _ in range(2):
        with counters.counted() as counts:
            module.forward_backward(batch)
            module.update()
    assert counts["traces"] == counts["compiles"] == 0


@pytest.mark.repetitions(slow=3)
@pytest.mark.slow
@pytest.mark.parametrize("work", [None, [1, 2]], ids=["even", "uneven"])
@pytest.mark.parametrize("groups", [PAIRS, ONE_FOR_ALL, DICTS], ids=["lists", "one for all", "dicts"])
def test_contexts_may_be_lists_or_dicts_and_slices_uneven(groups, work):
    module, plain = (fitted(dense, g, TWO, work, num_epoch=1) for g in (groups, None))
    equal(results(module), results(plain))


@pytest.mark.slow
def test_twenty_updates_have_the_numbers_of_one_device_also_if_a_context_is_passed_twice():
    one = results(fitted(dense, None, mx.cpu(0)))
    for context in (TWO, [mx.cpu(0), mx.cpu(0)]):
        equal(results(fitted(dense, GROUPS, context)), one)


@pytest.mark.repetitions(slow=4)
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"kvstore": None},
        {"kvstore": "device", "compression": {"type": "2bit", "threshold": 0.01}},
        {"kvstore": "device", "compression": {"type": "bfloat16"}},
        {"optimizer": "nadam", "optimizer_params": {"learning_rate": 0.01}},
        {"optimizer": HalfStep(rescale_grad=0.125), "optimizer_params": {}},
    ],
    ids=["no store", "2bit", "bfloat16", "nadam", "python"],
)
def test_stores_and_optimizers_work_as_without_groups(options):
    def trained(groups):
        return fitted(dense, groups, TWO, **{"num_epoch": 1, **options})

    equal(results(trained(PAIRS)), results(trained(None)))


def test_other_numbers_of_contexts_are_errors_that_name_the_group():
    net = perceptron()
    with pytest.raises(ValueError, match=r"ctx_group 'dev1' has 3 contexts, .*; pass one, or 2, one for each"):
        mx.mod.Module(net, context=TWO, group2ctxs={"dev1": [mx.cpu(0)] * 3})
    with pytest.raises(ValueError, match="a list of 1 dicts for 2 contexts"):
        mx.mod.Module(net, context=TWO, group2ctxs=[GROUPS])
    with mx.AttrScope(ctx_group="dev1"):
        net = mx.sym.contrib.SyncBatchNorm(mx.sym.Variable("data"), key="bn", name="bn")
    with pytest.raises(NotImplementedError, match=r"'bn' is a SyncBatchNorm, which .* on one context only, found 2"):
        mx.mod.Module(net, context=TWO, group2ctxs=PAIRS, label_names=None)
