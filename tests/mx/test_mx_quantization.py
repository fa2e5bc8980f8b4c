"""Quantized networks compute almost what the float networks compute; tests/mx/checks/quantization.py compares with MXNet."""

import numpy as np
import pytest
from jfit.mx.contrib.quantization import calib_graph, quantize_graph, quantize_model, quantize_model_mkldnn, quantize_net_v2

import jfit.mx as mx

VALUES = np.random.RandomState(0).uniform(0, 1, (8, 2, 8, 8)).astype("float32")


class Residual(mx.gluon.HybridBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = mx.gluon.nn.Conv2D(4, 3, padding=1, in_channels=4)
            self.norm = mx.gluon.nn.BatchNorm(in_channels=4)

    def hybrid_forward(self, F, x):
        return F.Activation(x + self.norm(self.conv(x)), act_type="relu")


def network():
    nn, draw = mx.gluon.nn, np.random.RandomState(1)
    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, padding=1, in_channels=2, activation="relu"), Residual(), nn.MaxPool2D())
        net.add(nn.Dense(3, in_units=64))
    net.initialize()
    for _, param in sorted(net.collect_params().items()):
        positive = "gamma" in param.name or "running_var" in param.name
        param.set_data(mx.nd.array(draw.uniform(0.5 if positive else -0.5, 1 if positive else 0.5, param.shape)))
    return net


@pytest.mark.parametrize("mode", ["none", "naive"])
def test_a_quantized_block_is_near_the_float_block(mode):
    net, x = network(), mx.nd.array(VALUES)
    expected = net(x).asnumpy()
    batches = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(VALUES, np.zeros(8, "float32")), 3)  # the last has two rows
    quantized = quantize_net_v2(net, calib_data=batches, calib_mode=mode)
    np.testing.assert_allclose(quantized(x).asnumpy(), expected, atol=0.03 * np.abs(expected).max())
    operators = {node.op.name for node in quantized(mx.sym.Variable("data")).nodes() if node.op}
    assert ("BatchNorm" in operators) is (mode == "none")
    assert "_contrib_quantized_elemwise_add" in operators


def test_a_quantized_block_can_be_exported_and_imported(tmp_path):
    quantized = quantize_net_v2(network(), calib_data=[mx.nd.array(VALUES)], calib_mode="naive", exclude_layers_match=["dense"])
    quantized.export(str(tmp_path / "net"))
    again = mx.gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), "data", str(tmp_path / "net-0000.params"))
    x = mx.nd.array(VALUES)
    np.testing.assert_array_equal(again(x).asnumpy(), quantized(x).asnumpy())


def test_an_array_that_is_an_output_and_used_is_dequantized_once():
    x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, no_bias=True, name="f1")
    net = mx.sym.Group([x, mx.sym.exp(x, name="e")])
    symbol, params, _ = quantize_model(net, {"f1_weight": mx.nd.ones((3, 4)) / 10}, {}, calib_mode="none")
    assert symbol.list_outputs() == ["f1_dequantize_output", "e_output"]
    first, second = symbol.bind(mx.cpu(), {"data": mx.nd.ones((2, 4)), **params}).forward()
    np.testing.assert_allclose(second.asnumpy(), np.exp(first.asnumpy()), rtol=1e-6)


def test_uint8_is_int8_where_mxnet_fuses():
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, no_bias=True, name="f1")
    params, data = {"f1_weight": mx.nd.ones((3, 4))}, mx.io.NDArrayIter(np.ones((4, 4), "float32"))
    options = {"calib_mode": "naive", "calib_data": data}
    fused = quantize_model_mkldnn(net, params, {}, ("data",), None, mx.cpu(), quantized_dtype="auto", **options)[0]
    data.reset()
    assert fused.tojson() == quantize_model(net, params, {}, **options)[0].tojson()


def test_batch_normalization_on_integers_needs_a_range():
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), name="bn")
    params, aux = (
        {n: mx.nd.ones(3) for n in ("bn_gamma", "bn_beta")},
        {f"bn_moving_{n}": mx.nd.ones(3) for n in ("mean", "var")},
    )
    symbol, params, aux, collector = quantize_graph(net, params, aux, calib_mode="naive")
    inputs = {"data": mx.nd.ones((2, 3)), **params}
    with pytest.raises(mx.MXNetError, match="min_calib_range and max_calib_range are needed: calibrate the model"):
        symbol.bind(mx.cpu(), inputs, aux_states=aux).forward()[0].asnumpy()
    collector.min_max_dict.update(data=(-1, 1), bn_output=(-2, 2))
    symbol = calib_graph(symbol, params, aux, collector, "naive")[0]
    assert symbol.bind(mx.cpu(), inputs, aux_states=aux).forward()[0].shape == (2, 3)


def test_the_threshold_of_a_histogram_is_an_operator():
    hist, edges = np.histogram(np.linspace(-1, 1, 2000), 501, (-1, 1))
    symbol = mx.sym.contrib.calibrate_entropy(mx.sym.Variable("h"), mx.sym.Variable("e"), num_quantized_bins=255)
    threshold, _ = symbol.bind(mx.cpu(), {"h": mx.nd.array(hist), "e": mx.nd.array(edges)}).forward()
    assert threshold.asnumpy() == mx.nd.contrib.calibrate_entropy(mx.nd.array(hist), mx.nd.array(edges))[0].asnumpy()
    assert symbol.infer_shape(h=(501,), e=(502,))[1] == [(1,), (1,)]
    with pytest.raises(
        Exception, match="hist has 4 bins, expected an odd number >= 255; hist_edges has 5 entries, expected one more"
    ):
        mx.nd.contrib.calibrate_entropy(mx.nd.ones(4), mx.nd.ones(5))[0].asnumpy()
