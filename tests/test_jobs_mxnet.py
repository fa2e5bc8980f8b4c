"""MXNet's classes in jobs of several processes: Module, Trainer, FeedForward and KVStore with dist_sync, and DMLC_* variables.

The oracles are one process with as many contexts and the same rows, and sums written in NumPy.
"""

import jobs
import numpy as np
import pytest

from jfit import mx

WORKERS, CONTEXTS, ROWS, STEPS = 2, 2, 16, 4  # ROWS of each worker


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(STEPS * WORKERS * ROWS, 6)).astype("float32")
    return x, (x[:, 0] + x[:, 1] > 0).astype("float32")


def rows_of(worker):
    """Rows of a worker: its part of each global batch."""
    return np.arange(STEPS * WORKERS * ROWS).reshape(STEPS, WORKERS, ROWS)[:, worker].reshape(-1)


def network():
    # no bias: batch normalization makes its gradient 0 up to rounding, which Adam would divide by itself
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, no_bias=True, name="fc1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=2, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def initial(seed):
    rng = np.random.default_rng(seed)
    shapes = {"fc1_weight": (8, 6), "bn_gamma": (8,), "bn_beta": (8,), "fc2_weight": (2, 8), "fc2_bias": (2,)}
    return {k: mx.nd.array(rng.normal(size=s).astype("float32")) for k, s in shapes.items()}


OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3},
    "adam": {"learning_rate": 0.01},
}


def trained(optimizer, rows, batch, contexts, kvstore, seed=0, epochs=2, **options):
    """Train a Module; return its parameters and auxiliary states by name, and the Module."""
    x, y = data()
    train = mx.io.NDArrayIter(x[rows], y[rows], batch)
    module = mx.mod.Module(network(), context=[mx.cpu(i) for i in range(contexts)], **options)
    settings = {"optimizer": optimizer, "optimizer_params": dict(OPTIMIZERS[optimizer])}
    module.fit(train, num_epoch=epochs, kvstore=kvstore, arg_params=initial(seed), **settings)
    params, aux = module.get_params()
    return {k: v.asnumpy() for k, v in {**params, **aux}.items()}, module


def flat(prefix, arrays):
    return {f"{prefix}/{k}": v for k, v in arrays.items()}


def part(prefix, values):
    return {k.removeprefix(f"{prefix}/"): v for k, v in values.items() if k.startswith(f"{prefix}/")}


def close(actual, expected, tolerance=1e-6):
    assert sorted(actual) == sorted(expected) and expected
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=tolerance, err_msg=name)


SCRIPT = """
import logging, os
import jfit, jobs, numpy as np
from jfit import mx
import test_jobs_mxnet as t

jfit.distributed.init()
kv = mx.kv.create("dist_device_sync")
me = kv.rank
rows = t.rows_of(me)
for optimizer in t.OPTIMIZERS:
    values, module = t.trained(optimizer, rows, t.ROWS, t.CONTEXTS, kv, seed=me)
    jobs.report(**t.flat(optimizer, values))
jobs.report(rank=me, workers=kv.num_workers, rescale=module._optimizer.rescale_grad)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return jobs.run_job(SCRIPT, WORKERS, CONTEXTS, folder=tmp_path_factory.mktemp("job"))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_train_as_one_process_with_their_contexts(job, optimizer):
    whole, _ = trained(optimizer, np.arange(STEPS * WORKERS * ROWS), WORKERS * ROWS, WORKERS * CONTEXTS, "device")
    for process in job:
        close(part(optimizer, process.values), whole)
        assert process.values["rescale"] == 1 / (WORKERS * ROWS) and process.values["workers"] == WORKERS
    assert [process.values["rank"] for process in job] == [0, 1]
