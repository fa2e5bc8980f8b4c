"""Jobs of several processes: what rank 0 prints and writes, checkpoints, other numbers of processes, agreement of ranks."""

import contextlib
import csv
import importlib.util
import os
import signal
import socket
import subprocess
import sys

import jax
import jobs
import numpy as np
import pytest

import jfit
from jfit.checkpoints import same_run
from jfit.checkpoints.fingerprint import describe_data
from jfit.checkpoints.saved import folders_of, read, record_of
from jfit.data import ArrayData

pytestmark = pytest.mark.timeout(600) if importlib.util.find_spec("pytest_timeout") else []

COMMON = """
import os, signal, sys
import jax, numpy as np, jfit

rng = np.random.default_rng(0)
x = rng.normal(size=(240, 5)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
net = jfit.sym.Dropout(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=8, name="fc"), p=0.2)
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=2, name="out"), name="softmax")


def wrong(label, output):
    return float((output.argmax(1) != label).mean())


def train(data=(x, y), model=net, **changed):
    best = jfit.callbacks.early_stopping("val_loss", patience=9)
    options = dict(eval_data=(x[:48], y[:48]), batch_size=24, num_epoch=6, optimizer="adam", progress=False, seed=3)
    options |= dict(eval_metric=["acc", wrong], optimizer_params={"learning_rate": 0.01}, log_every=4)
    options |= {} if changed.get("devices") else {"devices": "all"}
    options |= changed
    options["callbacks"] = [best, *options.get("callbacks", [])]
    return jfit.fit(model, data, **options)


def stop_at(step, act=lambda event: event.run.stop()):
    def stop(event):
        if event.step == step:
            act(event)

    stop.events, stop.every = ("step",), 1
    return stop
"""

FIRST = (
    COMMON
    + """
import jobs

jfit.distributed.init()
rank = jfit.distributed.rank()
odd = rank == 1


def attempt(**changed):
    try:
        train(**{"reduce": "sharded", **changed})
    except jfit.distributed.RanksDiffer as error:
        return str(error)


def change(event):  # a bit of the copy of one device
    loop = event.run._loop
    old = loop.state.params["out_weight"]
    parts = [np.array(shard.data) for shard in old.addressable_shards]
    parts[-1][0, 3] = np.nextafter(parts[-1][0, 3], 9)
    devices = [shard.device for shard in old.addressable_shards]
    parts = [jax.device_put(part, device) for part, device in zip(parts, devices)]
    weight = jax.make_array_from_single_device_arrays(old.shape, old.sharding, parts)
    loop.state = loop.state._replace(params=loop.state.params | {"out_weight": weight})


errors = {
    "rate": attempt(optimizer_params={"learning_rate": 0.1 if odd else 0.01}),
    "labels": attempt(data=(x, 1 - y if odd else y)),
    "epochs": attempt(num_epoch=6 + odd, seed=3 + odd),
    "start": attempt(params={"fc_weight": np.full((8, 5), 0.1 + odd, "float32")}),
    "late": attempt(callbacks=[stop_at(5, change if odd else id), jfit.callbacks.check_replicas(3)], reduce=None),
}
jobs.report(errors=errors)

logs = []
seen = [jfit.callbacks.csv_logger("log.csv"), lambda event: logs.append(event.logs), stop_at(24)]
seen += [print] if jfit.distributed.is_main() else []
run = train(callbacks=seen, progress=True, checkpoint="ck", checkpoint_every=8, reduce="sharded", nan="stop")
jobs.report(logs=logs, position=run.position, points=len(run.history.steps))
saved = run.save("saved")
jfit.distributed.barrier()
loaded = jfit.Run.load("saved", eval_metric="acc").score((x, y))["accuracy"] == run.score((x, y), "acc")["accuracy"]
jobs.report(saved=str(saved), is_there=saved.exists(), loaded=loaded)

# state that differs between devices: residuals
folder = {"checkpoint": "bits", "checkpoint_every": 8, "reduce": "2bit", "num_epoch": 2}
whole = train(**folder).params
again = train(**folder | {"checkpoint": None}, resume="bits/step-00000008")
jobs.report(same=all((whole[k] == v).all() for k, v in again.params.items()))


def full(*arguments):
    raise OSError(28, "No space left on device")


jfit.callbacks.saving.write = full
try:
    train(checkpoint="full", num_epoch=1, reduce="sharded")
except (OSError, jfit.distributed.JobError) as error:
    jobs.report(full=f"{type(error).__name__}: {error}")
"""
)

SECOND = (
    COMMON
    + """
jfit.distributed.init()
rank = jfit.distributed.rank()
if rank:
    os.makedirs("elsewhere")
    os.chdir("elsewhere")  # no shared file system: rank 0 sends the checkpoint
    assert not os.path.exists("ck")


def begin(event):
    print(f"from {event.step - 1}\\n", end="", flush=True)  # one write: libraries print from other threads


def pause(event):
    if event.step >= 40:
        import time
        if event.step == 40:
            print("at", event.step, flush=True)
        time.sleep(0.05)


pause.events, pause.every = ("step",), 1
train(callbacks=[stop_at(25, begin), pause], num_epoch=200, checkpoint="ck", checkpoint_every=8, resume=True, reduce="sharded")
"""
)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return jobs.run_job(FIRST, 2, 2, folder=tmp_path_factory.mktemp("job"))


def here():
    """The definitions of the scripts, in this process."""
    namespace = {}
    exec(COMMON, namespace)
    return namespace


@pytest.mark.slow
def test_ranks_that_train_something_else_are_named(first):
    assert first[0].values["errors"] == first[1].values["errors"]
    errors = first[0].values["errors"]
    who = f"rank 1 (process {first[1].pid} on "
    assert all(who in errors[name] for name in ("rate", "labels", "epochs")), errors
    assert "has learning_rate 0.1 (rank 0: 0.01). Start" in errors["rate"]
    assert "has data softmax_label float32 (), sample" in errors["labels"]
    assert "seed 4 (rank 0: 3)" in errors["epochs"] and "num_epoch 7 (rank 0: 6)" in errors["epochs"]


@pytest.mark.slow
def test_replicas_that_differ_are_named(first):
    errors = first[0].values["errors"]
    host = socket.gethostname()
    start = f"'params/fc_weight' differs between rank 0 on {host} and rank 1 on {host}; start all processes with the same param"
    assert errors["start"].startswith(f"the copies of the state differ before the first step: {start}"), errors
    late = f"'params/out_weight' in rank 1 on {host}, device 1 differs from the other 3 copies; they were equal at step 3"
    assert errors["late"].startswith(f"the copies of the state differ at step 6: {late}"), errors


@pytest.mark.slow
def test_rank_0_prints_and_writes(first):
    main, *others = first
    assert "epoch    time (s)" in main.out and all("samples/s" not in p.out + p.err for p in others), str(first)
    with open(first.folder / "log.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [p.values["position"] for p in first] == [{"epoch": 2, "batch": 4, "step": 24}] * 2
    assert all(p.values["logs"] == main.values["logs"] for p in others) and len(main.values["logs"]) == 2
    assert all(p.values["points"] == 6 for p in first)
    assert [folder.name for folder in folders_of(first.folder / "ck")] == ["step-00000008", "step-00000016", "step-00000024"]
    assert not (first.folder / "ck" / ".run.lock").exists()
    assert all(p.values["saved"] == "saved/step-00000024" and p.values["is_there"] for p in first)
    assert all(p.values["loaded"] for p in first)
    meta = record_of(first.folder / "ck" / "step-00000024")["meta"]
    assert meta["fingerprint"]["processes"] == 2 and meta["fingerprint"]["devices"].startswith("4 x ")
    # all arrays are whole, those that were split over the processes, too
    arrays = read(first.folder / "saved" / "step-00000024").arrays["state.safetensors"]
    assert arrays["opt_state/slots/mean/fc_weight"].shape == (8, 5) and np.all(arrays["opt_state/slots/mean/fc_weight"] != 0)


@pytest.mark.slow
def test_residuals_are_saved_and_restored(first):
    assert all(p.values["same"] for p in first)


@pytest.mark.slow
def test_all_ranks_notice_that_the_last_checkpoint_was_not_saved(first):
    main, other = (p.values["full"] for p in first)
    assert main.startswith("OSError: [Errno 28] checkpoint: the state of step 10 could not be saved in /"), main
    assert other == "JobError: rank 0 failed in saving the last checkpoint: OSError: [Errno 28] No space left on device"
    assert "it is tried again" not in first[1].err and "training continues" in first[0].err


@pytest.mark.slow
def test_resume_on_other_devices_and_in_one_process(first):
    with jobs.start(SECOND, 2, folder=first.folder) as job:
        job[0].wait_for("at 40")
        job[1].send(signal.SIGTERM)
        job.wait(codes=143)
        assert all(p.wait_for("from").endswith("from 24\n") for p in job)  # a library may write into the same line
    folder = first.folder / "ck"
    last = record_of(folders_of(folder)[-1])["meta"]
    assert last["position"]["step"] >= 40 and last["fingerprint"]["processes"] == 2
    assert not (folder / ".run.lock").exists() and not (first.folder / "elsewhere" / "ck").exists()

    names = here()
    last_epoch = last["position"]["epoch"] + 1
    whole = names["train"](devices=1, num_epoch=last_epoch)
    run = names["train"](devices=1, num_epoch=last_epoch, checkpoint=folder, resume=True)
    assert run.history.column("epoch") == whole.history.column("epoch")
    for name in ("loss", "accuracy", "wrong", "val_loss", "val_wrong"):
        np.testing.assert_allclose(run.history.column(name), whole.history.column(name), rtol=2e-4, atol=1e-5, err_msg=name)
    for name, value in whole.params.items():  # the best ones
        np.testing.assert_allclose(run.params[name], value, rtol=2e-3, atol=2e-4, err_msg=name)
    assert [row["step"] for row in run.history.steps] == [row["step"] for row in whole.history.steps]
    result = jfit.verify(folder, (names["x"], names["y"]), eval_metric=["acc", names["wrong"]], reduce="psum", devices=1)
    assert result.settings == [] or all("reduce" in text for text in result.settings)


def test_differences_of_processes():
    usual = {"seed": 0, "optimizer": "sgd a", "optimizer_params": {"momentum": 0.9}, "versions": {"numpy": "1", "jax": "1"}}
    other = usual | {"optimizer": "sgd b", "optimizer_params": {"momentum": 0.5}, "cores": 3}
    library = usual | {"versions": {"numpy": "2", "jax": "1"}, "devices": "8 x cpu"}
    assert same_run.differences([usual, usual]) == ([], [])
    assert same_run.differences([other, usual, library, usual]) == (
        ["rank 0 has optimizer_params momentum 0.5 (rank 1: 0.9)"],
        ["rank 2 has versions numpy 2 (rank 1: 1)"],
    )
    described = describe_data(ArrayData({"a": np.zeros((3, 2)), "b": [1, 2, 3]}, weight=np.ones(3)))
    assert described["rows"] == 3 and list(described["data"]) == ["a", "b", "weight"]
    assert described["data"]["a"].startswith("float32 (2,), sample ")


def test_check_replicas_finds_a_device_that_differs():
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc"), name="softmax")

    def change(event):
        loop = event.run._loop
        old = loop.state.params["fc_weight"]
        parts = [jax.device_put(np.asarray(s.data) + s.device.id, s.device) for s in old.addressable_shards]
        weight = jax.make_array_from_single_device_arrays(old.shape, old.sharding, parts)
        loop.state = loop.state._replace(params=loop.state.params | {"fc_weight": weight})

    change.events, change.every = ("step",), 2
    options = {"batch_size": 4, "num_epoch": 1, "devices": 2, "steps_per_call": 1, "progress": False}
    data, check = (np.eye(24, 3, dtype="float32"), np.arange(24) % 2), jfit.callbacks.check_replicas(4)
    with pytest.raises(jfit.distributed.RanksDiffer, match="'params/fc_weight' differs between device 0 and device 1"):
        jfit.fit(net, data, callbacks=[change, check], **options)
    assert jfit.fit(net, data, callbacks=[check], **options).position["epoch"] == 1
    assert jfit.callbacks.check_replicas(None).events == ()


TORCHRUN = (
    COMMON
    + """
jfit.distributed.init()


def kill(event):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and jfit.distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


run = train(checkpoint=sys.argv[1], checkpoint_every=8, resume=True, callbacks=[stop_at(27, kill)])
if jfit.distributed.is_main():
    print("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], "position", run.position["step"], flush=True)
    np.savez(sys.argv[2], **run.params)
"""
)


@pytest.mark.slow
def test_torchrun_starts_a_killed_job_again(tmp_path):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torchrun is in the package torch, which is not installed")
    (tmp_path / "script.py").write_text(TORCHRUN)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]
    environment = {k: v for k, v in os.environ.items() if k not in jobs._FOREIGN}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(jobs.ROOT), "XLA_FLAGS": ""}
    with open(tmp_path / "log", "w+") as log:
        command = [*launcher, "script.py", "ck", "result.npz"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            process.wait(jobs.DEADLINE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the launcher and its workers, if the deadline is over
        log.seek(0)
        text = log.read()
    assert process.returncode == 0 and "restarts 1 position 60" in text, text[-6000:]
    whole = here()["train"](devices=2)
    with np.load(tmp_path / "result.npz") as result:  # sums of two numbers have the same bits in any order
        assert all(np.array_equal(result[name], value) for name, value in whole.params.items())
