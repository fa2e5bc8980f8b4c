"""`mx.test_utils` with files of the user, logs of whole scripts, and the profiler: what recorded checks cannot show."""

import gzip
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

import jfit.mx as mx

SCRIPT = """
import logging
logging.basicConfig(level=logging.DEBUG)
import jfit.mx as mx
logging.info("sum %s", (mx.nd.ones(3) * 2).sum().asscalar())
"""


def test_a_script_that_logs_at_level_debug_shows_no_lines_of_jax():
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in run.stderr.splitlines() if line.startswith(("DEBUG", "INFO"))] == ["INFO:root:sum 6.0"]


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    images, labels = np.arange(4 * 784, dtype=np.int64).astype("uint8").reshape(4, 28, 28), np.array([3, 1, 2, 0], "uint8")
    for stem in ("train", "t10k"):
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            with gzip.open(tmp_path / "data" / f"{stem}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + values.tobytes())
    return images, labels


def test_mnist_is_read_from_local_files(mnist):
    images, labels = mnist
    arrays = mx.test_utils.get_mnist()
    np.testing.assert_allclose(arrays["train_data"], images[:, None] / np.float32(255))
    assert arrays["test_label"].tolist() == labels.tolist() and arrays["test_label"].dtype == np.int8
    train, test = mx.test_utils.get_mnist_iterator(2, (1, 28, 28))
    assert next(train).data[0].shape == (2, 1, 28, 28) and next(test).label[0].asnumpy().tolist() == [3, 1]


def test_a_file_that_is_not_there_is_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"jfit does not download data: get it from http.*train-images"):
        mx.test_utils.get_mnist()
    (tmp_path / "net.params").write_bytes(b"")
    assert mx.test_utils.download("http://example.org/net.params") == "net.params"


def test_the_profiler_writes_a_trace_with_the_spans_of_the_script(tmp_path):
    file = tmp_path / "profile.json"
    mx.profiler.set_config(profile_all=True, filename=str(file))
    mx.profiler.set_state("run")
    with mx.profiler.Domain("training").new_task("my epoch"):
        (mx.nd.ones(3) * 2).wait_to_read()
    mx.profiler.set_state("stop")
    mx.profiler.dump()
    assert "my epoch" in {e.get("name") for e in json.loads(file.read_text())["traceEvents"]}
    assert any(line.startswith("my epoch") for line in mx.profiler.dumps(reset=True).splitlines())
    assert "my epoch" not in mx.profiler.dumps()


def test_environment_variables_return_to_their_values_after_an_error():
    with pytest.raises(KeyError), mx.test_utils.environment("JFIT_TEST_NAME", "1"):
        raise KeyError(os.environ["JFIT_TEST_NAME"])
    assert "JFIT_TEST_NAME" not in os.environ
