"""Memory maps that are larger than the memory that a process may use."""

import subprocess
import sys

import pytest

TRAIN = """
import resource, sys
import numpy as np
import jfit
from jfit import mx

rows, width = 9000, 1 << 18
x = np.memmap(sys.argv[1], np.uint8, "r", shape=(rows, width))
y = (np.arange(rows) % 2).astype("float32")
net = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=2), name="softmax")
options = {"batch_size": 16, "progress": False}
jfit.fit(net, (x[:32], y[:32]), num_epoch=1, **options)  # threads and compilers have what they need
now = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
limit = now + x.nbytes // 2
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.array(x)
    raise SystemExit("the limit has no effect")
except MemoryError:
    pass
run = jfit.fit(net, (x, y), (x[:64], y[:64]), num_steps=3, **options)
jfit.fit(net, {"data": x, "softmax_label": y}, num_steps=3, shuffle=False, validation_split=0.01, **options)
next(iter(mx.io.NDArrayIter(x, y, batch_size=16, shuffle=True)))
next(iter(mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, y), batch_size=16, shuffle=True)))
print("steps", int(run.state.step))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is one of Linux")
def test_a_memory_map_larger_than_memory_trains_without_a_copy(tmp_path):
    file = tmp_path / "x.bin"
    with file.open("wb") as sparse:  # takes no space on the disk
        sparse.truncate(9000 << 18)
    result = subprocess.run([sys.executable, "-c", TRAIN, str(file)], capture_output=True, text=True, timeout=240)
    assert result.stdout == "steps 3\n", result.stderr[-2000:]
