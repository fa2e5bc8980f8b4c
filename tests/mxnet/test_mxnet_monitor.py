"""Monitor: MXNet's recorded statistics, the captured arrays and their order, no cost while inactive."""

import json
import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jfit
from jfit import counters
from jfit.data import DataBatch
from jfit.mxnet.module.module import Module
from jfit.mxnet.monitor.capture import capture_gradients
from jfit.mxnet.monitor.monitor import Monitor
from jfit.step import gradient_step

FOLDER = Path(__file__).parents[1] / "golden" / "fit"
KEY = jax.random.key_data(jax.random.key(7))
SYM = jfit.sym


def recorded():
    """What MXNet's monitor showed; the network, its first parameters and its first four batches."""
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    with np.load(FOLDER / "fit.npz") as arrays:
        values = dict(arrays)
    params = {k[5:]: jnp.asarray(v) for k, v in values.items() if k[:5] == "init/"}
    size = manifest["batch_size"]
    batches = [
        {"data": values["X"][i : i + size], "softmax_label": values["Y"][i : i + size]} for i in range(0, 4 * size, size)
    ]
    return manifest["monitor"], SYM.load_json(manifest["symbol_json"]), params, batches


# Nobody asked for the gradient of the data when the fixture was made: MXNet then reports a buffer that it never wrote.  These
# are its numbers from the same run with inputs_need_grad=True.
DATA_GRADIENT = {(1, "fc1_backward_output0"): 0.15200925, (3, "fc1_backward_output0"): 0.14594486}


def expected(want):
    return [DATA_GRADIENT.get((step, name), value) for step, name, value in want]


def numbers_of(got):
    return [float(text) for _, _, text in got]


def test_lines_of_the_log_are_mxnets(caplog):
    caplog.set_level(logging.INFO)
    monitor = Monitor(1)
    monitor.tic()
    monitor.collect({"fc1_output": np.full(4, 2.0, "float32")})
    monitor.toc_print()
    assert [r.getMessage() for r in caplog.records] == [f"Batch: {1:7d} {'fc1_output':30s} 2.0\t"]


def test_a_user_statistic_may_return_several_numbers_or_arrays():
    monitor = Monitor(1, stat_func=lambda x: [x.asnumpy().min(), jnp.max(x.__jax_array__()), np.ones(2)], pattern="a")
    monitor.tic()
    monitor.collect({"a": jnp.array([1.0, 5.0]), "b": jnp.zeros(2)})
    assert monitor.toc() == [(1, "a", "1.0\t5.0\t[1. 1.]\t")]


def test_arrays_on_several_devices_are_measured_together():
    monitor = Monitor(1)
    monitor.tic()
    monitor.collect({"a": jax.device_put(jnp.ones(2), jax.devices()[3]), "b": jnp.ones(2), "c": np.ones(2)})
    assert [v for _, _, v in monitor.toc()] == ["1.0\t"] * 3


def module(symbol, batch, devices=1, monitor=None):
    made = Module(symbol, [k for k in batch if "label" not in k], context=[jfit.cpu(i) for i in range(devices)])
    made.bind([(k, v.shape) for k, v in batch.items() if "label" not in k], [("softmax_label", batch["softmax_label"].shape)])
    if monitor is not None:
        made.install_monitor(monitor)
    return made


def feed(batch):
    return DataBatch([v for k, v in batch.items() if "label" not in k], [batch["softmax_label"]], pad=0)


def monitored(net, params, batch, monitor):
    """A module with these parameters and a monitor."""
    shell = module(net, batch, monitor=monitor)
    shell.set_params(params, {})
    shell.init_optimizer(optimizer_params={"learning_rate": 0.1})
    return shell


def test_every_recorded_statistic_of_mxnet_is_reproduced_including_gradients():
    spec, net, params, batches = recorded()
    monitor = Monitor(spec["interval"], pattern=spec["pattern"], sort=spec["sort"])
    shell = monitored(net, params, batches[0], monitor)
    for batch, want in zip(batches, spec["toc"], strict=True):
        monitor.tic()
        shell.forward_backward(feed(batch))
        shell.update()
        got = monitor.toc()
        assert [[n, k] for n, k, _ in got] == [[n, k] for n, k, _ in want]
        assert numbers_of(got) == pytest.approx(expected(want), rel=5e-5)
        assert all(v.endswith("\t") for _, _, v in got)


def test_unsorted_results_are_in_the_order_of_computation():
    _, net, params, batches = recorded()
    monitor = Monitor(1, pattern=".*(fc2|act|softmax).*")
    shell = monitored(net, params, batches[0], monitor)
    monitor.tic()
    shell.forward_backward(feed(batches[0]))
    shell.update()
    assert [name for _, name, _ in monitor.toc()] == [
        *("activation0_output", "fc2_output", "softmax_output"),
        *("softmax_backward_output0", "fc2_backward_output0", "fc2_backward_output1", "fc2_backward_output2"),
        *("activation0_backward_output", "fc2_weight", "fc2_bias", "softmax_label"),
    ]


def test_a_monitor_does_not_change_results_and_only_a_look_waits():
    _, net, params, batches = recorded()
    found = []
    for monitor in (None, Monitor(2)):
        shell = monitored(net, params, batches[0], monitor)
        for number, batch in enumerate(batches):
            with counters.counted() as seen:
                monitor.tic() if monitor else None
                shell.forward_backward(feed(batch))
                shell.update()
                looked = bool(monitor.toc()) if monitor else False
            if number > 1:  # the first look and the first step without one compile
                assert seen == ({"host_syncs": 1} if looked else {}) and looked == (monitor is not None and number == 2)
        found.append(shell.get_params()[0])
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])


def test_each_device_reports_its_own_slice():
    _, net, params, _ = recorded()
    rng = np.random.default_rng(3)
    batch = {"data": rng.normal(size=(6, 5)).astype("float32"), "softmax_label": rng.integers(0, 3, 6).astype("float32")}
    seen = []
    monitor = Monitor(
        1, stat_func=lambda x: seen.append(x.asnumpy()) or 0.0, pattern="softmax_output|fc1_backward_output0|data"
    )
    shell = module(net, batch, devices=2, monitor=monitor)
    shell.set_params(params, {})
    monitor.tic()
    shell.forward_backward(feed(batch))
    names = [name for _, name, _ in monitor.toc()]
    assert names == ["softmax_output"] * 2 + ["fc1_backward_output0"] * 2 + ["data"]
    assert [x.shape for x in seen] == [(3, 3), (3, 3), (3, 5), (3, 5), (6, 5)]
    np.testing.assert_allclose(np.concatenate(seen[:2]), shell.get_outputs()[0], rtol=1e-6)


def test_head_gradients_of_the_user_are_monitored():
    seen = {}
    monitor = Monitor(1, stat_func=lambda x: x.asnumpy(), pattern="s_backward")
    shell = Module(SYM.square(SYM.Variable("data"), name="s"), label_names=None)
    shell.bind([("data", (2, 1))], inputs_need_grad=True)
    shell.init_params()
    shell.install_monitor(monitor)
    monitor.tic()
    shell.forward(DataBatch([np.array([[1.0], [2.0]], "float32")]))
    shell.backward([np.array([[1.0], [10.0]], "float32")])
    seen = monitor.toc()
    assert [(n, k, v.split()) for n, k, v in seen] == [(1, "s_backward_output", ["[[", "2.]", "[40.]]"])]


def deep():
    """Convolution, batch norm, dropout, a split, an embedding of integers: what makes edges difficult."""
    data = SYM.Variable("data")
    net = SYM.BatchNorm(SYM.Convolution(data, num_filter=4, kernel=(2, 2), name="conv"), name="bn", fix_gamma=False)
    net = SYM.Dropout(SYM.Flatten(SYM.Activation(net, act_type="relu", name="act"), name="flat"), p=0.5, name="drop")
    left, right = SYM.SliceChannel(net, num_outputs=2, name="split")
    ids = SYM.Embedding(SYM.Variable("ids"), input_dim=5, output_dim=3, name="emb")
    net = SYM.FullyConnected(left * right, num_hidden=3, name="fc") + ids
    label = SYM.Reshape(SYM.Variable("softmax_label"), shape=(-1,), name="flat_label")
    return SYM.SoftmaxOutput(net, label, name="softmax")


def deep_inputs():
    rng = np.random.default_rng(0)
    batch = {
        "data": rng.normal(size=(6, 1, 3, 3)).astype("float32"),
        "ids": rng.integers(0, 5, 6).astype("int32"),
        "softmax_label": rng.integers(0, 3, (6, 1)).astype("float32"),
    }
    model = jfit.lower(deep(), inputs=list(batch))
    return model, *model.init(jax.random.key(0), jfit.lowering.model.specs_of(batch), jfit.init.Uniform(0.5)), batch


@pytest.mark.slow
def test_gradients_of_parameters_are_those_of_the_step_with_the_same_random_numbers():
    model, params, aux, batch = deep_inputs()
    outputs, gradients, _ = jax.jit(gradient_step(model, list(params)))(params, aux, batch, KEY, 3, 1)
    flows = capture_gradients(deep(), list(batch))(params, aux, batch, KEY, 3, 1)
    pairs = {"conv_weight": "conv_backward_output1", "conv_bias": "conv_backward_output2", "bn_gamma": "bn_backward_output1"}
    pairs |= {"bn_beta": "bn_backward_output2", "fc_weight": "fc_backward_output1", "emb_weight": "emb_backward_output1"}
    for name, flow in pairs.items():
        np.testing.assert_allclose(flows[flow], gradients[name], rtol=1e-5, atol=1e-6)
    want = np.asarray(outputs[0]) - np.eye(3)[batch["softmax_label"].astype(int).ravel()]
    np.testing.assert_allclose(flows["softmax_backward_output0"], want, atol=1e-6)
    assert not {k for k in flows if "label" in k or k in ("emb_backward_output0", "softmax_backward_output1")}
    assert next(iter(flows)) == "softmax_backward_output0"
    assert list(flows)[-1] == "conv_backward_output2"


def test_recurrent_networks_without_begin_states_can_be_monitored():
    net = SYM.RNN(SYM.Variable("data"), state_size=3, num_layers=1, mode="lstm", name="rnn")
    loss = SYM.MakeLoss(SYM.mean(net, name="m"), name="loss")
    x = np.ones((4, 2, 3), "float32")
    params, aux = {"rnn_parameters": jnp.full(96, 0.1)}, {}
    flows = capture_gradients(loss, jfit.lower(loss).inputs)(params, aux, {"data": x}, KEY, 0, 0)
    assert {"rnn_backward_output0", "rnn_backward_output1", "m_backward_output"} <= set(flows)
    assert flows["rnn_backward_output0"].shape == x.shape
