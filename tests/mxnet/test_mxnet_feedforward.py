"""FeedForward of MXNet's Python interface: training, predictions, kinds of data, files, interrupts."""

import logging
import pickle

import jax
import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.data import DataBatch, DataDesc, DataIter
from jfit.mxnet.feedforward import FeedForward
from jfit.mxnet.metric import CustomMetric, create
from jfit.mxnet.monitor.monitor import Monitor
from jfit.mxnet.optimizer import SGD, Adam


def net(hidden=2, dropout=0.0):
    x = jfit.sym.Variable("data")
    x = jfit.sym.Dropout(x, p=dropout) if dropout else x
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(x, num_hidden=hidden, name="fc"), name="softmax")


X = np.random.default_rng(0).normal(size=(22, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("float32")
START = {"fc_weight": np.full((2, 3), 0.1, "float32"), "fc_bias": np.zeros(2, "float32")}


def model(**kwargs):
    return FeedForward(net(), **{"num_epoch": 2, "learning_rate": 0.5, "arg_params": START, "numpy_batch_size": 8, **kwargs})


def softmax(params, x):
    e = np.exp(x @ np.asarray(params["fc_weight"]).T + np.asarray(params["fc_bias"]))
    return e / e.sum(1, keepdims=True)


# ------------------------------------------------------------------------------------------------ training
def test_batches_are_counted_from_one_and_the_callback_sees_the_metric():
    seen = []
    ff = model(num_epoch=1)
    ff.fit(jfit.NDArrayIter(X, Y, 8), batch_end_callback=lambda p: seen.append((p.epoch, p.nbatch, p.locals["nbatch"])))
    assert seen == [(0, 1, 1), (0, 2, 2), (0, 3, 3)]


# ------------------------------------------------------------------------------------------------ predictions
def test_predictions_use_the_current_parameters():
    ff = model()
    before = ff.predict(X)
    np.testing.assert_allclose(before, softmax(START, X), rtol=1e-5)
    ff.fit(X, Y)
    after = ff.predict(X)
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after, softmax(ff.arg_params, X), rtol=1e-5)
    ff.arg_params = START
    np.testing.assert_array_equal(ff.predict(X), before)


def test_predictions_use_a_replaced_network():
    ff = model()
    ff.predict(X)
    ff.symbol = net().get_internals()["fc_output"]
    np.testing.assert_allclose(ff.predict(X), X @ START["fc_weight"].T, rtol=1e-4, atol=1e-6)


def test_predictions_continue_after_data_of_a_wrong_shape():
    ff = model()
    before, module = ff.predict(X), ff._predictor
    assert ff.predict(X[:5]).shape == (5, 2) and ff._predictor is module  # bound again
    for _ in range(2):
        with pytest.raises(ValueError, match="fc_weight"):
            ff.predict(X[:, :2])
    np.testing.assert_array_equal(ff.predict(X), before)


def test_predict_can_return_the_data_and_stop_after_some_batches():
    outputs, data, label = model().predict(jfit.NDArrayIter(X, Y, 8), return_data=True)
    np.testing.assert_array_equal(data, X)
    np.testing.assert_array_equal(label, Y)
    assert outputs.shape == (22, 2)
    data = jfit.NDArrayIter(X, Y, 8)
    parts = [model().predict(data, num_batch=1, reset=number == 0) for number in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), outputs)
    with pytest.raises(ValueError, match="predict got no batch"):
        model().predict(data, reset=False)


def test_several_outputs_are_a_list():
    out = net()
    ff = FeedForward(jfit.sym.Group([out, out.get_internals()["fc_output"]]), arg_params=START, numpy_batch_size=8)
    first, second = ff.predict(X)
    assert first.shape == second.shape == (22, 2)
    np.testing.assert_allclose(second, X @ START["fc_weight"].T, rtol=1e-4, atol=1e-6)


def test_the_score_of_a_metric_object_accumulates_and_that_of_a_name_does_not():
    ff, metric = model(), create("acc")
    first = ff.score((X, Y), metric)
    assert metric.num_inst == 22
    ff.score((X, Y), metric)
    assert metric.num_inst == 44 and ff.score((X, Y)) == first
    assert ff.score((X, Y), ["acc", "ce"])[0] == first


def test_score_accepts_a_number_of_batches_and_numbers_callbacks_from_zero():
    seen = []
    model().score(jfit.NDArrayIter(X, Y, 8), num_batch=2, batch_end_callback=lambda p: seen.append((p.epoch, p.nbatch)))
    assert seen == [(0, 0), (0, 1)]


def test_a_python_metric_receives_labels_and_outputs_by_position():
    def right(label, output):
        return float((output.argmax(1) == label).mean())

    value = model().score((X, Y), CustomMetric(right, label_names=["elsewhere"]))
    assert value == pytest.approx(np.mean([right(Y[i : i + 8], softmax(START, X[i : i + 8])) for i in (0, 8, 16)]))


# ------------------------------------------------------------------------------------------------ data
def test_arrays_are_shuffled_and_their_tail_rolls_over():
    seen = []

    def note(param):
        seen.append((param.epoch, param.nbatch, param.eval_metric.num_inst))

    np.random.seed(3)
    model(num_epoch=3).fit(X, Y[:, None], batch_end_callback=note)
    assert [n for _, n, _ in seen] == [1, 2, 1, 2, 3, 1, 2, 3]  # 22 rows in batches of 8, then 6 + 22, then 4 + 22
    assert seen[-1] == (2, 3, 24)  # rows that rolled over are new, so they count


def test_inputs_are_recognized_by_the_suffix_of_their_name():
    out = jfit.sym.FullyConnected(jfit.sym.Variable("my_data"), num_hidden=2, name="fc")
    out = jfit.sym.SoftmaxOutput(out, jfit.sym.Variable("my_label"), name="softmax")
    ff = FeedForward(out, num_epoch=1, arg_params=START, learning_rate=0.5)
    ff.fit(X, Y, eval_data=(X.tolist(), Y.tolist()))
    assert ff.predict(X).shape == (22, 2)
    with pytest.raises(ValueError, match="has the input 'my_data', but the data has"):
        FeedForward(out, num_epoch=1).fit(jfit.NDArrayIter(X, Y, 8))


def test_every_validation_row_is_used_once_in_each_epoch():
    seen = []

    def note(param):
        seen.append((param.nbatch, param.eval_metric.num_inst))

    model().fit(X, Y, eval_data=(X, Y), eval_end_callback=note)
    assert seen == [(3, 22), (3, 22)]


def test_epoch_size_limits_an_epoch_and_the_next_one_continues(caplog):
    with caplog.at_level(logging.INFO):
        model(num_epoch=3, epoch_size=2).fit(jfit.NDArrayIter(X, Y, 8))
    lines = [r.getMessage() for r in caplog.records]
    assert [line for line in lines if "Resetting" in line] == ["Epoch[1] Resetting Data Iterator"]
    ends = []
    model(num_epoch=2, epoch_size=5).fit(jfit.NDArrayIter(X, Y, 8), batch_end_callback=lambda p: ends.append(p.nbatch))
    assert ends == [1, 2, 3, 4, 5] * 2


def test_an_iterator_without_batches_raises():
    class Empty(DataIter):
        provide_data = property(lambda self: [DataDesc("data", (8, 3))])
        provide_label = property(lambda self: [DataDesc("softmax_label", (8,))])

    with pytest.raises(ValueError, match="epoch_size is 2, but the data iterator has no batch"):
        model(epoch_size=2).fit(Empty(8))


# ------------------------------------------------------------------------------------------------ parameters
def test_given_parameters_are_kept_and_missing_ones_initialized():
    ff = model(arg_params={"fc_weight": START["fc_weight"]}, num_epoch=0)
    ff.fit(X, Y)
    np.testing.assert_array_equal(np.asarray(ff.arg_params["fc_weight"]), START["fc_weight"])
    assert np.asarray(ff.arg_params["fc_bias"]).tolist() == [0.0, 0.0]


def test_parameters_that_the_network_does_not_have_raise_in_predict_only_unless_allowed():
    """As in MXNet."""
    extra = {**START, "old_weight": np.zeros(3, "float32")}
    for part, kind in (({"arg_params": extra}, "arg"), ({"arg_params": START, "aux_params": extra}, "aux")):
        ff = model(**part)
        with pytest.raises(ValueError, match=rf"_weight' in {kind}_params.*pass allow_extra_params=True"):
            ff.predict(X)
        with pytest.raises(ValueError, match=f"in {kind}_params"):
            ff.score((X, Y))
        ff.fit(X, Y)
        assert sorted(ff.arg_params) == ["fc_bias", "fc_weight"] and ff.predict(X).shape == (len(X), 2)
    ff = model(arg_params=extra, allow_extra_params=True)
    assert sorted(ff.arg_params) == ["fc_bias", "fc_weight"]
    ff.fit(X, Y)


def test_parameters_are_updated_for_epoch_callbacks_and_at_the_end():
    seen = []
    ff = model(num_epoch=3, begin_epoch=1)

    def note(epoch, symbol, args, aux):
        seen.append((epoch, np.asarray(args["fc_weight"]).copy(), args is ff.arg_params, symbol is ff.symbol))

    ff.fit(X, Y, epoch_end_callback=note)
    assert [s[0] for s in seen] == [1, 2] and all(s[2] and s[3] for s in seen)
    assert not np.array_equal(seen[0][1], seen[1][1])
    np.testing.assert_array_equal(seen[1][1], np.asarray(ff.arg_params["fc_weight"]))


def test_an_optimizer_object_keeps_its_scale_and_receives_the_names():
    sgd = SGD(learning_rate=0.5, rescale_grad=1 / 8)
    ff, same = model(optimizer=sgd), model()
    for each in (ff, same):
        each.fit(jfit.NDArrayIter(X, Y, 8))
    assert sgd.idx2name == {0: "fc_weight", 1: "fc_bias"}
    np.testing.assert_array_equal(np.asarray(ff.arg_params["fc_weight"]), np.asarray(same.arg_params["fc_weight"]))


def test_an_optimizer_object_continues_its_counts_in_the_next_fit():
    adam = Adam(learning_rate=0.1, rescale_grad=1 / 8)
    ff = model(optimizer=adam, num_epoch=1)
    ff.fit(jfit.NDArrayIter(X, Y, 11))
    weights = np.asarray(ff.arg_params["fc_weight"])
    ff.fit(jfit.NDArrayIter(X[:11], Y[:11], 11))
    assert adam.num_update == 3
    # fresh moments at count 3: lr * sqrt(1 - beta2^3) / (1 - beta1^3) * (1 - beta1) / sqrt(1 - beta2), whatever the gradient
    step = 0.1 * np.sqrt(1 - 0.999**3) / (1 - 0.9**3) * 0.1 / np.sqrt(0.001)
    np.testing.assert_allclose(np.abs(np.asarray(ff.arg_params["fc_weight"]) - weights), step, rtol=1e-3)


def test_an_interrupt_keeps_the_trained_parameters():
    def stop(param):
        if param.nbatch == 2:
            raise KeyboardInterrupt

    ff = model()
    with pytest.raises(KeyboardInterrupt):
        ff.fit(jfit.NDArrayIter(X, Y, 8), batch_end_callback=stop)
    assert not np.array_equal(np.asarray(ff.arg_params["fc_weight"]), START["fc_weight"])
    ff.fit(X, Y)


# ------------------------------------------------------------------------------------------------ files
def test_saved_models_can_be_loaded_and_trained_further(tmp_path):
    ff = model()
    ff.fit(jfit.NDArrayIter(X, Y, 8))
    prefix = str(tmp_path / "net")
    ff.save(prefix)
    other = FeedForward.load(prefix, 2, num_epoch=4, learning_rate=0.5)
    assert other.begin_epoch == 2
    np.testing.assert_array_equal(other.predict(X), ff.predict(X))
    epochs = []
    other.fit(X, Y, epoch_end_callback=lambda epoch, *_: epochs.append(epoch))
    assert epochs == [2, 3]
    copy = pickle.loads(pickle.dumps(ff))
    np.testing.assert_array_equal(copy.predict(X), ff.predict(X))
    with pytest.raises(AssertionError, match="epoch is missing"):
        FeedForward(net(), arg_params=START).save(prefix)


def test_create_builds_and_trains_a_model():
    ff = FeedForward.create(net(), X, Y, num_epoch=2, learning_rate=0.5, arg_params=START, numpy_batch_size=8)
    assert ff.num_epoch == 2 and isinstance(ff.arg_params["fc_weight"], jax.Array)


# ------------------------------------------------------------------------------------------------ buckets, monitors
class Lengths(DataIter):
    """Batches of two lengths, in turns."""

    default_bucket_key = 4

    def __init__(self):
        super().__init__(6)
        self.at = 0

    def describe(self, length):
        return [DataDesc("data", (6, length))], [DataDesc("softmax_label", (6,))]

    provide_data = property(lambda self: self.describe(4)[0])
    provide_label = property(lambda self: self.describe(4)[1])

    def reset(self):
        self.at = 0

    def next(self):
        if self.at == 4:
            raise StopIteration
        self.at += 1
        length = 4 if self.at % 2 else 3
        x = np.random.default_rng(self.at).normal(size=(6, length)).astype("float32")
        data, label = self.describe(length)
        y = (x.sum(1) > 0).astype("float32")
        return DataBatch([x], [y], 0, bucket_key=length, provide_data=data, provide_label=label)


def summed(length):
    total = jfit.sym.sum(jfit.sym.Variable("data"), axis=1, keepdims=True)
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(total, num_hidden=2, name="fc"), name="softmax")


def test_a_network_may_depend_on_the_bucket_key():
    ff = FeedForward(summed, num_epoch=20, learning_rate=1.0)
    accuracy = []
    ff.fit(Lengths(), eval_data=Lengths(), eval_end_callback=lambda p: accuracy.append(p.eval_metric.get()[1]))
    assert ff.symbol is not None and accuracy[-1] == 1.0
    mon, names = Monitor(1), []
    mon.toc_print = lambda: names.extend(name for _, name, _ in mon.toc())
    FeedForward(summed, num_epoch=1).fit(Lengths(), monitor=mon)
    assert names.count("fc_output") == 4  # of all buckets


def test_a_monitor_sees_the_training():
    mon = Monitor(1, pattern="fc_output")
    seen = []
    mon.toc_print = lambda: seen.append([name for _, name, _ in mon.toc()])
    model(num_epoch=1).fit(jfit.NDArrayIter(X, Y, 8), monitor=mon)
    assert len(seen) == 3 and all("fc_output" in names for names in seen)


# ------------------------------------------------------------------------------------------------ what is refused
test_invalid_use_raises = refused(
    (lambda: model().fit(X), ValueError, "y is missing"),
    (lambda: model().fit(X, Y[:5]), ValueError, "one label for each of the 22 rows"),
    (lambda: model().fit(X[:8], Y[:8].reshape(2, 4)), ValueError, r"y has shape \(2, 4\)"),
    (lambda: model().fit(X, Y, eval_data=X), TypeError, "eval_data is ndarray"),
    (lambda: model(rescale_grad=2).fit(X, Y), TypeError, "sets rescale_grad"),
    (lambda: model(num_epoch=None).fit(X, Y), AssertionError, "num_epoch is missing"),
    (lambda: model().score(X), ValueError, "y is missing"),
    (lambda: FeedForward(net()).predict(X), ValueError, "has no parameters yet"),
    (lambda: FeedForward(summed, arg_params=START).predict(X), ValueError, "has no parameters yet"),
    (lambda: model(arg_params={"fc_weight": np.zeros((3, 3))}).fit(X, Y), ValueError, "fc_weight"),
    (lambda: model().predict(X[:, :2]), ValueError, "fc_weight"),
)
