"""fit, score and predict of Module: arguments, order of callbacks, padding rows, interrupts, waits and compilations."""

import logging
import signal

import numpy as np
import pytest
from golden_mx import captured_log
from module_support import SYM, V, batch_of, bound, cpus, data_of, host, linear, normed, softmax, values_for

import jfit
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.sequential import SequentialModule

FAST = {"optimizer_params": {"learning_rate": 0.5, "momentum": 0.9}}


def iterator(rows=22, size=4, seed=0, **kwargs):
    return jfit.NDArrayIter(*data_of(rows, seed), batch_size=size, **kwargs)


def fitted(num_epoch=2, *, rows=22, devices=1, module=None, **kwargs):
    """A module after fit, from fixed parameters."""
    module = Module(linear(), context=cpus(devices)) if module is None else module
    if not module.binded:
        kwargs.setdefault("initializer", jfit.init.Constant(0.3))
    module.fit(iterator(rows), num_epoch=num_epoch, **{**FAST, **kwargs})
    return module


def assert_same_bits(one, two):
    for a, b in zip(one.get_params(), two.get_params(), strict=True):
        assert all(np.array_equal(a[name], b[name]) for name in a) and set(a) == set(b)


# ------------------------------------------------------------------------------------------------ the numbers of fit


def test_padding_rows_are_trained_on_but_excluded_from_metrics():
    """MXNet counts them (decided.padded_rows): 6 rows in batches of 4 are 8 rows for it."""
    x, y = data_of(6)
    module = Module(linear())
    seen = []
    module.fit(
        jfit.NDArrayIter(x, y, batch_size=4),
        eval_metric="ce",
        batch_end_callback=lambda param: seen.append(param.eval_metric.get()[1]),
        num_epoch=1,
        arg_params={"fc_weight": np.zeros((3, 4)), "fc_bias": np.zeros(3)},
        optimizer_params={"learning_rate": 1.0},
    )
    weight, bias, losses = np.zeros((3, 4)), np.zeros(3), []
    for rows in ([0, 1, 2, 3], [4, 5, 0, 1]):
        p = softmax(x[rows] @ weight.T + bias)
        losses.append(-np.log(p[np.arange(4), y[rows].astype(int)] + 1e-12))
        error = p - np.eye(3)[y[rows].astype(int)]
        weight, bias = weight - error.T @ x[rows] / 4, bias - error.sum(0) / 4
    assert seen == pytest.approx([losses[0].mean(), np.concatenate([losses[0], losses[1][:2]]).mean()], rel=1e-5)
    assert np.allclose(module.get_params()[0]["fc_weight"], weight, atol=1e-6)
    found = dict(module.score(jfit.NDArrayIter(x, y, batch_size=4), ["acc", "ce"]))
    p = softmax(x @ weight.T + bias)
    assert found["cross-entropy"] == pytest.approx(-np.log(p[np.arange(6), y.astype(int)] + 1e-12).mean(), rel=1e-4)
    assert found["accuracy"] == pytest.approx((p.argmax(1) == y).mean())


@pytest.mark.parametrize("name", ["mse", "mae"])
def test_a_metric_receives_the_whole_batch_on_any_number_of_devices(name):
    """MXNet averages over the slices, here of 3, 3 and 4 rows (decided.device_metric)."""
    net = SYM.LinearRegressionOutput(SYM.FullyConnected(V("data"), num_hidden=1, name="fc"), name="lin")
    found = []
    for devices in (1, 3):
        module = Module(net, label_names=["lin_label"], context=cpus(devices))
        module.bind([("data", (10, 4))], [("lin_label", (10, 1))])
        module.init_params(None, *values_for(module))
        x, y = data_of(20)
        found.append(module.score(jfit.NDArrayIter(x, y.reshape(-1, 1), 10, label_name="lin_label"), name)[0][1])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


# ------------------------------------------------------------------------------------------------ arguments of fit
def test_fit_needs_the_number_of_epochs():
    with pytest.raises(AssertionError, match="please specify number of epochs"):
        Module(linear()).fit(iterator())


def test_an_epoch_callback_receives_the_symbol_and_copies_of_the_parameters():
    kept = []
    module = Module(normed())
    fitted(2, module=module, epoch_end_callback=lambda epoch, symbol, args, aux: kept.append((symbol, host(args), host(aux))))
    assert kept[0][0] is module.symbol and set(kept[0][2]) == {"bn_moving_mean", "bn_moving_var"}
    assert np.array_equal(kept[1][1]["fc1_weight"], module.get_params()[0]["fc1_weight"])
    assert not np.array_equal(kept[0][1]["fc1_weight"], kept[1][1]["fc1_weight"])


def test_a_batch_callback_may_reset_the_metric_without_changing_the_epoch_log():
    seen = []

    def callback(param):
        seen.append(param.locals["self"])
        param.eval_metric.reset_local()

    with captured_log() as log:
        module = fitted(1, batch_end_callback=callback)
    with captured_log() as plain:
        fitted(1)
    assert seen == [module] * 6
    assert [x for x in log if "Train-" in x] == [x for x in plain if "Train-" in x] != []


def test_validation_uses_a_separate_metric():
    with captured_log() as log:
        fitted(1, eval_data=iterator(8, seed=1), eval_metric="acc", validation_metric=["ce", "acc"])
    assert [line.split("=")[0] for line in log] == [
        "INFO:Epoch[0] Train-accuracy", "INFO:Epoch[0] Time cost", "INFO:Epoch[0] Validation-cross-entropy",
        "INFO:Epoch[0] Validation-accuracy",
    ]  # fmt: skip


def test_log_lines_are_written_to_the_modules_logger(caplog):
    caplog.set_level(logging.INFO, logger="mine")
    fitted(1, module=Module(linear(), logger=logging.getLogger("mine")))
    assert {r.name for r in caplog.records} == {"mine"} and "Epoch[0] Train-accuracy=" in caplog.text


def test_a_second_fit_continues_the_first():
    twice = fitted(2)
    fitted(3, module=twice, begin_epoch=2)
    assert_same_bits(twice, fitted(3))
    assert int(twice.state.step) == 18


def test_the_next_batch_is_fetched_and_prepared_before_the_callbacks_of_this_one():
    order = []

    class Noting(jfit.NDArrayIter):
        def next(self):
            order.append("fetch")
            return super().next()

    class Preparing(Module):
        def prepare(self, data_batch, sparse_row_id_fn=None):
            order.append("prepare" if sparse_row_id_fn is len else sparse_row_id_fn)

        def update(self):
            order.append("update")
            super().update()

    data = Noting(*data_of(8), batch_size=4)
    look = lambda param: order.append("callback")  # noqa: E731
    Preparing(linear()).fit(data, batch_end_callback=look, num_epoch=1, sparse_row_id_fn=len)
    assert order == ["fetch", "update", "fetch", "prepare", "callback", "update", "fetch", "callback"]


def test_iterators_of_other_libraries_are_accepted():
    class Plain:
        provide_data, provide_label, resets = [("data", (4, 4))], [("softmax_label", (4,))], 0

        def __iter__(self):
            return iter([batch_of(4, seed) for seed in range(3)])

        def reset(self):
            self.resets += 1

    data, counted = Plain(), []
    module = Module(linear())
    module.fit(data, batch_end_callback=lambda param: counted.append(param.nbatch), num_epoch=2)
    assert counted == [0, 1, 2] * 2 and data.resets == 2 and int(module.state.step) == 6


def test_devices_without_exchange_are_averaged_at_the_end_of_every_epoch():
    module = Module(linear(), context=cpus(2))
    module.fit(iterator(16), kvstore=None, num_epoch=2, initializer=jfit.init.Constant(0.1), **FAST)
    both = np.asarray(module.state.params["fc_weight"])
    assert both.shape == (2, 3, 4) and np.array_equal(both[0], both[1])


# ------------------------------------------------------------------------------------------------ interrupts
@pytest.mark.repetitions(2)
@pytest.mark.parametrize("failure", ["ctrl-c", "callback", "epoch callback", "iterator"])
def test_after_any_exception_in_fit_the_module_can_continue(failure):
    class Breaking(jfit.NDArrayIter):
        def getdata(self):
            if self.batches_read == 4:
                raise OSError("the disk is gone")
            return super().getdata()

    def at_batch_two(param):
        if param.nbatch == 2:
            signal.raise_signal(signal.SIGINT) if failure == "ctrl-c" else fail("a callback failed")

    def fail(words):
        raise RuntimeError(words)

    data = Breaking(*data_of(22), batch_size=4) if failure == "iterator" else iterator()
    callbacks = {
        "ctrl-c": {"batch_end_callback": at_batch_two},
        "callback": {"batch_end_callback": at_batch_two},
        "epoch callback": {"epoch_end_callback": lambda *args: fail("a callback failed")},
        "iterator": {"batch_end_callback": lambda param: None},
    }[failure]
    before = signal.getsignal(signal.SIGINT)
    module = Module(linear())
    with pytest.raises((KeyboardInterrupt, RuntimeError, OSError)) as raised:
        module.fit(data, num_epoch=4, **FAST, **callbacks)
    expected = {"ctrl-c": "stopped by Ctrl-C", "iterator": "the disk is gone"}.get(failure, "a callback failed")
    assert expected in str(raised.value) and signal.getsignal(signal.SIGINT) is before
    done = int(module.state.step)
    assert done == (6 if failure == "epoch callback" else 3)
    assert all(np.isfinite(value).all() for arrays in module.get_params() for value in arrays.values())
    assert 0 <= module.score(iterator(), "acc")[0][1] <= 1
    module.fit(iterator(), num_epoch=1, **FAST)
    assert int(module.state.step) == done + 6


# ------------------------------------------------------------------------------------------------ cost


class WithBuckets(jfit.NDArrayIter):
    """An iterator whose batches have a bucket_key."""

    def next(self):
        batch = super().next()
        batch.bucket_key, batch.provide_data, batch.provide_label = 0, self.provide_data, self.provide_label
        return batch


def chain_of_modules():
    hidden = Module(SYM.FullyConnected(V("data"), num_hidden=4, name="fc0"), label_names=None)
    return SequentialModule().add(hidden).add(Module(linear()), take_labels=True, auto_wiring=True)


INVALID = {  # place of the value, value, message
    "label": (
        ("label", 9),
        7.0,
        r"^epoch 2, batch 2: label 'softmax_label': row 1 is 7.0, expected classes 0..2; .* as in MXNet",
    ),
    "nan label": (("label", 9), np.nan, r"^epoch 2, batch 2: input 'softmax_label' has nan in row 1"),
    "data": (("data", (13, 2)), np.nan, r"^epoch 2, batch 3: input 'data' has nan in row 1; .* as in MXNet"),
}


@pytest.mark.repetitions(4, slow=7)
@pytest.mark.parametrize("make", [Module, chain_of_modules, BucketingModule], ids=["one", "chain", "buckets"])
@pytest.mark.parametrize("kind", INVALID)
@pytest.mark.parametrize("callback", [None, lambda param: None], ids=["no callback", "a callback"])
def test_the_first_batch_with_an_invalid_value_causes_one_warning_in_fit(make, kind, callback):
    (part, at), value, message = INVALID[kind]
    arrays = dict(zip(("data", "label"), data_of(22), strict=True))
    arrays[part][at] = value
    arrays[part][21] = value  # a second one
    data = (WithBuckets if make is BucketingModule else jfit.NDArrayIter)(arrays["data"], arrays["label"], 4)
    network = {Module: linear(), BucketingModule: lambda key: (linear(), ["data"], ["softmax_label"])}.get(make)
    module = make() if network is None else make(network) if make is Module else make(network, 0)
    with pytest.warns(UserWarning, match=message) as seen:
        module.fit(data, batch_end_callback=callback, begin_epoch=2, num_epoch=4)
    assert len(seen) == 1
    with pytest.warns(UserWarning, match="row 1"):  # the next fit warns again
        module.fit(data, batch_end_callback=callback, num_epoch=1)


def test_rows_that_are_discarded_cause_no_warning(recwarn):
    x, y = data_of(22)
    y[21] = 9  # in the incomplete last batch
    Module(linear()).fit(jfit.NDArrayIter(x, y, 4, last_batch_handle="discard"), num_epoch=1)
    assert not [w for w in recwarn if "label" in str(w.message)]


@pytest.mark.parametrize("callback", [None, lambda param: None], ids=["no callback", "a callback"])
def test_the_search_for_invalid_values_costs_no_wait_and_no_dispatch(monkeypatch, callback):
    def counts():
        with jfit.counters.counted() as seen:
            fitted(2, batch_end_callback=callback)
        return dict(seen)

    counts()
    searched = counts()
    monkeypatch.setattr(Module, "_problem_of", lambda *_: None)
    monkeypatch.setattr(Module, "_look_at_all", lambda *_: None)
    assert counts() == searched


# ------------------------------------------------------------------------------------------------ score, predict
def test_score_accepts_a_number_of_batches_and_callbacks():
    module, calls = fitted(1), []
    data = iterator(22)
    found = module.score(
        data,
        "acc",
        num_batch=3,
        batch_end_callback=lambda param: calls.append((param.epoch, param.nbatch)),
        score_end_callback=lambda param: calls.append(("end", param.epoch, param.nbatch)),
        epoch=7,
    )
    assert calls == [(7, 0), (7, 1), (7, 2), ("end", 7, 3)]
    x, y = data_of(22)
    got = np.asarray(module.predict(jfit.NDArrayIter(x[:12], y[:12], 4))).argmax(1)
    assert found == [("accuracy", pytest.approx((got == y[:12]).mean()))]


def test_score_without_reset_continues_at_the_iterators_position():
    module, data = fitted(1), iterator(12)
    next(data)
    numbers = []
    module.score(data, "acc", reset=False, batch_end_callback=lambda param: numbers.append(param.nbatch))
    assert numbers == [0, 1]
    module.score(data, "acc", batch_end_callback=lambda param: numbers.append(param.nbatch))
    assert numbers == [0, 1, 0, 1, 2]


def test_predict_accepts_an_array_as_one_batch():
    module = bound(rows=6, bind={"for_training": False})
    assert module.predict(data_of(6)[0]).shape == (6, 3)
    assert module.predict(data_of(9)[0]).shape == (9, 3)


def test_predict_of_no_batches_is_an_empty_list_and_several_outputs_are_a_list():
    fc = SYM.FullyConnected(V("data"), num_hidden=3, name="fc")
    module = bound(SYM.Group([SYM.SoftmaxOutput(fc, name="softmax"), fc]), rows=4)
    assert module.predict(iterator(), num_batch=0) == []
    assert [out.shape for out in module.predict(iterator())] == [(22, 3), (22, 3)]


def test_rows_that_rolled_over_are_included():
    """MXNet reports them as `pad`, which predict then cuts off; they are rows of the last epoch that nobody has seen."""
    x, y = data_of(6)
    module, seen = bound(rows=4), []
    data = jfit.NDArrayIter(x, y, batch_size=4, last_batch_handle="roll_over")
    assert len(list(data)) == 1
    data.reset()
    for outputs, _, batch in module.iter_predict(data, reset=False):
        seen.append((outputs[0].shape[0], batch.pad))
    assert seen == [(4, 2), (4, 0)]
