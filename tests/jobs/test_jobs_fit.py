"""Jobs of several processes: fit, score, predict, streams and hand-written steps compute what one process computes."""

import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from job_fit_work import X, Y, arrays, by_hand, network, parts_read, reduced, streams, work
from jobs import once, run_job

import jfit
from jfit.callbacks import saving
from jfit.checkpoints.checkpoint import path_of
from jfit.checkpoints.saved import folders_of
from jfit.data import Batch, DataTimeout, NDArrayIter, as_data, prefetch, shard
from jfit.data.prefetch import Patience
from jfit.feed import job_batches
from jfit.feed.host_batches import HostBatches
from jfit.feed.job_batches import StreamAgreement
from jfit.loop import pace
from jfit.loop.nonfinite import NanPolicy

SCRIPT = """
import jfit, jobs
import job_fit_work as here
jfit.distributed.init()
rank, count = jfit.distributed.rank(), jfit.distributed.num_processes()
jobs.report(rank=rank, count=count)
jobs.report(**here.work(rank, count, "all", %s))
"""


QUICK = """
import numpy as np, jfit, jobs
jfit.distributed.init()
rng = np.random.default_rng(0)
x = rng.normal(size=(50, 5)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
net = jfit.sym.SoftmaxOutput(net, name="softmax")
start = {"fc_weight": np.full((2, 5), 0.1, "float32"), "fc_bias": np.zeros(2, "float32")}
options = dict(eval_data=(x[:7], y[:7]), batch_size=16, num_epoch=2, params=start, devices="all", progress=False)
options |= {"eval_every": jfit.every(steps=3)}  # also within epochs of 4 steps
run = jfit.fit(net, (x, y), **options)
jobs.report(rank=jfit.distributed.rank(), count=jfit.distributed.num_processes(), devices=len(run.settings.devices))
jobs.report(weight=run.params["fc_weight"], losses=run.history.column("val_loss", "evaluations"))

odd = 1 + jfit.distributed.rank()
calls = {
    "run.score": lambda: run.score((x * odd, y)),
    "run.predict": lambda: run.predict(x[: 8 - odd]),
    "eval_metric": lambda: run.score((x, y), ["acc", "ce"][odd - 1]),
    "params": lambda: jfit.predict(net, x, params=start | {"fc_bias": np.full(2, odd, "float32")}),
    "jfit.score": lambda: jfit.score(net, (x, y), params=start, batch_size=8 * odd),
    "jfit.predict": lambda: jfit.predict(net, x if odd == 1 else iter([x]), params=start),
    "eval_data": lambda: jfit.fit(net, (x, y), **options | {"eval_data": (x[:7], list(abs(y[:7] - odd + 1)))}),
}
errors = {}
for name, call in calls.items():
    try:
        call()
    except jfit.distributed.RanksDiffer as error:
        errors[name] = str(error)
jobs.report(errors=errors)

def keys():
    jfit.distributed.barrier("the keys are counted")
    return len(jfit.distributed.job.current().store._client.key_value_dir_get_bytes("jfit/"))

def stream():
    return ((x[i : i + 5], y[i : i + 5]) for i in range(0, 50, 5))

def stop(event):
    if event.step == 15:
        event.run.stop("enough")
stop.events, stop.every = "step", 1
options |= dict(eval_data=lambda epoch: stream(), batch_size=5, num_epoch=3, callbacks=[stop])
counts = []
for _ in range(3):
    jfit.fit(net, lambda epoch: stream(), **options)
    for number in range(20):
        jfit.distributed.exchange(number, f"value {number}")
    counts.append(keys())
jfit.loop.pace.LOG_SECONDS = 0
run = jfit.fit(net, (x, y), **options | dict(batch_size=2, num_epoch=1, callbacks=[], eval_data=None, steps_per_call=1))
jobs.report(counts=counts, points=run.history.column("step", "points"))
"""


def test_two_processes_train_as_one(tmp_path):
    job = run_job(QUICK, 2, folder=tmp_path)
    first, second = job.values
    assert [(v["rank"], v["count"], v["devices"]) for v in job.values] == [(0, 2, 2), (1, 2, 2)]
    np.testing.assert_array_equal(first["weight"], second["weight"])
    assert first["losses"] == second["losses"]
    assert first["errors"] == second["errors"]
    who = f"rank 1 (process {job[1].pid} on {socket.gethostname()}) has"
    for name, text in {
        "run.score": f"would not score the same: {who} data data float32 (5,), sample ",
        "run.predict": f"would not predict the same: {who} rows 6 (rank 0: 7), data data float32 (5,), sample ",
        "eval_metric": f'would not score the same: {who} eval_metric ["cross-entropy"] (rank 0: ["accuracy"])',
        "params": f"would not score or predict the same: {who} parameters ",
        "jfit.score": f"would not score the same: {who} batch_size 16 (rank 0: 8). Start all of them with the same script",
        "jfit.predict": f"would not predict the same: {who} rows null (rank 0: 50), data data null (rank 0: float32 (5,), ",
        "eval_data": f"would not train the same: {who} eval_data data softmax_label float32 (), sample ",
    }.items():
        assert text in first["errors"].get(name, ""), (name, first["errors"])
    assert max(first["counts"] + second["counts"]) < 12, (first["counts"], second["counts"])  # keys in the store of rank 0
    assert first["points"] == second["points"] == [16]  # log points, at which the running sums are copied
    namespace: dict = {}
    exec(QUICK.replace("jfit.distributed.init()", "").replace('"all"', "2").split("jobs.report")[0], namespace)
    run = namespace["run"]
    np.testing.assert_allclose(first["weight"], run.params["fc_weight"], rtol=1e-5)
    assert run.history.column("step", "evaluations") == [3, 6, 8]
    np.testing.assert_allclose(first["losses"], run.history.column("val_loss", "evaluations"), rtol=1e-5)


def test_parts_of_data_are_disjoint_and_complete():
    for data in (range(10), np.arange(10), [*range(10)], iter(range(10)), {"x": np.arange(10)}, lambda epoch: range(epoch, 10)):
        copies = [data, data, data] if not hasattr(data, "__next__") else [iter(range(10)) for _ in range(3)]
        parts = [shard(copy, rank, 3) for rank, copy in enumerate(copies)]
        parts = [part["x"] if isinstance(part, dict) else part(0) if callable(part) else part for part in parts]
        assert [list(part) for part in parts] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    x, y = shard((np.arange(4), np.arange(4)), 1, 2)
    assert x.tolist() == y.tolist() == [1, 3]
    with pytest.raises(ValueError, match="part_index is 3, num_parts is 3; expected"):
        shard([1], 3, 3)
    with pytest.raises(TypeError, match="pass it part_index=0, num_parts=2"):
        shard(NDArrayIter(np.ones((4, 1)), batch_size=2), 0, 2)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process with four devices computes."""
    return once(tmp_path_factory, "alone", lambda folder: work(0, 1, 4, parts_read, arrays, streams, reduced, by_hand))


# All tests of these two are `optimized`, so that the job runs once.
@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory):
    """What two processes with two devices each compute, by rank."""
    functions = ["parts_read", "arrays", "streams", "reduced", "by_hand", "resumed", "refused"]
    functions = ", ".join(f"here.{name}" for name in [*functions, "padded_iterators", "other_devices"])
    return once(tmp_path_factory, "two_by_two", lambda folder: run_job(SCRIPT % functions, 2, 2, folder=folder).values)


@pytest.mark.slow
def test_each_device_gets_the_rows_that_it_gets_in_one_process(alone, two_by_two):
    for name in ("rows", "stream_rows", "indexed_rows"):
        np.testing.assert_array_equal(np.concatenate([values[name] for values in two_by_two]), alone[name])
    np.testing.assert_array_equal(alone["indexed_rows"], alone["rows"])
    assert [values["own_range"] for values in two_by_two] == [[*range(0, 53, 2)], [*range(1, 53, 2)]]
    trained = alone["rows"][alone["rows"] >= 0]
    assert sorted(trained.tolist()) == sorted([*range(53)] * 2)


@pytest.mark.slow
def test_ranks_agree_on_every_bit(two_by_two):
    first, second = two_by_two
    own = {"rank", "rows", "stream_rows", "indexed_rows", "own_range", "hand_own_outputs"}
    own |= {"stream_predicted", "padded_predicted"}
    assert set(first) == set(second)
    for name in set(first) - own:
        if hasattr(first[name], "dtype"):
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        else:
            assert first[name] == second[name], name


@pytest.mark.slow
def test_arrays_from_the_host_train_score_and_predict_as_in_one_process(alone, two_by_two):
    job = two_by_two[0]
    np.testing.assert_array_equal(job["labels"], alone["labels"])  # the rows of every batch, in order
    np.testing.assert_allclose(job["params"], alone["params"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(job["steps"], alone["steps"], rtol=1e-5)
    for name in ("predicted", "few"):
        np.testing.assert_allclose(job[name], alone[name], rtol=1e-4, atol=1e-6)
    assert job["score"] == pytest.approx(alone["score"], rel=1e-5)
    for mine, expected in zip(job["epochs"], alone["epochs"], strict=True):
        assert mine == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.optimized
def test_streams_of_processes_are_one_stream(alone, two_by_two):
    for name in ("stream_params", "stream_epochs", "stepped_params", "stepped"):
        np.testing.assert_allclose(two_by_two[0][name], alone[name], rtol=1e-5, atol=1e-6)
    assert two_by_two[0]["stream_score"] == pytest.approx(alone["stream_score"], rel=1e-5)
    predicted = [values["stream_predicted"] for values in two_by_two]  # each has the outputs of its own rows
    assert [len(p) for p in predicted] == [29, 24]
    parts = [p for low in range(0, 32, 8) for p in (predicted[0][low : low + 8], predicted[1][low : low + 8])]
    np.testing.assert_allclose(np.concatenate(parts), alone["stream_predicted"], rtol=1e-4, atol=1e-6)
    assert two_by_two[0]["stopped"] in (2, 3)


@pytest.mark.slow
@pytest.mark.optimized
def test_rows_with_which_iterators_fill_batches_are_left_out(two_by_two):
    predicted = [values["padded_predicted"] for values in two_by_two]
    assert [len(p) for p in predicted] == [19, 29]
    np.testing.assert_allclose(np.concatenate(predicted), two_by_two[0]["padded_expected"], rtol=1e-4, atol=1e-6)
    mine, expected = two_by_two[0]["padded_score"]
    assert mine == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.optimized
def test_other_numbers_of_devices_are_an_error_in_all_processes(two_by_two):
    messages = two_by_two[0]["other_devices"]
    assert "own devices [0, 1] (rank 0: [0])" in messages["fit"]
    for name in ("predict", "data_parallel"):
        assert "rank 1 of the job uses 2 device(s), number [0, 1] of its process, but rank 0 uses 1" in messages[name]


def filled(number):
    """Batches of 4 rows, the last with 2 rows that an iterator filled in."""
    for i in range(number):
        weight = np.array([1, 1, 0, 0], "float32") if i == number - 1 else np.ones(4, "float32")
        yield Batch({"data": np.full((4, 2), i, "float32"), "softmax_label": np.zeros(4, "float32")}, None, weight)


def test_rows_that_were_filled_in_are_known_after_the_agreement():
    first, last = StreamAgreement({}, "a test").batches(filled(2))
    assert (first.filled, last.filled, last.own) == (0, 2, 4)
    assert np.all(last.batch.weight == [1, 1, 1, 1])  # they train, as in one process
    assert np.all(last.batch.metric_weight == [1, 1, 0, 0])
    model = jfit.lower(jfit.sym.SoftmaxOutput(jfit.sym.Variable("data"), name="softmax"))
    data = as_data(lambda: filled(2), batch_size=4, input_names=["data"], label_names=["softmax_label"])
    batches = HostBatches(model, data, 1, 4, weights=False, own=slice(0, 1))
    with batches.read() as stream:
        assert [count for _, count in stream] == [4, 2]


def test_the_time_for_a_batch_is_that_of_this_process(monkeypatch):
    agreement, asked, others_come = StreamAgreement({}, "a test"), threading.Event(), threading.Event()
    limit = Patience(lambda number: "item", 0.01, agreement.own_seconds)

    def exchange(value, name):
        asked.set()
        return others_come.wait(60) and [value]

    def patience(number, seconds):
        if not others_come.is_set():
            assert asked.wait(60)
            limit(number, seconds + 0.01)  # longer than the limit
            others_come.set()

    monkeypatch.setattr(job_batches, "exchange", exchange)

    with prefetch(agreement.batches(filled(1)), patience=patience) as stream:
        assert next(stream).own == 4
    time.sleep(0.02)  # longer than the limit, without waiting for others
    with pytest.raises(DataTimeout, match=r"waited 0\.01 s for item"):
        limit(0, 0.02)


@pytest.mark.slow
@pytest.mark.optimized
def test_state_per_device_is_gathered(alone, two_by_two):
    for name in (name for name in alone if name.startswith(("sharded", "2bit"))):
        np.testing.assert_allclose(two_by_two[0][name], alone[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.optimized
def test_a_step_by_hand(alone, two_by_two):
    for name in ("hand", "hand_own", "hand_state", "hand_outputs"):
        np.testing.assert_allclose(two_by_two[0][name], alone[name], rtol=1e-5, atol=1e-6, err_msg=name)
    own = np.concatenate([values["hand_own_outputs"] for values in two_by_two])
    np.testing.assert_allclose(own, alone["hand_outputs"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(alone["hand"], alone["hand_own"])


@pytest.mark.slow
def test_a_resumed_run_reads_the_stream_of_each_process_from_its_position(two_by_two):
    assert two_by_two[0]["resumed_at"] == 6
    np.testing.assert_array_equal(two_by_two[0]["resumed"], two_by_two[0]["not_stopped"])


@pytest.mark.slow
@pytest.mark.optimized
def test_streams_that_do_not_fit_together_name_the_rank(two_by_two):
    assert "rank 1 of the job has a batch of 'data' (rows, 5) int32" in two_by_two[0]["refused"]


@pytest.mark.slow
def test_four_processes_of_one_device_compute_the_bits_of_two_with_two(two_by_two, tmp_path):
    job = run_job(SCRIPT % "here.parts_read, here.by_hand", 4, folder=tmp_path).values
    for name in ("hand", "hand_outputs", "hand_state"):
        np.testing.assert_array_equal(job[0][name], two_by_two[0][name])
    for name in ("rows", "stream_rows", "hand_own_outputs"):
        np.testing.assert_array_equal(*(np.concatenate([v[name] for v in values]) for values in (job, two_by_two)))


@pytest.mark.parametrize("count", [0, 1])
def test_the_others_are_told_that_a_stream_is_closed(monkeypatch, count):
    told = []
    channel = SimpleNamespace(post=lambda name, value: told.append(value))
    monkeypatch.setattr(job_batches.job, "current", lambda: SimpleNamespace(channel=channel))
    batches = StreamAgreement({}, "a test").batches(filled(2))
    for _ in range(count):
        next(batches)
    assert told == []
    batches.close()
    assert told == [None]


def test_batches_that_are_read_quickly_are_agreed_on_together(monkeypatch):
    """The other process reads one at a time, and its stream is shorter; the error of a source comes after its batches."""
    agreed = []

    def exchange(value, name):
        agreed.append(len(value))
        return [value, value[:1] if len(agreed) < 4 else [None]]

    def source():
        rows = np.zeros((4, 2), "float32")
        for number in range(6):
            rows[:] = number  # the buffer of the batch before
            yield Batch({"data": rows})
        raise OSError("no more")

    monkeypatch.setattr(job_batches, "exchange", exchange)
    monkeypatch.setattr(job_batches, "_QUICKLY", 60)
    seen = []
    with pytest.raises(OSError, match="no more"):
        for batch in StreamAgreement({}, "a test").batches(source()):
            seen.append((batch.batch.inputs["data"][0, 0], batch.count))
    assert seen == [(0, 8), (1, 8), (2, 8), (3, 4), (4, 4), (5, 4)]
    assert agreed == [1, 2, 4, 3]


def test_a_process_saves_alone_without_an_exchange(tmp_path, monkeypatch):
    exchanged, stalled, passes = [], threading.Event(), []

    def evaluation(epoch):
        passes.append(epoch)
        if len(passes) > 1:
            stalled.wait(60)
        yield X[:8], Y[:8]

    def from_main(compute, name):
        exchanged.append((name, len(passes)))
        return compute()

    monkeypatch.setattr(saving, "from_main", from_main)
    options = {"checkpoint": tmp_path, "checkpoint_best": "val_loss", "data_timeout": 0.5, "progress": False}
    try:
        with pytest.raises(DataTimeout):
            jfit.fit(network(), (X[:32], Y[:32]), evaluation, batch_size=8, num_epoch=3, **options)
    finally:
        stalled.set()
    assert [name for name, count in exchanged if count > 1] == []
    assert ("which of the best checkpoints exist", 1) in exchanged
    assert [path.name for path in folders_of(tmp_path)] == [path_of(tmp_path, step).name for step in (4, 8)]


@pytest.mark.parametrize(("policy", "batches"), [("skip", {27}), ("warn", {*range(1, 28)})])
def test_a_job_looks_for_the_cause_of_a_bad_step_at_the_end_of_the_epoch(monkeypatch, policy, batches):
    seen = set()
    monkeypatch.setattr(pace, "num_processes", lambda: 2)
    monkeypatch.setattr(pace, "LOG_SECONDS", -1.0)
    monkeypatch.setattr(NanPolicy, "report", lambda self, loop, step: seen.add(loop.batch))
    jfit.fit(network(), (X * np.nan, Y), batch_size=2, num_epoch=1, progress=False, nan=policy, steps_per_call=1)
    assert 27 in seen and seen <= batches and (policy == "skip" or len(seen) > 1)
