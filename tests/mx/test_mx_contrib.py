"""Mixed precision for the whole process, loss scales, and names of `mx.contrib` that need files or other packages."""

import subprocess
import sys

import numpy as np
import pytest

import jfit.mx as mx
from jfit.mxnet import precision
from jfit.mxnet.contrib import amp


@pytest.fixture
def policy(monkeypatch):
    """Undo `amp.init` after the test."""
    monkeypatch.setattr(precision.active, "policy", None)


def test_amp_init_casts_immediate_operators_and_graphs(policy):
    x, w = mx.nd.ones((2, 3)), mx.nd.ones((4, 3))
    amp.init("bfloat16")
    amp.init("float16")  # as in MXNet, later calls do nothing
    out = mx.nd.FullyConnected(x, w, num_hidden=4, no_bias=True)
    assert np.dtype(out.dtype).name == "bfloat16" and mx.nd.exp(out).dtype == np.float32
    assert mx.nd.broadcast_add(out, x[:, :1]).dtype == np.float32
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    assert net.list_arguments() == ["data", "fc_weight", "fc_bias"] and "amp_cast" not in net.tojson()
    assert "data_amp_cast_bfloat16_output" in net.get_internals().list_outputs()


def test_arrays_on_a_cpu_are_not_cast_to_float16(policy):
    amp.init("float16")
    assert mx.nd.FullyConnected(mx.nd.ones((2, 3)), mx.nd.ones((4, 3)), num_hidden=4, no_bias=True).dtype == np.float32


def a_trainer():
    weight = mx.gluon.Parameter("w", shape=(3,), init="ones")
    weight.initialize()
    return weight, mx.gluon.Trainer([weight], "sgd", {"learning_rate": 0.5})


def test_a_step_with_infinite_gradients_changes_nothing_and_halves_the_loss_scale(policy):
    amp.init("bfloat16")
    weight, trainer = a_trainer()
    with pytest.raises(AssertionError, match=r"call amp\.init_trainer"), amp.scale_loss(weight.data(), trainer):
        pass
    amp.init_trainer(trainer)
    seen = []
    for factor in (2.0, float("inf"), 2.0, 2.0):
        with mx.autograd.record():
            loss = (weight.data() * factor).sum()
            with amp.scale_loss(loss, trainer) as scaled:
                scaled.backward()
        trainer.step(1)
        seen.append((float(weight.data().asnumpy()[0]), trainer._amp_loss_scaler.loss_scale))
    assert seen == [(0.0, 2.0**16), (0.0, 2.0**16), (-1.0, 2.0**15), (-2.0, 2.0**15)]


def test_unscale_divides_the_gradients_before_the_step(policy):
    amp.init("bfloat16")
    weight, trainer = a_trainer()
    amp.init_trainer(trainer)
    with mx.autograd.record():
        loss = (weight.data() * 2).sum()
        with amp.scale_loss([loss], trainer) as (scaled,):
            scaled.backward()
    assert weight.grad().asnumpy()[0] == 2 * 2.0**16
    amp.unscale(trainer)
    assert weight.grad().asnumpy()[0] == 2
    trainer.step(1)
    assert weight.data().asnumpy()[0] == 0


class Linear(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(2, 5))

    def hybrid_forward(self, F, x, weight):
        return F.exp(F.FullyConnected(x, weight, num_hidden=2, no_bias=True))


def test_convert_hybrid_block_predicts_as_the_block():
    net = Linear()
    net.initialize(mx.init.Uniform(1.0))
    x = mx.nd.array(np.random.RandomState(0).rand(3, 5))
    with pytest.raises(RuntimeError, match=r"call block\.hybridize"):
        amp.convert_hybrid_block(net)
    net.hybridize()
    expected = net(x).asnumpy()
    converted = amp.convert_hybrid_block(net, "bfloat16")
    assert {np.dtype(p.dtype).name for p in converted.collect_params().values()} == {"float32"}
    np.testing.assert_allclose(converted(x).asnumpy().astype("float32"), expected, rtol=0.02, atol=0.02)
    dense = mx.gluon.nn.Dense(2, in_units=5)
    dense.initialize()
    dense.hybridize()
    dense(x)
    assert amp.convert_hybrid_block(dense, "bfloat16")(x).dtype is np.float32


def test_the_modules_of_contrib_can_be_imported():
    text = """
        from jfit.mx.contrib import amp, text, quantization, onnx, tensorboard, autograd, io
        from jfit.mx.contrib.amp import amp as same, init
        from jfit.mx.contrib.text.vocab import Vocabulary
        import jfit.mx.contrib.text.embedding
        assert same.init is init is amp.init
    """
    subprocess.run([sys.executable, "-c", "\n".join(line.strip() for line in text.splitlines())], check=True)


def test_what_contrib_lacks_says_what_to_do_instead():
    with pytest.raises(FileNotFoundError, match=r"files are not downloaded: fetch glove\.6B\.50d\.txt"):
        mx.contrib.text.embedding.create("glove", pretrained_file_name="glove.6B.50d.txt", embedding_root="/none")


def test_published_vectors_are_read_from_a_local_file(tmp_path):
    folder = tmp_path / "glove"
    folder.mkdir()
    (folder / "glove.6B.50d.txt").write_text("a 1 2\nb 3 4\n")
    glove = mx.contrib.text.embedding.create("glove", pretrained_file_name="glove.6B.50d.txt", embedding_root=tmp_path)
    assert glove.get_vecs_by_tokens("b").asnumpy().tolist() == [3, 4]


def test_export_model_writes_a_graph_and_its_parameters(tmp_path):
    onnx = pytest.importorskip("onnx")
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    params = {"arg:fc_weight": mx.nd.ones((2, 3)), "arg:fc_bias": mx.nd.zeros(2)}
    net.save(str(tmp_path / "net.json"))
    mx.nd.save(str(tmp_path / "net.params"), params)
    for given in ((net, params), (str(tmp_path / "net.json"), str(tmp_path / "net.params"))):
        path = mx.onnx.export_model(*given, [(1, 3)], np.float32, str(tmp_path / "net.onnx"))
        assert [node.op_type for node in onnx.load(path).graph.node] == ["Gemm"]


def test_an_estimator_that_evaluates_batches_otherwise_trains_as_before():
    class Other(mx.gluon.contrib.estimator.Estimator):
        def evaluate_batch(self, val_batch, batch_axis=0):
            raise ZeroDivisionError

    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    estimator = Other(net, mx.gluon.loss.SoftmaxCrossEntropyLoss(), context=mx.cpu())
    data = mx.gluon.data.ArrayDataset(np.ones((4, 3), "float32"), np.zeros(4, "float32"))
    loader = mx.gluon.data.DataLoader(data, batch_size=2)
    estimator.fit(loader, epochs=1)
    with pytest.raises(ZeroDivisionError):
        estimator.evaluate(loader)
