"""Asynchronous training: the server against NumPy with delayed gradients, bounds of staleness, lost workers, and Ray."""

import contextlib
import importlib.util
import json
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jobs
import numpy as np
import pytest
from ray_support import of_session

import jfit
from jfit.distributed import JobError
from jfit.distributed.actors import RayActors, ThreadActors, start_ray
from jfit.distributed.staleness import StalenessClock
from jfit.mxnet.kvstore.asynchronous import AsyncKVStore, KeyServer, connect
from jfit.mxnet.mutable import MutableArray
from jfit.mxnet.optimizer import create as create_optimizer
from jfit.optim import get as get_optimizer
from jfit.train.asynchronous.problem import Problem
from jfit.train.asynchronous.server import ParameterServer
from jfit.train.asynchronous.worker import Worker

ROWS, COLUMNS, BATCH, RATE, MOMENTUM = 24, 3, 4, 0.05, 0.9


def linear_apply(params, x):
    return x @ params["w"]


def squared(output, label):
    return 0.5 * (output - label) ** 2


@pytest.fixture(scope="module")
def linear():
    """(problem, initial state, x, y) of linear regression with momentum."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, COLUMNS)).astype("float32")
    y = (x @ np.arange(1, COLUMNS + 1)).astype("float32")
    model = jfit.Model.from_function(linear_apply, loss=squared, params={"w": jnp.zeros(COLUMNS)})
    optimizer = get_optimizer("sgd", learning_rate=RATE, momentum=MOMENTUM)
    probe = {"x": x[:BATCH], "label": y[:BATCH]}
    state = jax.device_get(jfit.init_state(model, optimizer, probe))
    options = {"frozen": (), "clip_norm": None, "clip_value": None, "policy": None, "batch_size": BATCH}
    problem = Problem(
        graph=model, probe=probe, optimizer=optimizer, schedule=None, metrics=(), paddable=True, reason="", seed=0, **options
    )
    return problem, state, x, y


def numpy_gradient(w, x, y):
    return x.T @ (x @ w - y) / len(x)


class DelayedSGD:
    """w of MXNet's SGD with momentum, whose gradients may be of older w."""

    def __init__(self):
        self.w, self.velocity = np.zeros(COLUMNS), np.zeros(COLUMNS)

    def push(self, gradient):
        self.velocity = MOMENTUM * self.velocity - RATE * gradient
        self.w = self.w + self.velocity


@pytest.mark.parametrize("seed", range(3))
def test_updates_are_those_of_sgd_with_delayed_gradients(linear, seed):
    problem, state, x, y = linear
    server, oracle, choice = ParameterServer(problem, state, 3, 0, None), DelayedSGD(), random.Random(seed)
    workers = [Worker(problem, {"x": x[k::3], "label": y[k::3]}, None, False, k, state.key) for k in range(3)]
    values = [server.pull(k) for k in range(3)]
    seen, begun, staleness = [oracle.w] * 3, [0] * 3, []
    for update in range(20):
        k = choice.randrange(3)
        rows = np.arange(update % 2 * BATCH, update % 2 * BATCH + BATCH)
        batch = workers[k].data.take(rows)
        np.testing.assert_allclose(values[k].params["w"], seen[k], atol=1e-5)
        values[k] = server.push(k, 0, workers[k]._gradient(values[k], batch, update))
        oracle.push(numpy_gradient(seen[k], x[k::3][rows], y[k::3][rows]))
        staleness.append(update - begun[k])
        seen[k], begun[k] = oracle.w, update + 1
    assert int(server.state().step) == 20
    np.testing.assert_allclose(server.state().params["w"], oracle.w, atol=1e-5)
    for k in range(3):
        server.end_epoch(k, 0)
    row = server.wait_epoch(0)
    assert (row["step"], row["max_staleness"]) == (20, max(staleness))
    assert row["staleness"] == pytest.approx(np.mean(staleness)) and row["worker_updates"].sum() == 20


def test_a_straggler_has_the_staleness_of_what_the_others_did(linear):
    problem, state, x, y = linear
    server = ParameterServer(problem, state, 2, 0, None)
    workers = [Worker(problem, {"x": x[k::2], "label": y[k::2]}, None, False, k, state.key) for k in range(2)]
    slow, fast = server.pull(1), server.pull(0)
    for update in range(27):
        fast = server.push(0, 0, workers[0]._gradient(fast, workers[0].data.take(slice(0, BATCH)), update))
    server.push(1, 0, workers[1]._gradient(slow, workers[1].data.take(slice(0, BATCH)), 0))
    for k in range(2):
        server.end_epoch(k, 0)
    row = server.wait_epoch(0)
    assert row["max_staleness"] == 27
    assert row["worker_staleness"].tolist() == [0, 27] and row["worker_updates"].tolist() == [27, 1]


@pytest.mark.parametrize("bound", [0, 1, 3, None])
def test_no_gradient_is_staler_than_the_bound_and_nobody_waits_forever(bound):
    clock, seen, count, workers = StalenessClock(bound), [], 40, 4

    def work(worker):
        choice = random.Random(worker)
        for _ in range(count):
            with clock.changed:
                clock.begin(worker)
            sum(range(choice.randrange(2000)))  # takes a while
            with clock.changed:
                seen.append(clock.finish(worker))
        with clock.changed:
            clock.leave(worker)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert clock.version == len(seen) == count * workers
    assert bound is None or max(seen) <= bound


def test_a_lost_worker_holds_nobody_back():
    clock = StalenessClock(1)
    with clock.changed:
        clock.begin(0), clock.begin(1)
        assert clock.finish(0) == 0
    began = threading.Event()

    def begin_again():
        with clock.changed:
            clock.begin(0)
            clock.finish(0)
        began.set()

    threading.Thread(target=begin_again, daemon=True).start()
    assert not began.wait(0.2)  # worker 1 would be too stale
    with clock.changed:
        clock.leave(1)
    assert began.wait(30)


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'jfit.fit_async needs the extra: pip install "jfit\[ray\]"'):
        jfit.fit_async(jfit.sym.Variable("data"), (np.ones((2, 2)), np.ones(2)), actors=RayActors("jfit.fit_async"))


def test_ray_that_would_listen_on_all_interfaces_is_not_started(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    outside = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "192.0.2.2"))
    with pytest.raises(RuntimeError, match="RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before the import"):
        start_ray(outside)


def blobs(rows=240):
    """Three classes around the corners of a cube, in random order."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, rows)
    return (np.eye(3)[label] + 0.3 * rng.normal(size=(rows, 3))).astype("float32"), label.astype("float32")


def softmax():
    hidden = jfit.sym.BatchNorm(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=8, name="fc1"), name="bn")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.relu(hidden), num_hidden=3, name="fc2"), name="softmax")


@pytest.mark.slow
def test_fit_async_trains_saves_and_resumes(tmp_path):
    x, y = blobs()
    options = {"batch_size": 16, "optimizer_params": {"learning_rate": 0.1}, "actors": "threads", "num_workers": 3}
    options |= {"checkpoint": tmp_path, "schedule": "cosine", "clip_norm": 5.0, "max_staleness": 4}
    first = jfit.fit_async(softmax(), (x, y), (x, y), num_epoch=2, **options)
    assert first.history.column("epoch") == [0, 1] and first.position == {"epoch": 2, "batch": 0, "step": 30}
    assert jfit.checkpoint.latest(tmp_path).name == "step-00000030"
    run = jfit.fit_async(softmax(), (x, y), (x, y), num_epoch=6, resume=True, **options)
    assert run.history.column("epoch") == [0, 1, 2, 3, 4, 5] and run.position["step"] == 90
    assert max(run.history.column("max_staleness")) <= 4
    assert run.history.column("val_accuracy")[-1] == run.score((x, y))["accuracy"] > 0.9
    assert sum(map(sum, run.history.column("worker_updates"))) == 90
    assert 0 < float(np.abs(run.aux["bn_moving_mean"]).max()) < 5 and bool((run.aux["bn_moving_var"] > 0).all())
    loaded = jfit.Run.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(x), run.predict(x))


class FailingActors(ThreadActors):
    """Threads in which the worker of one rank raises an error when it computes its second gradient."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def start(self, build, *args, **options):
        return super().start(FailingWorker if build is Worker and args[4] == self.rank else build, *args, **options)


class FailingWorker(Worker):
    computed = 0

    def _gradient(self, *args):
        self.computed += 1
        if self.computed > 2:  # the first is that of the compilation
            raise RuntimeError("the disk is on fire")
        return super()._gradient(*args)


def test_a_worker_that_fails_is_named_and_the_others_go_on(linear):
    _, _, x, y = linear
    options = {"loss": squared, "batch_size": BATCH, "num_epoch": 2, "params": {"w": np.zeros(COLUMNS, "float32")}}
    lost = "lost \\(RuntimeError: the disk is on fire\\); the others go on without its rows"
    with pytest.warns(UserWarning, match=f"worker 1 of 3 was {lost}"):
        run = jfit.fit_async(linear_apply, (x, y), num_workers=3, max_staleness=2, actors=FailingActors(1), **options)
    updates = np.sum(run.history.column("worker_updates"), axis=0)
    assert updates.tolist() == [4, 1, 4] and run.position == {"epoch": 2, "batch": 0, "step": 9}
    with pytest.warns(UserWarning, match=f"worker 0 of 1 was {lost}"), pytest.raises(JobError, match="all 1 workers") as error:
        jfit.fit_async(linear_apply, (x, y), num_workers=1, actors=FailingActors(0), **options)
    assert str(error.value.__cause__) == "the disk is on fire"


def test_arguments_of_fit_async_are_checked():
    x, y = blobs(8)
    for name, value, least in (("num_workers", 0, 1), ("max_staleness", -1, 0), ("num_epoch", 2.5, 1)):
        with pytest.raises(ValueError, match=f"{name} is {value}; expected an integer of at least {least}"):
            jfit.fit_async(softmax(), (x, y), actors="threads", **{name: value})
    with pytest.raises(ValueError, match="actors is 'processes'; expected"):
        jfit.fit_async(softmax(), (x, y), actors="processes")
    with pytest.raises(ValueError, match="8 rows for 9 workers"):
        jfit.fit_async(softmax(), (x, y), actors="threads", num_workers=9)
    with pytest.raises(ValueError, match="iterable of batches"):
        jfit.fit_async(softmax(), iter([{"data": x, "softmax_label": y}]), actors="threads", batch_size=8)


@pytest.mark.slow
def test_digits_are_learned_as_with_synchronous_training():
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype("float32"), y[order].astype("float32")
    train, test = (x[:1400], y[:1400]), (x[1400:], y[1400:])
    net = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=64)
    net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.relu(net), num_hidden=10), name="softmax")
    options = {"batch_size": 32, "num_epoch": 8, "optimizer_params": {"learning_rate": 0.2}}
    together = jfit.fit(net, train, progress=False, **options).score(test)["accuracy"]
    run = jfit.fit_async(net, train, actors="threads", num_workers=4, **options)
    assert max(run.history.column("max_staleness")) >= 1  # gradients were of older parameters
    assert together > 0.94 and run.score(test)["accuracy"] > together - 0.03


# ------------------------------------------------------------------------------------------------ Ray
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install jfit[ray]")


def ended(pid):
    """Wait until a process has ended; kill it after 20 seconds."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        if not select.select([handle], [], [], 20)[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(handle)


def run_script(script, folder, seconds=200):
    """Run a script that uses Ray in a session of its own; whatever is left of it is killed by its ids."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    root = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")]), "JAX_PLATFORMS": "cpu"}
    environment |= {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "XLA_FLAGS": ""}
    (folder / "token").write_text("0" * 64)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([sys.executable, str(path)], env=environment, cwd=folder, start_new_session=True, **pipes)
    try:
        out, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
        for pid in of_session(process.pid):
            ended(pid)
    assert process.returncode == 0, out[-6000:]
    return json.loads(out.rpartition("RESULT ")[2].splitlines()[0])


@RAY
@pytest.mark.slow
def test_on_ray_a_killed_worker_is_named_and_the_others_finish(tmp_path):
    result = run_script(
        """
        import json, os, signal, warnings
        import jax, numpy as np
        import jfit, jfit.distributed.actors
        from ray_support import descendants, start_on_loopback

        MAIN = os.getpid()

        def apply(params, x):
            def check(x):
                if (x == 99).any() and os.getpid() != MAIN:
                    os.kill(os.getpid(), signal.SIGKILL)

            jax.debug.callback(check, x)
            return x @ params["w"] + params["b"]

        if __name__ == "__main__":
            address = start_on_loopback()
            rng = np.random.default_rng(0)
            y = rng.integers(0, 3, 480)
            x = (np.eye(3)[y] + 0.3 * rng.normal(size=(480, 3))).astype("float32")
            spoiled = x.copy()
            spoiled[-1] = 99  # the last row is of the last worker
            params = {"w": np.zeros((3, 3), "float32"), "b": np.zeros(3, "float32")}
            options = {"loss": "cross_entropy", "params": params, "batch_size": 16, "eval_metric": "acc", "optimizer": "adam"}
            options |= {"optimizer_params": {"learning_rate": 0.02}, "num_epoch": 4, "num_workers": 3, "shuffle": False}
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run = jfit.fit_async(apply, (spoiled, y), (x, y), checkpoint="saved", **options)
            named = [str(w.message) for w in caught if "was lost" in str(w.message)]
            jfit.distributed.actors.import_ray("this test").shutdown()
            history = {k: np.asarray(v).tolist() for k in run.history.columns() for v in [run.history.column(k)]}
            values = {"address": address, "warnings": named, "history": history, "left": descendants(os.getpid())}
            print("RESULT", json.dumps({**values, "step": run.position["step"]}))
        """,
        tmp_path,
    )
    assert result["address"].startswith("127.0.0.1:") and result["left"] == []
    assert len(result["warnings"]) == 1 and "worker 2 of 3 was lost" in result["warnings"][0]
    updates = np.sum(result["history"]["worker_updates"], axis=0).tolist()
    assert updates[:2] == [40, 40] and updates[2] < 10 and result["step"] == sum(updates)
    assert result["history"]["val_accuracy"][-1] > 0.9 and max(result["history"]["max_staleness"]) > 0
    assert jfit.checkpoint.latest(tmp_path / "saved").name == f"step-{result['step']:08d}"


# ------------------------------------------------------------------------------------------------ KVStore("dist_async")
def test_a_store_sends_gradients_to_its_server_and_pulls_the_newest_values():
    actors = ThreadActors()
    try:
        server = actors.start(KeyServer, jfit.KVStore, calls=3)
        one, two = (AsyncKVStore("dist_async", server) for _ in range(2))
        two.__class__ = type("Second", (AsyncKVStore,), {"rank": 1})  # without a job both would be rank 0
        for store in (one, two):
            store.init(["w", "b"], [np.ones(2, "float32"), np.zeros(1, "float32")])
            store.set_optimizer(create_optimizer("sgd", learning_rate=0.5, momentum=0.9))
        for update in range(3):
            one.push("w", [np.full(2, update, "float32"), np.ones(2, "float32")])  # of two devices
        out = MutableArray(jnp.zeros(2))
        two.push(["w", "b"], [np.ones(2, "float32"), np.ones(1, "float32")])
        two.pull("w", out=out)
        weight, velocity = np.ones(2), np.zeros(2)
        for gradient in (1, 2, 3, 1):
            velocity = 0.9 * velocity - 0.5 * gradient
            weight = weight + velocity
        np.testing.assert_allclose(out.asnumpy(), weight, rtol=1e-6)
        np.testing.assert_allclose(one.pull("w"), weight, rtol=1e-6)
        assert one.pull("b").tolist() == [-0.5]
        assert one.row_sparse_pull("w", row_ids=[1]).tolist() == [0, pytest.approx(weight[1])]
        assert two.staleness()["updates"] == 4 and two.staleness()["max"] == 3
        two.push("w", np.zeros(2, "float32"))  # nobody has updated since it pulled
        assert two.staleness()["workers"] == [[3, 0, 0], [2, 1.5, 3]]
        with pytest.raises(NotImplementedError, match="updates on its server"):
            one.set_updater(lambda key, gradient, weight: None)
        with pytest.raises(jfit.mxnet.errors.MXNetError, match="'c' is not in the kvstore"):
            one.push("c", np.ones(1))
    finally:
        actors.close()


def test_dist_async_without_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'KVStore\("dist_async"\) needs the extra: pip install "jfit\[ray\]"'):
        connect("dist_async")


@RAY
@pytest.mark.slow
def test_on_ray_mxnet_scripts_train_asynchronously(tmp_path):
    (tmp_path / "token").write_text("0" * 64)
    script = """
        import logging, os
        import numpy as np
        import jfit.mx as mx
        import jobs
        from ray_support import descendants, outside

        kv = mx.kv.create("dist_async")
        found = outside([os.getpid(), *descendants(os.getpid())])
        if found:
            raise SystemExit(f"Ray listens on {found}")
        rng = np.random.default_rng(0)
        y = rng.integers(0, 3, 480)
        x = (np.eye(3)[y] + 0.3 * rng.normal(size=(480, 3))).astype("float32")

        # by hand
        kv.init("a", mx.nd.ones((2,)) * (1 + 5 * kv.rank))
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
        kv.barrier()
        kv.push("a", mx.nd.ones((2,)))
        kv.barrier()
        out = mx.nd.zeros((2,))
        kv.pull("a", out=out)
        jobs.report(a=out.asnumpy(), rank=kv.rank, workers=kv.num_workers, kind=kv.type, updates=kv.staleness()["updates"])

        # Module.fit
        net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
        module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
        part = slice(kv.rank, None, kv.num_workers)
        data = mx.io.NDArrayIter(x[part], y[part].astype("float32"), batch_size=16, shuffle=True)
        options = {"kvstore": kv, "optimizer": "sgd", "optimizer_params": {"learning_rate": 0.5, "momentum": 0.5}}
        module.fit(data, num_epoch=4, initializer=mx.init.Xavier(), **options)
        kv.barrier()
        weight = kv.pull("fc_weight").asnumpy()
        all_rows = mx.io.NDArrayIter(x, y.astype("float32"), batch_size=16)
        staleness = kv.staleness()
        jobs.report(accuracy=module.score(all_rows, "acc")[0][1], weight=weight, staleness=staleness)
        module.save_optimizer_states(f"states-{kv.rank}")
        jobs.report(states=os.path.getsize(f"states-{kv.rank}"))

        # Trainer
        w = mx.gluon.Parameter("w", shape=(3, 1))
        w.initialize(mx.init.Zero())
        trainer = mx.gluon.Trainer([w], "sgd", {"learning_rate": 0.1}, kvstore="dist_async")
        target = x[part] @ np.array([[1.0], [-2.0], [3.0]], "float32")
        for step in range(60):
            rows = slice(step % 15 * 16, step % 15 * 16 + 16)
            error = x[part][rows] @ w.data().asnumpy() - target[rows]
            w.grad()[:] = x[part][rows].T @ error
            w.data()._fresh_grad = True
            trainer.step(16)
        kv.barrier()
        jobs.report(w=w.data().asnumpy())
    """
    environment = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    first, second = jobs.run_job(script, 2, folder=tmp_path, environment=environment).values
    for rank, values in enumerate((first, second)):
        assert values["a"].tolist() == [0, 0]  # 1 of rank 0, and the updates of both
        assert (values["rank"], values["workers"], values["kind"], values["updates"]) == (rank, 2, "dist_async", 2)
        assert values["accuracy"] > 0.9 and values["states"] > 0
        assert values["staleness"]["updates"] == 2 + 2 * 4 * 15
        assert np.abs(values["w"][:, 0] - [1, -2, 3]).max() < 0.5
    np.testing.assert_array_equal(first["weight"], second["weight"])
