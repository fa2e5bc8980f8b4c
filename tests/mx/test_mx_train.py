"""`mx.mod.Module` reproduces MXNet's recorded trainings: outputs, parameters, learning rates, multipliers, optimizer states."""

from itertools import pairwise

import numpy as np
import pytest
from golden_mx import CASES, Trajectory, flat, same

import jfit.mx as mx
from jfit.formats.mxnet_states import load_states

MXNETS = {
    "adadelta", "adagrad", "adam", "adamax", "ccsgd", "dcasgd", "ftml", "ftrl", "groupadagrad", "lamb", "lars", "lbsgd",
    "nadam", "nag", "rmsprop", "sgd", "sgld", "signum", "test",
}  # fmt: skip


def saved_states(module, folder):
    """What `save_optimizer_states` writes: {index: [arrays]}."""
    module.save_optimizer_states(str(folder / "x.states"))
    return {str(index): flat(state) for index, state in load_states(str(folder / "x.states")).states.items()}


def clear_gradients(module):
    for per_device in module._exec_group.grad_arrays:
        for gradient in per_device:
            if gradient is not None:
                gradient[:] = 0


@pytest.mark.repetitions(3)
@pytest.mark.filterwarnings("ignore:Optimizer created manually outside Module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_recorded_training_is_reproduced(case, tmp_path, monkeypatch):
    run = Trajectory(mx, case)
    run.environment(monkeypatch)
    run.init_optimizer()
    module, rates = run.module, []
    for t in range(case["n_steps"]):
        module.forward(run.batch(t), is_train=True)
        run.check_outputs(t)
        module.backward()
        module.update()
        rates.append(module._optimizer.learning_rate)
        run.check_params(t)
        if case["zero_grad_every"] and (t + 1) % case["zero_grad_every"] == 0:
            clear_gradients(module)
    assert same(rates, case["learning_rate_after_step"], 1e-6)
    run.check_states(saved_states(module, tmp_path))


@pytest.mark.filterwarnings("ignore:Optimizer created manually outside Module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_store_scale_names_multipliers_and_slices_are_those_of_mxnet(case, monkeypatch):
    run = Trajectory(mx, case)
    run.environment(monkeypatch)
    run.init_optimizer()
    module, optimizer = run.module, run.module._optimizer
    assert (module._kvstore is None, module._update_on_kvstore) == (case["kvstore_is_none"], case["update_on_kvstore"])
    assert optimizer.rescale_grad == pytest.approx(case["rescale_grad"])
    assert {str(index): name for index, name in optimizer.idx2name.items()} == case["optimizer_idx2name"]
    assert optimizer.lr_mult == case["optimizer_lr_mult"] and optimizer.wd_mult == case["optimizer_wd_mult"]
    edges = np.cumsum([0, *module.binding.slices(case["batch_size"])]).tolist()
    assert [list(pair) for pair in pairwise(edges)] == case["slices"]


def test_every_mxnet_optimizer_exists_by_name_and_by_class():
    assert set(mx.optimizer.opt_registry) >= MXNETS
    for name in MXNETS:
        made = mx.optimizer.create(name.upper())
        assert type(made).__name__.lower() == name and made.is_pure
        assert getattr(mx.optimizer, type(made).__name__) is type(made)
    assert mx.optimizer.contrib.GroupAdaGrad is mx.optimizer.opt_registry["groupadagrad"]


def test_gamma_with_fix_gamma_is_always_one():
    net = mx.sym.BatchNorm(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc"), name="bn")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))
    module.bind([("data", (4, 2))], [("softmax_label", (4,))])
    module.init_params(arg_params={"bn_gamma": mx.nd.full((3,), 7.0)}, allow_missing=True)
    assert module.get_params()[0]["bn_gamma"].asnumpy().tolist() == [1, 1, 1]
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "wd": 0.5, "momentum": 0.9})
    for _ in range(3):
        module.forward_backward(mx.io.DataBatch([mx.nd.ones((4, 2))], [mx.nd.zeros((4,))]))
        module.update()
    assert module.get_params()[0]["bn_gamma"].asnumpy().tolist() == [1, 1, 1]
