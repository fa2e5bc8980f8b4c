"""What the processes of the jobs in test_jobs_fit.py compute; one process with as many devices computes the same."""

import jax
import numpy as np

import jfit
from jfit.data import NDArrayIter, Rows, as_data, shard
from jfit.feed.host_batches import HostBatches
from jfit.parallel import place
from jfit.parallel.contexts import job_devices
from jfit.parallel.devices import own_slices_of
from jfit.parallel.whole import host_state

ROWS, BATCH = 53, 16
IDS = np.arange(ROWS, dtype="float32")
X = np.random.default_rng(0).normal(size=(ROWS, 5)).astype("float32")
Y = (X[:, 0] + 0.2 * X[:, 1] > 0).astype("float32")


def network():
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
    return jfit.sym.SoftmaxOutput(jfit.sym.Dropout(net, p=0.2), name="softmax")


def values(state):
    return np.concatenate([np.asarray(state[name]).ravel() for name in sorted(state)])


def rows_of_devices(data, devices, **options):
    """Row ids and weights of each device of this process, for all batches of two epochs of training: -1 for padding."""
    model = jfit.lower(jfit.sym.LinearRegressionOutput(jfit.sym.Variable("data"), name="out"))
    converted = as_data(data, batch_size=BATCH, input_names=["data"], label_names=["out_label"], seed=3)
    batches = HostBatches(model, converted, len(devices), BATCH, paddable=True, own=own_slices_of(devices), **options)
    table = []
    for epoch in range(2):
        with batches.read(epoch) as stream:
            for batch, _ in stream:
                ids = np.asarray(batch.inputs["data"])[..., 0]
                table.append(ids if batch.weight is None else np.where(batch.weight > 0, ids, -1))
    return np.concatenate([t.reshape(len(t), -1) for t in table], axis=1)


def part(array, rank, count, low):
    """The rows of a process in the global batch that begins at row `low`, as `jfit.fit` divides those of arrays."""
    size = BATCH // count
    return array[low : low + BATCH][rank * size : (rank + 1) * size]


def streamed(rank, count):
    """A stream of the rows of one process, in order; of the last batch, which has 5 rows, the last processes have none."""

    def batches(epoch):
        for low in range(0, ROWS, BATCH):
            rows = part(np.arange(ROWS), rank, count, low)
            if len(rows):
                yield X[rows], Y[rows]

    return batches


def arrays(rank, count, devices):
    """Arrays that stay on the host: rows, history, scores, predictions."""
    seen = []

    def labels_and_outputs(label, output):
        seen.append(np.asarray(label))
        return float(output[:, 1].mean())

    options = {"batch_size": BATCH, "num_epoch": 2, "optimizer": "adam", "progress": False, "devices": devices, "seed": 1}
    metrics = ["acc", jfit.metrics.get("roc_auc")[0], labels_and_outputs]
    data = {"data_on_device": False, "validation_split": 0.1, "class_weight": {0: 1.0, 1: 2.0}}
    run = jfit.fit(network(), (X, Y), eval_metric=metrics, log_every=1, **data, **options)
    return {
        "params": values(run.params),
        "labels": np.concatenate(seen),
        "epochs": [{k: v for k, v in row.items() if "time" not in k and "second" not in k} for row in run.history.epochs],
        "steps": run.history.column("loss"),
        "score": run.score((X, Y), ["acc", "f1", "nll_loss"]),
        "predicted": run.predict(X),
        "few": run.predict(X[:3]),
    }


def streams(rank, count, devices):
    """Streams that end at different times, the same after a stop, and scores and predictions of streams."""
    options = {"batch_size": BATCH, "progress": False, "devices": devices, "seed": 1, "optimizer": "adam"}
    mine = streamed(rank, count)

    def stop(event):
        if event.step == 2:
            event.run.stop()

    stop.events, stop.every = "step", 1
    stopped = jfit.fit(network(), mine, num_epoch=9, callbacks=[stop], **options)
    run = jfit.fit(network(), mine, mine, num_epoch=2, **options)
    stepped = jfit.fit(network(), mine, mine, num_steps=6, eval_every=jfit.every(steps=4), **options)
    return {
        "stepped_params": values(stepped.params),
        "stepped": stepped.history.column("val_loss", "evaluations"),
        "stream_params": values(run.params),
        "stream_epochs": [row["val_loss"] for row in run.history.epochs],
        "stream_score": run.score(mine),
        "stream_predicted": run.predict(lambda: (x for x, _ in mine(0))),
        "stopped": stopped.position["step"],
    }


def reduced(rank, count, devices):
    """Rules that keep state per device."""
    result = {}
    for rule, optimizer in (("sharded_parameters", "adam"), ("2bit", "sgd")):
        options = {"optimizer": optimizer, "optimizer_params": {"learning_rate": 0.1}, "ema": 0.5 if rule == "2bit" else None}
        run = jfit.fit(
            network(), (X, Y), batch_size=BATCH, num_epoch=1, progress=False, devices=devices, reduce=rule, **options
        )
        snapshot = run.snapshot()
        run._loop.state = place(snapshot, run.settings.devices)
        result[rule] = values(run.params)
        result[f"{rule}_state"] = np.concatenate([np.ravel(x) for x in jax.tree.leaves((snapshot.opt_state, snapshot.local))])
        result[f"{rule}_again"] = run.train(1).score((X, Y))["loss"]
    return result


def by_hand(rank, count, devices):
    """`jfit.data_parallel` with the global batch, and with the rows of each process."""
    model = jfit.lower(network())
    result = {}
    for name, own in (("hand", False), ("hand_own", True)):
        step = jfit.data_parallel(jfit.train_step(model, "adam", outputs=True), devices=devices, own_rows=own)
        state = step.place(jfit.init_state(model, "adam", {"data": X[:BATCH], "softmax_label": Y[:BATCH]}, seed=2))
        for low in range(0, 3 * BATCH, BATCH):
            rows = part(np.arange(ROWS), rank, count, low) if own else np.arange(low, low + BATCH)
            state, out = step(state, {"data": X[rows], "softmax_label": Y[rows]})
        result |= {name: values(state.params), f"{name}_outputs": out.outputs[0]}
    result["hand_state"] = values(host_state(state, step.devices).params)
    return result


class Loader:
    """A loader of the rows of one process, shuffled in every pass, whose position can be saved."""

    def __init__(self, rank, count):
        self.rows, self.passes = np.arange(rank, 48, count), 0

    def __iter__(self):
        order = np.random.default_rng([self.passes, *self.rows[:1]]).permutation(self.rows)
        self.passes += 1
        for rows in np.split(order, 3):
            yield X[rows], Y[rows]

    def __len__(self):
        return 3

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


def resumed(rank, count, devices):
    """A run that is stopped and resumed, from loaders whose positions are in the checkpoint, with residuals per device."""

    def stop(event):
        event.run.stop()

    stop.events, stop.every = "step", 4
    options = {
        "num_epoch": 2,
        "optimizer_params": {"learning_rate": 0.1},
        "progress": False,
        "devices": devices,
        "reduce": "2bit",
    }
    whole = jfit.fit(network(), Loader(rank, count), **options)
    options |= {"checkpoint": "checkpoints", "checkpoint_every": 4}
    jfit.fit(network(), Loader(rank, count), callbacks=[stop], **options)
    again = jfit.fit(network(), Loader(rank, count), resume=True, **options)
    return {"resumed": values(again.params), "not_stopped": values(whole.params), "resumed_at": again.position["step"]}


def refused(rank, count, devices):
    """Streams that do not fit together: the message of the error, which is the same on all ranks."""
    x = X.astype("int32") if rank == 1 else X
    second = lambda epoch: [(X[:4], Y[:4]), (x[:4], Y[:4])]  # noqa: E731
    try:
        jfit.fit(network(), second, num_epoch=1, progress=False, devices=devices)
    except ValueError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def padded_iterators(rank, count, devices):
    """Iterators that fill their last batch: predictions without these rows, and scores in which they do not count."""
    rows = slice(0, 19) if rank == 0 else slice(19, 48)
    mine = lambda: NDArrayIter(X[rows], Y[rows], batch_size=8)  # noqa: E731
    run = jfit.fit(network(), mine(), num_epoch=1, progress=False, devices=devices)
    return {
        "padded_predicted": run.predict(mine()),
        "padded_expected": run.predict(X[:48]),
        "padded_score": [run.score(mine(), ["acc", "nll_loss"]), run.score((X[:48], Y[:48]), ["acc", "nll_loss"])],
    }


def other_devices(rank, count, devices):
    """Messages of the errors if the processes pass different numbers of devices."""
    net, model = network(), jfit.lower(network())
    params = {"fc_weight": np.ones((2, 5), "float32"), "fc_bias": np.zeros(2, "float32")}
    calls = {
        "fit": lambda: jfit.fit(net, (X, Y), num_epoch=1, progress=False, devices=1 + rank),
        "predict": lambda: jfit.predict(net, X, params=params, devices=1 + rank),
        "data_parallel": lambda: jfit.data_parallel(jfit.train_step(model, "sgd"), devices=1 + rank),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
        except jfit.distributed.RanksDiffer as error:
            found[name] = str(error)
    return {"other_devices": found}


def parts_read(rank, count, devices):
    """Which rows each device gets: of shuffled arrays, and of streams."""
    chosen = job_devices(devices)
    stream = lambda epoch: [(part(IDS, rank, count, low)[:, None],) * 2 for low in range(0, 48, BATCH)]  # noqa: E731
    indexed = Rows([(np.full(1, i, "float32"), i) for i in IDS])
    rows = {"indexed_rows": rows_of_devices(indexed, chosen), "own_range": list(shard(range(ROWS)))}
    return rows | {
        "rows": rows_of_devices((IDS[:, None], IDS[:, None]), chosen),
        "stream_rows": rows_of_devices(stream, chosen),
    }


def work(rank, count, devices, *functions):
    """Call some of the functions of this file, and merge their results."""
    result = {}
    for function in functions:
        result |= function(rank, count, devices)
    return result
