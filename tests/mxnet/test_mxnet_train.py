"""Training with Module step by step: recorded trainings on one and several devices, and resuming them."""

import numpy as np
import pytest
from golden_mx import CASES, PLAIN_MXNET, Trajectory, flat

import jfit
from jfit.mxnet.module.module import Module
from jfit.mxnet.module.states import export_states
from jfit.mxnet.optimizer.lr_scheduler import FactorScheduler

ONE = ("sgd_1", "nag_0", "adam_1", "rmsprop_1", "grad_add", "mult_attr", "fixed_params")
SHORT = [c for c in CASES if c["n_ctx"] > 1 or c["name"] in ONE]
ids = {"ids": lambda c: c["name"]}


def trained(case, monkeypatch, read=()):
    """The trajectory after all steps, each compared with MXNet's."""
    run = Trajectory(PLAIN_MXNET, case)
    run.environment(monkeypatch)
    run.init_optimizer()
    for t in range(case["n_steps"]):
        run.step(t, read)
        run.check_outputs(t)
        run.check_params(t)
        if case["zero_grad_every"] and (t + 1) % case["zero_grad_every"] == 0:
            run.module.passes.gradients.clear()
    return run


@pytest.mark.repetitions(1, slow=8)
@pytest.mark.parametrize("case", SHORT, **ids)
def test_one_program_per_step_reproduces_mxnets_training(case, monkeypatch):
    run = trained(case, monkeypatch)
    states, _ = export_states(run.module.parameters)
    run.check_states({str(index): flat(state) for index, state in states.items()})


@pytest.mark.repetitions(1, slow=4)
@pytest.mark.parametrize("read", [("gradients",), ("outputs", "gradients")], ids="+".join)
@pytest.mark.parametrize("name", ["sgd_1", "grad_add", "md2_kvnone", "md2_2bit_device", "md3_uneven_local"])
def test_reading_outputs_in_between_gives_the_same_training(name, read, monkeypatch):
    """Outputs alone are read by test_mx_train, in every case."""
    trained(next(c for c in CASES if c["name"] == name), monkeypatch, read)


# ------------------------------------------------------------------------------------------------ resuming
OPTIMIZERS = {
    "sgd": ("sgd", {"learning_rate": 0.2}),
    "sgd_momentum": ("sgd", {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01}),
    "ccsgd": ("ccsgd", {"learning_rate": 0.2, "momentum": 0.5}),
    "nag": ("nag", {"learning_rate": 0.2, "momentum": 0.9}),
    "adam": ("adam", {"learning_rate": 0.05}),
    "adamw": ("adamw", {"learning_rate": 0.05, "wd": 0.1}),
    "rmsprop": ("rmsprop", {"learning_rate": 0.05}),
    "rmsprop_centered": ("rmsprop", {"learning_rate": 0.05, "centered": True, "gamma2": 0.8}),
}


def net():
    hidden = jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=6, name="fc1")
    hidden = jfit.sym.Activation(jfit.sym.BatchNorm(hidden, name="bn", fix_gamma=False), act_type="tanh")
    return jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="softmax")


def batches(count, seed=0, rows=6):
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(count, rows, 4)), draw.integers(0, 3, (count, rows))
    return [jfit.data.DataBatch([a], [b]) for a, b in zip(x.astype("float32"), y.astype("float32"), strict=True)]


def ready(module, store, optimizer, params):
    module.bind([("data", (6, 4))], [("softmax_label", (6,))])
    if not module.params_initialized:
        draw = np.random.default_rng(1)
        specs = module.binding.specs
        args = {k: draw.normal(size=s.shape).astype("float32") for k, s in specs.items() if k in module._param_names}
        module.init_params(arg_params=args, aux_params={"bn_moving_mean": np.zeros(6), "bn_moving_var": np.ones(6)})
    schedule = FactorScheduler(step=3, factor=0.5, base_lr=params["learning_rate"])
    module.init_optimizer(store, optimizer, {**params, "lr_scheduler": schedule})
    return module


def resumed_and_continued(tmp_path, devices, store, optimizer, params):
    """Parameters and optimizer states of a module that stopped in the middle and one that did not."""
    context = [jfit.cpu(i) for i in range(devices)]
    module = ready(Module(net(), context=context), store, optimizer, params)
    for batch in batches(5):
        module.forward_backward(batch)
        module.update()
    module.save_checkpoint(str(tmp_path / "half"), 1, save_optimizer_states=True)
    module.set_params(*module.get_params())  # what fit does at the end of an epoch: all devices get the mean
    again = ready(Module.load(str(tmp_path / "half"), 1, True, context=context), store, optimizer, params)
    for each in (module, again):
        for batch in batches(4, seed=2):
            each.forward_backward(batch)
            each.update()
    return [(*each.get_params(), export_states(each.parameters)) for each in (again, module)]


def assert_same_bits(found):
    (args, aux, (states, counts)), (args2, aux2, (states2, counts2)) = found
    assert counts == counts2 and set(counts.values()) == {9} and set(states) == set(states2)
    for one, two in ((args, args2), (aux, aux2)):
        assert all(np.array_equal(one[k], two[k]) for k in one) and set(one) == set(two)
    for index in states:
        assert all(np.array_equal(a, b) for a, b in zip(flat(states[index]), flat(states2[index]), strict=True))


@pytest.mark.repetitions(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_resumed_training_equals_the_uninterrupted_one_bit_for_bit(name, tmp_path):
    assert_same_bits(resumed_and_continued(tmp_path, 1, "local", *OPTIMIZERS[name]))


@pytest.mark.repetitions(1)
@pytest.mark.parametrize("store", ["local", "device", None, "not on the store"])
def test_a_training_on_two_devices_resumes_with_and_without_updates_in_the_store(store, tmp_path, monkeypatch):
    if store == "not on the store":
        monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
        store = "device"
    assert_same_bits(resumed_and_continued(tmp_path, 2, store, *OPTIMIZERS["adam"]))


def test_states_of_another_network_raise(tmp_path):
    module = ready(Module(net()), None, *OPTIMIZERS["adam"])
    module.save_optimizer_states(str(tmp_path / "a.states"))
    small = jfit.sym.SoftmaxOutput(jfit.sym.FullyConnected(jfit.sym.Variable("data"), num_hidden=3, name="fc"), name="softmax")
    other = Module(small)
    other.bind([("data", (6, 4))], [("softmax_label", (6,))])
    other.init_params()
    other.init_optimizer(optimizer="adam")
    with pytest.raises(ValueError, match="load the states of the same network"):
        other.load_optimizer_states(str(tmp_path / "a.states"))


def test_steps_after_the_first_compile_nothing_even_if_the_learning_rate_changes():
    module = ready(Module(net(), context=[jfit.cpu(0), jfit.cpu(1)]), "device", *OPTIMIZERS["sgd_momentum"])
    steps = batches(8)
    for batch in steps[:2]:
        module.forward_backward(batch)
        module.update()
    with jfit.counters.counted() as seen:
        for batch in steps[2:]:
            module.forward_backward(batch)
            module.update()
    assert module._optimizer.learning_rate < 0.2
    assert seen["traces"] == 0 and seen["compiles"] == 0 and seen["host_syncs"] == 0
