"""Checkpoints with split arrays in a job of two processes: each writes its parts, and any number of processes reads them."""

import jax
import jobs
import numpy as np
import pytest

from jfit.checkpoints.saved import folders_of, read

COMMON = """
import os, sys
import jax, numpy as np, jfit
from jfit.callbacks import checkpointing

rng = np.random.default_rng(0)
x = rng.normal(size=(96, 5)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
net = jfit.sym.Dropout(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=8, name="fc"), p=0.2)
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(net, num_hidden=4, name="out"), name="softmax")


def train(**changed):
    options = dict(batch_size=24, num_epoch=2, optimizer="adam", progress=False, seed=3, reduce="sharded_parameters")
    return jfit.fit(net, (x, y), **{**options, "devices": "all", **changed})
"""

SCRIPT = (
    COMMON
    + """
import jobs
from jfit.parallel import whole

jfit.distributed.init()
whole_state = whole.host_state


def refuse(*arguments):
    raise AssertionError("a whole state on the host")


jfit.run.host_state = refuse  # whole arrays are needed by nothing
whole._of_all, gather = refuse, whole._of_all
run = train(checkpoint=checkpointing("ck", every=3, split=True))
again = train(resume="ck/step-00000003", checkpoint=checkpointing("again", split=True))
jfit.run.host_state, whole._of_all = whole_state, gather
bits = train(checkpoint=checkpointing("bits", every=3, split=True), reduce="2bit")
bits_again = train(resume="bits/step-00000003", reduce="2bit")
train(checkpoint="whole", checkpoint_every=3)
from_whole = train(resume="whole/step-00000003", checkpoint=checkpointing("from_whole", split=True))
states = {"run": run, "again": again, "from_whole": from_whole, "bits": bits, "bits_again": bits_again}
for name, trained in states.items():
    for i, leaf in enumerate(jax.tree.leaves(trained.snapshot())):
        jobs.report(**{f"{name} {i}": np.asarray(leaf)})
loaded = jfit.Run.load("ck").score((x, y), "acc")
jobs.report(same=loaded["accuracy"] == run.score((x, y), "acc")["accuracy"])

# one process cannot write: all of them warn, train on, and raise at the end
if jfit.distributed.rank() == 1:
    from jfit.checkpoints import writing

    def full(*arguments):
        raise OSError(28, "No space left on device")

    writing.save_split = full
try:
    train(checkpoint=checkpointing("full", every=3, split=True), num_epoch=1)
except OSError as error:
    jobs.report(full=str(error))
jobs.report(last=str(jfit.checkpoint.latest("full")))

# folders of hosts that do not share a disk
if jfit.distributed.rank() == 1:
    os.makedirs("elsewhere")
    os.chdir("elsewhere")
try:
    train(resume="ck")
except jfit.distributed.JobError as error:
    jobs.report(elsewhere=str(error))
"""
)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return jobs.run_job(SCRIPT, 2, 2, folder=tmp_path_factory.mktemp("job"))


def here():
    """The definitions of the script, in this process."""
    namespace = {}
    exec(COMMON, namespace)
    return namespace


def arrays(values, name):
    return [
        values[key] for key in sorted(values, key=lambda k: int(k.split()[-1]) if " " in k else 0) if key.split()[0] == name
    ]


@pytest.mark.slow
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(job):
    for process in job:
        expected = arrays(process.values, "run")
        assert len(expected) > 15
        for name in ("again", "from_whole"):
            jax.tree.map(np.testing.assert_array_equal, arrays(process.values, name), expected)
        jax.tree.map(np.testing.assert_array_equal, arrays(process.values, "bits_again"), arrays(process.values, "bits"))
        assert process.values["same"]


@pytest.mark.slow
def test_each_process_writes_its_parts(job):
    folder = job.folder / "ck" / "step-00000008"
    assert {"ocdbt.process_0", "ocdbt.process_1"} <= {file.name for file in (folder / "arrays").iterdir()}
    assert isinstance(read(folder).arrays["state.safetensors"]["params/fc_weight"], jax.ShapeDtypeStruct)
    assert [f.name for f in folders_of(job.folder / "ck")] == ["step-00000003", "step-00000006", "step-00000008"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"devices": 4}, {"devices": 2}, {"devices": 1, "reduce": None}], ids=str)
def test_one_process_resumes_from_it_on_other_devices(job, how):
    run = here()["train"](resume=job.folder / "ck" / "step-00000008", **how)
    expected = arrays(job[0].values, "run")
    for leaf, other in zip(jax.tree.leaves(run.snapshot()), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), other)


@pytest.mark.slow
def test_all_processes_notice_that_one_cannot_write(job):
    main, other = (process.values["full"] for process in job)
    assert "rank 1 of the job failed in writing split arrays: [Errno 28] No space left on device" in main
    assert "/full ([Errno 28] No space left on device)" in other and "the state of step 4 could not be saved in" in other
    assert "training continues, and the next checkpoint is tried again" in job[0].err
    assert [process.values["last"] for process in job] == ["None"] * 2


@pytest.mark.slow
def test_hosts_that_do_not_share_a_disk_are_refused(job):
    message = "the checkpoint ck/step-00000008 has split arrays, and not all hosts see it; put it where all of them do"
    assert all(process.values["elsewhere"].endswith(message) for process in job), job[0].values["elsewhere"]
