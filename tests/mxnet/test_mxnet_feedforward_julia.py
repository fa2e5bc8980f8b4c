"""FeedForward of MXNet.jl: init_model, train with its options, callbacks, frozen parameters, checkpoints."""

import logging

import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.mxnet.feedforward.callbacks import (
    AbstractBatchCallback,
    AbstractEpochCallback,
    do_checkpoint,
    every_n_batch,
    every_n_epoch,
    speedometer,
)
from jfit.mxnet.feedforward.feedforward import FeedForward
from jfit.mxnet.optimizer import SGD
from jfit.mxnet.optimizer.lr_scheduler import FactorScheduler

DEVICES = [jfit.cpu(i) for i in range(3)]
X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")
SHAPES = {"data": (10, 3), "softmax_label": (10,)}


def net(dropout=0.0, **attr):
    x = jfit.sym.Variable("data")
    x = jfit.sym.Dropout(x, p=dropout) if dropout else x
    x = jfit.sym.FullyConnected(x, num_hidden=4, name="fc1", attr=attr)
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(x, num_hidden=2, name="fc2"), name="softmax")


def data(batch=10):
    return jfit.NDArrayIter(X, Y, batch)


def started(context=None, symbol=None):
    """A model whose first parameters are always the same."""
    model = FeedForward(net() if symbol is None else symbol, context=context)
    model.init_model(**SHAPES)
    draw = np.random.default_rng(5)
    model.arg_params = {n: draw.normal(size=v.shape).astype("float32") / 4 for n, v in sorted(model.arg_params.items())}
    return model


def sgd(**kwargs):
    return SGD(**{"learning_rate": 0.5, "rescale_grad": 0, **kwargs})


def host(params):
    return {name: np.asarray(value) for name, value in params.items()}


def assert_same(a, b, tolerance=1e-6):
    a, b = host(a), host(b)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], atol=tolerance)


def logged(caplog, call):
    caplog.clear()
    with caplog.at_level(logging.INFO):
        call()
    return [record.getMessage() for record in caplog.records]


# ------------------------------------------------------------------------------------------------ init_model
def test_init_model_initializes_and_keeps_parameters_of_matching_shape():
    model = FeedForward(net())
    arguments, params, aux = model.init_model("one", **SHAPES)
    assert arguments == ["data", "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias", "softmax_label"]
    assert params == ["fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"] and aux == []
    assert np.asarray(model.arg_params["fc1_weight"]).min() == 1
    model.init_model("zero", **SHAPES)
    assert np.asarray(model.arg_params["fc1_weight"]).min() == 1
    model.init_model("zero", overwrite=True, **SHAPES)
    assert np.asarray(model.arg_params["fc1_weight"]).max() == 0


def test_a_parameter_of_another_shape_warns_and_is_initialized_again(caplog):
    model = FeedForward(net())
    model.init_model("one", **SHAPES)
    model.init_model("zero", data=(10, 7), softmax_label=(10,))
    assert "Shape mismatch for fc1_weight: found (4, 3), expected (4, 7)" in caplog.text
    assert np.asarray(model.arg_params["fc1_weight"]).shape == (4, 7)
    assert np.asarray(model.arg_params["fc2_weight"]).min() == 1


def test_moving_statistics_are_parameters_of_the_model_too():
    out = jfit.sym.BatchNorm(jfit.sym.Variable("data"), name="bn")
    model = FeedForward(jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(out, num_hidden=2), name="softmax"))
    _, _, aux = model.init_model(**SHAPES)
    assert aux == ["bn_moving_mean", "bn_moving_var"]
    model.train(sgd(), data(), n_epoch=1, verbosity=0)
    assert np.abs(np.asarray(model.aux_params["bn_moving_mean"])).max() > 0


# ------------------------------------------------------------------------------------------------ training
def test_train_equals_fit_of_the_python_interface():
    julia, python = started(), started()
    julia.train(sgd(momentum=0.9), data(), n_epoch=3, verbosity=0)
    other = FeedForward(net(), num_epoch=3, learning_rate=0.5, momentum=0.9, arg_params=python.arg_params)
    other.fit(data())
    assert_same(julia.arg_params, other.arg_params)


def test_fit_with_an_optimizer_equals_train():
    a, b = started(), started()
    a.train("sgd", data(), n_epoch=2, verbosity=0, optimizer_params={"learning_rate": 0.5})
    b.fit(sgd(), data(), eval_metric="ce", n_epoch=2, verbosity=0)
    assert_same(a.arg_params, b.arg_params)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("kvstore", ["local", "device", "local_allreduce_cpu", None])
def test_ten_rows_on_three_devices_are_four_three_three(kvstore):
    model = started(DEVICES)
    assert model.julia_module(model.symbol, context=DEVICES).binding.slices(10) == [4, 3, 3]
    model.train(sgd(), data(), n_epoch=1, verbosity=0, kvstore=kvstore)
    first = started()
    if kvstore is not None:
        first.train(sgd(), data(), n_epoch=1, verbosity=0)
        assert_same(model.arg_params, first.arg_params)
        return
    pieces = []  # without a store each device learns from its own rows; the mean is taken at the end
    for begin, end in ((0, 4), (4, 7), (7, 10)):
        one = started()
        rows = np.r_[begin:end, 10 + begin : 10 + end]
        one.train(sgd(rescale_grad=0.1), jfit.NDArrayIter(X[rows], Y[rows], end - begin), n_epoch=1, verbosity=0)
        pieces.append(host(one.arg_params))
    assert_same(model.arg_params, {n: np.mean([p[n] for p in pieces], 0) for n in pieces[0]})


def test_a_gradient_scale_of_zero_becomes_one_over_the_batch_size_and_one_warns():
    optimizer = sgd()
    started().train(optimizer, data(), n_epoch=0, verbosity=0)
    assert optimizer.rescale_grad == 0.1
    with pytest.warns(UserWarning, match="gradients of 10 rows are summed"):
        started().train(SGD(learning_rate=0.01), data(), n_epoch=0, verbosity=0)


def test_weight_decay_applies_to_biases_too():
    model = started()
    before = host(model.arg_params)
    model.train(sgd(rescale_grad=1e-12, wd=0.5), data(20), n_epoch=1, verbosity=0)
    assert_same(model.arg_params, {n: 0.75 * v for n, v in before.items()})


def test_force_init_initializes_before_the_training():
    model = started()
    model.train(sgd(), data(), n_epoch=0, verbosity=0)
    assert np.asarray(model.arg_params["fc1_weight"]).any()
    model.train(sgd(), data(), n_epoch=0, verbosity=0, force_init=True, initializer="zero", callbacks=[every_n_epoch(print, 1)])
    assert not np.asarray(model.arg_params["fc1_weight"]).any()


@pytest.mark.parametrize(("by", "want"), [("epoch", [1, 1, 0.5, 0.5]), (":batch", [1, 0.5, 0.25, 0.125])])
def test_the_scheduler_counts_epochs_or_batches_and_continues(by, want):
    scheduler = FactorScheduler(1, 0.5, base_lr=1.0)
    optimizer, rates = SGD(lr_scheduler=scheduler, rescale_grad=0), []
    rate, own = optimizer.rate, type(optimizer).rate
    optimizer.rate = lambda: rates.append(own(optimizer)) or rates[-1]
    for _ in range(2):
        started().train(optimizer, data(), n_epoch=1, verbosity=0, eta_decay=by)
    assert rates == want and optimizer.lr_scheduler is scheduler and rate is not None


def test_attributes_freeze_parameters(caplog):
    model = started(symbol=net(weight_grad="freeze"))
    before = host(model.arg_params)
    model.train(sgd(), data(), n_epoch=1, verbosity=0)
    after = host(model.arg_params)
    assert [n for n in before if np.array_equal(before[n], after[n])] == ["fc1_weight"]
    full = started(symbol=net(fc1_bias_grad="freeze", no_grad="freeze"))
    before = host(full.arg_params)
    full.train(sgd(), data(), n_epoch=1, verbosity=0)
    assert np.array_equal(before["fc1_bias"], host(full.arg_params)["fc1_bias"])
    assert "no_grad" in caplog.text and "freezes nothing" in caplog.text


# ------------------------------------------------------------------------------------------------ messages
def test_each_level_of_verbosity_adds_its_messages(caplog):
    def lines(verbosity):
        return logged(caplog, lambda: started().train(sgd(), data(), n_epoch=1, eval_data=data(), verbosity=verbosity))

    quiet, ends, steps, everything = (lines(v) for v in range(4))
    assert quiet == [] and ends == ["Start training on [cpu(0)]", "Finish training on [cpu(0)]"]
    middle = ["Initializing parameters...", "Creating KVStore...", "Start training...", "== Epoch 001/001 =========="]
    assert steps == [ends[0], *middle, ends[1]]
    extra = [line.split("=")[0].strip() for line in everything if line not in steps]
    assert extra == ["## Training summary", "accuracy", "time", "## Validation summary", "accuracy"]


def test_the_chosen_store_is_logged(caplog):
    call = lambda: started(DEVICES).train(sgd(), data(), n_epoch=0, verbosity=2)  # noqa: E731
    assert "Auto-select kvstore type = local_update_cpu" in logged(caplog, call)
    assert "Initializing KVStore..." in caplog.text


def test_validation_runs_in_evaluation_mode(caplog):
    symbol = net(dropout=0.9)
    model = started(symbol=symbol)
    loss = model.score((X, Y), "ce")
    call = lambda: model.train(sgd(learning_rate=0.0), data(), n_epoch=1, eval_data=data(), eval_metric="ce")  # noqa: E731
    assert f"{'cross-entropy':>18} = {loss:.4f}" in logged(caplog, call)


# ------------------------------------------------------------------------------------------------ callbacks
class Batches(AbstractBatchCallback):
    def __init__(self):
        self.seen = []

    def __call__(self, state):
        self.seen.append((state.curr_epoch, state.curr_batch, state.curr_iter))


class Epochs(AbstractEpochCallback):
    def __init__(self):
        self.seen, self.first = [], None

    def __call__(self, model, state, metric):
        if state.curr_epoch == 0:
            self.first = host(model.arg_params)
        self.seen.append((state.curr_epoch, state.curr_batch, state.curr_iter, [name for name, _ in metric]))


def test_callbacks_are_called_at_the_start_too():
    batches, epochs, model = Batches(), Epochs(), started()
    before = host(model.arg_params)
    model.train(sgd(), data(), n_epoch=2, verbosity=0, callbacks=[batches, epochs])
    assert batches.seen == [(1, 0, 0), (1, 1, 1), (1, 2, 2), (2, 0, 2), (2, 1, 3), (2, 2, 4)]
    assert epochs.seen == [(0, 0, 0, []), (1, 2, 2, ["accuracy"]), (2, 2, 4, ["accuracy"])]
    assert_same(epochs.first, before, 0)


def test_the_state_is_correct_with_epoch_callbacks_only():
    epochs = Epochs()
    started().train(sgd(), data(), n_epoch=2, verbosity=0, callbacks=[epochs])
    assert [s[:3] for s in epochs.seen] == [(0, 0, 0), (1, 2, 2), (2, 2, 4)]


def test_every_n_batches_and_epochs_callbacks_have_period_n(caplog):
    seen = []
    calls = [
        every_n_batch(lambda state: seen.append(("batch", state.curr_batch)), 2),
        every_n_epoch(lambda model, state, metric: seen.append(("epoch", state.curr_epoch)), 2, call_on_0=True),
        speedometer(frequency=2),
    ]
    lines = logged(caplog, lambda: started().train(sgd(), data(), n_epoch=2, verbosity=0, callbacks=calls))
    assert seen == [("epoch", 0), ("batch", 2), ("batch", 2), ("epoch", 2)]
    assert len(lines) == 2 and all(line.startswith("Speed: ") and line.endswith("samples/sec") for line in lines)


def test_an_interrupt_keeps_the_trained_parameters():
    def stop(state):
        raise KeyboardInterrupt

    model = started()
    before = host(model.arg_params)
    with pytest.raises(KeyboardInterrupt):
        model.train(sgd(), data(), verbosity=0, callbacks=[every_n_batch(stop, 2)])
    assert not np.array_equal(before["fc1_weight"], host(model.arg_params)["fc1_weight"])


# ------------------------------------------------------------------------------------------------ predict, files
def test_predict_calls_back_batch_by_batch_and_returns_nothing():
    model, parts = started(), []
    assert model.predict(data(8), callback=lambda out: parts.append(np.asarray(out))) is None
    assert [p.shape for p in parts] == [(8, 2), (8, 2), (4, 2)]
    np.testing.assert_array_equal(np.concatenate(parts), model.predict(data(8)))


def test_predict_without_overwrite_requires_equal_shapes_and_uses_current_parameters(caplog):
    model = started()
    before = model.predict(data(), overwrite=False)
    model.train(sgd(), data(), n_epoch=1, verbosity=0)
    after = model.predict(data(), overwrite=False)
    assert np.abs(after - before).max() > 1e-3
    with pytest.raises(AssertionError, match="overwrite=True binds it again"):
        model.predict(data(5), overwrite=False)
    lines = logged(caplog, lambda: model.predict(data(5), verbosity=1))
    assert lines == ["The predictor is bound to [('data', (5, 3))] on cpu(0)"]


def test_checkpoints_are_written_each_n_epochs_and_read_again(tmp_path):
    prefix = str(tmp_path / "runs" / "net")
    model = started()
    save = do_checkpoint(prefix, frequency=2, save_epoch_0=True)
    model.train(sgd(), data(), n_epoch=3, verbosity=0, callbacks=[save])
    names = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert names == ["net-0000.params", "net-0002.params", "net-symbol.json"]
    model.save_checkpoint(prefix, 3)
    other = FeedForward(net())
    assert other.load_checkpoint(prefix, 3) is other
    assert_same(other.arg_params, model.arg_params, 0)
    other.load_checkpoint(prefix, 0, overwrite=False)
    assert_same(other.arg_params, model.arg_params, 0)
    different = FeedForward(net(dropout=0.5))
    with pytest.raises(AssertionError, match="differs from this model"):
        different.load_checkpoint(prefix, 3)
    different.load_checkpoint(prefix, 3, allow_different_arch=True)
    assert_same(different.arg_params, model.arg_params, 0)
    assert FeedForward.load(prefix, 3, context=jfit.cpu(1)).arch.list_arguments() == net().list_arguments()


# ------------------------------------------------------------------------------------------------ what is refused
test_invalid_use_raises = refused(
    (lambda: started().train(sgd(), data(), eval_data=data(5)), AssertionError, "eval_data has batches of 5 rows"),
    (lambda: started().train(sgd(), data(), epochs=3), TypeError, "unexpected keyword argument 'epochs'"),
    (lambda: started().train(sgd(), data(), eta_decay="step"), ValueError, "eta_decay is 'step'"),
    (lambda: started().train(sgd(), data(), callbacks=[print]), TypeError, "every_n_batch"),
    (lambda: started().train(sgd(), data(), optimizer_params={"wd": 1}), ValueError, "given by name"),
    (lambda: started(DEVICES).train(sgd(), data(2)), ValueError, "Too many slices"),
    (lambda: FeedForward(net()).save_checkpoint("x", 1), ValueError, "has no parameters yet"),
    (lambda: every_n_batch(print, 0), ValueError, "at least 1"),
)
