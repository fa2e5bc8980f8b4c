"""reduce="ordered" in jobs: the same bits on any number of processes and devices, and when a run moves between them."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jobs import once, run_job

from jfit.parallel.ordered import process_slices
from jfit.parallel.ordered_job import Gather, _packed, _unpacked

# (processes, devices): the step at which it stops a run of 6 steps, which the next layout resumes; 0: the end
LAYOUTS = {(1, 4): 2, (2, 2): 4, (4, 1): 0}
SCRIPT = """
import hashlib, os, sys
import jax, numpy as np, jfit, jobs
from jfit import sym
from jfit.step.reduce import ordered

jfit.distributed.init()
rank, count, stop = jfit.distributed.rank(), jfit.distributed.num_processes(), int(os.environ["STOP"])

def digest(state):
    result = hashlib.sha256()
    for leaf in jax.tree.leaves((state.step, state.params, state.aux, state.opt_state)):
        result.update(np.asarray(leaf).tobytes())
    return result.hexdigest()

def head(net):
    return sym.SoftmaxOutput(sym.FullyConnected(net, num_hidden=4, name="fc"), name="softmax")

rng = np.random.default_rng(0)
x, y = rng.normal(size=(44, 6)).astype("float32"), rng.integers(0, 4, 44).astype("float32")
net = sym.BatchNorm(sym.FullyConnected(sym.Variable("data"), num_hidden=12, name="fc1"), fix_gamma=False, name="bn")
net = head(sym.Dropout(sym.relu(net), p=0.3, name="drop"))
cosine = jfit.optim.schedules.cosine(max_update=6, base_lr=0.05)
options = dict(batch_size=16, num_epoch=2, optimizer="adam", schedule=cosine, clip_norm=0.5, devices="all", progress=False)
options |= dict(reduce=ordered(4), eval_data=(x[:9], y[:9]), eval_metric="acc")
def stopping(event):
    if event.step == stop:
        event.run.stop("moves")
stopping.events, stopping.every = "step", 1
def result(run):
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    rows = [[row[name] for name in names] for row in run.history.epochs]
    return {"digest": digest(run.state), "steps": int(run.state.step), "rows": rows}
saved = dict(checkpoint=sys.argv[1], checkpoint_every=2, resume=True, callbacks=[stopping])
jobs.report(moved=result(jfit.fit(net, (x, y), **options, **saved)))
if count == 1:
    jobs.report(straight=result(jfit.fit(net, (x, y), **options)))

table = sym.Embedding(sym.Variable("data"), input_dim=50, output_dim=5, sparse_grad=True, name="table")
model = jfit.lower(head(sym.Flatten(table)))
batches = [{"data": rng.integers(0, 50, (24, 3)).astype("float32"), "softmax_label": y[:24]} for _ in range(3)]
for own in {1: [False], 2: [False, True]}.get(count, []):
    step = jfit.train_step(model, "adam", outputs=True)
    step = jfit.data_parallel(step, "all", reduce=ordered(4), own_rows=own)
    state = step.place(jfit.init_state(model, "adam", batches[0]))
    for batch in batches:
        part = slice(rank * 24 // count, (rank + 1) * 24 // count) if own else slice(None)
        state, out = step(state, {k: v[part] for k, v in batch.items()})
    key = "own" if own else "whole"
    jobs.report(**{key: digest(state), f"{key}_outputs": np.asarray(out.outputs[0]), f"{key}_loss": float(out.loss)})
"""


@pytest.fixture(scope="module")
def layouts(tmp_path_factory):
    """What the processes of each layout report, the layouts one after the other."""

    def run(folder):
        results = {}
        for (processes, devices), stop in LAYOUTS.items():
            options = {"environment": {"STOP": str(stop)}, "arguments": [str(folder / "checkpoints")]}
            job = run_job(SCRIPT, processes, devices, folder=folder / f"{processes}x{devices}", **options)
            results[processes, devices] = job.values
        return results

    return once(tmp_path_factory, "layouts", run)


@pytest.mark.slow
def test_a_run_that_moves_to_other_processes_keeps_its_bits(layouts):
    for (processes, _), values in layouts.items():  # all ranks have the same state and report the same
        assert [v["moved"] for v in values] == [values[0]["moved"]] * processes
    assert [values[0]["moved"]["steps"] for values in layouts.values()] == [2, 4, 6]
    straight, moved = layouts[1, 4][0]["straight"], layouts[4, 1][0]["moved"]
    assert moved["digest"] == straight["digest"]
    rows, expected = np.array(moved["rows"]), np.array(straight["rows"])
    assert rows.shape == (2, 4)
    np.testing.assert_array_equal(rows[:, :2], expected[:, :2])  # of training
    np.testing.assert_allclose(rows, expected, rtol=1e-6)  # losses of evaluation are added by psum


@pytest.mark.slow
def test_tables_and_own_rows_have_the_same_bits(layouts):
    alone, pair = layouts[1, 4][0], layouts[2, 2]
    assert {v[key] for v in pair for key in ("whole", "own")} == {alone["whole"]}
    assert {v[key] for v in pair for key in ("whole_loss", "own_loss")} == {alone["whole_loss"]}
    outputs = alone["whole_outputs"]
    assert outputs.shape == (24, 4)
    for values in pair:
        np.testing.assert_array_equal(values["whole_outputs"], outputs)
    np.testing.assert_array_equal(np.concatenate([v["own_outputs"] for v in pair]), outputs)


# ------------------------------------------------------------------------------------------------ without a job
def devices_of(*ranks):
    return [SimpleNamespace(process_index=rank) for rank in ranks]


def test_slices_of_a_process_are_consecutive():
    assert process_slices(jax.devices()[:2], 8) is None
    assert process_slices(devices_of(0, 0, 1, 1), 8) == slice(0, 4)
    assert process_slices(devices_of(1, 0), 8) == slice(4, 8)  # ranks in another order
    assert process_slices(devices_of(0, 1, 2), 8) == slice(0, 3)
    assert process_slices(devices_of(0, 0, 1, 1, 2, 2), 8) == slice(0, 3)
    message = "reduce='ordered': 3 processes with rows of their own cannot share 8 slices equally"
    with pytest.raises(ValueError, match=re.escape(message)):
        process_slices(devices_of(0, 1, 2), 8, equal=True)


def test_values_of_all_dtypes_are_sent_unchanged():
    values = [
        {"a": jnp.float32(x) * jnp.arange(3), "b": jnp.bool_(x > 1), "c": (jnp.int32(x), jnp.full((2, 2), x, jnp.bfloat16))}
        for x in (1, 2, 3)
    ]
    buffers = jax.tree.map(lambda x: x[None], _packed(values))
    assert {k: v.shape for k, v in buffers.items()} == {
        "float32": (1, 3, 3),
        "bool": (1, 3, 1),
        "int32": (1, 3, 1),
        "bfloat16": (1, 3, 4),
    }
    for at, value in enumerate(values):
        jax.tree.map(np.testing.assert_array_equal, _unpacked(buffers, (0, at), value), value)


def test_gather_adds_the_slices_of_a_process_first_if_it_may():
    for pairs in (True, False):
        calls = []

        def total(values, calls=calls):
            calls.append(len(values))
            return sum(values)

        gather = Gather([jax.devices()[0]] * 4, total, pairs=pairs, name="total")
        assert float(gather([jnp.float32(x) for x in range(4)])) == 6
        assert 4 in calls and (1 in calls) == pairs
