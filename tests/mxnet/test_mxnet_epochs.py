"""Epochs of Module.fit in few dispatches: same values, log and order of calls as batch by batch."""

import gc
import logging
import os
import re
import signal
import weakref

import numpy as np
import pytest

import jfit
from jfit import counters
from jfit.mxnet import keys as random_numbers
from jfit.mxnet import metric
from jfit.mxnet.callback import Speedometer, log_train_metric
from jfit.mxnet.optimizer import lr_scheduler

ROWS, BATCH = 46, 4


def network():
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=8, name="fc1")
    net = jfit.sym.BatchNorm(jfit.sym.Activation(net, act_type="relu"), fix_gamma=False, name="bn")
    net = jfit.sym.Dropout(net, p=0.3, name="drop")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=3, name="fc2"), name="softmax")


class Rows(jfit.NDArrayIter):
    """A subclass, which may do anything with its rows: its batches are read one by one."""


def data(kind=jfit.NDArrayIter, **options):
    rng = np.random.default_rng(3)
    return kind(rng.normal(size=(ROWS, 5)).astype("float32"), rng.integers(0, 3, ROWS), BATCH, **options)


class EachBatch(Speedometer):
    """A Speedometer of the user's: nobody knows when it looks, so it is called after every batch."""

    def __call__(self, param):
        super().__call__(param)


def trained(
    callback=None, devices=1, epochs=3, kvstore="device", scheduler=None, iterator=None, metrics=("acc", "ce"), **optimizer
):
    random_numbers.seed(0)
    module = jfit.Module(network(), context=[jfit.cpu(i) for i in range(devices)])
    settings = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01, **optimizer}
    if scheduler is not None:
        settings["lr_scheduler"] = scheduler()
    module.fit(
        iterator or data(shuffle=True, seed=5),
        eval_metric=metric.create(list(metrics)) if isinstance(metrics, tuple) else metrics,
        batch_end_callback=callback,
        kvstore=kvstore,
        optimizer_params=settings,
        num_epoch=epochs,
    )
    return module


def assert_same_bits(a, b):
    for one, other in zip(a.get_params(), b.get_params(), strict=True):
        for name in one:
            assert np.array_equal(np.asarray(one[name]), np.asarray(other[name])), name


def ran_whole(run):
    """Whether a pass went through the epoch programs."""
    jfit.clear_programs()  # else programs of other passes are used, and nothing is traced
    with counters.counted() as seen:
        run()
    return seen["traces:module_epoch"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("devices,kvstore", [(1, "local"), (2, "device"), (3, "device"), (3, None)])
def test_many_steps_a_dispatch_give_the_bits_of_one_by_one(devices, kvstore):
    jfit.clear_programs()
    with counters.counted() as seen:
        whole = trained(devices=devices, kvstore=kvstore)
    assert seen["traces:module_epoch"] == 1
    with counters.counted() as seen:
        each = trained(lambda param: None, devices=devices, kvstore=kvstore)
    assert seen["traces:module_epoch"] == 2  # of one step, and of several that may be repeated
    with counters.counted() as seen:
        one_by_one = trained(devices=devices, kvstore=kvstore, iterator=data(Rows, shuffle=True, seed=5))
    assert seen["traces:module_epoch"] == 0
    assert_same_bits(whole, one_by_one)
    assert_same_bits(each, one_by_one)


@pytest.mark.slow
def test_a_scheduler_changes_the_learning_rate_within_a_dispatch_as_between_batches():
    make = lambda: lr_scheduler.FactorScheduler(step=5, factor=0.7, base_lr=0.1)  # noqa: E731
    whole, each = trained(scheduler=make), trained(lambda param: None, scheduler=make)
    one_by_one = trained(scheduler=make, iterator=data(Rows, shuffle=True, seed=5))
    for module in (each, one_by_one):
        assert int(whole.state.step) == int(module.state.step) == 3 * 12
        assert whole._optimizer.learning_rate == module._optimizer.learning_rate < 0.1
        assert_same_bits(whole, module)


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("handle", ["pad", "discard", "roll_over"])
def test_every_way_to_end_an_epoch_gives_the_same_bits(handle):
    make = lambda kind=jfit.NDArrayIter: data(kind, last_batch_handle=handle)  # noqa: E731
    one_by_one = trained(iterator=make(Rows))
    assert_same_bits(trained(iterator=make()), one_by_one)
    assert_same_bits(trained(lambda param: None, iterator=make()), one_by_one)


def lines(caplog, run):
    caplog.clear()
    with caplog.at_level(logging.INFO):
        run()
    found = [re.sub(r"Speed: [\d.inf]+|Time cost=[\d.]+", "<t>", r.getMessage()) for r in caplog.records]
    return [line for line in found if line.startswith(("Epoch", "Iter"))]


@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize("auto_reset", [True, False])
@pytest.mark.parametrize("frequent", [1, 11, 50])
def test_a_speedometer_writes_the_same_lines_either_way(caplog, frequent, auto_reset):
    fast = lines(caplog, lambda: trained(Speedometer(BATCH, frequent, auto_reset)))
    slow = lines(caplog, lambda: trained(EachBatch(BATCH, frequent, auto_reset)))
    assert fast == slow
    assert len(fast) >= 9


@pytest.mark.slow
def test_a_dispatch_ends_at_the_nearest_boundary_of_two_callbacks(caplog):
    both = lambda kind: [kind(BATCH, 4, False), log_train_metric(6)]  # noqa: E731
    assert lines(caplog, lambda: trained(both(Speedometer))) == lines(caplog, lambda: trained(both(EachBatch)))


def test_a_callback_declares_its_period():
    seen = []

    def look(param):
        seen.append((param.epoch, param.nbatch, param.eval_metric.get()[1][0]))

    look.every = 4
    assert ran_whole(lambda: trained(look, epochs=2))
    assert [s[:2] for s in seen] == [(e, n) for e in (0, 1) for n in (0, 4, 8, 11)]
    assert all(0 <= s[2] <= 1 for s in seen)


def test_later_epochs_and_fits_compile_nothing_and_wait_once_an_epoch():
    iterator = data()
    module = jfit.Module(network())
    module.fit(iterator, num_epoch=2)
    with counters.counted() as seen:
        module.fit(iterator, num_epoch=4)
    assert (seen["compiles"], seen["traces"]) == (0, 0)
    assert seen["host_syncs"] == 4


def test_ctrl_c_within_an_epoch_keeps_parameters_and_position():
    iterator, counted = data(), []

    def interrupt(param):
        counted.append(param.nbatch)
        if param.nbatch == 4:
            os.kill(os.getpid(), signal.SIGINT)

    interrupt.every = 4
    module = jfit.Module(network())
    with pytest.raises(KeyboardInterrupt, match="keeps its current parameters"):
        module.fit(iterator, batch_end_callback=interrupt, num_epoch=3)
    assert counted == [0, 4]
    assert module._optimizer.num_update == 5 == int(module.state.step)
    assert all(np.isfinite(np.asarray(v)).all() for v in module.get_params()[0].values())
    iterator.reset()
    module.fit(iterator, num_epoch=1)
    assert int(module.state.step) == 17


def test_a_callback_that_raises_leaves_module_and_metric_usable():
    def fail(param):
        raise ValueError("mine")

    fail.every = 3
    module = jfit.Module(network())
    with pytest.raises(ValueError, match="mine"):
        module.fit(data(), batch_end_callback=fail, num_epoch=1)
    assert module.score(data(), "acc")[0][0] == "accuracy"
    assert int(module.state.step) == 1


def test_a_user_metric_and_other_iterators_run_batch_by_batch():
    module = jfit.Module(network())
    mine = metric.np(lambda label, pred: float((pred.argmax(1) == label).mean()))
    assert not ran_whole(lambda: module.fit(data(), eval_metric=mine, num_epoch=1))

    class Twice(jfit.NDArrayIter):
        """A subclass may do anything with its rows."""

        def getdata(self):
            return [2 * a for a in super().getdata()]

    rng = np.random.default_rng(0)
    iterator = Twice(rng.normal(size=(16, 5)).astype("float32"), rng.integers(0, 3, 16), 4)
    assert not ran_whole(lambda: jfit.Module(network()).fit(iterator, num_epoch=1))


@pytest.mark.slow
def test_an_epoch_of_few_dispatches_keeps_no_outputs():
    module = trained(epochs=1, iterator=data(last_batch_handle="discard"))
    with pytest.raises(RuntimeError, match="no outputs yet; call forward"):
        module.get_outputs()
    last = []
    module = trained(lambda param: last.append(param.nbatch), epochs=1)
    assert module.get_outputs()[0].shape == (BATCH, 3) and module.gradients()["fc2_weight"].shape == (3, 8)


# ------------------------------------------------------------------------------------------------ a callback for every batch
def noted(kind, act, devices=1, epochs=2):
    """What a callback finds after every batch, and the module; `act(param, module)` is called in it."""
    found = []

    def look(param):
        module = param.locals["self"]
        batch = param.locals["data_batch"]
        row = [param.epoch, param.nbatch, param.eval_metric.get()[1], param.eval_metric.get_global()[1], batch.pad, module._pad]
        row += [param.locals["train_data"].state_dict()["position"]]
        row += [np.asarray(a) for a in (*batch.data, *batch.label, *module.get_outputs(), module.gradients()["fc2_weight"])]
        found.append(row + [np.asarray(module.get_params()[0]["fc1_weight"])])
        act(param, module)

    metrics = metric.create(["acc", "ce"])
    module = trained(look, devices, epochs, iterator=data(kind, shuffle=True, seed=5), metrics=metrics)
    return [*found, [leaf.num_inst for leaf in metrics.leaves()]], module


def reset_local(param, module):
    if param.nbatch % 3 == 0:
        param.eval_metric.reset_local()


def evaluate(param, module):
    if param.nbatch == 2:
        module.score(data(), "acc")


def change_rate(param, module):
    module._optimizer.lr *= 0.9


def train_again(param, module):
    """Passes of the user's within a callback, on the batch of the last step and on another one."""
    if param.nbatch == 1:
        module.backward()
        module.update()
        module.forward_backward(param.locals["data_batch"])
        module.update()


def only_backward(param, module):
    """A backward pass on its own, which updates moving statistics."""
    module.backward()


def only_passes(param, module):
    """Passes without an update, so that the next step has the random numbers of a second pass."""
    if (param.epoch, param.nbatch) in ((0, 11), (1, 3)):
        module.forward_backward(param.locals["data_batch"])


def set_zero(param, module):
    if param.nbatch == 4:
        args, aux = module.get_params()
        module.set_params({**args, "fc2_bias": np.zeros(3, "float32")}, aux)


def watch(param, module):
    if (param.epoch, param.nbatch) == (0, 2):
        module.install_monitor(jfit.mxnet.monitor.Monitor(1))


@pytest.mark.slow
@pytest.mark.repetitions(2, slow=7)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("act", [reset_local, evaluate, change_rate, train_again, only_backward, only_passes, set_zero, watch])
def test_a_callback_finds_and_does_after_every_batch_what_it_does_batch_by_batch(act, devices):
    fast, slow = noted(jfit.NDArrayIter, act, devices), noted(Rows, act, devices)
    assert len(fast[0]) == len(slow[0]) == 25
    for row, other in zip(fast[0], slow[0], strict=True):
        for at, (one, two) in enumerate(zip(row, other, strict=True)):
            same = np.allclose(one, two, rtol=1e-6) if at in (2, 3) and devices > 1 else np.array_equal(one, two)
            assert same, (row[:2], at)  # metrics of several devices are summed over them
    assert_same_bits(fast[1], slow[1])


ONCE = {
    "nothing": lambda param, module: None,
    "read": lambda param, module: module.get_params(),
    "rate": lambda param, module: module._optimizer.set_learning_rate(0.02),
    "decay, then read": lambda param, module: (setattr(module._optimizer, "wd", 0.5), module.get_outputs()),
    "scale, then read": lambda param, module: (setattr(module._optimizer, "rescale_grad", 1.0), module.gradients()),
    "multipliers": lambda param, module: module._optimizer.set_lr_mult({"fc1_weight": 0.0}),
    "metric": lambda param, module: param.eval_metric.reset(),
    "pass": lambda param, module: (module.forward_backward(param.locals["data_batch"]), module.update()),
    "parameters": lambda param, module: module.set_params(*module.get_params()),
    "raise": lambda param, module: module.fail(),
}


def looked_once(kind, act):
    """What a callback finds that reads metrics after every batch, and does `act` after the seventh."""
    found, modules = [], []

    def look(param):
        module = param.locals["self"]
        modules[:] = [module]
        found.append([param.eval_metric.get(), param.eval_metric.get_global(), module._optimizer.num_update])
        if (param.epoch, param.nbatch) == (0, 6):
            act(param, module)

    try:
        trained(look, iterator=data(kind, shuffle=True, seed=5), metrics=metric.create("acc"))
    except AttributeError:
        found.append("raised")
    (module,) = modules
    return found, module, [np.asarray(a) for a in (*module.get_outputs(), module.gradients()["fc2_weight"])]


@pytest.mark.slow
@pytest.mark.repetitions(2)
@pytest.mark.parametrize("act", ONCE)
def test_a_callback_that_only_reads_metrics_until_it_does_more_finds_the_same_as_batch_by_batch(act):
    fast, slow = looked_once(jfit.NDArrayIter, ONCE[act]), looked_once(Rows, ONCE[act])
    assert fast[0] == slow[0] and len(fast[0]) == (8 if act == "raise" else 36)
    assert_same_bits(fast[1], slow[1])
    assert all(np.array_equal(*pair) for pair in zip(fast[2], slow[2], strict=True))
    fit_again = [module.fit(data(seed=1), num_epoch=1) or module for module in (fast[1], slow[1])]
    assert_same_bits(*fit_again)


@pytest.mark.parametrize("callback", [None, lambda param: None])
def test_a_metric_whose_sums_grow_with_the_classes_is_updated_batch_by_batch(callback):
    metrics = metric.create("pcc")
    trained(callback, epochs=1, metrics=metrics)
    assert (metrics.k, metrics.num_inst) == (3, 12)


def test_the_rows_of_an_iterator_are_freed_with_it():
    iterator = data()
    rows = weakref.ref(iterator.sources[0][0][1])
    module = trained(lambda param: None, epochs=1, iterator=iterator)
    assert module.gradients()["fc2_weight"].shape == (3, 8)
    del iterator
    gc.collect()
    assert rows() is None


def test_a_step_with_a_callback_for_every_batch_is_one_dispatch():
    iterator, module, called = data(last_batch_handle="discard"), jfit.Module(network()), []
    module.fit(iterator, batch_end_callback=called.append, num_epoch=1)
    with counters.counted() as seen:
        module.fit(iterator, batch_end_callback=called.append, num_epoch=2)
    assert (seen["compiles"], seen["traces"]) == (0, 0)
    assert len(called) == 3 * 11 and seen["host_syncs"] <= 2 * 3
    batch, rows = called[-1].locals["data_batch"], called[-1].locals["train_data"]
    assert batch.data[0].shape == (BATCH, 5) and rows.sources[0][0][1][batch.index].tobytes() == batch.data[0].tobytes()
