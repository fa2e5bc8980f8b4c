"""MXNet's classes in jobs of several processes: Module, Trainer, FeedForward and KVStore with dist_sync, and DMLC_* variables.

The oracles are one process with as many contexts and the same rows, and sums written in NumPy.
"""

import struct

import jobs
import numpy as np
import pytest

import jfit
from jfit import mx
from jfit.distributed.settings import Settings, settings_of
from jfit.mxnet.job import end_unless_worker

WORKERS, CONTEXTS, ROWS, STEPS = 2, 2, 16, 4  # ROWS of each worker


def data():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(STEPS * WORKERS * ROWS, 6)).astype("float32")
    return x, (x[:, 0] + x[:, 1] > 0).astype("float32")


def rows_of(worker):
    """Rows of a worker: its part of each global batch."""
    return np.arange(STEPS * WORKERS * ROWS).reshape(STEPS, WORKERS, ROWS)[:, worker].reshape(-1)


def network():
    # no bias: batch normalization makes its gradient 0 up to rounding, which Adam would divide by itself
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, no_bias=True, name="fc1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=2, name="fc2")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def initial(seed):
    rng = np.random.default_rng(seed)
    shapes = {"fc1_weight": (8, 6), "bn_gamma": (8,), "bn_beta": (8,), "fc2_weight": (2, 8), "fc2_bias": (2,)}
    return {k: mx.nd.array(rng.normal(size=s).astype("float32")) for k, s in shapes.items()}


OPTIMIZERS = {"sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-3}, "adam": {"learning_rate": 0.01}}


def trained(optimizer, rows, batch, contexts, kvstore, seed=0, epochs=2, **options):
    """Train a Module; return its parameters and auxiliary states by name, and the Module."""
    x, y = data()
    train = mx.io.NDArrayIter(x[rows], y[rows], batch)
    module = mx.mod.Module(network(), context=[mx.cpu(i) for i in range(contexts)], **options)
    settings = {"optimizer": optimizer, "optimizer_params": dict(OPTIMIZERS[optimizer])}
    module.fit(train, num_epoch=epochs, kvstore=kvstore, arg_params=initial(seed), **settings)
    params, aux = module.get_params()
    return {k: v.asnumpy() for k, v in {**params, **aux}.items()}, module


def flat(prefix, arrays):
    return {f"{prefix}/{k}": v for k, v in arrays.items()}


def part(prefix, values):
    return {k.removeprefix(f"{prefix}/"): v for k, v in values.items() if k.startswith(f"{prefix}/")}


def close(actual, expected, tolerance=1e-6):
    assert sorted(actual) == sorted(expected) and expected
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=0, atol=tolerance, err_msg=name)


def by_hand(kv):
    """Use a KVStore as scripts do; every worker gets the same values, which the test knows."""
    me, out = kv.rank, {}
    kv.init(["a", "b"], [mx.nd.full((2, 3), 5.0 + me), mx.nd.full((4,), 1.0 + me)])  # rank 0 wins
    out["init"] = np.concatenate([kv.pull(k).asnumpy().ravel() for k in ("a", "b")])
    kv.push("a", [mx.nd.full((2, 3), 1.0 + me, ctx=mx.cpu(i)) for i in range(CONTEXTS)], priority=-1)
    kv.push("a", [mx.nd.full((2, 3), 10.0 * (1 + me), ctx=mx.cpu(i)) for i in range(CONTEXTS)])  # the last one wins
    cells = [mx.nd.zeros((2, 3), ctx=mx.cpu(i)) for i in range(CONTEXTS)]
    kv.pull("a", out=cells)
    out["push"] = np.stack([cell.asnumpy() for cell in cells])
    both = [mx.nd.full((2, 3), me), mx.nd.full((4,), 2.0 * me)]
    kv.pushpull(["a", "b"], both)
    out["pushpull"] = np.concatenate([cell.asnumpy().ravel() for cell in both])
    for number, kind in enumerate(("float16", "int32", "float64", "int64", "uint8")):
        kv.init(f"of {kind}", np.zeros(2, kind))
        kv.push(f"of {kind}", np.full(2, 3 + me + number, kind))
        out[kind] = np.asarray(kv.pull(f"of {kind}").asnumpy())
    table = np.arange(12, dtype="float32").reshape(6, 2)
    kv.init("table", mx.nd.array(table))
    rows = np.array([[0, 4, 4], [5, 1, 0]][me])
    out["rows"] = kv.row_sparse_pull("table", row_ids=mx.nd.array(rows)).asnumpy()
    kv.barrier()
    return out


def updated(kv, folder):
    """Momentum SGD in the store, 2-bit compression in another one; states are written by rank 0 and read by all."""
    out = {}
    kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9, rescale_grad=0.25))
    kv.init("w", mx.nd.ones((3,)) * (1 + kv.rank))
    for step in range(3):
        kv.push("w", mx.nd.full((3,), 1.0 + step + kv.rank))
    if kv.rank == 0:
        kv.save_optimizer_states(f"{folder}/kv.states", dump_optimizer=True)
    kv.barrier()
    again = mx.kv.create("dist_sync")
    again.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5, momentum=0.9, rescale_grad=0.25))
    again.init("w", kv.pull("w"))
    again.load_optimizer_states(f"{folder}/kv.states")
    for store in (kv, again):
        store.push("w", mx.nd.full((3,), 2.0 - kv.rank))
    out["momentum"], out["resumed"] = kv.pull("w").asnumpy(), again.pull("w").asnumpy()
    bits = mx.kv.create("dist_device_sync")
    bits.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    bits.init("g", mx.nd.zeros((4,)))
    seen = []
    for step in range(3):
        bits.push("g", [mx.nd.array(g, ctx=mx.cpu(i)) for i, g in enumerate(pieces(kv.rank, step))])
        seen.append(bits.pull("g").asnumpy())
    return {**out, "bits": np.stack(seen)}


def quantized(values, threshold):
    return np.where(values >= threshold, threshold, np.where(values <= -threshold, -threshold, 0)).astype("float32")


def pieces(worker, step):
    """Gradients of the contexts of a worker."""
    return np.random.default_rng([worker, step]).normal(size=(CONTEXTS, 4)).astype("float32") * 0.4


def trainer_steps(kvstore, workers, **options):
    """Train a linear model by gluon's Trainer on the rows of some workers; return its parameters."""
    first = workers[0]
    params = mx.gluon.ParameterDict()
    weight, bias = params.get("weight", shape=(6,)), params.get("bias", shape=(1,))
    params.initialize(ctx=[mx.cpu(i) for i in range(CONTEXTS * len(workers))])
    for param in (weight, bias):
        param.set_data(mx.nd.full(param.shape, 0.5 + first))
    trainer = mx.gluon.Trainer(params, "adam", {"learning_rate": 0.05}, kvstore=kvstore, **options)
    for step in range(-1, 3):
        for i, worker in enumerate(workers):
            for k in range(CONTEXTS):
                at = slice((2 * worker + k) * 4, (2 * worker + k + 1) * 4)
                x, y = (v[at] for v in data())
                x = np.roll(x, step)
                error = x @ weight.list_data()[0].asnumpy() + bias.list_data()[0].asnumpy() - y
                scale = float(step >= 0)  # the first step sends the parameters of rank 0 to all workers
                weight.list_grad()[CONTEXTS * i + k][:] = scale * (x.T @ error)
                bias.list_grad()[CONTEXTS * i + k][:] = scale * error.sum(keepdims=True)
                for param in (weight, bias):
                    param.list_data()[CONTEXTS * i + k]._fresh_grad = True
        trainer.step(4 * CONTEXTS * WORKERS)
    return {"weight": weight.data().asnumpy(), "bias": bias.data().asnumpy()}


def pytree_steps(kvstore, workers):
    """Train a pytree; the gradients are those of some workers."""
    trainer = jfit.Trainer({"w": np.full(3, 1.0 + workers[0], "float32")}, "sgd", {"learning_rate": 1.0}, kvstore=kvstore)
    for step in range(2):
        new = trainer.step(4, grads={"w": np.float32(sum(1 + worker + step for worker in workers)) * np.ones(3, "float32")})
    return {"w": np.asarray(new["w"])}


def embedding_module(rows, batch, contexts, kvstore, **options):
    """Train an embedding whose gradient is row-sparse; the last batch of the second worker may be larger."""
    net = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=50, output_dim=4, sparse_grad=True, name="embed")
    net = mx.sym.FullyConnected(mx.sym.Flatten(net), num_hidden=2, name="fc")
    net = mx.sym.SoftmaxOutput(net, name="softmax")
    rng = np.random.default_rng(3)
    ids, y = rng.integers(0, 50, (64, 3)).astype("float32"), rng.integers(0, 2, 64).astype("float32")
    module = mx.mod.Module(net, context=[mx.cpu(i) for i in range(contexts)])
    train = mx.io.NDArrayIter(ids[rows], y[rows], batch)
    params = {"embed_weight": (50, 4), "fc_weight": (2, 12), "fc_bias": (2,)}
    params = {k: mx.nd.array(rng.normal(size=s)) for k, s in params.items()}
    module.fit(train, num_epoch=2, kvstore=kvstore, optimizer="adam", arg_params=params, optimizer_params=options)
    return {k: v.asnumpy() for k, v in module.get_params()[0].items()}


def buckets(kvstore, workers):
    """Train with buckets of different lengths in the workers of each step; row-sparse gradients of different sizes."""

    def network_of(length):
        net = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=9, output_dim=4, sparse_grad=True, name="embed")
        net = mx.sym.FullyConnected(mx.sym.mean(net, axis=1), num_hidden=2, name="fc")
        return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    rng = np.random.default_rng(3)
    module = mx.mod.BucketingModule(network_of, default_bucket_key=5, context=mx.cpu())
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    params = {"embed_weight": (9, 4), "fc_weight": (2, 4), "fc_bias": (2,)}
    module.init_params(arg_params={k: mx.nd.array(rng.normal(size=s) + workers[0]) for k, s in params.items()})
    module.init_optimizer(kvstore, "sgd", {"learning_rate": 0.5})
    batches = {(step, w): rng.integers(0, 9, (4, (5, 3)[(step + w) % 2])) for step in range(3) for w in range(WORKERS)}
    start = {k: v.asnumpy() for k, v in module.get_params()[0].items()}
    for step in range(3):
        totals = {}
        for worker in workers:
            ids = batches[step, worker]
            shapes = {"provide_data": [("data", ids.shape)], "provide_label": [("softmax_label", (4,))]}
            label = mx.nd.array(ids[:, 0] % 2)
            batch = mx.io.DataBatch([mx.nd.array(ids)], [label], bucket_key=ids.shape[1], **shapes)
            module.forward_backward(batch)
            if len(workers) > 1:  # the oracle: the sum of the gradients of both
                for name, gradient in module._curr_module.gradients().items():
                    totals[name] = totals.get(name, 0) + np.asarray(gradient.asnumpy())
        if len(workers) == 1:
            module.update()
            continue
        start = {k: v - 0.5 * totals[k] / (4 * WORKERS) for k, v in start.items()}
        module.set_params({k: mx.nd.array(v) for k, v in start.items()}, {})
    return {k: v.asnumpy() for k, v in module.get_params()[0].items()}


def feedforward(rows, batch, contexts, kvstore):
    x, y = data()
    model = mx.model.FeedForward(
        network(), ctx=[mx.cpu(i) for i in range(contexts)], num_epoch=2, arg_params=initial(0), learning_rate=0.1, momentum=0.9
    )
    model.fit(mx.io.NDArrayIter(x[rows], y[rows], batch), kvstore=kvstore)
    return {k: v.asnumpy() for k, v in {**model.arg_params, **model.aux_params}.items()}


def sequential(rows, batch, contexts, kvstore):
    """Train two modules one after the other; the first has no loss of its own."""
    x, y = data()
    where = [mx.cpu(i) for i in range(contexts)]
    first = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc1"), act_type="tanh")
    second = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc2"), name="softmax")
    module = mx.mod.SequentialModule()
    module.add(mx.mod.Module(first, label_names=None, context=where))
    module.add(mx.mod.Module(second, context=where), take_labels=True, auto_wiring=True)
    rng = np.random.default_rng(5)
    shapes = {"fc1_weight": (8, 6), "fc1_bias": (8,), "fc2_weight": (2, 8), "fc2_bias": (2,)}
    params = {k: mx.nd.array(rng.normal(size=s)) for k, s in shapes.items()}
    train = mx.io.NDArrayIter(x[rows], y[rows], batch)
    module.fit(train, num_epoch=1, kvstore=kvstore, arg_params=params, optimizer_params={"learning_rate": 0.5})
    return {k: v.asnumpy() for k, v in module.get_params()[0].items()}


def refused():
    """Sentences about what would not do what it says."""
    out, x = {}, data()[0]
    bound = mx.mod.Module(network())
    bound.bind([("data", (4, 6))], [("softmax_label", (4,))])
    bound.init_params()
    calls = {
        "local": lambda: bound.init_optimizer(kvstore="local"),
        "Trainer": lambda: jfit.Trainer({"w": x}, "sgd"),
        "command": lambda: mx.kv.create("dist_sync")._send_command_to_servers(0, ""),
    }
    for name, call in calls.items():
        try:
            call()
        except (ValueError, NotImplementedError) as error:
            out[name] = str(error)
    bound.init_optimizer(kvstore=None)  # alone, if that is what the script says
    return out


SCRIPT = """
import jfit, jobs, numpy as np
from jfit import mx
import test_jobs_mxnet as t

jfit.distributed.init()
kv = mx.kv.create("dist_device_sync")
me = kv.rank
rows = t.rows_of(me)
jobs.report(rank=me, workers=kv.num_workers, kind=kv.type, refused=t.refused())
jobs.report(**t.by_hand(mx.kv.create("dist_sync")))
jobs.report(**t.updated(mx.kv.create("dist_sync"), "."))
for optimizer in t.OPTIMIZERS:
    values, module = t.trained(optimizer, rows, t.ROWS, t.CONTEXTS, kv, seed=me)
    jobs.report(**t.flat(optimizer, values))
jobs.report(rescale=module._optimizer.rescale_grad)
for on_store in (True, False):
    jobs.report(**t.flat(f"trainer {on_store}", t.trainer_steps("dist_sync", [me], update_on_kvstore=on_store)))
jobs.report(**t.flat("pytree", t.pytree_steps("dist_sync", [me])))
two_bit = {"type": "2bit", "threshold": 0.05}
jobs.report(**t.flat("2bit", t.trained("sgd", rows, t.ROWS, t.CONTEXTS, kv, epochs=1, compression_params=two_bit)[0]))
jobs.report(**t.flat("embedding", t.embedding_module(rows[: 32], 16, 1, kv)))
jobs.report(**t.flat("buckets", t.buckets("dist_sync", [me])))
jobs.report(**t.flat("sequential", t.sequential(rows, t.ROWS, t.CONTEXTS, "dist_sync")))
jobs.report(**t.flat("feedforward", t.feedforward(rows, t.ROWS, t.CONTEXTS, "dist_sync")))
module.save_checkpoint("both", 2, save_optimizer_states=True)  # all at once, the same files
again = mx.mod.Module.load("both", 2, load_optimizer_states=True)
jobs.report(loaded=again._loaded[0]["fc2_bias"])
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """What the workers report."""
    return jobs.once(tmp_path_factory, "mxnet", lambda folder: jobs.run_job(SCRIPT, WORKERS, CONTEXTS, folder=folder).values)


ALL = np.arange(STEPS * WORKERS * ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_workers_train_as_one_process_with_their_contexts(job, optimizer):
    whole, _ = trained(optimizer, ALL, WORKERS * ROWS, WORKERS * CONTEXTS, "device")
    for values in job:
        close(part(optimizer, values), whole)
        assert values["rescale"] == 1 / (WORKERS * ROWS) and values["workers"] == WORKERS
    assert [values["rank"] for values in job] == [0, 1]


@pytest.mark.slow
def test_a_store_used_by_hand_sums_over_contexts_and_workers(job):
    for worker, values in enumerate(job):
        assert values["init"].tolist() == [5.0] * 6 + [1.0] * 4
        assert values["push"].tolist() == np.full((CONTEXTS, 2, 3), 10.0 * CONTEXTS * (1 + 2)).tolist()
        assert values["pushpull"].tolist() == [1.0] * 6 + [2.0] * 4
        for number, kind in enumerate(("float16", "int32", "float64", "int64", "uint8")):
            assert values[kind].tolist() == [7 + 2 * number] * 2 and values[kind].dtype == kind
        table, rows = np.arange(12.0).reshape(6, 2), [[0, 4], [5, 1, 0]][worker]
        assert values["rows"].tolist() == np.where(np.isin(np.arange(6), rows)[:, None], table, 0).tolist()


@pytest.mark.slow
def test_a_store_updates_alike_in_all_workers(job):
    weight, momentum = np.float32(1), np.float32(0)
    for total in (3.0, 5.0, 7.0, 3.0):  # sums of both workers
        momentum = np.float32(0.9) * momentum - np.float32(0.5) * np.float32(0.25 * total)
        weight += momentum
    residuals, seen = np.zeros((WORKERS, 4), "float32"), []
    for step in range(3):  # each worker compresses the sum over its contexts
        residuals += [pieces(worker, step).sum(0) for worker in range(WORKERS)]
        sent = quantized(residuals, 0.5)
        residuals -= sent
        seen.append(sent.sum(0))
    assert len({value for row in seen for value in row.tolist()}) > 2
    for values in job:
        np.testing.assert_allclose(values["momentum"], np.full(3, weight), atol=1e-6)
        close(
            {"resumed": values["resumed"], "bits": values["bits"]}, {"resumed": values["momentum"], "bits": np.stack(seen)}, 0
        )


@pytest.mark.slow
def test_trainers_of_all_workers_take_the_same_steps(job):
    whole = trainer_steps("device", range(WORKERS))
    for values in job:
        for on_store in (True, False):
            close(part(f"trainer {on_store}", values), whole)
        close(part("pytree", values), pytree_steps("device", range(WORKERS)))


@pytest.mark.slow
def test_workers_compress_the_sum_over_their_contexts(job):
    """The oracle quantizes the gradients of one context for each worker; moving statistics are not compared."""
    modules = []
    for _ in range(WORKERS):
        module = mx.mod.Module(network(), context=[mx.cpu(i) for i in range(CONTEXTS)])
        module.bind([("data", (ROWS, 6))], [("softmax_label", (ROWS,))])
        modules.append(module)
    (x, y), params = data(), {k: v.asnumpy() for k, v in initial(0).items()}
    momenta, residuals = {k: np.zeros_like(v) for k, v in params.items()}, [dict.fromkeys(params, 0.0) for _ in modules]
    for step in range(STEPS):
        totals = {k: np.zeros_like(v) for k, v in params.items()}
        for worker, module in enumerate(modules):
            module.init_params(arg_params={k: mx.nd.array(v) for k, v in params.items()}, allow_missing=True, force_init=True)
            at = rows_of(worker)[step * ROWS : (step + 1) * ROWS]
            module.forward_backward(mx.io.DataBatch([mx.nd.array(x[at])], [mx.nd.array(y[at])]))
            for name, gradient in module.gradients().items():
                total = residuals[worker][name] + gradient.asnumpy()
                sent = quantized(total, 0.05)
                residuals[worker][name] = total - sent
                totals[name] += sent
        for name, value in params.items():
            decay = 1e-3 if name.endswith(("_weight", "_gamma")) else 0
            momenta[name] = 0.9 * momenta[name] - 0.1 * (totals[name] / (WORKERS * ROWS) + decay * value)
            params[name] = value + momenta[name]
    for values in job:
        trained_values = part("2bit", values)
        close({k: trained_values[k] for k in params}, params)


@pytest.mark.slow
def test_row_sparse_gradients_of_all_workers_are_added(job):
    rows = np.stack([rows_of(worker)[:32].reshape(2, 16) for worker in range(WORKERS)], 1).reshape(-1)
    whole = embedding_module(rows, 32, 2, "device")
    for values in job:
        close(part("embedding", values), whole)
        close(part("buckets", values), buckets("local", range(WORKERS)))


@pytest.mark.slow
@pytest.mark.parametrize("train", [feedforward, sequential])
def test_other_classes_train_in_all_workers(job, train):
    whole = train(ALL, WORKERS * ROWS, WORKERS * CONTEXTS, "device")
    for values in job:
        close(part(train.__name__, values), whole)


@pytest.mark.slow
def test_what_would_train_apart_is_refused(job):
    for values in job:
        sentences = values["refused"]
        assert "each of which would train a model of its own; pass kvstore='dist_sync'" in sentences["local"]
        assert sentences["Trainer"].startswith("kvstore='device' sums over the devices of one process")
        assert "a kvstore of jfit has no servers" in sentences["command"]


@pytest.mark.slow
def test_workers_write_one_checkpoint_at_once(job):
    for values in job:
        close({"fc2_bias": values["loaded"]}, {"fc2_bias": part("adam", values)["fc2_bias"]}, 0)


def test_the_parts_of_files_are_disjoint_and_complete(tmp_path):
    count, parts = 12, 3
    (tmp_path / "rows.libsvm").write_text("".join(f"{i % 2} 0:{i + 1}\n" for i in range(count)))
    images = np.zeros((count, 2, 2), np.uint8)
    images[:, 0, 0] = np.arange(1, count + 1)
    for name, array in (("images", images), ("labels", np.zeros(count, np.uint8))):
        head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (tmp_path / name).write_bytes(head + array.tobytes())
    files = {"image": str(tmp_path / "images"), "label": str(tmp_path / "labels"), "shuffle": False, "silent": True}
    made = {
        "LibSVMIter": lambda **part: mx.io.LibSVMIter(
            data_libsvm=str(tmp_path / "rows.libsvm"), data_shape=(1,), batch_size=2, **part
        ),
        "MNISTIter": lambda **part: mx.io.MNISTIter(batch_size=2, **files, **part),
    }
    for name, make in made.items():
        scale = 256 if name == "MNISTIter" else 1
        read = []
        for k in range(parts):
            batches = list(make(num_parts=parts, part_index=k))
            read.append([round(float(v) * scale) for batch in batches for v in rows_of_batch(batch)])
        assert all(read) and sorted(row for rows in read for row in rows) == list(range(1, count + 1)), (name, read)


def rows_of_batch(batch):
    """The first value of each row of a batch, without padding rows."""
    rows = batch.data[0]
    rows = np.asarray((rows.tostype("default") if hasattr(rows, "tostype") else rows).asnumpy())
    return rows.reshape(len(rows), -1)[: len(rows) - (batch.pad or 0), 0]


# ------------------------------------------------------------------------------------------------ variables of MXNet's launcher
LAUNCHED = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "2"}


@pytest.mark.parametrize(
    ("more", "rank"),
    [({"DMLC_WORKER_ID": "1"}, 1), ({"DMLC_TASK_ID": "0"}, 0), ({"DMLC_RANK": "1"}, 1), ({"PMI_RANK": "1"}, 1)],
)
def test_variables_of_the_launcher_describe_the_job(more, rank):
    settings = settings_of(environment={**LAUNCHED, "DMLC_NUM_SERVER": "1", **more})
    assert settings == Settings("127.0.0.1:9091", 2, rank, None, settings.source)
    assert "DMLC_NUM_WORKER" in settings.source
    torchrun = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert settings_of(environment={**LAUNCHED, **torchrun}).num_processes == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"DMLC_PS_ROOT_URI": None}, "has DMLC_NUM_WORKER, as MXNet's launcher sets it, but not DMLC_PS_ROOT_URI"),
        ({"DMLC_WORKER_ID": "2"}, "rank 2 of 2 processes, from the environment variables of MXNet's launcher"),
        ({}, "but not DMLC_WORKER_ID; start the script with the launcher, or set it for each process"),
        ({"DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "two"}, "DMLC_NUM_WORKER is 'two', expected a whole number"),
        ({"DMLC_WORKER_ID": "0", "DMLC_NUM_WORKER": "0"}, "of 0 processes"),
        ({"DMLC_ROLE": "server"}, "only workers take part in a job"),
    ],
)
def test_impossible_variables_of_the_launcher_raise(change, message):
    environment = {k: v for k, v in {**LAUNCHED, **change}.items() if v is not None}
    with pytest.raises(ValueError, match=message):
        settings_of(environment=environment)


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_servers_and_schedulers_end_with_a_line(role, monkeypatch, capsys):
    for name, value in {**LAUNCHED, "DMLC_ROLE": role}.items():
        monkeypatch.setenv(name, value)
    for start in (end_unless_worker, lambda: mx.kv.create("dist_sync")):  # `import jfit.mx` calls the first
        with pytest.raises(SystemExit) as error:
            start()
        assert error.value.code == 0
        assert f"DMLC_ROLE is {role!r}, but jfit needs workers only" in capsys.readouterr().err


LAUNCHED_SCRIPT = """
import logging, os, subprocess, sys
os.environ["DMLC_WORKER_ID"] = os.environ["JOB_RESULTS"][-1]  # the launcher of this test gives all the same variables
import jfit.mx as mx  # ends servers and schedulers
import jobs, numpy as np
logging.basicConfig(level=logging.INFO, stream=sys.stdout)

kv = mx.kv.create("dist_sync")
kv.init(3, mx.nd.ones((2,)) * (5 - kv.rank))
kv.push(3, mx.nd.ones((2,)) * (1 + kv.rank))
out = mx.nd.zeros((2,))
kv.pull(3, out=out)
x = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")
x = x[kv.rank :: kv.num_workers]
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
module = mx.mod.Module(net)
module.fit(mx.io.NDArrayIter(x, (x[:, 0] > 0).astype("float32"), 4), num_epoch=2, kvstore=kv,
           batch_end_callback=mx.callback.Speedometer(4, 2))
weight = next(iter(module.get_params()[0].values())).asnumpy()
server = None
if kv.rank == 0:
    command = [sys.executable, "-c", "import jfit.mx; print('not reached')"]
    server = subprocess.run(command, env={**os.environ, "DMLC_ROLE": "server"}, capture_output=True, text=True, timeout=120)
    server = [server.returncode, server.stdout, server.stderr]
jobs.report(rank=kv.rank, workers=kv.num_workers, pulled=out.asnumpy(), weight=weight, server=server)
"""


@pytest.mark.slow
def test_a_script_for_dist_sync_joins_by_the_variables_of_the_launcher(tmp_path):
    environment = {**LAUNCHED, "DMLC_PS_ROOT_PORT": str(jobs.free_port()), "DMLC_NUM_SERVER": "1"}
    job = jobs.run_job(LAUNCHED_SCRIPT, WORKERS, folder=tmp_path, settings=None, environment=environment)
    assert [process.values["rank"] for process in job] == [0, 1]
    for process in job:
        assert process.values["workers"] == 2 and process.values["pulled"].tolist() == [3.0, 3.0]
        np.testing.assert_array_equal(process.values["weight"], job[0].values["weight"])
    code, out, err = job[0].values["server"]
    assert code == 0 and not out and "DMLC_ROLE is 'server'" in err
    lines = [[line for line in process.out.splitlines() if "Epoch[1]" in line] for process in job]
    assert all(line.startswith("INFO:root:Epoch[1]") for line in lines[0]) and len(lines[0]) >= 3
    assert all(line.startswith("INFO:root:rank 1: Epoch[1]") for line in lines[1]) and len(lines[1]) == len(lines[0])
