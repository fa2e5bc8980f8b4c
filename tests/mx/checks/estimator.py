"""Checks of gluon.contrib.estimator: training, evaluation, handlers and their log lines."""

import logging
import os
import re
import tempfile
import warnings

import numpy as np
from recorded_checks import raised


class Lines(logging.Handler):
    """Collects the lines of a logger, with times left out."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        text = re.sub(r"\d+\.\d{3}s", "TIMEs", record.getMessage())
        self.lines.append(re.sub(r"total \d+s", "total TIMEs", text))


def problem(mx, batch_size=4, rows=12):
    """Return a data loader, of 3 features and 2 classes."""
    draw = np.random.RandomState(0)
    x = draw.normal(size=(rows, 3)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")
    return mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), batch_size)


def made(mx, loss=None, hybrid=False, units=2, **kwargs):
    """Return (estimator, lines that it logs) of a linear net with given weights."""
    net = mx.gluon.nn.Dense(units, in_units=3, prefix="fc_")
    net.initialize()
    net.weight.set_data(mx.nd.array(np.linspace(-0.5, 0.5, 3 * units).reshape(units, 3)))
    net.bias.set_data(mx.nd.array(np.linspace(0.1, 0.2, units)))
    if hybrid:
        net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.9})
    loss = loss or mx.gluon.loss.SoftmaxCrossEntropyLoss()
    kwargs = {"trainer": trainer, "context": mx.cpu(), **kwargs}
    estimator = mx.gluon.contrib.estimator.Estimator(net, loss, **kwargs)
    lines = Lines()
    estimator.logger.handlers[:] = [lines]
    return estimator, lines.lines


def unnumbered(lines):
    """Return lines without the numbers of automatic names."""
    return [re.sub(r"(loss)\d+", r"\1", line) for line in lines]


def values(metrics):
    return [[re.sub(r"\d+$", "", name), value] for name, value in (m.get() for m in metrics)]


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return function(*args, **kwargs)


def check_fit(mx):
    estimator, lines = made(mx)
    estimator.fit(problem(mx), epochs=3)
    out = {
        "weight": estimator.net.weight.data(),
        "bias": estimator.net.bias.data(),
        "metrics": values(estimator.train_metrics),
        "lines": unnumbered(lines),
        "val metrics": [re.sub(r"\d+$", "", m.name) for m in estimator.val_metrics],
        "max epoch": estimator.max_epoch,
        "max batch": estimator.max_batch,
        "context": [str(c) for c in estimator.context],
    }
    estimator, lines = made(mx)
    estimator.fit(problem(mx), batches=4)
    out["weight after 4 batches"] = estimator.net.weight.data()
    out["lines of 4 batches"] = unnumbered(lines)
    estimator, lines = made(mx, hybrid=True)
    estimator.fit(problem(mx), val_data=problem(mx, 5), epochs=2)
    out["weight with evaluation"] = estimator.net.weight.data()
    out["validation"] = values(estimator.val_metrics)
    out["lines with evaluation"] = unnumbered(lines)
    return out


def check_losses(mx):
    estimator, lines = made(mx, mx.gluon.loss.L2Loss(), units=1)
    estimator.fit(problem(mx), epochs=1)
    two, _ = made(mx, context=[mx.cpu(0)])
    two.fit(problem(mx, 3), epochs=1)
    weighted, _ = made(mx, mx.gluon.loss.SoftmaxCrossEntropyLoss(weight=2.0))
    weighted.evaluate(problem(mx))
    return {
        "L2": values(estimator.train_metrics),
        "L2 weight": estimator.net.weight.data(),
        "L2 lines": unnumbered(lines),
        "short last batch": two.net.weight.data(),
        "weighted": values(weighted.val_metrics),
    }


def check_evaluate(mx):
    estimator, lines = made(mx)
    estimator.evaluate(problem(mx))
    out = {"values": values(estimator.val_metrics), "lines": unnumbered(lines)}
    batches = mx.gluon.contrib.estimator.LoggingHandler(2, estimator.val_metrics)
    del lines[:]
    estimator.evaluate(problem(mx, 5), event_handlers=batches)
    out["lines of batches"] = unnumbered(lines)
    out["again"] = values(estimator.val_metrics)
    out["training metrics"] = [bool(np.isnan(m.get()[1])) for m in estimator.train_metrics]
    accuracy, top = mx.metric.Accuracy(), mx.metric.TopKAccuracy(2, name="top")
    estimator, _ = made(mx, train_metrics=accuracy, val_metrics=[mx.metric.Accuracy(), top])
    estimator.evaluate(problem(mx))
    out["own metrics"] = [values(estimator.val_metrics), [m.name for m in estimator.train_metrics]]
    composite = mx.metric.CompositeEvalMetric([mx.metric.Accuracy(), mx.metric.CrossEntropy()])
    estimator, _ = made(mx, train_metrics=composite)
    out["composite"] = [m.name for m in estimator.train_metrics]
    out["composite copies"] = [m.name for m in estimator.val_metrics]
    return out


def check_logging_handler(mx):
    handlers = mx.gluon.contrib.estimator
    estimator, lines = made(mx)
    estimator.fit(problem(mx), epochs=2, event_handlers=handlers.LoggingHandler(2, metrics=estimator.train_metrics))
    out = {"every 2 batches": unnumbered(lines)}
    estimator, lines = made(mx)
    estimator.fit(problem(mx), epochs=1, event_handlers=[handlers.LoggingHandler("epoch", estimator.train_metrics[:1])])
    out["one metric"] = unnumbered(lines)
    out["interval"] = raised(lambda: handlers.LoggingHandler("batch"))
    out["metrics"] = raised(lambda: handlers.LoggingHandler(metrics=[3]))
    return out


def check_events(mx):
    handlers, seen = mx.gluon.contrib.estimator, []

    class Recorder(
        handlers.TrainBegin,
        handlers.TrainEnd,
        handlers.EpochBegin,
        handlers.EpochEnd,
        handlers.BatchBegin,
        handlers.BatchEnd,
    ):
        def __init__(self, stop_after=100):
            self.batches, self.stop_after = 0, stop_after

        def train_begin(self, estimator, *args, **kwargs):
            seen.append("train begin")

        def train_end(self, estimator, *args, **kwargs):
            seen.append("train end")

        def epoch_begin(self, estimator, *args, **kwargs):
            seen.append("epoch begin")

        def epoch_end(self, estimator, *args, **kwargs):
            seen.append("epoch end")
            return self.batches >= self.stop_after

        def batch_begin(self, estimator, *args, **kwargs):
            seen.append(f"batch begin {sorted(kwargs)}")

        def batch_end(self, estimator, *args, **kwargs):
            seen.append(f"batch end {sorted(kwargs)} {[k.shape for k in (*kwargs['pred'], *kwargs['loss'])]}")
            self.batches += 1
            return self.batches == self.stop_after

    class First(handlers.BatchEnd):
        priority = -3000

        def batch_end(self, estimator, *args, **kwargs):
            seen.append("first")

    estimator, _ = made(mx)
    estimator.fit(problem(mx), epochs=1, event_handlers=[Recorder(), First()])
    out = {"events": list(seen)}
    seen.clear()
    estimator.fit(problem(mx), epochs=5, event_handlers=Recorder(2))
    out["stopped"] = list(seen)
    seen.clear()
    estimator.evaluate(problem(mx), event_handlers=[Recorder()])
    out["evaluation"] = list(seen)
    seen.clear()
    first, _ = made(mx)
    out["not a handler"] = raised(lambda: first.fit(problem(mx), epochs=1, event_handlers=[print]))
    out["not a loader"] = raised(lambda: first.fit([1], epochs=1))
    out["not a loader to evaluate"] = raised(lambda: first.evaluate([1]))
    out["epochs and batches"] = raised(lambda: first.fit(problem(mx), epochs=1, batches=2))
    out["neither"] = raised(lambda: first.fit(problem(mx)))
    return out


def check_own_handlers(mx):
    handlers = mx.gluon.contrib.estimator

    class Every2(handlers.GradientUpdateHandler):
        count = 0

        def batch_end(self, estimator, *args, **kwargs):
            self.count += 1
            if self.count % 2 == 0:
                super().batch_end(estimator, *args, **kwargs)

    estimator, _ = made(mx)
    estimator.fit(problem(mx), epochs=2, event_handlers=Every2())
    out = {"every second update": estimator.net.weight.data()}
    periods = []
    validation = handlers.ValidationHandler(None, lambda **kw: periods.append(sorted(kw)), epoch_period=2, batch_period=2)
    estimator, _ = made(mx)
    estimator.fit(problem(mx), epochs=4, event_handlers=validation)
    out["validation calls"] = len(periods)
    out["validation arguments"] = periods[0]
    return out


def check_early_stopping(mx):
    handlers = mx.gluon.contrib.estimator

    class Settable(mx.metric.EvalMetric):
        """A metric with given values."""

        def __init__(self, series):
            super().__init__("series")
            self.series, self.at = series, 0

        def get(self):
            return self.name, self.series[self.at]

        def update(self, labels, preds):
            pass

    def stopped(series, **options):
        metric = Settable(series)
        estimator, lines = made(mx, train_metrics=[mx.metric.Accuracy(), metric])
        handler = quiet(handlers.EarlyStoppingHandler, metric, **options)

        class Next(handlers.EpochEnd):
            priority = 2000

            def epoch_end(self, estimator, *args, **kwargs):
                metric.at += 1

        estimator.fit(problem(mx, 12), epochs=len(series) - 1, event_handlers=[handler, Next()])
        return [handler.stopped_epoch, handler.current_epoch, handler.wait, float(handler.best), *lines[-1:]]

    rises, falls = [0.1, 0.5, 0.6, 0.55, 0.5, 0.4, 0.4, 0.4], [0.9, 0.5, 0.4, 0.45, 0.39, 0.5, 0.6, 0.7]
    return {
        "max": stopped(rises, mode="max"),
        "max, patience": stopped(rises, mode="max", patience=2),
        "min": stopped(falls, mode="min"),
        "min, patience": stopped(falls, mode="min", patience=2),
        "auto": stopped(rises),
        "unknown mode": stopped(rises, mode="other"),
        "min_delta": stopped(rises, mode="max", min_delta=0.2, patience=2),
        "min_delta, min": stopped(falls, mode="min", min_delta=0.2, patience=2),
        "baseline": stopped(rises, mode="max", baseline=0.55, patience=2),
        "no value at first": stopped([float("nan"), *rises], mode="max", patience=2),
        "not a metric": raised(lambda: handlers.EarlyStoppingHandler("accuracy")),
    }


def check_checkpoints(mx):
    handlers = mx.gluon.contrib.estimator
    folder = os.path.join(tempfile.mkdtemp(), "models")

    def files():
        return sorted(os.listdir(folder))

    def logged(lines):
        return [line.replace(folder, "FOLDER") for line in unnumbered(lines) if "heckpoint" in line]

    estimator, lines = made(mx)
    estimator.fit(problem(mx), epochs=2, event_handlers=handlers.CheckpointHandler(folder, "m", verbose=1))
    out = {"files": files(), "lines": logged(lines)}
    expected = estimator.net.weight.data()
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.load_parameters(os.path.join(folder, "m-epoch1batch6.params"))
    out["loaded"] = bool((net.weight.data() == expected).asnumpy().all())
    folder = tempfile.mkdtemp()
    estimator, lines = made(mx, hybrid=True)
    handler = handlers.CheckpointHandler(folder, epoch_period=None, batch_period=2, max_checkpoints=2)
    estimator.fit(problem(mx), epochs=3, event_handlers=handler)
    out["files by batch"] = files()
    out["symbol"] = mx.sym.load(os.path.join(folder, "model-symbol.json")).list_arguments()
    folder = tempfile.mkdtemp()
    estimator, lines = made(mx)
    best = handlers.CheckpointHandler(folder, monitor=estimator.train_metrics[1], save_best=True, mode="min", verbose=1)
    estimator.fit(problem(mx), epochs=2, event_handlers=best)
    out["best files"] = files()
    out["best lines"] = [re.sub(r"from \S+ to", "to", line) for line in logged(lines)]
    out["values before the best"] = re.findall(r"from (\S+) to", "".join(lines))
    out["best"] = float(best.best)
    out["best without a metric"] = raised(lambda: handlers.CheckpointHandler(folder, save_best=True))
    return out


def check_arguments(mx):
    estimator = mx.gluon.contrib.estimator.Estimator
    net = mx.gluon.nn.Dense(2, in_units=3)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def new(**kwargs):
        return quiet(lambda: estimator(net, kwargs.pop("loss", loss), **kwargs))

    first = new(initializer=mx.init.One())
    return {
        "initializer": net.weight.data(),
        "default trainer": [type(first.trainer).__name__, first.trainer.learning_rate],
        "default optimizer": type(first.trainer.optimizer).__name__,
        "default context": [str(c) for c in first.context],
        "ignored initializer": [new(initializer=mx.init.Zero()).net.weight.data()],
        "loss": raised(lambda: new(loss="l2")),
        "metrics": raised(lambda: new(train_metrics=["acc"])),
        "trainer": raised(lambda: new(trainer="sgd")),
        "context": raised(lambda: new(context="cpu")),
        "contexts": raised(lambda: new(context=[mx.cpu(), 1])),
        "level": [first.logger.name, first.logger.level, len(first.logger.handlers)],
    }
