"""Processes that only `jax.distributed` joined: functions that train or compute with a model raise."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import jfit
import jfit.mx as mx

X, Y = np.ones((8, 3), "float32"), np.zeros(8, "float32")
PARAMS = {"fc_weight": np.zeros((2, 3), "float32"), "fc_bias": np.zeros(2, "float32")}


def net():
    fc = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2, name="fc")
    return jfit.sym.SoftmaxOutput(fc, name="softmax")


def bound(module):
    module.bind([("data", (8, 3))], [("softmax_label", (8,))])
    return module


def loaded():
    net().save("small-symbol.json")
    jfit.formats.save_arrays("small-0000.params", {f"arg:{k}": v for k, v in PARAMS.items()})
    return jfit.load("small")


ENTRIES = {
    "jfit.fit": lambda: jfit.fit(net(), (X, Y), num_epoch=1, progress=False),
    "jfit.lr_find": lambda: jfit.lr_find(net(), (X, Y), steps=3),
    "jfit.sweep": lambda: jfit.sweep(net(), (X, Y), over={"seed": [0]}, num_epoch=1),
    "jfit.data_parallel": lambda: jfit.data_parallel(jfit.train_step(jfit.lower(net()), "sgd")),
    "jfit.score or jfit.predict": lambda: jfit.score(net(), (X, Y), params=PARAMS),
    "jfit.score or jfit.predict ": lambda: jfit.predict(net(), X, params=PARAMS),
    "jfit.score or jfit.predict  ": lambda: loaded().predict(X),
    "Module": lambda: bound(jfit.Module(net())),
    "Module ": lambda: bound(mx.mod.Module(net())),
    "Trainer": lambda: jfit.Trainer({"w": X}, "sgd"),
    "FeedForward": lambda: jfit.FeedForward(net(), num_epoch=1),
    "kvstore 'dist_sync'": lambda: jfit.KVStore("dist_sync"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_raises_with_several_processes(entry, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ENTRIES[entry]()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    if entry in ("jfit.lr_find", "jfit.sweep"):
        error, message = NotImplementedError, rf"^{entry} does not support jobs of 2 processes: .*; start one process"
    else:
        error, message = (
            RuntimeError,
            rf"in 2 processes, in which {entry.strip()} cannot agree .*; call jfit.distributed.init\(\)",
        )
    with pytest.raises(error, match=message):
        ENTRIES[entry]()


def test_methods_of_a_run_raise_with_several_processes(monkeypatch, tmp_path):
    run = jfit.fit(net(), (X, Y), num_epoch=1, progress=False)
    run.save(tmp_path)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    calls = {
        "Run.score": lambda: run.score((X, Y)),
        "Run.predict": lambda: run.predict(X),
        "jfit.Run.load": lambda: jfit.Run.load(tmp_path),
    }
    for entry, call in calls.items():
        with pytest.raises(RuntimeError, match=f"in 3 processes, in which {entry} cannot agree"):
            call()


SCRIPT = """
import sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize("127.0.0.1:" + sys.argv[1], 2, int(sys.argv[2]), shutdown_timeout_seconds=10)
import numpy as np, jfit
assert jax.process_count() == 2
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
x, y = np.ones((8, 3), "float32"), np.zeros(8, "float32")
step = jfit.train_step(jfit.lower(net))
for call in lambda: jfit.fit(net, (x, y), progress=False, devices="all"), lambda: jfit.data_parallel(step):
    try:
        call()
    except RuntimeError as error:
        print(error, flush=True)
"""


@pytest.mark.slow
def test_two_processes_of_jax_distributed_raise():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    commands = [[sys.executable, "-c", SCRIPT, port, str(rank)] for rank in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    processes = [subprocess.Popen(command, **pipes) for command in commands]
    try:
        results = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for (out, err), process in zip(results, processes, strict=True):
        assert process.returncode == 0, err
        lines = [line for line in out.splitlines() if "cannot agree" in line]
        refused = [line.split(" cannot agree")[0].split(", in which ")[-1] for line in lines]
        assert refused == ["jfit.fit", "jfit.data_parallel"], out
