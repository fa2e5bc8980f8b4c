"""fit, score and predict of `mx.mod.Module` and `mx.model.FeedForward`: recorded logs, callbacks, values, monitors.

There are 46 training rows in batches of 4, so two rows of the last batch wrap around; MXNet counts them in metrics, jfit does
not (decided.padded_rows).  A small NumPy model computes both values: MXNet's must agree with the value over all rows, jfit's
with the value over the real rows.
"""

import re

import numpy as np
import pytest
from golden_mx import GOLDEN, arrays_of, assert_close, captured_log, manifest, masked, parsed, same, under

import jfit.mx as mx

SPEC = manifest("fit", "manifest.json")
ARRAYS = arrays_of("fit", "fit.npz")
SIZE = SPEC["batch_size"]
X, Y = ARRAYS["X"], ARRAYS["Y"]
HALF = len(X) // 2
FREQUENT = 3


class Perceptron:
    """The recorded network in float64: (correct, -log p) of every row that was seen, batch by batch.

    Attributes:
        train: epoch -> batches of training rows.
        valid: epoch -> batches of the first `rows` rows, after that epoch.
    """

    def __init__(self, rate, momentum, epochs, rows):
        self.weights = {k: v.astype("float64") for k, v in under(ARRAYS, "init/").items()}
        moments, self.train, self.valid = {k: np.zeros_like(v) for k, v in self.weights.items()}, [], []
        for _ in range(epochs):
            seen = []
            for start in range(0, len(X), SIZE):
                shown, gradients = self.batch(start, len(X))
                seen.append(shown)
                for name, gradient in gradients.items():
                    moments[name] = momentum * moments[name] - rate * gradient / SIZE
                    self.weights[name] = self.weights[name] + moments[name]
            self.train.append(seen)
            self.valid.append([self.batch(start, rows)[0] for start in range(0, rows, SIZE)])

    def batch(self, start, total):
        """((values (rows, 2), number of real rows), gradients) of one batch."""
        w, at = self.weights, np.arange(start, start + SIZE) % total
        x, y, each = X[at].astype("float64"), Y[at].astype(int), np.arange(SIZE)
        hidden = np.maximum(x @ w["fc1_weight"].T + w["fc1_bias"], 0)
        logits = hidden @ w["fc2_weight"].T + w["fc2_bias"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        shown = np.stack([p.argmax(1) == y, -np.log(p[each, y] + 1e-12)], axis=1)
        p[each, y] -= 1
        back = p @ w["fc2_weight"] * (hidden > 0)
        gradients = {"fc2_weight": p.T @ hidden, "fc2_bias": p.sum(0), "fc1_weight": back.T @ x, "fc1_bias": back.sum(0)}
        return (shown, min(SIZE, total - start)), gradients


NAMES = ["accuracy", "cross-entropy"]


def assert_metrics(got, want, seen):
    """MXNet's numbers are those over all rows, jfit's those over the real rows."""
    everything = np.concatenate([values for values, _ in seen]).mean(0)
    real = np.concatenate([values[:count] for values, count in seen]).mean(0)
    for name, recorded in want.items():
        at = NAMES.index(name)
        assert same(recorded, everything[at], 1e-3), f"{name}: the model gives {everything[at]}, MXNet {recorded}"
        assert same(got[name], real[at], 1e-3), f"{name}: {got[name]}, over the real rows it is {real[at]}"


def assert_log(got, want, model, window):
    """The same lines, numbers as in `assert_metrics`; `window(first, last)`: batches that a line of a Speedometer is about."""
    got, want = ([masked(line) for line in lines if re.match("INFO:(Epoch|Start)", line)] for lines in (got, want))
    assert [parsed(line)[0] for line in got] == [parsed(line)[0] for line in want]
    for ours, theirs in zip(got, want, strict=True):
        numbers, recorded = parsed(ours)[1], parsed(theirs)[1]
        if not recorded:
            continue
        epoch = int(re.search(r"Epoch\[(\d+)\]", theirs)[1])
        speed = re.search(r"Batch \[(\d+)-(\d+)\]", theirs)
        kind = next((k for k in ("Train-", "Validation-") if k in theirs), "")
        seen = model.valid[epoch] if kind == "Validation-" else model.train[epoch]
        if speed:
            seen = seen[slice(*window(int(speed[1]), int(speed[2])))]
        short = [{name.removeprefix(kind): value for name, value in each.items()} for each in (numbers, recorded)]
        assert_metrics(*short, seen)


class Fitted:
    """What a recorded fit leaves: the module, its log, what callbacks were told."""

    def __init__(self):
        self.calls, spec = [], SPEC["fit"]
        train, self.valid = mx.io.NDArrayIter(X, Y, SIZE), mx.io.NDArrayIter(X[:HALF], Y[:HALF], SIZE)
        self.module = mx.mod.Module(mx.sym.load_json(SPEC["symbol_json"]))
        with captured_log() as self.log:
            self.module.fit(
                train,
                eval_data=self.valid,
                eval_metric=spec["eval_metric"],
                batch_end_callback=[self.on_batch, mx.callback.Speedometer(SIZE, FREQUENT)],
                epoch_end_callback=lambda e, s, a, x: self.calls.append(["epoch", e, sorted(a), sorted(x)]),
                eval_batch_end_callback=lambda p: self.calls.append(["evalbatch", p.epoch, p.nbatch]),
                eval_end_callback=lambda p: self.calls.append(["evalend", p.epoch, p.nbatch]),
                optimizer=spec["optimizer"],
                optimizer_params=spec["optimizer_params"],
                arg_params={name: mx.nd.array(value) for name, value in under(ARRAYS, "init/").items()},
                num_epoch=spec["num_epoch"],
            )

    def on_batch(self, told):
        self.calls.append(["batch", told.epoch, told.nbatch, told.eval_metric.get(), told.eval_metric.get_global()])


@pytest.fixture(scope="module")
def fitted():
    return Fitted()


@pytest.fixture(scope="module")
def model():
    params = SPEC["fit"]["optimizer_params"]
    return Perceptron(params["learning_rate"], params["momentum"], SPEC["fit"]["num_epoch"], HALF)


def test_fit_ends_with_mxnets_parameters(fitted):
    params, _ = fitted.module.get_params()
    for name, want in under(ARRAYS, "final/").items():
        assert_close(name, params[name], want)


def test_fit_logs_mxnets_lines(fitted, model):
    recorded = (GOLDEN / SPEC["log"]).read_text().splitlines()
    assert_log(fitted.log, recorded, model, lambda first, last: (first + 1 if first else 0, last + 1))


def test_callbacks_are_called_in_mxnets_order_with_mxnets_values(fitted, model):
    wanted = [call[:3] if call[0] == "batch" else call for call in SPEC["calls"]]
    assert [call[:3] if call[0] == "batch" else call for call in fitted.calls] == wanted
    for got, want in zip(fitted.calls, SPEC["calls"], strict=True):
        if got[0] == "batch":
            epoch, number = want[1:3]
            start = (number - 1) // FREQUENT * FREQUENT + 1 if number > FREQUENT else 0  # where Speedometer began again
            for at, first in ((3, start), (4, 0)):
                each = [dict(zip(*pair, strict=True)) for pair in (got[at], want[at])]
                assert_metrics(*each, model.train[epoch][first : number + 1])


def test_predict_gives_mxnets_outputs_without_wrapped_rows(fitted):
    module, valid = fitted.module, fitted.valid
    found = module.predict(valid)
    assert_close("predict", found, ARRAYS["predict"], 2e-4)
    assert list(found.shape) == SPEC["predict_shape"]
    apart = module.predict(valid, merge_batches=False)
    assert [[list(o.shape) for o in outputs] for outputs in apart] == SPEC["predict_nomerge"]
    listed = module.predict(valid, num_batch=2, always_output_list=True)
    assert [list(o.shape) for o in listed] == SPEC["predict_num_batch2_always_list"]
    each = [[list(o[0].shape), number, batch.pad] for o, number, batch in module.iter_predict(valid)]
    assert each == SPEC["iter_predict"]


def test_score_gives_mxnets_metrics_over_the_real_rows(fitted, model):
    assert_metrics(dict(fitted.module.score(fitted.valid, ["acc", "ce"])), dict(SPEC["score"]), model.valid[-1])
    short = dict(fitted.module.score(fitted.valid, "acc", num_batch=2))
    assert_metrics(short, dict(SPEC["score_num_batch2"]), model.valid[-1][:2])


# ------------------------------------------------------------------------------------------------ FeedForward
@pytest.fixture(scope="module")
def forward():
    """(FeedForward after a recorded fit, its log)."""
    spec = SPEC["feedforward"]
    with captured_log() as log:
        estimator = mx.model.FeedForward(
            mx.sym.load_json(SPEC["symbol_json"]),
            ctx=mx.cpu(),
            num_epoch=spec["num_epoch"],
            optimizer="sgd",
            numpy_batch_size=SIZE,
            arg_params={name: mx.nd.array(value) for name, value in under(ARRAYS, "init/").items()},
            learning_rate=spec["learning_rate"],
            momentum=spec["momentum"],
        )
        data = [mx.io.NDArrayIter(X, Y, SIZE) for _ in range(2)]
        estimator.fit(data[0], eval_data=data[1], eval_metric="acc", batch_end_callback=mx.callback.Speedometer(SIZE, 4))
    return estimator, log


@pytest.fixture(scope="module")
def forward_model():
    spec = SPEC["feedforward"]
    return Perceptron(spec["learning_rate"], spec["momentum"], spec["num_epoch"], len(X))


def test_feedforward_logs_mxnets_lines(forward, forward_model):
    recorded = (GOLDEN / SPEC["feedforward"]["log"]).read_text().splitlines()
    assert_log(forward[1], recorded, forward_model, lambda first, last: (first, last))


def test_feedforward_ends_with_mxnets_parameters_predictions_and_score(forward, forward_model):
    estimator, spec, want = forward[0], SPEC["feedforward"], arrays_of("fit", "feedforward.npz")
    for name, value in under(want, "final/").items():
        assert_close(name, estimator.arg_params[name], value, 2e-4)
    found = estimator.predict(mx.io.NDArrayIter(X, Y, SIZE))
    assert type(found).__name__ == spec["predict_type"] and list(found.shape) == spec["predict_shape"]
    assert_close("predict", found, want["predict"], 2e-4)
    score = float(estimator.score(mx.io.NDArrayIter(X, Y, SIZE)))
    assert_metrics({"accuracy": score}, {"accuracy": spec["score"]}, forward_model.valid[-1])
