"""Jobs of several processes: fit, score, predict, streams and hand-written steps compute what one process computes."""

import numpy as np
from jobs import run_job

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
run = jfit.fit(net, (x, y), **options)
jobs.report(rank=jfit.distributed.rank(), count=jfit.distributed.num_processes(), devices=len(run.settings.devices))
jobs.report(weight=run.params["fc_weight"], losses=[row["val_loss"] for row in run.history.epochs])
"""


def test_two_processes_train_as_one(tmp_path):
    job = run_job(QUICK, 2, folder=tmp_path)
    first, second = job.values
    assert [(v["rank"], v["count"], v["devices"]) for v in job.values] == [(0, 2, 2), (1, 2, 2)]
    np.testing.assert_array_equal(first["weight"], second["weight"])
    assert first["losses"] == second["losses"]
    namespace: dict = {}
    exec(QUICK.replace("jfit.distributed.init()", "").replace('"all"', "2").split("jobs.report")[0], namespace)
    run = namespace["run"]
    np.testing.assert_allclose(first["weight"], run.params["fc_weight"], rtol=1e-5)
    np.testing.assert_allclose(first["losses"], run.history.column("val_loss"), rtol=1e-5)
