"""SequentialModule: a network in two parts trains as the whole network; connections, names, labels, devices."""

import jax
import numpy as np
import pytest
from refusals import refused

import jfit
from jfit.data import DataBatch
from jfit.data.ndarray_iter import DataDesc
from jfit.mxnet import metric as metrics
from jfit.mxnet.module.bucketing import BucketingModule
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.python import PythonLossModule
from jfit.mxnet.module.sequential import SequentialModule
from jfit.mxnet.monitor.monitor import Monitor

sym = jfit.sym
SHAPES = [("data", (8, 6))], [("softmax_label", (8,))]


def features(data):
    net = sym.FullyConnected(data, num_hidden=7, no_bias=True, name="fc1")  # a bias before BatchNorm has no gradient but noise
    net = sym.BatchNorm(net, fix_gamma=False, name="norm")
    return sym.Activation(net, act_type="tanh", name="act")


def head(data):
    return sym.SoftmaxOutput(sym.FullyConnected(data, num_hidden=3, name="fc2"), name="softmax")


def whole(context=None):
    return Module(head(features(sym.Variable("data"))), context=context)


def chained(context=None, wired=True):
    """The same network, cut between its layers."""
    first = Module(features(sym.Variable("data")), label_names=None, context=context)
    name = "data" if wired else "act_output"
    second = Module(head(sym.Variable(name)), [name], context=context)
    chain = SequentialModule()
    return chain.add(first, auto_wiring=wired).add(second, take_labels=True, auto_wiring=wired)


def bound(chain, **kwargs):
    chain.bind(*SHAPES, **kwargs)
    chain.init_params(jfit.init.Xavier())
    return chain


def rows(count=32):
    rng = np.random.default_rng(3)
    return rng.normal(size=(count, 6)).astype("float32"), rng.integers(0, 3, count).astype("float32")


def batch_of(count=8):
    x, y = rows(count)
    return DataBatch([x], [y])


def same_params(a, b, tolerance=1e-6):
    for found, want in zip(a.get_params(), b.get_params(), strict=True):
        assert sorted(found) == sorted(want)
        for name in want:
            np.testing.assert_allclose(
                np.asarray(found[name]), np.asarray(want[name]), rtol=tolerance, atol=tolerance, err_msg=name
            )


OPTIMIZERS = [("sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01}), ("adam", {"learning_rate": 0.05})]


def start():
    """Values for all parameters."""
    module = whole()
    module.bind(*SHAPES)
    module.init_params(jfit.init.Xavier())
    return module.get_params()


# ------------------------------------------------------------------------------------------------ the same numbers
@pytest.mark.slow
@pytest.mark.repetitions(1)
@pytest.mark.parametrize(("optimizer", "params"), OPTIMIZERS)
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_two_parts_train_as_the_whole_network(optimizer, params, devices):
    context, (arg, aux), found = [jfit.cpu(i) for i in range(devices)], start(), []
    one, chain = whole(context), chained(context)
    for module in (one, chain):
        data = jfit.NDArrayIter(*rows(28), batch_size=8)  # the last batch wraps around; 8 rows on 3 devices are 3, 3, 2
        module.fit(data, num_epoch=3, arg_params=arg, aux_params=aux, optimizer=optimizer, optimizer_params=params)
        found.append([value for _, value in module.score(data, ["acc", "ce"])])
    same_params(chain, one, 1e-6 if devices == 1 else 1e-5)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_predictions_and_gradients_are_those_of_the_whole_network():
    one, chain, (arg, aux) = whole(), chained(wired=False), start()
    for module in (one, chain):
        module.bind(*SHAPES, inputs_need_grad=True)
        module.init_params(None, arg, aux)
        module.forward_backward(batch_of())
    for a, b in ((one.get_outputs(), chain.get_outputs()), (one.get_input_grads(), chain.get_input_grads())):
        np.testing.assert_allclose(np.asarray(a[0]), np.asarray(b[0]), rtol=1e-5, atol=1e-7)
    data = jfit.NDArrayIter(rows(20)[0], batch_size=8)
    np.testing.assert_allclose(np.asarray(one.predict(data)), np.asarray(chain.predict(data)), rtol=1e-5)


@pytest.mark.slow
def test_stages_may_be_on_different_devices():
    one, (arg, aux) = whole(), start()
    chain = SequentialModule()
    chain.add(Module(features(sym.Variable("data")), label_names=None, context=jfit.cpu(1)))
    chain.add(Module(head(sym.Variable("data")), context=[jfit.cpu(2), jfit.cpu(3)]), take_labels=True, auto_wiring=True)
    for module in (one, chain):
        module.bind(*SHAPES)
        module.init_params(None, arg, aux)
        module.init_optimizer()
        module.forward_backward(batch_of())
        module.update()
    same_params(chain, one, 1e-5)


def test_data_between_stages_stays_on_devices():
    chain = bound(chained())
    chain.init_optimizer()
    metric, batch = metrics.create("acc"), batch_of()

    def step():
        chain.forward_backward(batch)
        chain.update()
        chain.update_metric(metric, batch.label)

    step()
    with jfit.counters.counted() as seen:
        for _ in range(3):
            step()
    assert not seen["host_syncs"] and not seen["compiles"] and not seen["traces"], dict(seen)
    assert isinstance(chain._modules[1].passes._pass.batch.inputs["data"], jax.Array)


def test_other_batch_sizes_are_accepted_by_the_chain():
    chain = bound(chained(wired=False))
    for count in (8, 5, 11):
        chain.forward(batch_of(count), is_train=False)
        assert chain.get_outputs()[0].shape == (count, 3)


# ------------------------------------------------------------------------------------------------ building
def test_names_and_shapes_are_those_of_the_first_and_last_module():
    chain = SequentialModule()
    assert chain.data_names == [] and chain.output_names == []
    chain = bound(chained())
    assert chain.data_names == ["data"] and chain.output_names == ["softmax_output"]
    assert chain.output_shapes == [("softmax_output", (8, 3))]
    assert chain.data_shapes[0].shape == (8, 6) and chain.label_shapes == SHAPES[1]


def test_adding_a_module_undoes_binding():
    chain = bound(chained())
    chain.init_optimizer()
    chain.add(PythonLossModule())
    assert not (chain.binded or chain.params_initialized or chain.optimizer_initialized)


def test_only_later_layers_give_gradients_of_their_data_unless_asked():
    assert [m.inputs_need_grad for m in bound(chained())._modules] == [False, True]
    assert [m.inputs_need_grad for m in bound(chained(), inputs_need_grad=True)._modules] == [True, True]
    chain = chained()
    chain.bind(*SHAPES, for_training=False)
    assert [m.inputs_need_grad for m in chain._modules] == [False, False]


def test_without_a_module_that_takes_labels_there_are_no_labels():
    chain = SequentialModule().add(Module(features(sym.Variable("data")), label_names=None))
    bound(chain)
    assert chain.label_shapes is None
    metric = metrics.create("acc")
    chain.forward(batch_of(), is_train=False)
    chain.update_metric(metric, batch_of().label)
    assert np.isnan(metric.get()[1])


def test_metrics_are_updated_by_every_module_that_takes_labels():
    chain = chained().add(PythonLossModule(grad_func=lambda s, y: s), take_labels=True, auto_wiring=True)
    bound(chain)
    metric = metrics.create("acc")
    chain.forward(batch_of())
    chain.update_metric(metric, batch_of().label)
    assert metric.num_inst == 16


def test_an_unknown_keyword_raises_with_its_name():
    with pytest.raises(AssertionError, match=r'Unknown meta "take_label", a typo\?'):
        SequentialModule().add(whole(), take_label=True)


def test_a_duplicate_parameter_name_in_two_layers_raises():
    chain = SequentialModule()
    chain.add(Module(sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="fc"), label_names=None))
    chain.add(Module(sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="fc"), label_names=None), auto_wiring=True)
    chain.bind(*SHAPES)
    with pytest.raises(AssertionError, match='Duplicated parameter names: name "fc_weight" in layer 1'):
        chain.init_params()


test_invalid_use_raises = refused(
    (lambda: SequentialModule().bind(*SHAPES), AssertionError, "empty SequentialModule"),
    (lambda: chained().bind(*SHAPES, shared_module=whole()), AssertionError, "Shared module is not supported"),
    (lambda: chained().init_params(), AssertionError, "call bind before"),
    (lambda: bound(chained()).set_params({}, {}), RuntimeError, "is not presented"),
)


def test_names_that_no_module_has_are_ignored():
    """As in MXNet, also with allow_missing=True."""
    module = bound(chained())
    before = module.get_params()[0]
    module.set_params({"fc9_weight": np.zeros(1)}, {"mean": np.zeros(1)}, allow_missing=True)
    assert all(np.array_equal(before[name], value) for name, value in module.get_params()[0].items())


def test_a_wrong_number_of_arrays_between_layers_raises():
    chain = SequentialModule().add(Module(sym.Group([features(sym.Variable("data"))] * 2), label_names=None))
    chain.add(Module(head(sym.Variable("data"))), take_labels=True, auto_wiring=True)
    with pytest.raises(AssertionError, match=r"layer 1 takes 1 data arrays .* previous one has 2"):
        chain.bind(*SHAPES)


# ------------------------------------------------------------------------------------------------ parameters, files
def test_parameters_are_set_in_every_layer_and_saved_in_one_file(tmp_path):
    chain, other = bound(chained()), bound(chained())
    chain.save_params(str(tmp_path / "chain.params"))
    other.load_params(str(tmp_path / "chain.params"))
    same_params(other, chain, 0)
    before, _ = chain.get_params()
    chain.set_params({"fc2_bias": np.ones(3, "float32")}, {}, allow_missing=True)
    after, _ = chain.get_params()
    changed = {n for n in after if not np.array_equal(np.asarray(before[n]), np.asarray(after[n]))}
    assert changed == {"fc2_bias"}


def test_a_monitor_covers_every_layer():
    chain = bound(chained())
    chain.init_optimizer()
    monitor = Monitor(1, pattern="act_output|softmax_output")
    chain.install_monitor(monitor)
    monitor.tic()
    chain.forward_backward(batch_of())
    chain.update()
    assert [name for _, name, _ in monitor.toc()] == ["act_output", "softmax_output"]


# ------------------------------------------------------------------------------------------------ chains of other modules
def test_bucketing_modules_can_be_chained():
    def steps(key):
        net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, flatten=False, name="fc")
        return net, ("data",), ()

    def loss(key):
        net = sym.FullyConnected(sym.mean(sym.Variable("data"), axis=1), num_hidden=3, name="out")
        return sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)

    chain = SequentialModule().add(BucketingModule(steps, 5))
    chain.add(BucketingModule(loss, 5), take_labels=True, auto_wiring=True)
    chain.bind([DataDesc("data", (8, 5, 2))], SHAPES[1])
    chain.init_params(jfit.init.Xavier())
    chain.init_optimizer()
    for length in (5, 3, 5):
        x = np.random.default_rng(length).normal(size=(8, length, 2)).astype("float32")
        batch = DataBatch([x], [rows(8)[1]], 0, None, length, [("data", x.shape)], SHAPES[1])
        chain.forward_backward(batch)
        chain.update()
        assert chain.get_outputs()[0].shape == (8, 3)
    assert [sorted(m._buckets) for m in chain._modules] == [[3, 5], [3, 5]]
