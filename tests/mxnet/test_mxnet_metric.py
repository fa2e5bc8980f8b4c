"""MXNet's metric classes: recorded values, no host waits, one compilation, metrics in Python of the user."""

import copy
import json
import math
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from refusals import refused

import jfit
import jfit.mx as mx
from jfit import counters
from jfit import metrics as pure
from jfit.data import NDArrayIter
from jfit.mxnet import metric as M
from jfit.mxnet.callback import BatchEndParam, log_train_metric
from jfit.mxnet.module.module import Module
from jfit.mxnet.mutable import MutableArray

FOLDER = Path(__file__).parents[1] / "golden"
MANIFEST = json.loads((FOLDER / "metrics.json").read_text())

CASES = MANIFEST["cases"]


def same(got, want):
    if isinstance(want, list):
        return len(got) == len(want) and all(same(g, w) for g, w in zip(got, want, strict=True))
    if want is None:
        return isinstance(got, float) and math.isnan(got)
    if isinstance(want, str):
        return got == want
    return isinstance(got, float) and got == pytest.approx(want, rel=1e-5)


@pytest.mark.repetitions(6)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_every_recorded_value_of_mxnet_is_reproduced_batch_by_batch(case):
    metric = M.create(case["create"], **case["kwargs"])
    assert type(metric).__name__ == case["class_name"]
    assert metric.name == case["str_name"]
    assert {k: v for k, v in metric.get_config().items() if k != "metrics"} == case["config"]
    assert same(list(metric.get()), case["fresh_get"])
    with np.load(FOLDER / "metrics.npz") as arrays:
        for b, want in enumerate(case["results"]):
            if b == case["reset_local_before_batch"]:
                metric.reset_local()
            metric.update([MutableArray(arrays[f"{case['id']}/label{b}"])], [MutableArray(arrays[f"{case['id']}/pred{b}"])])
            assert same(list(metric.get()), want["get"])
            if case["kwargs"].get("average") == "micro" and case["create"] == "pearsonr":  # MXNet: 0.0
                assert same(list(metric.get_global()), want["get"])
                continue
            assert same(list(metric.get_global()), want["get_global"])
            assert same([list(x) for x in metric.get_name_value()], want["name_value"])
            assert same([list(x) for x in metric.get_global_name_value()], want["global_name_value"])


def test_output_and_label_names_select_the_arrays_of_a_metric():
    with np.load(FOLDER / "metrics.npz") as arrays:
        label, pred = arrays["dict/label"], arrays["dict/pred"]
    metric = M.Accuracy(output_names=["a_output"], label_names=["a_label"], name="accA")
    metric.update_dict({"a_label": label, "b_label": label * 0}, {"a_output": pred, "b_output": pred})
    assert list(metric.get()) == MANIFEST["extra"]["update_dict"]
    with pytest.raises(ValueError, match=r"needs the output 'a_output', but the batch has 'b_output'"):
        metric.update_dict({"a_label": label}, {"b_output": pred})


def test_metrics_of_a_composite_may_use_different_outputs():
    first, second = np.array([0, 1]), np.array([0, 0])
    metric = M.create(
        [M.Accuracy(output_names=["a"], label_names=["la"]), M.Accuracy(name="b", output_names=["b"], label_names=["lb"])]
    )
    with counters.counted() as seen:
        metric.update_dict({"la": first, "lb": second}, {"a": np.eye(2), "b": np.eye(2)})
    assert metric.get() == (["accuracy", "b"], [1.0, 0.5])
    assert seen["traces:metric_fold"] == 1


def test_a_function_may_return_a_sum_and_a_count():
    with np.load(FOLDER / "metrics.npz") as arrays:
        label, pred = arrays["custom/label"], arrays["custom/pred"]
    metric = M.np(lambda a, b: (float(np.abs(a - b).sum()), a.size), name="l1sum")
    metric.update([label], [pred])
    assert same(list(metric.get()), MANIFEST["extra"]["custom_np_tuple"])
    assert M.create(lambda x, y: 0.0).name == MANIFEST["extra"]["custom_lambda_default_name"]


test_invalid_use_raises_mxnets_error_classes = refused(
    (lambda: M.CustomMetric(abs).get_config(), NotImplementedError, "cannot be saved as a configuration"),
    (lambda: M.create("f1").update([np.array([0, 1, 2])], [np.ones((3, 3))]), "binary"),
    (lambda: M.create("acc").update([np.ones(3)], [np.ones((4, 2))]), "one label per prediction"),
    (lambda: M.create("acc").update([np.ones(3)], [np.ones((3, 2)), np.ones((3, 2))]), "1 labels and 2 outputs"),
    (
        lambda: M.create(lambda label, pred: 0.0).update([np.ones(3)], [np.ones((3, 2)), np.ones((3, 2))]),
        "Shape of labels 1 does not match shape of predictions 2",
    ),
    (lambda: M.create("top_k_accuracy", top_k=1), AssertionError, "Please use Accuracy if top_k is no more than 1"),
    (lambda: M.create("accurcy"), AssertionError, "accurcy is not registered"),
    (lambda: M.create(["acc"]).get_metric(3), IndexError, "out of range"),
    (lambda: M.create(3), TypeError, "found 3"),
)


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", ["acc", "ce", "mse", "f1", "loss", "perplexity"])
def test_padding_rows_are_excluded(name):
    rng = np.random.default_rng(1)
    label, pred = rng.integers(0, 2, 6).astype("float32"), rng.dirichlet(np.ones(2), 6).astype("float32")
    if name == "mse":
        label = pred[:, ::-1].copy()
    settings = {"ignore_label": None} if name == "perplexity" else {}
    padded, exact = M.create(name, **settings), M.create(name, **settings)
    bad = np.where(np.arange(6) < 4, 1, np.nan).astype("float32")
    padded.fold([label], [pred * bad[:, None]], np.array([1, 1, 1, 1, 0, 0], "float32"))
    exact.fold([label[:4]], [pred[:4]])
    assert padded.get()[1] == pytest.approx(exact.get()[1], rel=1e-6)


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("time_major", [False, True])
def test_time_steps_of_padding_rows_are_excluded_in_either_layout(time_major):
    labels = np.array([[0, 1, 2], [2, 1, 0]])  # (batch, steps)
    right = np.eye(3, dtype="float32")[labels]  # (batch, steps, classes)
    right[1] = np.eye(3)[[0, 0, 1]]  # the second sequence is wrong, and padding
    if time_major:
        labels, right = labels.T, right.transpose(1, 0, 2)
    metric = M.create("ce")
    metric.fold([labels], [right.reshape(6, 3)], np.array([1.0, 0.0], "float32"))
    assert metric.get()[1] == pytest.approx(0.0, abs=1e-5)
    assert metric.num_inst == 3


def test_row_weights_of_a_wrong_shape_raise():
    with pytest.raises(ValueError, match="4 row weights of the batch do not match an output of shape \\(6, 3\\)"):
        M.create("ce").fold([np.zeros(6)], [np.ones((6, 3))], np.ones(4))


def test_counting_never_waits_and_compiles_once_even_for_a_new_metric_of_equal_settings():
    label, pred = np.zeros(5), np.ones((5, 7), "float32")
    metric = M.create(["acc", "ce", "mae"])
    metric.metrics.pop()
    metric.fold([label], [pred])
    metric.get()
    with counters.counted() as seen:
        metric.fold([label], [pred])
        metric.reset_local()
        metric.fold([label], [pred])
        again = M.create(["acc", "ce"])
        again.fold([label], [pred])
        again.reset()
        again.fold([label], [pred])
    assert not seen
    with counters.counted() as seen:
        metric.get()
        metric.get_global()
        metric.get_name_value()
    assert seen == {"host_syncs": 1}


def test_running_sums_follow_the_device_of_the_outputs():
    metric = M.create("acc")
    for device in (jax.devices()[3], jax.devices()[0]):
        metric.fold([jax.device_put(np.zeros(2), jax.devices()[5])], [jax.device_put(np.eye(2), device)])
    metric.fold([np.zeros(2)], [np.eye(2)])
    assert metric.get() == ("accuracy", 0.5)
    assert metric.num_inst == 6


class Bias(M.EvalMetric):
    def update(self, labels, preds):
        for label, pred in zip(labels, preds, strict=True):
            difference = pred.asnumpy() - label.asnumpy()
            self.sum_metric += difference.sum()
            self.global_sum_metric += difference.sum()
            self.num_inst += len(difference)
            self.global_num_inst += len(difference)


def test_a_user_metric_in_python_runs_as_in_mxnet():
    metric = M.create(["acc", Bias("bias", has_global_stats=True)])
    bias = metric.get_metric(1)
    assert bias.pure is None
    metric.fold([np.zeros(4)], [np.array([1.0, 1.0, 9.0, 9.0])], np.array([1, 1, 0, 0], "float32"))
    metric.fold([np.zeros(2)], [np.array([2.0, 2.0])])
    assert metric.get() == (["accuracy", "bias"], [0.0, 1.5])
    bias.reset_local()
    assert math.isnan(bias.get()[1])
    assert bias.get_global() == ("bias", 1.5)
    assert str(bias) == "EvalMetric: {'bias': nan}"


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("module_class", [Module, mx.mod.Module])
def test_a_user_metric_of_a_module_receives_arrays_without_padding_rows(module_class):
    net = jfit.sym.LinearRegressionOutput(jfit.sym.Variable("data"), jfit.sym.Variable("label"), name="out")
    data = np.arange(5, dtype="float32").reshape(5, 1)
    metric = M.create(["mae", Bias("bias", has_global_stats=True)])
    module = module_class(net if module_class is Module else mx.sym.load_json(net.tojson()), label_names=["label"])
    module.bind([("data", (2, 1))], [("label", (2, 1))], for_training=False)
    module.init_params()
    found = module.score(NDArrayIter(data + 1, data, batch_size=2, label_name="label"), metric)
    assert found == [("mae", 1.0), ("bias", 1.0)]
    assert metric.get_metric(1).num_inst == 5


def test_a_user_metric_may_select_arrays_by_name():
    class ByName(M.EvalMetric):
        def update_dict(self, label, pred):
            self.sum_metric += float(pred["b"].asnumpy().sum()) + len(label)
            self.num_inst += len(pred["b"])

    metric = M.create(["acc", ByName("by_name")])
    metric.update_dict({"l": np.zeros(2), "m": np.zeros(2)}, {"a": np.zeros(2), "b": np.ones(2)})
    metric.fold_dict({"l": np.zeros(2), "m": np.zeros(2)}, {"a": np.zeros(2), "b": np.ones(2)}, np.array([1.0, 0.0]))
    assert metric.get() == (["accuracy", "by_name"], [0.5, pytest.approx((4 + 3) / 3)])


def test_a_subclass_of_a_built_in_metric_may_override_update():
    class Half(M.Accuracy):
        def update(self, labels, preds):
            self.sum_metric += 0.5
            self.num_inst += 1
            self.global_sum_metric += 0.5
            self.global_num_inst += 1

    metric = Half(name="half")
    metric.update([0], [0])
    metric.update([0], [0])
    assert metric.pure is None
    assert metric.get() == ("half", 0.5)
    assert (metric.sum_metric, metric.num_inst) == (1.0, 2)


def test_sums_can_be_read_and_written():
    metric = M.create("mse")
    assert (metric.sum_metric, metric.num_inst) == (0.0, 0)
    metric.update([np.zeros(2)], [np.full(2, 3.0)])
    assert (metric.sum_metric, metric.num_inst, metric.global_sum_metric, metric.global_num_inst) == (9.0, 1, 9.0, 1)
    metric.sum_metric, metric.num_inst = 1.0, 2
    metric.update([np.zeros(2)], [np.full(2, 1.0)])
    assert metric.get() == ("mse", pytest.approx(2 / 3))
    assert metric.get_global() == ("mse", 5.0)
    cells = M.create("f1", average="micro")
    cells.update([np.array([0, 1])], [np.eye(2)])
    assert (cells.sum_metric, cells.num_inst) == (2.0, 2)
    cells.num_inst = 3
    with pytest.raises(TypeError, match="not iterable"):
        cells.update([np.array([0, 1])], [np.eye(2)])


def test_pure_metrics_and_instances_are_accepted():
    metric = M.create(pure.accuracy())
    metric.update([np.array([0, 1])], [np.eye(2)])
    assert metric.get() == ("accuracy", 1.0)
    assert M.create(metric) is metric
    assert M.create(pure.HostMetric("h", lambda label, pred: 2.0)).name == "h"


def test_a_registered_class_is_found_by_its_names():
    @M.alias("answer_to_all")
    class Answer(M.EvalMetric):
        def __init__(self, value=42.0):
            super().__init__("answer", value=value)
            self.value = value

        def update(self, labels, preds):
            self.sum_metric, self.num_inst = self.value, 1

    for name in ("answer", "Answer_To_All"):
        metric = M.create(name, value=7.0)
        metric.update([], [])
        assert metric.get() == ("answer", 7.0)
        assert metric.get_global() == ("answer", 7.0)
        assert metric.get_config()["value"] == 7.0


def test_a_list_of_instances_keeps_their_sums():
    one = M.create("acc")
    one.update([np.array([1, 0])], [np.array([[0.0, 1.0], [0.0, 1.0]])])
    assert M.create([one]).get() == (["accuracy"], [0.5]) and one.get()[1] == 0.5
    assert M.CompositeEvalMetric([one]).get()[1] == [0.5]


def test_the_global_value_of_a_micro_correlation_is_over_all_rows():
    x, y = np.random.default_rng(0).normal(size=(2, 12)).astype("float32")
    metric = M.create("pearsonr", average="micro")
    metric.update([y[:6]], [x[:6]])
    metric.reset_local()
    assert math.isnan(metric.get()[1]) and not math.isnan(metric.get_global()[1])
    metric.update([y[6:]], [x[6:]])
    assert metric.get()[1] == metric.get_global()[1] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
    assert (metric.num_inst, metric.global_num_inst) == (1, 2)


def test_a_metric_round_trips_through_its_configuration():
    for made in (M.create("acc", axis=2, name="a"), M.create(["acc", "ce"]), M.create("pcc"), M.create("pearsonr")):
        config = made.get_config()
        for again in (M.create(config), M.create(json.dumps(config))):
            assert type(again) is type(made) and again.get_config() == config
    assert M.create('["acc", {"name": "z"}]').name == "z"


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", ["acc", "mcc", "pcc", "pearsonr"])
def test_metrics_are_copied_and_pickled_with_their_sums(name):
    metric = M.create(name)
    metric.update([np.array([0, 1, 0])], [np.array([0.0, 1.0, 1.0])] if name == "pearsonr" else [np.eye(3, 2)])
    for again in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        again.update([np.array([0, 1, 0])], [np.array([0.0, 1.0, 1.0])] if name == "pearsonr" else [np.eye(3, 2)])
        assert again.num_inst == 2 * metric.num_inst and again.get()[1] == pytest.approx(metric.get()[1])


def test_metrics_unknown_to_mxnet_are_accepted_as_instances(caplog):
    label, output = np.array([0, 1, 1, 0]), np.array([0.1, 0.4, 0.9, 0.5], "float32")
    table = M.create(pure.confusion_matrix(2))
    table.update([label[:2]], [output[:2]])
    table.reset_local()
    table.update([label[2:]], [output[2:]])
    assert table.get()[1].tolist() == [[1, 0], [0, 1]] and table.get_global()[1].tolist() == [[2, 0], [1, 1]]
    param = BatchEndParam(0, 2, M.create(["acc", table]), None)
    param.eval_metric.update([label], [output])
    with caplog.at_level("INFO"):
        log_train_metric(1)(param)
    assert [r.getMessage() for r in caplog.records] == ["Iter[0] Batch[2] Train-accuracy=0.500000"]
